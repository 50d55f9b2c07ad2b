"""The shortlist: the fastest, the defaults, some doubt and some variety."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.layout import Layout
from tuner.plan.plan import PlannedLayout
from tuner.plan.shortlist import is_pure_data_parallel, shortlist
from tuner.records import Predicted


def planned(step_time_s: float, *, fit: float = 1.0, **fields: int) -> PlannedLayout:
    return PlannedLayout(
        layout=Layout(**fields),  # type: ignore[arg-type]
        predictions={64: Predicted(step_time_s=step_time_s, memory_bytes=1e9)},
        fit_probability=fit,
        limited_by="compute",
        mfu=0.4,
        memory_parts_bytes={},
        time_parts_s={},
        best_batch=64,
    )


def test_a_short_list_of_candidates_is_taken_whole() -> None:
    feasible = [planned(1.0, dp=8), planned(2.0, tp=8, fit=0.03)]
    assert shortlist(feasible, 6) == tuple(feasible)
    with pytest.raises(ValueError, match="1 or more"):
        shortlist(feasible, 0)


def test_three_pure_data_parallel_layouts_are_always_in() -> None:
    fast = [
        planned(i, tp=t, pp=p, dp=16 // t // p) for i, (t, p) in enumerate([(2, 1), (4, 1), (8, 1), (2, 2), (4, 2)])
    ]
    slow = [planned(10 + i, dp=16, micro_batch=2**i) for i in range(5)]
    chosen = shortlist(fast + slow, 6)
    assert [p for p in chosen if is_pure_data_parallel(p.layout)] == slow[:3]
    assert list(chosen) == fast[:3] + slow[:3]


def test_defaults_that_are_likely_to_fit_come_before_faster_ones_that_are_not() -> None:
    doubtful = [planned(i, dp=8, micro_batch=2**i, fit=0.1) for i in range(3)]
    sure = [planned(5 + i, dp=8, zero=3, micro_batch=2**i) for i in range(3)]
    others = [planned(3 + i / 10, tp=2, dp=4, micro_batch=2**i) for i in range(6)]
    chosen = shortlist(sorted(doubtful + sure + others, key=lambda p: p.predictions[64].step_time_s), 8)
    assert set(map(id, sure)) <= set(map(id, chosen))
    assert 1 <= sum(p.fit_probability < 0.9 for p in chosen) <= 2


def test_one_layout_in_doubt_is_probed_if_it_is_near_the_top() -> None:
    degrees = [(t, p) for t in (2, 4, 8) for p in (1, 2)]
    sure = [planned(i, tp=t, pp=p, dp=16 // t // p) for i, (t, p) in enumerate(degrees)]
    near = [*sure, planned(7.0, tp=4, dp=4, zero=2, fit=0.5), planned(8.0, tp=16, fit=0.4)]
    assert [p.fit_probability for p in shortlist(near, 4)] == [1.0, 1.0, 1.0, 0.5]
    slower = [planned(7.0 + m, pp=4, dp=4, micro_batch=m) for m in (1, 2)]
    far = [*sure, *slower, planned(20.0, tp=16, fit=0.5)]
    assert all(p.fit_probability == 1.0 for p in shortlist(far, 4))


def test_no_more_than_half_differ_in_micro_batch_and_zero_only() -> None:
    family = [
        planned(i, tp=2, dp=4, zero=z, micro_batch=m)
        for i, (z, m) in enumerate((z, m) for z in (0, 2, 3) for m in (1, 2, 4))
    ]
    others = [planned(20.0, tp=4, dp=2), planned(21.0, tp=8), planned(22.0, pp=2, dp=4)]
    chosen = shortlist(family + others, 6)
    assert sum(p.layout.tp == 2 and p.layout.pp == 1 for p in chosen) == 3
    alone = shortlist(family, 6)
    assert list(alone) == family[:6]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([0, 2, 3]),
            st.sampled_from([1, 2, 4, 8]), st.floats(0.02, 1.0),
        ),
        unique_by=lambda row: row[:4], max_size=60,
    ),
    st.integers(1, 20),
)  # fmt: skip
def test_any_shortlist_keeps_its_rules(rows: list[tuple[int, int, int, int, float]], size: int) -> None:
    feasible = [
        planned(float(i), tp=tp, pp=pp, dp=32 // tp // pp, zero=zero, micro_batch=m, fit=fit)
        for i, (tp, pp, zero, m, fit) in enumerate(rows)
    ]
    chosen = shortlist(feasible, size)
    assert len(chosen) == len(set(map(id, chosen))) == min(size, len(feasible))
    assert list(chosen) == sorted(chosen, key=lambda p: p.predictions[64].step_time_s)
    pure = [p for p in feasible if is_pure_data_parallel(p.layout)]
    assert sum(is_pure_data_parallel(p.layout) for p in chosen) >= min(3, len(pure), size)
    families = Counter((p.layout.tp, p.layout.pp) for p in chosen)
    all_families = Counter((p.layout.tp, p.layout.pp) for p in feasible if p.fit_probability >= 0.9)
    room = sum(min(count, math.ceil(size / 2)) for count in all_families.values())
    if chosen and size > 6 and room >= size:
        assert max(families.values()) <= math.ceil(size / 2)
