"""Proposer: which recipe to train next, over an Optuna study kept in the run directory. Optuna is imported late."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.convergence import Law
from tuner.records import Recipe
from tuner.search.ledger import DUPLICATE, OUTCOME, Ledger, listed
from tuner.search.outcome import Outcome
from tuner.search.recipe_space import RecipeSpace

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

    from tuner.search.samplers import SamplerName
    from tuner.space.search_space import SearchSpace

STUDY_NAME = "recipes"
JOURNAL = "study.journal"
MOST_REDRAWS = 4
REPEATS = "repeats"
"""User attribute of a trial that stands for an interrupted one: that one's number."""
DIVERGED_PENALTY = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A recipe to train, and the number to ``tell`` its result under."""

    number: int
    recipe: Recipe


class Proposer:
    """Asks a sampler for recipes, keeps them distinct, and teaches it what came of them. One process owns it."""

    def __init__(
        self,
        *,
        study: Study,
        sampler_name: SamplerName,
        recipes: RecipeSpace,
        law: Law,
        horizon_tokens: float,
        prices: Mapping[int, float],
        seed: int,
    ) -> None:
        self._study, self._name, self._recipes, self._law = study, sampler_name, recipes, law
        self._horizon_tokens, self._seed = float(horizon_tokens), seed
        self._prices = dict(prices)
        self._distributions = recipes.distributions()
        self._ledger = Ledger(study, recipes, self._horizon_tokens, listed(recipes, sampler_name))
        self._exhausted: str | None = None
        self._sampler(0)
        if sampler_name.starts_at_law and not recipes.is_empty and not study.get_trials(deepcopy=False):
            study.enqueue_trial(self._law_params(), user_attrs={"origin": "law"})

    @classmethod
    def open(
        cls,
        run_dir: Path,
        space: SearchSpace,
        recipe_space: RecipeSpace,
        prices: Mapping[int, float],
        horizon_tokens: float,
        num_non_embedding_params: float,
    ) -> Proposer:
        """Open the study in ``run_dir``, or start it there; sampler and seed are the search space's.

        ``prices`` are seconds per token by batch in tokens. ``num_non_embedding_params`` is of the active parameters.
        """
        try:
            import optuna
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"searching recipes needs {error.name}; install the extra: pip install '.[train]'"
            ) from error
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        from tuner.search.samplers import SamplerName

        known = [s.value for s in SamplerName]
        if space.search.sampler not in known:
            raise ValueError(f"search.sampler {space.search.sampler!r} is not known; use one of {', '.join(known)}")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        storage = JournalStorage(JournalFileBackend(str(Path(run_dir) / JOURNAL)))
        study = optuna.create_study(storage=storage, study_name=STUDY_NAME, direction="minimize", load_if_exists=True)
        return cls(
            study=study,
            sampler_name=SamplerName(space.search.sampler),
            recipes=recipe_space,
            law=Law(num_parameters=num_non_embedding_params),
            horizon_tokens=horizon_tokens,
            prices=prices,
            seed=space.search.seed,
        )

    @property
    def study(self) -> Study:
        """The Optuna study, for plots and reports."""
        return self._study

    @property
    def law_recipe(self) -> Recipe:
        """The law's recipe for the horizon, at the nearest legal values."""
        return self._ledger.recipe(self._law_params())

    @property
    def exhausted(self) -> str | None:
        """After ``ask`` returned None: why there is nothing left, in a sentence. None as long as there may be."""
        return self._exhausted

    def set_prices(self, prices: Mapping[int, float]) -> None:
        """Seconds per token by batch, as measured by now."""
        self._prices = dict(prices)

    def ask(self) -> Proposal | None:
        """The next recipe that has not been tried, or None where the space is exhausted.

        A suggestion that was tried is told the stored result, so that the sampler moves on; if it keeps coming back,
        the next distinct point is taken. Recipes whose trial crashed may come once more.
        """
        for _ in range(MOST_REDRAWS):
            if self._ledger.is_full():
                break
            trial = self._draw()
            recipe = self._ledger.recipe(trial.params)
            if recipe not in self._ledger.tried(but=trial.number):
                self._exhausted = None
                return Proposal(number=trial.number, recipe=recipe)
            self._reuse(trial, recipe)
        params = self._ledger.next_distinct(self._seed + 31 * self._num_trials, self._admits)
        if params is None:
            self._exhausted = self._ledger.why_exhausted()
            return None
        self._study.enqueue_trial(params, user_attrs={"origin": "next distinct"})
        trial = self._draw()
        return Proposal(number=trial.number, recipe=self._ledger.recipe(trial.params))

    def tell(
        self,
        number: int,
        *,
        log_time_s: float | None,
        final_loss: float | None,
        status: Outcome,
        tokens: float | None = None,
    ) -> None:
        """What came of proposal ``number``.

        ``log_time_s`` is the natural logarithm of the time to the target (extrapolated where not reached; None where
        there is none), ``tokens`` the horizon the run was annealed over (default: the study's). A diverged recipe
        is told with a value a little above the worst seen, so that every sampler learns to stay away; so is one that
        ended above the target with no time to give. Crashed and interrupted trials say nothing about the recipe, and
        an interrupted one may be told again once it was repeated.
        """
        from optuna.trial import TrialState

        trial = self._pending(number)
        status = status.given(log_time_s, final_loss)
        if status in (Outcome.CRASHED, Outcome.INTERRUPTED):
            self._attribute(trial, {OUTCOME: status.value})
            self._study.tell(trial.number, state=TrialState.FAIL)
            return
        value = log_time_s if log_time_s is not None and status is not Outcome.DIVERGED else self._poor_value(trial)
        attributes: dict[str, Any] = {
            OUTCOME: status.value,
            "tokens": float(tokens or self._horizon_tokens),
            "diverged": status is Outcome.DIVERGED,
        }
        if status is not Outcome.DIVERGED and final_loss is not None:
            attributes["final_loss"] = final_loss
            attributes["stopped"] = status is Outcome.STOPPED
            price = self._prices.get(self._ledger.recipe(trial.params).batch_tokens)
            if log_time_s is not None and price is not None:
                attributes["log_tokens_to_target"] = log_time_s - math.log(price)
        self._attribute(trial, attributes)
        self._study.tell(trial.number, value)

    def known(self, number: int) -> bool:
        """Whether the study has what came of proposal ``number``; an interruption is not what came of it."""
        return any(
            t.state.is_finished() and t.user_attrs.get(OUTCOME) != Outcome.INTERRUPTED
            for t in self._study.get_trials(deepcopy=False)
            if number in (t.number, t.user_attrs.get(REPEATS))
        )

    def recipe(self, number: int) -> Recipe:
        """The recipe that was proposed as ``number``."""
        trials = {t.number: t for t in self._study.get_trials(deepcopy=False)}
        if number not in trials:
            raise ValueError(f"proposal {number} is not in the study, which has {len(trials)}")
        return self._ledger.recipe(trials[number].params)

    def fail_stale(self, keep: Collection[int] = ()) -> tuple[int, ...]:
        """Fail the trials that a killed driver left running, and queue their recipes once more; their numbers.

        ``keep`` are the proposals whose result is on record or whose trial the caller launches again: they stay open
        and are told as ever. A recipe that already had its second launch is not queued again.
        """
        from optuna.trial import TrialState

        running = self._study.get_trials(deepcopy=True, states=(TrialState.RUNNING,))
        stale = [t for t in running if t.number not in keep and t.user_attrs.get(REPEATS) not in keep]
        for trial in stale:
            self._attribute(trial, {OUTCOME: Outcome.INTERRUPTED.value})
            self._study.tell(trial.number, state=TrialState.FAIL)
            complete = set(trial.params) == set(self._distributions)
            if complete and self._ledger.recipe(trial.params) not in self._ledger.tried():
                self._study.enqueue_trial(trial.params, user_attrs={"origin": f"interrupted {trial.number}"})
        return tuple(t.number for t in stale)

    def _law_params(self) -> dict[str, Any]:
        from tuner.search.axes import Axes

        axes = Axes.of(self._distributions, self._recipes.fixed, self._law, self._horizon_tokens)
        singles = {n: axes.fixed[n] for n in self._distributions if n in axes.fixed}
        return {**axes.law_point(), **singles}

    def _sampler(self, number: int) -> BaseSampler:
        """A sampler for trial ``number`` alone, seeded by it: a resumed study draws as an unbroken one would."""
        from tuner.search.samplers import SamplerName, sampler_of

        whole_study = self._name in (SamplerName.GRID, SamplerName.FACTORISED)
        seed = self._seed if whole_study else (self._seed * 1_000_003 + number * 7919 + 1) % 2**31
        return sampler_of(self._name, self._recipes, self._law, self._horizon_tokens, self._prices, seed)

    @property
    def _num_trials(self) -> int:
        return len(self._study.get_trials(deepcopy=False))

    def _draw(self) -> Trial:
        self._study.sampler = self._sampler(self._num_trials)
        return self._study.ask(fixed_distributions=self._distributions)

    def _reuse(self, trial: Trial, recipe: Recipe) -> None:
        """End a duplicate suggestion with the stored result of its recipe, or without one while that still runs."""
        from optuna.trial import TrialState

        trial.set_user_attr(OUTCOME, DUPLICATE)
        value = self._ledger.result_of(recipe)
        if value is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, value)

    def _admits(self, params: Mapping[str, Any]) -> bool:
        from tuner.search.factorised import FactorisedSampler

        sampler = self._sampler(0)
        return not isinstance(sampler, FactorisedSampler) or sampler.admits(self._study, params)

    def _pending(self, number: int) -> FrozenTrial:
        """The open trial of proposal ``number``; a new one for the same point where the first was interrupted."""
        trials = {t.number: t for t in self._study.get_trials(deepcopy=False)}
        if number not in trials:
            raise ValueError(f"proposal {number} is not in the study, which has {len(trials)}; ask before telling")
        if self.known(number):
            raise ValueError(f"proposal {number} was told already ({trials[number].state.name}); check known() first")
        return trials[number] if not trials[number].state.is_finished() else self._repeated(trials[number])

    def _repeated(self, interrupted: FrozenTrial) -> FrozenTrial:
        from optuna.trial import TrialState, create_trial

        repeat = create_trial(
            state=TrialState.RUNNING,
            params=interrupted.params,
            distributions=self._distributions,
            user_attrs={REPEATS: interrupted.number},
        )
        self._study.add_trial(repeat)
        return self._study.get_trials(deepcopy=False)[-1]

    def _attribute(self, trial: FrozenTrial, attributes: Mapping[str, Any]) -> None:
        from optuna.trial import Trial

        open_trial = Trial(self._study, trial._trial_id)
        for key, value in attributes.items():
            open_trial.set_user_attr(key, value)

    def _poor_value(self, trial: FrozenTrial) -> float:
        """Slightly worse than the worst time seen; before any, the time of a whole horizon and as much again."""
        sound = (Outcome.OK, Outcome.STOPPED)
        told = [t for t in self._study.get_trials(deepcopy=False) if t.user_attrs.get(OUTCOME) in sound]
        seen = [t.value for t in told if t.value is not None]
        if seen:
            return max(seen) + DIVERGED_PENALTY
        batch_tokens = self._ledger.recipe(trial.params).batch_tokens
        price = self._prices.get(batch_tokens) or max(self._prices.values(), default=1.0)
        return math.log(2 * self._horizon_tokens * price)
