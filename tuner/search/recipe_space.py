"""RecipeSpace: the dimensions of a search space that change how a model learns, and points of it as recipes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tuner.records import Recipe
from tuner.space.dimensions import Choice, Fixed, Range, Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from tuner.space.search_space import SearchSpace

FREE_ORDER = tuple(f.name for f in fields(Recipe))
GRID_POINTS = 5
"""Values of a range on a grid."""
MOST_GRID_POINTS = 20_000
_FLOATS = ("learning_rate", "weight_decay", "clip_norm")


def horizon_steps(horizon_tokens: float, batch_tokens: int) -> int:
    """Optimizer steps nearest to ``horizon_tokens``, at least one; horizons are in tokens so that batches compare."""
    return max(1, round(horizon_tokens / batch_tokens))


def warmup_steps(warmup: float, num_steps: int) -> int:
    """Steps of warmup for a schedule of ``num_steps``: below 1 a fraction of them, else steps; at most half of them.

    The cut at half: a warmup longer than that leaves a schedule that is mostly ramp, so that at a short horizon a
    number of steps meant for a long one would measure the ramp and not the learning rate.
    """
    if not (math.isfinite(warmup) and warmup >= 0):
        raise ValueError(f"warmup={warmup} must be 0 or more: below 1 a fraction of the horizon, else steps")
    steps = round(warmup * num_steps) if warmup < 1 else round(warmup)
    return min(steps, num_steps // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeSpace:
    """``fixed`` values and ``free`` dimensions, both keyed by the field of Recipe they set, in its order."""

    fixed: Mapping[str, Value]
    free: Mapping[str, Choice | Range]

    @classmethod
    def of(cls, space: SearchSpace, batches: Sequence[int]) -> RecipeSpace:
        """The recipes of ``space`` at the given batches in tokens (those that some feasible layout can run)."""
        if not batches:
            raise ValueError(f"{space.name}: no batch size left to search; widen hyperparameters.batch_tokens")
        batch_role = space.hyperparameters["batch_tokens"].role
        given = {
            **space.hyperparameters,
            "batch_tokens": Choice(values=tuple(sorted({int(b) for b in batches})), role=batch_role),
        }
        unknown = sorted(set(given) - set(FREE_ORDER))
        if unknown:
            raise ValueError(f"{space.name}: hyperparameters {unknown} are not part of a recipe; known: {FREE_ORDER}")
        missing = sorted({"learning_rate", "warmup"} - set(given))
        if missing:
            raise ValueError(f"{space.name}: hyperparameters {missing} have no value; give a number, list or range")
        fixed: dict[str, Value] = {}
        free: dict[str, Choice | Range] = {}
        for name in (n for n in FREE_ORDER if n in given):
            dimension = given[name]
            if isinstance(dimension, Range):
                free[name] = _checked(name, dimension)
            elif isinstance(dimension, Fixed) or len(set(dimension.values)) == 1:
                fixed[name] = dimension.values[0]
            else:
                free[name] = Choice(values=tuple(dict.fromkeys(dimension.values)), role=dimension.role)
        return cls(fixed=fixed, free=free)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is free: the space is one recipe."""
        return not self.free

    @property
    def size(self) -> int | None:
        """The number of distinct points, or None where a dimension is continuous."""
        total = 1
        for name, dimension in self.free.items():
            count = _count(name, dimension)
            if count is None:
                return None
            total *= count
        return total

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes in tokens, ascending."""
        dimension = self.free.get("batch_tokens")
        values = dimension.values if isinstance(dimension, Choice) else (self.fixed["batch_tokens"],)
        return tuple(int(v) for v in values)

    def distributions(self) -> dict[str, BaseDistribution]:
        """The free dimensions as Optuna distributions."""
        return {name: _distribution(name, dimension) for name, dimension in self.free.items()}

    def points(self) -> Iterator[dict[str, Any]]:
        """Every point of a finite space, as parameters."""
        if self.size is None:
            raise ValueError(f"a space with continuous dimensions {sorted(self.free)} has no list of points")
        axes = [_values(name, dimension) for name, dimension in self.free.items()]
        for values in itertools.product(*axes):
            yield dict(zip(self.free, values, strict=True))

    def grid(self) -> dict[str, list[Any]]:
        """A grid over the space: choices whole, ranges by five values spread over them, ends included."""
        return {name: _spread(name, dimension, GRID_POINTS) for name, dimension in self.free.items()}

    def grid_points(self) -> list[dict[str, Any]]:
        """Every point of the grid, as parameters."""
        axes = self.grid()
        if (size := math.prod(map(len, axes.values()))) > MOST_GRID_POINTS:
            raise ValueError(
                f"a grid over {sorted(axes)} has {size:,} points, more than {MOST_GRID_POINTS:,}; "
                f"fix some of them, or use another sampler"
            )
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]

    def recipe(self, params: Mapping[str, Any], horizon_tokens: float) -> Recipe:
        """The recipe at ``params`` for a run of ``horizon_tokens``; its warmup is in steps of that horizon."""
        if set(params) != set(self.free):
            raise ValueError(f"parameters {sorted(params)} are not those of the space: {sorted(self.free)}")
        values: dict[str, Any] = {**self.fixed, **params}
        batch = int(values["batch_tokens"])
        values["batch_tokens"] = batch
        values["warmup"] = warmup_steps(float(values["warmup"]), horizon_steps(horizon_tokens, batch))
        for name in _FLOATS:
            if name in values:
                values[name] = float(values[name])
        return Recipe(**values)


def _checked(name: str, dimension: Range) -> Range:
    """``dimension`` if it can be drawn from; warmup ranges must lie on one side of 1 (fraction or steps)."""
    if not dimension.low < dimension.high:
        raise ValueError(f"{name}: low {dimension.low} must be below high {dimension.high}; a single value is a scalar")
    if dimension.log and (dimension.low <= 0 or dimension.step is not None):
        raise ValueError(f"{name}: a log range needs low above 0 and no step, got {dimension}")
    if name == "warmup" and 0 < dimension.low < 1 <= dimension.high:
        raise ValueError(
            f"warmup: the range {dimension.low} to {dimension.high} mixes fractions of the horizon (below 1) with "
            f"steps (1 and more); give one or the other"
        )
    return dimension


def _whole(name: str, dimension: Range) -> bool:
    return dimension.integer or (name == "warmup" and dimension.high >= 1)


def _distribution(name: str, dimension: Choice | Range) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(dimension, Choice):
        return CategoricalDistribution(dimension.values)
    if _whole(name, dimension):
        low, high, step = math.ceil(dimension.low), math.floor(dimension.high), max(1, round(dimension.step or 1))
        return IntDistribution(low, low + (high - low) // step * step, log=dimension.log, step=step)
    high_float = dimension.high
    if dimension.step is not None:
        high_float = _values(name, dimension)[-1]
    return FloatDistribution(dimension.low, high_float, log=dimension.log, step=dimension.step)


def _count(name: str, dimension: Choice | Range) -> int | None:
    if isinstance(dimension, Choice):
        return len(dimension.values)
    if _whole(name, dimension):
        low, high, step = math.ceil(dimension.low), math.floor(dimension.high), max(1, round(dimension.step or 1))
        return (high - low) // step + 1
    if dimension.step is None:
        return None
    return math.floor((dimension.high - dimension.low) / dimension.step + 1e-9) + 1


def _values(name: str, dimension: Choice | Range) -> list[Any]:
    if isinstance(dimension, Choice):
        return list(dimension.values)
    count = _count(name, dimension)
    assert count is not None, f"{name} is continuous"
    if _whole(name, dimension):
        step = max(1, round(dimension.step or 1))
        return [math.ceil(dimension.low) + i * step for i in range(count)]
    assert dimension.step is not None
    return [round(dimension.low + i * dimension.step, 12) for i in range(count)]


def _spread(name: str, dimension: Choice | Range, num_points: int) -> list[Any]:
    count = _count(name, dimension)
    if isinstance(dimension, Choice) or (count is not None and count <= num_points):
        return _values(name, dimension)
    shares = [i / (num_points - 1) for i in range(num_points)]
    if count is not None and not dimension.log:
        values = _values(name, dimension)
        return list(dict.fromkeys(values[round(s * (count - 1))] for s in shares))
    low, high = dimension.low, dimension.high
    spread = [low * (high / low) ** s if dimension.log else low + (high - low) * s for s in shares]
    if _whole(name, dimension):
        return list(dict.fromkeys(round(v) for v in spread))
    return [min(max(v, low), high) for v in spread]
