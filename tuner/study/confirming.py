"""The confirm round: finalists and the strong default, whole, on their own layouts, with several seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cost_models.layout import Layout
from tuner.records import Recipe, TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One contender of the confirm round. ``expected_s`` is its estimated training time to the target."""

    layout: Layout
    recipe: Recipe
    label: str
    expected_s: float
    seconds_per_token: float

    def is_same(self, other: Entry) -> bool:
        return self.layout == other.layout and self.recipe == other.recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """One confirm trial to run."""

    entry: Entry
    seed: int


def line_up(finalists: Sequence[Entry], default: Entry | None, best: int) -> tuple[Entry, ...]:
    """Finalists by expected time, then the default; a finalist that is the default stands in once."""
    chosen: list[Entry] = []
    for entry in sorted(finalists, key=lambda e: e.expected_s):
        if len(chosen) < best and not any(entry.is_same(other) for other in chosen):
            chosen.append(entry)
    if default is None:
        return tuple(chosen)
    others = tuple(e for e in chosen if not e.is_same(default))
    return (*others[:1], default, *others[1:])


def heats(entries: Sequence[Entry], seeds: Sequence[int]) -> tuple[Heat, ...]:
    """Seed by seed, so that whatever ends the round, the contenders have been measured alike."""
    return tuple(Heat(entry=entry, seed=seed) for seed in seeds for entry in entries)


def has_run(heat: Heat, results: Sequence[TrialResult]) -> bool:
    return any(
        r.spec.layout == heat.entry.layout and r.spec.recipe == heat.entry.recipe and r.spec.seed == heat.seed
        for r in results
    )


def t_90(degrees: int) -> float:
    """Student's two-sided 90 % quantile; the expansion of Abramowitz and Stegun 26.7.5 beyond two degrees."""
    exact = {1: 6.314, 2: 2.920}
    if degrees in exact:
        return exact[degrees]
    z = 1.6449
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def pooled_log_sd(groups: Sequence[Sequence[float]], prior_sd: float = 0.05) -> tuple[float, int]:
    """Seed-to-seed spread of log times over all contenders, and its degrees of freedom.

    The prior counts as one observation: two seeds that happen to agree are no proof of precision.
    """
    squares, degrees = prior_sd**2, 1
    for times in groups:
        logs = [math.log(t) for t in times]
        mean = sum(logs) / len(logs)
        squares += sum((x - mean) ** 2 for x in logs)
        degrees += len(logs) - 1
    return math.sqrt(squares / degrees), degrees
