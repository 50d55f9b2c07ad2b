"""Ledger: which recipes of a study were tried, and which points are left. Imports Optuna late."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tuner.records import Recipe
from tuner.search.recipe_space import RecipeSpace

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

OUTCOME = "outcome"
DUPLICATE = "duplicate"
MOST_ATTEMPTS = 2
"""Launches of one recipe whose trial crashed or was interrupted, before it counts as tried."""
MOST_LISTED = 20_000
NUM_BLIND_DRAWS = 1000


def listed(recipes: RecipeSpace, sampler_name: str) -> list[dict[str, Any]] | None:
    """Every point the sampler may ever propose, where that can be listed: the grid's, or those of a finite space."""
    if sampler_name == "grid":
        return recipes.grid_points()
    size = recipes.size
    return list(recipes.points()) if size is not None and size <= MOST_LISTED else None


class Ledger:
    """The study's trials as recipes. ``points`` are all that may ever be proposed, where they can be listed."""

    def __init__(
        self, study: Study, recipes: RecipeSpace, horizon_tokens: float, points: list[dict[str, Any]] | None
    ) -> None:
        self._study, self._recipes, self._horizon_tokens = study, recipes, horizon_tokens
        self._names = set(recipes.free)
        self._points = points

    def recipe(self, params: Mapping[str, Any]) -> Recipe:
        return self._recipes.recipe(params, self._horizon_tokens)

    def trials(self) -> Iterator[tuple[FrozenTrial, Recipe]]:
        """Trials that were launched, with their recipes: not those that wait, not duplicate suggestions."""
        for trial in self._study.get_trials(deepcopy=False):
            whole = set(trial.params) == self._names and trial.state.name != "WAITING"
            if whole and trial.user_attrs.get(OUTCOME) != DUPLICATE:
                yield trial, self.recipe(trial.params)

    def tried(self, *, but: int | None = None) -> set[Recipe]:
        """Recipes not to be launched again: running, finished, or crashed as often as allowed; trial ``but`` apart."""
        failures: dict[Recipe, int] = {}
        tried: set[Recipe] = set()
        for trial, recipe in self.trials():
            if trial.number == but:
                continue
            if trial.state.name == "FAIL":
                failures[recipe] = failures.get(recipe, 0) + 1
            else:
                tried.add(recipe)
        return tried | {r for r, n in failures.items() if n >= MOST_ATTEMPTS}

    def result_of(self, recipe: Recipe) -> float | None:
        """The stored value of ``recipe``, if a trial of it has finished with one."""
        return next((t.value for t, r in self.trials() if r == recipe and t.state.name == "COMPLETE"), None)

    def is_full(self) -> bool:
        """Whether every point there is was tried."""
        if self._points is None:
            return False
        tried = self.tried()
        return all(self.recipe(p) in tried for p in self._points)

    def next_distinct(self, seed: int, admits: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any] | None:
        """A point not tried that ``admits`` lets through, in an order that ``seed`` gives; None: none found."""
        tried = self.tried()
        return next((p for p in self._shuffled(seed) if self.recipe(p) not in tried and admits(p)), None)

    def why_exhausted(self) -> str:
        tried = len(self.tried())
        if self._points is None:
            return f"no recipe was found that differs from the {tried} tried and may be run"
        distinct = len({self.recipe(p) for p in self._points})
        rest = "" if tried >= distinct else "; the others have learning rates that diverged, or higher ones"
        return f"space exhausted: {tried} of {distinct} distinct recipes tried{rest}"

    def _shuffled(self, seed: int) -> Iterable[dict[str, Any]]:
        import numpy as np
        from optuna.samplers import RandomSampler

        rng = np.random.default_rng(seed)
        if self._points is not None:
            return [self._points[i] for i in rng.permutation(len(self._points))]
        sampler, trial = RandomSampler(seed=seed), self._study.get_trials(deepcopy=False)[0]
        free = self._recipes.distributions()
        return (
            {n: sampler.sample_independent(self._study, trial, n, d) for n, d in free.items()}
            for _ in range(NUM_BLIND_DRAWS)
        )
