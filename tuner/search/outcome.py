"""Outcome: how a proposal's trial ended, as the search sees it."""

from __future__ import annotations

import math
from enum import StrEnum

from tuner.records import FailureKind, Status, TrialResult


class Outcome(StrEnum):
    """How a proposal's trial ended, as the search sees it. A recipe cannot run out of memory: layouts do."""

    OK = "ok"
    DIVERGED = "diverged"
    STOPPED = "stopped"
    CRASHED = "crashed"
    INTERRUPTED = "interrupted"

    @classmethod
    def of(cls, result: TrialResult) -> Outcome:
        """From a record: NaN and divergence are the recipe's doing, every other failure the machine's."""
        if result.failure is not None and result.failure.kind in (FailureKind.NAN, FailureKind.DIVERGED):
            return cls.DIVERGED
        if result.status is Status.OK:
            return cls.OK
        return {Status.STOPPED: cls.STOPPED, Status.INTERRUPTED: cls.INTERRUPTED}.get(result.status, cls.CRASHED)

    def given(self, log_time_s: float | None, final_loss: float | None) -> Outcome:
        """Itself, but diverged where a figure of an otherwise sound trial is NaN or infinite."""
        figures = [v for v in (log_time_s, final_loss) if v is not None]
        if self in (Outcome.OK, Outcome.STOPPED) and not all(map(math.isfinite, figures)):
            return Outcome.DIVERGED
        return self
