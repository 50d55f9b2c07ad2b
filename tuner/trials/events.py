"""What happens to a trial, as the study hears it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tuner.records import CurvePoint, TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPoint:
    """One line of the trial's metrics; ``point`` is set where it is a validation."""

    trial_id: int
    line: dict[str, Any]
    point: CurvePoint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    result: TrialResult


Event = TrialPoint | TrialFinished
