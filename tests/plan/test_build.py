"""The plan as a whole: order, prices, and what is said when nothing is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cost_models.calibrate import Calibration, Observation
from cost_models.estimate import estimate
from cost_models.layout import Layout
from tuner.plan.build import NothingFeasible, build_plan
from tuner.plan.prune import prune
from tuner.plan.workload import workload_of
from tuner.space.load import load_space
from tuner.space.search_space import SearchSpace

Space = Callable[..., SearchSpace]
EXAMPLE = Path(__file__).parents[2] / "search_spaces" / "llama3-8b-16xh100.yaml"


def test_the_example_plans_well_under_a_second() -> None:
    started = time.perf_counter()
    plan = build_plan(load_space(EXAMPLE))
    assert time.perf_counter() - started < 2.0  # about 0.03 s on an idle core
    funnel = plan.funnel
    assert funnel.enumerated == 4 * 3 * 3 * 3 * 2
    assert (funnel.feasible, funnel.shortlisted) == (len(plan.feasible), len(plan.shortlist)) == (funnel.feasible, 24)
    assert funnel.invalid + funnel.does_not_fit == len(plan.rejected)
    assert min(funnel.invalid, funnel.does_not_fit) > 0
    assert plan.assumptions


def test_fastest_first_at_each_layouts_own_best_batch(space: Space) -> None:
    plan = build_plan(
        space("{tp: [1, 2, 4], pp: [1, 2], zero: [0, 2, 3], micro_batch: [1, 2, 4]}", batches=(16, 32, 64))
    )
    rates = [p.tokens_per_s(p.best_batch, 1024) for p in plan.feasible]
    assert rates == sorted(rates, reverse=True)
    for planned in plan.feasible:
        assert max(planned.predictions, key=lambda b: planned.tokens_per_s(b, 1024)) == planned.best_batch
    assert {p.layout for p in plan.shortlist} <= {p.layout for p in plan.feasible}


def test_the_step_time_objective_ranks_by_step_time(space: Space) -> None:
    plan = build_plan(space("{tp: [1, 2], micro_batch: [1, 4]}", batches=(8, 64), objective="{minimize: step_time}"))
    steps = [min(q.step_time_s for q in p.predictions.values()) for p in plan.feasible]
    assert steps == sorted(steps)


def test_predictions_are_the_cost_models_own(space: Space) -> None:
    made = space("{tp: [1, 2], pp: [1, 2], micro_batch: [1, 2]}", batches=(32, 64))
    planned = build_plan(made).feasible[-1]
    for batch, predicted in planned.predictions.items():
        alone = estimate(made.model, made.cluster, workload_of(made, batch), planned.layout)
        assert predicted.step_time_s == pytest.approx(alone.step_time_s)
        assert predicted.memory_bytes == pytest.approx(alone.memory_bytes)
        assert predicted.step_time_interval_s == pytest.approx((alone.step_time_low_s, alone.step_time_high_s))
    best = planned.predictions[planned.best_batch]
    assert sum(planned.time_parts_s.values()) == pytest.approx(best.step_time_s)
    assert sum(planned.memory_parts_bytes.values()) == pytest.approx(best.memory_bytes)
    assert planned.limited_by == max(planned.time_parts_s, key=planned.time_parts_s.__getitem__)


def test_a_calibration_moves_the_prices(space: Space) -> None:
    made = space("{micro_batch: [1, 2]}")
    runs = [
        Observation(
            layout=Layout(dp=8, micro_batch=m),
            predicted_step_time_s=1.0,
            measured_step_time_s=1.3,
            predicted_memory_bytes=1e9,
            measured_memory_bytes=None,
            framework_base_bytes=0.0,
        )
        for m in (1, 2)
    ]
    cold, warm = build_plan(made), build_plan(made, calibration=Calibration.fit(runs))
    ratio = warm.feasible[0].predictions[64].step_time_s / cold.feasible[0].predictions[64].step_time_s
    assert 1.15 < ratio < 1.35


def nothing(made: SearchSpace) -> NothingFeasible:
    with pytest.raises(NothingFeasible) as caught:
        build_plan(made)
    error = caught.value
    assert error.funnel.feasible == 0
    assert error.rule in str(error)
    if error.change is not None:
        assert build_plan(error.change.space).funnel.feasible > 0
    return error


def test_too_little_memory_names_the_smallest_limit(space: Space) -> None:
    made = space("{zero: [0, 2, 3], recompute: [none, full], micro_batch: [1, 2, 4]}", cluster=", memory: 60 MiB")
    error = nothing(made)
    assert error.rule == "memory"
    assert error.funnel.does_not_fit == error.funnel.enumerated == 18
    assert error.change is not None
    assert error.change.fit_probability >= 0.5
    assert "cluster.memory" in str(error) or "layout." in str(error)


def test_the_memory_change_is_the_smallest_that_fits(space: Space) -> None:
    model = "{layers: 7, hidden: 512, heads: 1, vocab: 4096}"
    made = space("{recompute: full}", devices=1, cluster=", memory: 300 MiB", model=model)
    error = nothing(made)
    assert error.change is not None
    assert error.change.key == "cluster.memory"
    needed = float(prune(made).prices.memory_bytes.min())
    assert needed <= error.change.space.cluster.memory_limit_bytes <= needed + 2**30 / 10


def test_a_batch_that_nothing_divides_names_the_nearest(space: Space) -> None:
    error = nothing(space("{micro_batch: 2}", devices=7, batches=(256,)))
    assert error.rule == "batch_divides"
    assert error.change is not None
    assert (error.change.key, error.change.after) == ("hyperparameters.batch_tokens", f"{252 * 1024} (252 sequences)")


def test_a_tp_that_cannot_split_the_heads_names_another(space: Space) -> None:
    error = nothing(space("{tp: 3}", devices=6, batches=(60,), model="{layers: 8, hidden: 512, heads: 8, vocab: 4096}"))
    assert error.rule == "heads_divide_tp"
    assert error.change is not None
    assert (error.change.key, error.change.after) == ("layout.tp", "2")
    assert "8 % 3 = 2" in str(error)


def test_an_impossible_require_is_named_and_dropped(space: Space) -> None:
    error = nothing(space("{micro_batch: [1, 2], require: [tp > 1 and pp > 1]}"))
    assert error.rule == "require: tp > 1 and pp > 1"
    assert error.change is not None
    assert error.change.key == "layout.require"


def test_where_no_single_change_helps_it_says_so(space: Space) -> None:
    error = nothing(space("{tp: 3, micro_batch: 3, require: [tp == 3, micro_batch == 3, dp == 5]}", devices=4))
    assert error.change is None
    assert "no single change" in str(error)
