"""From raw step times to a Measurement: medians after warm-up, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tuner.adapters.protocol import RankReport
from tuner.records import Measurement, TrialSpec

_Z_90 = 1.645
_MEDIAN_EFFICIENCY = 1.2533
"""Standard error of a median over that of a mean, for normal noise: sqrt(pi / 2)."""
_IQR_TO_SD = 1.349


def num_warmup_steps(num_steps: int) -> int:
    """Steps to drop: allocators, caches and lazy initialisation settle in the first three."""
    return min(3, num_steps // 3)


def median_interval_s(times_s: Sequence[float]) -> tuple[float, float, float]:
    """Median and its 90 % interval; the spread is taken from the quartiles, so that a hiccup does not widen it."""
    values = np.asarray(times_s, dtype=float)
    median = float(np.median(values))
    low, high = np.percentile(values, [25, 75])
    half = _Z_90 * _MEDIAN_EFFICIENCY * float(high - low) / _IQR_TO_SD / math.sqrt(len(values))
    return median, max(0.0, median - half), median + half


def measurement(spec: TrialSpec, reports: Sequence[RankReport], started_unix_s: float) -> Measurement | None:
    """The slowest rank's steps and the largest rank's memory; None where no rank finished a step."""
    rows = [r.step_times_s for r in reports if r.step_times_s]
    if not rows:
        return None
    shared = min(len(row) for row in rows)
    slowest = np.max(np.array([row[:shared] for row in rows]), axis=0)
    kept = slowest[num_warmup_steps(shared) :]
    median, low, high = median_interval_s([float(x) for x in kept])
    memories = [r.memory_bytes for r in reports if r.memory_bytes is not None]
    firsts = [r.first_forward_unix_s for r in reports]
    begun = [f for f in firsts if f is not None]
    return Measurement(
        step_time_s=median,
        memory_bytes=max(memories) if memories else None,
        num_steps=len(kept),
        tokens_per_s=spec.recipe.batch_tokens / median,
        step_time_interval_s=(low, high),
        breakdown_s=_slowest_parts(reports),
        start_s=max(begun) - started_unix_s if len(begun) == len(reports) else None,
    )


def _slowest_parts(reports: Sequence[RankReport]) -> dict[str, float]:
    parts: dict[str, float] = {}
    for report in reports:
        for name, seconds in (report.breakdown_s or {}).items():
            parts[name] = max(parts.get(name, 0.0), seconds)
    return parts
