from __future__ import annotations

import math

import pytest

from tuner import format as words


@pytest.mark.parametrize(
    "value_s, text",
    [
        (0.0842, "84.2 ms"),
        (5.84, "5.84 s"),
        (59.97, "1 min"),
        (260, "4 min 20 s"),
        (3599.9, "1 h"),
        (17460, "4 h 51 min"),
        (266400, "3 d 2 h"),
        (0, "0 s"),
        (2.5e-5, "25.0 µs"),
        (-5, "-5.00 s"),
        (None, "–"),
        (math.inf, "–"),
        (math.nan, "–"),
    ],
)
def test_duration(value_s: float | None, text: str) -> None:
    assert words.duration(value_s) == text


@pytest.mark.parametrize(
    "function, value, text",
    [
        (words.count, 8_030_000_000, "8.03B"),
        (words.count, 180_400, "180k"),
        (words.count, 999_900, "1.00M"),
        (words.size, 65.3 * 2**30, "65.3 GiB"),
        (words.size, 420.3 * 2**20, "420 MiB"),
        (words.size, 1, "1 B"),
        (words.tokens, 524288, "512Ki"),
        (words.tokens, 1536, "1,536"),
        (words.learning_rate, 2e-3, "2e-3"),
        (words.learning_rate, 1.25e-4, "1.25e-4"),
        (words.learning_rate, 0.5, "0.5"),
        (words.learning_rate, 1e-10, "1e-10"),
        (words.signed_percent, -0.041, "-4 %"),
        (words.percent, None, "–"),
        (words.number, 3.14159, "3.14"),
        (words.number, 0.0, "0"),
        (words.times, 1.62, "1.62 x"),
    ],
)
def test_one_form_for_each_quantity(function: object, value: object, text: str) -> None:
    assert callable(function)
    assert function(value) == text


def test_intervals() -> None:
    assert words.duration_interval((1.0, 2.0)) == "1.00 s to 2.00 s"
    assert words.duration_interval((1.0, None)) == "–"
    assert words.half_width_ratio(4.0, (3.0, 5.0)) == 0.25
    assert words.half_width_ratio(4.0, None) is None
