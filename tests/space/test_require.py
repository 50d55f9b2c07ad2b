"""Conditions over layouts: what they mean, and what is let through."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cost_models.cluster import Cluster
from cost_models.layout import Layout, Layouts, Recompute
from tuner.space.require import RequireError, condition

LAYOUTS = Layouts.of(
    [
        Layout(dp=4),
        Layout(tp=4, zero=1),
        Layout(pp=2, dp=2, zero=3),
        Layout(tp=2, dp=2, micro_batch=4, recompute=Recompute.FULL),
    ]
)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("tp <= 2", [1, 0, 1, 1]),
        ("zero == 1 or pp == 1", [1, 1, 0, 1]),
        ("not (tp > 1 and micro_batch > 1)", [1, 1, 1, 0]),
        ("1 < tp <= devices_per_node", [0, 1, 0, 1]),
        ("tp in [1, 4]", [1, 1, 1, 0]),
        ("tp not in [1, 4]", [0, 0, 0, 1]),
        ("recompute != full", [1, 1, 1, 0]),
        ("recompute == 'full'", [0, 0, 0, 1]),
        ("tp * pp * cp * dp == num_devices", [1, 1, 1, 1]),
        ("dp % 2 == 0 and nodes == 1", [1, 0, 1, 1]),
        ("micro_batch // 2 - 1 >= -1", [1, 1, 1, 1]),
        ("True", [1, 1, 1, 1]),
    ],
)
def test_conditions_hold_column_wise(text: str, expected: list[int], machine: Callable[[int], Cluster]) -> None:
    assert np.array_equal(condition(text).holds(LAYOUTS, machine(4)), np.array(expected, dtype=bool))


@pytest.mark.parametrize(
    "text, said",
    [
        ("tpp <= 8", 'did you mean "tp"'),
        ("tp = 8", "write == to compare"),
        ("tp", "is a number"),
        ("tp and pp", "is a number"),
        ("tp <= (pp == 1)", "join conditions"),
        ("__import__('os').system('x')", "not allowed"),
        ("tp.real == 1", "not allowed"),
        ("tp ** 9 ** 9 == 1", "not allowed"),
        ("[x for x in (1,)] == 1", "not allowed"),
        ("tp % 0 == 1", "division by 0"),
        ("tp in pp", "is not a list"),
        ("tp is 1", "not a comparison"),
        ("99999999999999999999 > tp", "not allowed"),
        ("", "is not a condition"),
        ("(" * 200, "is not a condition"),
        ("tp <= 1 or " * 40 + "tp == 1", "split it"),
        ("recompute == 'some'", "not allowed"),
    ],
)
def test_what_is_refused_says_why(text: str, said: str) -> None:
    with pytest.raises(RequireError) as caught:
        condition(text)
    assert said in str(caught.value)
