"""Axes: recipes as coordinates around the law's recipe, and the recipes worth comparing. Imports Optuna."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from cost_models.convergence import Law
from tuner.search.bowl import Array, Points, Prior

Params = Mapping[str, Any]

WARMUP_FRACTION = 0.1
"""Where the weak prior on warmup stands: a tenth of the horizon's steps."""
CUSTOMARY = {"weight_decay": 0.1, "clip_norm": 1.0}
MOST_LISTED = 4096


class Kind(StrEnum):
    RATE = "rate"
    BATCH = "batch"
    WARMUP = "warmup"
    NUMBER = "number"
    CATEGORY = "category"


_SPREAD = {Kind.RATE: 0.5, Kind.BATCH: 0.5, Kind.WARMUP: 1.0, Kind.NUMBER: 1.0}
"""Scales of the Student-t priors on the optimum's place, in doublings from the law."""
_CURVATURE = {Kind.RATE: 0.008, Kind.BATCH: 0.0075, Kind.WARMUP: 0.003, Kind.NUMBER: 0.002}
"""Nats per doubling squared. Rate and batch: medians of quadratic fits to published dense grids; the others weak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    name: str
    kind: Kind
    distribution: BaseDistribution

    @classmethod
    def of(cls, name: str, distribution: BaseDistribution) -> Axis:
        numeric = not isinstance(distribution, CategoricalDistribution) or all(
            isinstance(c, int | float) and not isinstance(c, bool) for c in distribution.choices
        )
        named = {"learning_rate": Kind.RATE, "batch_tokens": Kind.BATCH, "warmup": Kind.WARMUP}
        kind = named.get(name, Kind.NUMBER) if numeric else Kind.CATEGORY
        return cls(name=name, kind=kind, distribution=distribution)

    @property
    def num_values(self) -> int | None:
        d = self.distribution
        if isinstance(d, CategoricalDistribution):
            return len(d.choices)
        if isinstance(d, IntDistribution):
            return (d.high - d.low) // d.step + 1
        assert isinstance(d, FloatDistribution)
        return None if d.step is None else math.floor((d.high - d.low) / d.step + 1e-9) + 1

    def values(self) -> list[Any]:
        d = self.distribution
        if isinstance(d, CategoricalDistribution):
            return list(d.choices)
        assert isinstance(d, IntDistribution | FloatDistribution)
        assert self.num_values is not None
        if isinstance(d, IntDistribution):
            return list(range(d.low, d.high + 1, d.step))
        assert d.step is not None
        return [min(d.low + i * d.step, d.high) for i in range(self.num_values)]

    def nearest(self, wanted: float) -> Any:
        """The legal value nearest to ``wanted`` (in ratio where that has a meaning); floats at three digits."""
        d = self.distribution
        if isinstance(d, CategoricalDistribution):
            return min(d.choices, key=lambda c: _gap(float(c), wanted))  # type: ignore[arg-type]
        assert isinstance(d, IntDistribution | FloatDistribution)
        inside = min(max(wanted, d.low), d.high)
        if isinstance(d, IntDistribution):
            return min(d.high, d.low + round((inside - d.low) / d.step) * d.step)
        if d.step is not None:
            return min(d.high, d.low + round((inside - d.low) / d.step) * d.step)
        return min(max(float(f"{inside:.3g}"), d.low), d.high)

    def random(self, rng: np.random.Generator) -> Any:
        d = self.distribution
        if isinstance(d, CategoricalDistribution):
            return d.choices[int(rng.integers(len(d.choices)))]
        assert isinstance(d, IntDistribution | FloatDistribution)
        share = float(rng.random())
        wanted = d.low * (d.high / d.low) ** share if d.log else d.low + share * (d.high - d.low)
        return self.nearest(wanted)

    def customary(self) -> float:
        """The middle of the prior for a number that no law speaks of."""
        d = self.distribution
        ends = [float(c) for c in d.choices] if isinstance(d, CategoricalDistribution) else [d.low, d.high]  # type: ignore[arg-type, attr-defined]
        low, high = min(ends), max(ends)
        usual = CUSTOMARY.get(self.name)
        if usual is not None and low <= usual <= high:
            return usual
        return math.sqrt(low * high) if low > 0 else (low + high) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The free axes of a study, with what is fixed, the law and the horizon that is searched for."""

    axes: tuple[Axis, ...]
    fixed: Params
    law: Law
    horizon_tokens: float

    @classmethod
    def of(cls, distributions: Mapping[str, BaseDistribution], fixed: Params, law: Law, horizon_tokens: float) -> Axes:
        axes = tuple(Axis.of(n, d) for n, d in sorted(distributions.items()) if not d.single())
        singles = {n: d.to_external_repr(_only(d)) for n, d in distributions.items() if d.single()}
        return cls(axes=axes, fixed={**fixed, **singles}, law=law, horizon_tokens=horizon_tokens)

    @property
    def numbers(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.axes if a.kind is not Kind.CATEGORY)

    @property
    def categories(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.axes if a.kind is Kind.CATEGORY)

    @property
    def size(self) -> int | None:
        counts = [a.num_values for a in self.axes]
        return None if any(c is None for c in counts) else math.prod(c for c in counts if c is not None)

    def prior(self) -> Prior:
        kinds = [a.kind for a in self.numbers]
        return Prior(
            centre_spread=np.array([_SPREAD[k] for k in kinds]),
            curvature=np.array([_CURVATURE[k] for k in kinds]),
            rate=kinds.index(Kind.RATE) if Kind.RATE in kinds else None,
            batch=kinds.index(Kind.BATCH) if Kind.BATCH in kinds else None,
        )

    def batch_tokens(self, params: Params) -> float:
        """The batch at ``params``; the law's where neither the space nor the fixed values name one."""
        value = params.get("batch_tokens", self.fixed.get("batch_tokens"))
        return self.law.batch_tokens(self.horizon_tokens) if value is None else float(value)

    def law_point(self) -> dict[str, Any]:
        """The law's recipe, each value at the nearest legal one: its own batch, whatever the prices say.

        Prices do not move it: at the start nothing measured says how the loss answers to the batch.
        """
        point: dict[str, Any] = {}
        for axis in sorted(self.axes, key=lambda a: a.kind is Kind.WARMUP):
            if axis.kind is Kind.CATEGORY:
                assert isinstance(axis.distribution, CategoricalDistribution)
                point[axis.name] = axis.distribution.choices[0]
            else:
                point[axis.name] = self._value(axis, 0.0, self.batch_tokens(point))
        return point

    def points(self, recipes: Sequence[Params], tokens: Sequence[float] | None = None) -> Points:
        """Coordinates of ``recipes``, each around the law at its own horizon of ``tokens``."""
        horizons = list(tokens) if tokens is not None else [self.horizon_tokens] * len(recipes)
        rows = [[self._coordinate(a, r, h) for a in self.numbers] for r, h in zip(recipes, horizons, strict=True)]
        codes = [[_code(a, r[a.name]) for a in self.categories] for r in recipes]
        return Points(
            z=np.array(rows, dtype=np.float64).reshape(len(recipes), len(self.numbers)),
            codes=np.array(codes, dtype=np.int64).reshape(len(recipes), len(self.categories)),
            horizon=np.array([round(math.log2(h / self.horizon_tokens) * 4) for h in horizons], dtype=np.int64),
        )

    def listed(self) -> list[dict[str, Any]] | None:
        """All points of a small space, else None."""
        if self.size is None or self.size > MOST_LISTED:
            return None
        names = [a.name for a in self.axes]
        return [dict(zip(names, v, strict=True)) for v in itertools.product(*(a.values() for a in self.axes))]

    def around(self, centres: Array, spread: float, rng: np.random.Generator) -> list[dict[str, Any]]:
        """One recipe near each row of ``centres`` (coordinates); every fourth has another batch, categories vary."""
        drawn = []
        for row in centres + spread * rng.standard_normal(centres.shape):
            by_name = dict(zip((a.name for a in self.numbers), row, strict=True))
            recipe: dict[str, Any] = {}
            for axis in sorted(self.axes, key=lambda a: (a.kind is Kind.WARMUP, a.name)):
                if axis.kind is Kind.CATEGORY or (axis.kind is Kind.BATCH and rng.random() < 0.25):
                    recipe[axis.name] = axis.random(rng)
                else:
                    z = float(np.clip(by_name[axis.name], -40.0, 40.0))
                    recipe[axis.name] = self._value(axis, z, self.batch_tokens(recipe))
            drawn.append(recipe)
        return drawn

    def spread_out(self, count: int, rng: np.random.Generator) -> list[dict[str, Any]]:
        return [{a.name: a.random(rng) for a in self.axes} for _ in range(count)]

    def _coordinate(self, axis: Axis, recipe: Params, tokens: float) -> float:
        value = float(recipe[axis.name])
        if axis.kind is Kind.RATE:
            return math.log2(max(value, 1e-12) / self.law.learning_rate(tokens))
        if axis.kind is Kind.BATCH:
            return math.log2(value / self.law.batch_tokens(tokens))
        if axis.kind is Kind.WARMUP:
            fraction = value if value < 1 else value * self.batch_tokens(recipe) / tokens
            return math.log2(min(max(fraction, 0.003), 0.5) / WARMUP_FRACTION)
        low, unit = _number_scale(axis)
        return math.log2(value / axis.customary()) if low > 0 else (value - axis.customary()) / unit

    def _value(self, axis: Axis, z: float, batch_tokens: float) -> Any:
        """The legal value nearest to coordinate ``z``."""
        if axis.kind is Kind.RATE:
            return axis.nearest(self.law.learning_rate(self.horizon_tokens) * 2.0**z)
        if axis.kind is Kind.BATCH:
            return axis.nearest(self.law.batch_tokens(self.horizon_tokens) * 2.0**z)
        if axis.kind is Kind.WARMUP:
            fraction = min(WARMUP_FRACTION * 2.0**z, 0.5)
            steps = fraction * self.horizon_tokens / batch_tokens
            d = axis.distribution
            if isinstance(d, CategoricalDistribution):
                to_steps = batch_tokens / self.horizon_tokens
                return min(d.choices, key=lambda c: _gap(_as_fraction(float(c), to_steps), fraction))  # type: ignore[arg-type]
            assert isinstance(d, IntDistribution | FloatDistribution)
            return axis.nearest(fraction if d.high < 1 else steps)
        low, unit = _number_scale(axis)
        return axis.nearest(axis.customary() * 2.0**z if low > 0 else axis.customary() + z * unit)


def _number_scale(axis: Axis) -> tuple[float, float]:
    """Lowest value, and what counts as one doubling where the values reach 0 (a quarter of the range)."""
    d = axis.distribution
    if isinstance(d, CategoricalDistribution):
        ends = [float(c) for c in d.choices]  # type: ignore[arg-type]
    else:
        assert isinstance(d, IntDistribution | FloatDistribution)
        ends = [float(d.low), float(d.high)]
    return min(ends), (max(ends) - min(ends)) / 4


def _as_fraction(warmup: float, step_share: float) -> float:
    return warmup if warmup < 1 else min(warmup * step_share, 0.5)


def _gap(value: float, wanted: float) -> float:
    return abs(math.log(value / wanted)) if value > 0 and wanted > 0 else abs(value - wanted) + 1e3


def _code(axis: Axis, value: Any) -> int:
    return int(axis.distribution.to_internal_repr(value))


def _only(distribution: BaseDistribution) -> float:
    if isinstance(distribution, CategoricalDistribution):
        return 0.0
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return float(distribution.low)
