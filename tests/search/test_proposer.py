"""What the proposer keeps: distinct launches, the worth of failures, and a study that survives its driver."""

from __future__ import annotations

import math

import pytest

from tuner.records import Failure, FailureKind, Status, TrialResult
from tuner.search.outcome import Outcome
from tuner.search.proposer import Proposer
from tuner.search.recipe_space import RecipeSpace

SAMPLERS = ("factorised", "tpe", "gp", "random", "grid")
RATES = {"low": 1e-4, "high": 1e-1, "log": True}


def opened(run_dir, make_space, batches=(1024, 2048), horizon=1e6, **changes):
    space = make_space(**changes)
    recipes = RecipeSpace.of(space, batches)
    return Proposer.open(run_dir, space, recipes, dict.fromkeys(batches, 1e-6), horizon, 1e6)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_case_52_a_space_of_four_points_launches_at_most_four(tmp_path, make_space, sampler):
    proposer = opened(tmp_path, make_space, sampler=sampler, learning_rate=[1e-3, 2e-3])
    launched = []
    for _ in range(20):
        proposal = proposer.ask()
        if proposal is None:
            break
        launched.append(proposal.recipe)
        proposer.tell(proposal.number, log_time_s=1.0 + len(launched), final_loss=3.0, status=Outcome.OK)
    assert len(launched) == len(set(launched)) == 4
    assert proposer.exhausted == "space exhausted: 4 of 4 distinct recipes tried"
    assert all(t.state.is_finished() for t in proposer.study.trials)


def test_a_space_with_nothing_free_is_one_recipe(tmp_path, make_space):
    proposer = opened(tmp_path, make_space, batches=(2048,))
    proposal = proposer.ask()
    assert proposal is not None
    assert proposal.recipe.learning_rate == 1e-3
    assert proposer.ask() is None
    assert proposer.exhausted


def test_points_that_clip_to_one_recipe_are_launched_once(tmp_path, make_space):
    proposer = opened(tmp_path, make_space, batches=(1024,), horizon=20_480, warmup=[10, 100, 1000, 2])
    found = {p.recipe.warmup for p in iter(proposer.ask, None)}
    assert found == {2, 10}


def test_a_crashed_recipe_may_come_once_more_and_then_counts_as_tried(tmp_path, make_space):
    proposer = opened(tmp_path, make_space, sampler="random", learning_rate=[1e-3, 2e-3], batches=(1024,))
    launches = []
    while (proposal := proposer.ask()) is not None:
        launches.append(proposal.recipe)
        proposer.tell(proposal.number, log_time_s=None, final_loss=None, status=Outcome.CRASHED)
    assert sorted(launches.count(r) for r in set(launches)) == [2, 2]


def test_after_two_crashes_the_factorised_sampler_goes_on_elsewhere_by_its_own_choice(tmp_path, make_space):
    proposer = opened(tmp_path, make_space, learning_rate=RATES)
    recipes = []
    for _ in range(3):
        proposal = proposer.ask()
        recipes.append(proposal.recipe)
        proposer.tell(proposal.number, log_time_s=None, final_loss=None, status=Outcome.CRASHED)
    assert recipes[0] == recipes[1] == proposer.law_recipe != recipes[2]
    assert len(proposer.study.trials) == 3


def test_a_diverged_recipe_is_told_a_little_above_the_worst_and_never_becomes_the_best(tmp_path, make_space):
    proposer = opened(tmp_path, make_space, learning_rate=RATES)
    values = {}
    for log_time, loss, status in (
        (2.0, 3.0, Outcome.OK),
        (2.6, 3.2, Outcome.OK),
        (None, None, Outcome.DIVERGED),
        (-math.inf, 2.0, Outcome.OK),
        (1.0, math.nan, Outcome.OK),
    ):
        number = proposer.ask().number
        proposer.tell(number, log_time_s=log_time, final_loss=loss, status=status)
        values[number] = proposer.study.trials[number].value
    assert list(values.values()) == pytest.approx([2.0, 2.6, 2.7, 2.7, 2.7])
    assert proposer.study.best_value == 2.0
    assert [t.user_attrs["diverged"] for t in proposer.study.trials] == [False, False, True, True, True]


def test_after_a_divergence_no_rate_at_or_above_it(tmp_path, make_space):
    proposer = opened(tmp_path, make_space, learning_rate=RATES)
    law = proposer.ask()
    proposer.tell(law.number, log_time_s=None, final_loss=None, status=Outcome.DIVERGED)
    rates = []
    for _ in range(6):
        proposal = proposer.ask()
        rates.append(proposal.recipe.learning_rate)
        proposer.tell(proposal.number, log_time_s=2.0, final_loss=3.0 + len(rates) / 10, status=Outcome.OK)
    assert rates[0] < law.recipe.learning_rate / 2
    assert max(rates) < law.recipe.learning_rate


