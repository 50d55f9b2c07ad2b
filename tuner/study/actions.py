"""What the study asks its driver to do."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.outcome import StudyStatus
from tuner.records import Status, TrialSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    spec: TrialSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    trial_id: int
    status: Status
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """A decision and its evidence, for the person who watches and for the report."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    status: StudyStatus


Action = Launch | Stop | Say | Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundProgress:
    name: str
    done: int
    total: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a live view shows."""

    rounds: tuple[RoundProgress, ...]
    elapsed_s: float
    budget_s: float
    running: tuple[str, ...]
