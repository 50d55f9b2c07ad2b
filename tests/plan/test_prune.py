"""Enumeration and pruning: every layout is counted once, under a rule with its numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from cost_models.estimate import estimate
from cost_models.layout import Layout, Recompute
from tuner.plan.enumerate import enumerate_layouts
from tuner.plan.prune import prune
from tuner.plan.workload import workload_of
from tuner.space.search_space import SearchSpace

Space = Callable[..., SearchSpace]


def test_the_cross_product_with_the_rest_in_dp(space: Space) -> None:
    layouts = list(enumerate_layouts(space("{tp: [1, 2], pp: [1, 4], micro_batch: [1, 2], recompute: [none, full]}")))
    assert len(layouts) == len(set(layouts)) == 16
    assert Layout(tp=2, pp=4, dp=1, micro_batch=2, recompute=Recompute.FULL) in layouts
    assert {layout.num_devices for layout in layouts} == {8}


def test_a_listed_dp_must_use_all_devices(space: Space) -> None:
    pruned = prune(space("{tp: [1, 2], dp: [4, 8]}"))
    assert pruned.funnel().reasons == {"world_size": 2}
    assert [str(layout) for layout in pruned.legal_layouts] == ["tp1 pp1 dp8 zero0 mb1", "tp2 pp1 dp4 zero0 mb1"]
    said = {r.reason for r in pruned.rejected()}
    assert "dp 8 x tp 2 x pp 1 x cp 1 = 16, not 8 devices" in said


def test_what_does_not_divide_the_devices_says_so(space: Space) -> None:
    (rejected,) = prune(space("{tp: [1, 2]}", devices=1)).rejected()
    assert (rejected.rule, rejected.layout.tp) == ("world_size", 2)
    assert "1 % 2 = 1" in rejected.reason


def test_every_layout_is_counted_once(space: Space) -> None:
    pruned = prune(
        space(
            "{tp: [1, 2, 3, 8], pp: [1, 2, 3], zero: [0, 1, 2, 3], micro_batch: [1, 3, 64], recompute: [none, full], "
            "require: [tp <= 4, micro_batch < 64 or zero == 0]}",
            cluster=", memory: 500 MiB",
        )
    )
    funnel = pruned.funnel()
    assert funnel.invalid + funnel.does_not_fit + funnel.feasible == funnel.enumerated == 4 * 3 * 4 * 3 * 2
    assert sum(funnel.reasons.values()) == len(pruned.rejected()) == funnel.invalid + funnel.does_not_fit
    assert {"world_size", "require: tp <= 4", "memory", "batch_divides"} <= set(funnel.reasons)
    assert min(funnel.invalid, funnel.does_not_fit, funnel.feasible) > 0
    assert all(r.reason and any(c.isdigit() for c in r.reason) for r in pruned.rejected())


def test_invalid_only_if_illegal_at_every_batch(space: Space) -> None:
    layout = "{micro_batch: [1, 3, 5]}"
    assert prune(space(layout, batches=(64,))).funnel().feasible == 1
    pruned = prune(space(layout, batches=(64, 96)))
    assert pruned.funnel().reasons == {"batch_divides": 1}
    row = [layout.micro_batch for layout in pruned.legal_layouts].index(3)
    assert pruned.runnable[row].tolist() == [False, True]


def test_memory_drops_only_under_two_percent(space: Space) -> None:
    """The chance at the estimate's own columns is what decides, on both sides of 2 %."""
    layout = "{micro_batch: [1, 2, 4, 8], zero: [0, 2, 3]}"
    probabilities: list[float] = []
    for memory in np.geomspace(0.15, 2.5, 33):
        made = space(layout, cluster=f", memory: {memory:.4f} GiB")
        pruned = prune(made)
        priced = estimate(made.model, made.cluster, workload_of(made, 64), pruned.layouts)
        fits = np.asarray(priced.fit_probability)
        assert np.array_equal(pruned.rule == "memory", fits < 0.02)
        probabilities += fits.tolist()
    assert any(0.02 <= p < 0.1 for p in probabilities)
    assert any(0.001 < p < 0.02 for p in probabilities)


def test_the_memory_reason_has_the_numbers(space: Space) -> None:
    rejected = prune(space("{micro_batch: 8}", cluster=", memory: 200 MiB")).rejected()[0]
    assert rejected.rule == "memory"
    for said in ("needs", "of 200 MiB usable", "at a batch of 64", "largest:"):
        assert said in rejected.reason


def test_case_20_a_batch_that_does_not_divide(space: Space) -> None:
    """256 sequences on 7 devices at micro-batch 2: 256 % 14 = 4; the nearest are 252 and 266."""
    (rejected,) = prune(space("{micro_batch: 2}", devices=7, batches=(256,))).rejected()
    assert rejected.rule == "batch_divides"
    for said in ("256 % 14 = 4", "252", "266"):
        assert said in rejected.reason
    pruned = prune(space("{micro_batch: 2}", devices=8, batches=(256,)))
    assert pruned.funnel().feasible == 1
    assert pruned.prices.estimates[0].num_micro_batches.tolist() == [16]  # type: ignore[union-attr]


@pytest.mark.parametrize("micro_batches", ["[4, 8]", "[8]"])
def test_case_21_the_batch_is_split_over_dp_not_over_all_devices(space: Space, micro_batches: str) -> None:
    """16 devices, tp 2 or 4, 64 sequences: 8 or 16 for each data-parallel rank, so micro-batch 8 is legal in both."""
    pruned = prune(space(f"{{tp: [2, 4], micro_batch: {micro_batches}}}", devices=16, batches=(64,)))
    passes = np.asarray(pruned.prices.estimates[0].num_micro_batches)
    eight = {row.tp: int(p) for row, p in zip(pruned.legal_layouts, passes, strict=True) if row.micro_batch == 8}
    assert eight == {2: 1, 4: 2}


def test_a_batch_where_it_cannot_run_is_not_runnable(space: Space) -> None:
    made = space("{pp: 4, micro_batch: 2}", batches=(8, 64))
    pruned = prune(made)
    assert pruned.runnable.tolist() == [[False, True]]
    assert prune(replace(made, require=("pp == 1",))).funnel().reasons == {"require: pp == 1": 1}