def test_a_space_whose_rest_would_diverge_is_exhausted_and_says_so(tmp_path, make_space):
    proposer = opened(tmp_path, make_space, learning_rate=[1e-4, 2e-2, 4e-2], batches=(1024,))
    seen = []
    while (proposal := proposer.ask()) is not None:
        seen.append(proposal.recipe.learning_rate)
        status = Outcome.DIVERGED if seen[-1] > 1e-2 else Outcome.OK
        proposer.tell(proposal.number, log_time_s=1.0, final_loss=3.0, status=status)
    assert seen == [2e-2, 1e-4]
    assert "2 of 3" in proposer.exhausted
    assert "diverged" in proposer.exhausted


def test_case_49_a_killed_driver_repeats_the_interrupted_recipe_only(tmp_path, make_space):
    first = opened(tmp_path, make_space, learning_rate=RATES)
    done = first.ask()
    first.tell(done.number, log_time_s=2.0, final_loss=3.0, status=Outcome.OK)
    lost = first.ask()
    again = opened(tmp_path, make_space, learning_rate=RATES)
    assert again.known(done.number)
    assert not again.known(lost.number)
    assert not again.known(99)
    assert again.recipe(lost.number) == lost.recipe
    assert again.fail_stale() == (lost.number,)
    assert again.fail_stale() == ()
    repeated = again.ask()
    assert repeated.recipe == lost.recipe
    assert repeated.number != lost.number
    third = opened(tmp_path, make_space, learning_rate=RATES)
    assert third.fail_stale() == (repeated.number,)
    assert third.ask().recipe not in (lost.recipe, done.recipe)


def test_results_on_record_and_repeated_trials_are_told_under_their_first_number(tmp_path, make_space):
    first = opened(tmp_path, make_space, learning_rate=RATES)
    recorded, relaunched, orphan, interrupted = (first.ask() for _ in range(4))
    first.tell(interrupted.number, log_time_s=None, final_loss=None, status=Outcome.INTERRUPTED)
    again = opened(tmp_path, make_space, learning_rate=RATES)
    assert again.fail_stale(keep={recorded.number, relaunched.number}) == (orphan.number,)
    for proposal in (recorded, relaunched, interrupted):
        assert not again.known(proposal.number)
        again.tell(proposal.number, log_time_s=2.0, final_loss=3.0, status=Outcome.OK)
        assert again.known(proposal.number)
    with pytest.raises(ValueError, match="told already"):
        again.tell(interrupted.number, log_time_s=2.0, final_loss=3.0, status=Outcome.OK)
    assert again.ask().recipe == orphan.recipe
    done = {recorded.recipe, relaunched.recipe, interrupted.recipe, orphan.recipe}
    assert again.ask().recipe not in done
    assert sum(t.value == 2.0 for t in again.study.trials) == 3


def test_telling_what_was_not_asked_or_twice_is_an_error(tmp_path, make_space):
    proposer = opened(tmp_path, make_space, learning_rate=RATES)
    with pytest.raises(ValueError, match="ask before telling"):
        proposer.tell(3, log_time_s=1.0, final_loss=3.0, status=Outcome.OK)
    number = proposer.ask().number
    proposer.tell(number, log_time_s=1.0, final_loss=3.0, status=Outcome.OK)
    with pytest.raises(ValueError, match="told already"):
        proposer.tell(number, log_time_s=1.0, final_loss=3.0, status=Outcome.OK)


def test_an_unknown_sampler_is_refused_with_those_known(tmp_path, make_space):
    with pytest.raises(ValueError, match="factorised, tpe, gp, cmaes, random, grid"):
        opened(tmp_path, make_space, sampler="bohb")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "status, kind, outcome",
    [
        (Status.OK, None, Outcome.OK),
        (Status.STOPPED, None, Outcome.STOPPED),
        (Status.INTERRUPTED, None, Outcome.INTERRUPTED),
        (Status.FAILED, FailureKind.NAN, Outcome.DIVERGED),
        (Status.FAILED, FailureKind.DIVERGED, Outcome.DIVERGED),
        (Status.FAILED, FailureKind.HANG, Outcome.CRASHED),
    ],
)
def test_a_record_says_what_the_search_learns_of_it(status, kind, outcome):
    failure = None if kind is None else Failure(kind=kind, evidence="line")
    assert Outcome.of(TrialResult(spec=None, status=status, failure=failure)) is outcome
