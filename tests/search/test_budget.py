"""The split of a wall-clock budget over the rounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.search.budget import RoundBudget


def test_before_any_run_probes_get_a_quarter_and_confirm_a_third():
    budget = RoundBudget.of(240.0)
    assert (budget.probe_s, budget.confirm_s) == pytest.approx((60.0, 84.0))
    assert budget.converge_s == pytest.approx(240.0 * (1 - 0.25 - 0.35 - 0.03))


def test_confirm_gets_what_its_runs_take_and_probes_what_they_took():
    budget = RoundBudget.of(240.0, confirm_run_s=12.0, num_confirm_runs=6, probes_spent_s=40.0)
    assert budget.confirm_s == pytest.approx(72.0)
    assert budget.probe_s == 40.0
    assert budget.converge_s == pytest.approx(240 - 40 - 72 - 7.2)


def test_confirm_never_takes_more_than_half():
    assert RoundBudget.of(100.0, confirm_run_s=1000.0, num_confirm_runs=6).confirm_s == 50.0


@given(
    total=st.floats(1, 1e6),
    run=st.none() | st.floats(0, 1e6),
    runs=st.integers(0, 20),
    spent=st.none() | st.floats(0, 2e6),
)
def test_the_rounds_add_up_and_none_is_negative(total, run, runs, spent):
    b = RoundBudget.of(total, confirm_run_s=run, num_confirm_runs=runs, probes_spent_s=spent)
    assert b.probe_s + b.converge_s + b.confirm_s + b.closing_s == pytest.approx(total)
    assert min(b.probe_s, b.converge_s, b.confirm_s, b.closing_s) >= -1e-6 * total


def test_affords_leaves_what_is_reserved():
    budget = RoundBudget.of(100.0, confirm_run_s=10.0, num_confirm_runs=4)
    assert budget.affords(30.0, 20.0, budget.reserved_in_converge_s)
    assert not budget.affords(40.0, 20.0, budget.reserved_in_converge_s)
    assert budget.left_s(50.0, budget.reserved_in_converge_s) == pytest.approx(7.0)
    assert budget.left_s(90.0, budget.reserved_in_converge_s) == 0.0
    assert budget.confirm_runs(57.0, 10.0) == 4
    assert budget.reserved_in_probe_s == pytest.approx(75.0)
    assert budget.reserved_in_confirm_s == pytest.approx(3.0)


def test_impossible_figures_are_refused():
    for bad in ({"total_s": 0.0}, {"total_s": float("nan")}, {"total_s": 10.0, "num_confirm_runs": -1}):
        with pytest.raises(ValueError, match=r"budget of|confirm runs"):
            RoundBudget.of(**bad)
    with pytest.raises(ValueError, match="estimate its length"):
        RoundBudget.of(10.0).confirm_runs(0.0, 0.0)
