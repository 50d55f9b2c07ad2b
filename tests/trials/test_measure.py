"""Medians and intervals of step times."""

from __future__ import annotations

import pytest

from cost_models.layout import Layout
from tests.trials.conftest import spec_of
from tuner.adapters.protocol import RankReport
from tuner.trials.measure import measurement, median_interval_s, num_warmup_steps


def test_one_hiccup_moves_neither_the_median_nor_its_interval() -> None:
    calm = [0.10, 0.11, 0.10, 0.09, 0.10, 0.11, 0.10, 0.09]
    median, low, high = median_interval_s([*calm, 5.0])
    assert median == pytest.approx(0.10)
    assert high < 0.12
    assert low > 0.08


def test_the_interval_narrows_with_more_steps() -> None:
    few = median_interval_s([0.10, 0.12] * 4)
    many = median_interval_s([0.10, 0.12] * 40)
    assert many[2] - many[1] < few[2] - few[1]


@pytest.mark.parametrize("steps, dropped", [(1, 0), (3, 1), (9, 3), (100, 3)])
def test_warm_up_is_dropped_but_never_everything(steps: int, dropped: int) -> None:
    assert num_warmup_steps(steps) == dropped


def test_a_step_is_as_slow_as_its_slowest_rank() -> None:
    reports = [
        RankReport(rank=0, phase="done", step_times_s=(9.0, 9.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)),
        RankReport(rank=1, phase="done", step_times_s=(9.0, 9.0, 9.0, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2)),
    ]
    measured = measurement(spec_of(Layout(dp=2)), reports, started_unix_s=0.0)
    assert measured is not None
    assert measured.step_time_s == pytest.approx(0.2)
    assert measured.tokens_per_s == pytest.approx(512 / 0.2)
    assert measured.memory_bytes is None


def test_no_step_is_no_measurement() -> None:
    assert measurement(spec_of(Layout()), [RankReport(rank=0, phase="init")], 0.0) is None
