"""One suite that every sampler passes, through the proposer and its journal on disk."""

from __future__ import annotations

import math

import pytest

from tuner.records import Recipe
from tuner.search.outcome import Outcome
from tuner.search.proposer import Proposer
from tuner.search.recipe_space import RecipeSpace

HORIZON = 2_000_000.0
BATCHES = (1024, 2048, 4096)
PRICES = {1024: 2e-6, 2048: 1.5e-6, 4096: 1.2e-6}
RATES = {"low": 1e-4, "high": 1e-1, "log": True}
WARMUPS = {"low": 4, "high": 400, "log": True}
NUM_TRIALS = 7


def loss_of(recipe: Recipe) -> float:
    """A bowl away from the law, whose rates above 0.05 diverge."""
    if recipe.learning_rate > 0.05:
        return math.inf
    off = math.log2(recipe.learning_rate / 3e-3), math.log2(recipe.batch_tokens / 2048), math.log2(recipe.warmup / 50)
    return 3.0 + 0.02 * off[0] ** 2 + 0.01 * off[1] ** 2 + 0.003 * off[2] ** 2


def teach(proposer: Proposer, number: int, recipe: Recipe) -> None:
    loss = loss_of(recipe)
    if not math.isfinite(loss):
        proposer.tell(number, log_time_s=None, final_loss=None, status=Outcome.DIVERGED)
        return
    time = math.log(HORIZON * PRICES[recipe.batch_tokens]) + 12 * (loss - 3.0)
    proposer.tell(number, log_time_s=time, final_loss=loss, status=Outcome.OK)


class SamplerConformance:
    """Inherited with ``sampler`` set."""

    sampler = ""

    def open(self, run_dir, make_space, seed=0, **changes):
        run_dir.mkdir(exist_ok=True)
        space = make_space(sampler=self.sampler, seed=seed, **{"learning_rate": RATES, "warmup": WARMUPS, **changes})
        return Proposer.open(run_dir, space, RecipeSpace.of(space, BATCHES), PRICES, HORIZON, 1e6)

    def search(self, proposer, count):
        found = []
        for _ in range(count):
            proposal = proposer.ask()
            assert proposal is not None, proposer.exhausted
            found.append(proposal.recipe)
            teach(proposer, proposal.number, proposal.recipe)
        return found

    def test_proposals_are_in_bounds_and_distinct(self, tmp_path, make_space):
        found = self.search(self.open(tmp_path, make_space), NUM_TRIALS)
        assert len(set(found)) == NUM_TRIALS
        for recipe in found:
            assert 1e-4 <= recipe.learning_rate <= 1e-1
            assert recipe.batch_tokens in BATCHES
            assert 4 <= recipe.warmup <= 400

    def test_a_seed_gives_the_same_proposals_and_a_broken_off_study_continues_with_them(self, tmp_path, make_space):
        whole = self.search(self.open(tmp_path / "whole", make_space), NUM_TRIALS)
        begun = self.search(self.open(tmp_path / "broken", make_space), 5)
        resumed = self.open(tmp_path / "broken", make_space)
        assert resumed.fail_stale() == ()
        assert all(resumed.known(t.number) for t in resumed.study.trials)
        assert begun + self.search(resumed, NUM_TRIALS - 5) == whole

    def test_trials_side_by_side_are_distinct(self, tmp_path, make_space):
        proposer = self.open(tmp_path, make_space)
        first = self.search(proposer, 2)
        pending = [proposer.ask() for _ in range(4)]
        assert len({p.recipe for p in pending} | set(first)) == 6
        for p in reversed(pending):
            teach(proposer, p.number, p.recipe)
        assert all(t.state.is_finished() for t in proposer.study.trials)

    def test_the_first_proposal_is_the_laws_unless_the_sampler_knows_no_law(self, tmp_path, make_space):
        proposer = self.open(tmp_path, make_space)
        first = self.search(proposer, 1)[0]
        assert (first == proposer.law_recipe) == (self.sampler not in ("random", "grid"))

    def test_a_crash_and_a_divergence_do_not_end_the_search(self, tmp_path, make_space):
        proposer = self.open(tmp_path, make_space)
        for status in (Outcome.CRASHED, Outcome.DIVERGED, Outcome.STOPPED, Outcome.OK):
            proposal = proposer.ask()
            proposer.tell(proposal.number, log_time_s=None, final_loss=None, status=status)
        assert len(self.search(proposer, 4)) == 4


class TestFactorised(SamplerConformance):
    sampler = "factorised"


class TestTpe(SamplerConformance):
    sampler = "tpe"


class TestGp(SamplerConformance):
    sampler = "gp"


class TestCmaEs(SamplerConformance):
    sampler = "cmaes"

    def test_one_range_is_refused_in_words(self, tmp_path, make_space):
        with pytest.raises(ValueError, match="at least two ranges"):
            self.open(tmp_path, make_space, warmup=10)


class TestRandom(SamplerConformance):
    sampler = "random"


class TestGrid(SamplerConformance):
    sampler = "grid"

    def test_the_grid_ends_after_its_points(self, tmp_path, make_space):
        proposer = self.open(tmp_path, make_space, learning_rate=RATES, warmup=10)
        found = self.search(proposer, 15)
        assert sorted({r.learning_rate for r in found}) == pytest.approx([1e-4 * 1000 ** (i / 4) for i in range(5)])
        assert proposer.ask() is None
        assert "15 of 15" in (proposer.exhausted or "")
