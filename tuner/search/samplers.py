"""The samplers a search can use, as Optuna samplers. Imports Optuna; import it late."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, GridSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from cost_models.convergence import Law
from tuner.search.factorised import FactorisedSampler
from tuner.search.recipe_space import RecipeSpace

NUM_STARTUP = 4
"""Trials before tpe and gp follow their model; a recipe search has about a dozen."""


class SamplerName(StrEnum):
    FACTORISED = "factorised"
    TPE = "tpe"
    GP = "gp"
    CMAES = "cmaes"
    RANDOM = "random"
    GRID = "grid"

    @property
    def starts_at_law(self) -> bool:
        """Whether the law's recipe is its first proposal; random and grid are kept as they are known."""
        return self not in (SamplerName.RANDOM, SamplerName.GRID)


class _AskTellGrid(GridSampler):
    """GridSampler that leaves the end of the study to its caller: Optuna's stop raises outside ``optimize``."""

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: object) -> None:
        return None


def sampler_of(
    name: SamplerName, recipes: RecipeSpace, law: Law, horizon_tokens: float, prices: Mapping[int, float], seed: int
) -> BaseSampler:
    """The sampler called ``name``.

    Choices without an order (and batch sizes) are drawn by TPE under cmaes, which knows numbers only; gp needs torch.
    """
    if recipes.is_empty:
        return RandomSampler(seed=seed)
    if name is SamplerName.FACTORISED:
        return FactorisedSampler(
            law=law,
            horizon_tokens=horizon_tokens,
            prices=prices,
            distributions=recipes.distributions(),
            fixed=recipes.fixed,
            seed=seed,
        )
    if name is SamplerName.TPE:
        return TPESampler(multivariate=True, n_startup_trials=NUM_STARTUP, seed=seed)
    if name is SamplerName.GP:
        return GPSampler(n_startup_trials=NUM_STARTUP, seed=seed, warn_independent_sampling=False)
    if name is SamplerName.CMAES:
        ranges = [n for n, d in recipes.distributions().items() if not isinstance(d, CategoricalDistribution)]
        if len(ranges) < 2:
            raise ValueError(
                f"search.sampler cmaes needs at least two ranges among the hyperparameters, found {ranges}; "
                f"give learning_rate and warmup as {{low, high}}, or use factorised or tpe"
            )
        independent = TPESampler(n_startup_trials=NUM_STARTUP, seed=seed)
        return CmaEsSampler(seed=seed, independent_sampler=independent, warn_independent_sampling=False)
    if name is SamplerName.RANDOM:
        return RandomSampler(seed=seed)
    return _AskTellGrid(recipes.grid(), seed=seed)
