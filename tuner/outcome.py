"""What a study concluded: frozen values between the study, which decides, and the report, which tells."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cost_models.layout import Layout
from tuner.records import Recipe, _Record


class StudyStatus(StrEnum):
    """Where a study stands. ``failed`` means that every trial did; ``interrupted`` ones can be resumed."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender(_Record):
    """One configuration with the time it took to the target.

    ``time_to_loss_s`` is the median over ``num_seeds`` confirm trials, or an estimate where ``extrapolated``;
    None where it could not be told. ``interval_s`` is its 90 % interval.
    """

    trial_ids: tuple[int, ...]
    layout: Layout
    recipe: Recipe
    time_to_loss_s: float | None
    interval_s: tuple[float, float] | None
    extrapolated: bool
    num_seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(_Record):
    """The winner, the strong default it was confirmed against, and what the claim rests on.

    ``gain`` is the default's time over the winner's, so above 1 the winner is faster; ``separable`` whether layouts
    of equal batch gave one loss curve (None: not tested); ``target_source`` says in words where the target is from.
    """

    winner: Contender | None
    default: Contender | None
    separable: bool | None
    target_loss: float | None
    target_source: str
    gain: float | None
    notes: tuple[str, ...]
