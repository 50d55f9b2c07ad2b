"""Calibration: repairs a bias, stays sane on few runs, and widens where nothing was measured."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from cost_models import (
    Calibration,
    Cluster,
    Layout,
    Layouts,
    ModelShape,
    Observation,
    Precision,
    Recompute,
    Workload,
    estimate,
)


def seen(layout: Layout, ratio: float, memory_ratio: float | None = None) -> Observation:
    return Observation(
        layout=layout,
        predicted_step_time_s=2.0,
        measured_step_time_s=2.0 * ratio,
        predicted_memory_bytes=300.0,
        measured_memory_bytes=None if memory_ratio is None else 100.0 + 200.0 * memory_ratio,
        framework_base_bytes=100.0,
    )


LAYOUTS = [Layout(dp=4), Layout(dp=2, tp=2), Layout(dp=2, pp=2), Layout(dp=4, zero=2), Layout(pp=4, micro_batch=4)]


def test_cold_factors_are_one_with_wide_intervals() -> None:
    factor, low, high = Calibration.cold().step_time_factor(Layout())
    assert factor == 1
    assert 1.3 < high < 1.5
    assert low == pytest.approx(1 / high)
    factor, low, high = Calibration.cold().memory_factor(Layout())
    assert factor == 1
    assert 1.08 < high < 1.15


def test_no_runs_leave_the_prior() -> None:
    assert Calibration.fit([]).to_dict() == Calibration.cold().to_dict()


def test_a_common_bias_is_learnt_and_the_interval_shrinks() -> None:
    fitted = Calibration.fit([seen(layout, 1.8, 1.1) for layout in LAYOUTS])
    for layout in LAYOUTS:
        factor, low, high = fitted.step_time_factor(layout)
        assert factor == pytest.approx(1.8, rel=0.05)
        assert high / low < 1.3
        assert fitted.memory_factor(layout)[0] == pytest.approx(1.1, rel=0.03)
    unseen = fitted.step_time_factor(Layout(recompute=Recompute.FULL, tp=8, micro_batch=64))
    assert unseen[2] / unseen[1] > 1.3


def test_tensor_parallel_is_told_from_the_rest() -> None:
    fitted = Calibration.fit([seen(x, 3.0 if x.tp > 1 else 1.0) for x in LAYOUTS])
    assert fitted.step_time_factor(Layout(tp=2, dp=2))[0] > 2.5
    assert fitted.step_time_factor(Layout(dp=4))[0] == pytest.approx(1.0, rel=0.1)


def test_one_wild_run_is_held_back_elsewhere() -> None:
    fitted = Calibration.fit([seen(Layout(dp=2, tp=2, micro_batch=4), 10.0)])
    assert fitted.step_time_factor(Layout(pp=4))[0] < 10 / 1.5


def test_columns_equal_their_rows() -> None:
    fitted = Calibration.fit([seen(layout, 1.3) for layout in LAYOUTS])
    columns = np.array(fitted.step_time_factor(Layouts.of(LAYOUTS)))
    for i, layout in enumerate(LAYOUTS):
        assert columns[:, i].tolist() == pytest.approx(fitted.step_time_factor(layout), rel=1e-12)


def test_json_both_ways() -> None:
    fitted = Calibration.fit([seen(layout, 1.3, 0.9) for layout in LAYOUTS])
    again = Calibration.from_dict(json.loads(json.dumps(fitted.to_dict())))
    assert again.step_time_factor(LAYOUTS[1]) == fitted.step_time_factor(LAYOUTS[1])
    with pytest.raises(ValueError, match="calibrate again"):
        Calibration.from_dict({**fitted.to_dict(), "features": ["bias"]})


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_measurements_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="positive, finite step time"):
        Calibration.fit([seen(Layout(), bad)])


def test_estimate_uses_it(small: ModelShape, four_processes: Cluster) -> None:
    cluster = replace(four_processes, framework_base_bytes=1e8)
    run = Workload(sequence_length=256, batch_sequences=32, precision=Precision.FP32)
    cold = estimate(small, cluster, run, Layout(dp=4))
    fitted = Calibration.fit([seen(layout, 1.5, 1.2) for layout in LAYOUTS])
    warm = estimate(small, cluster, run, Layout(dp=4), calibration=fitted)
    factor = fitted.step_time_factor(Layout(dp=4))[0]
    assert warm.step_time_s == pytest.approx(cold.step_time_s * factor)
    assert warm.time.compute == pytest.approx(cold.time.compute * factor)
    assert warm.memory.framework_base == cold.memory.framework_base == 1e8
    growth = fitted.memory_factor(Layout(dp=4))[0]
    assert warm.memory_bytes - 1e8 == pytest.approx((cold.memory_bytes - 1e8) * growth)
    assert warm.step_time_high_s / warm.step_time_low_s < cold.step_time_high_s / cold.step_time_low_s
