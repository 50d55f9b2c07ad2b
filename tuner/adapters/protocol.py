"""What an adapter does: a TrialSpec in one framework's words, and the way back for its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tuner.records import TrialSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a launcher starts: ``entry`` ("module:function") called with ``(*arguments, rank)`` on every rank."""

    entry: str
    arguments: tuple[Any, ...]
    num_ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What one rank said of itself before it ended; fields are None where it never got that far."""

    rank: int
    phase: str
    first_forward_unix_s: float | None = None
    step_times_s: tuple[float, ...] = ()
    breakdown_s: dict[str, float] | None = None
    memory_bytes: float | None = None
    exception_type: str | None = None
    exception_message: str | None = None
    exception_unix_s: float | None = None
    is_secondary: bool = False
    """Its exception is a symptom of another rank's end."""


class Adapter(Protocol):
    def prepare(self, spec: TrialSpec, directory: Path) -> Launch:
        """Write what the trial reads into ``directory``."""
        ...

    def rank_reports(self, directory: Path, num_ranks: int) -> tuple[RankReport, ...]: ...

    def metrics_file(self, directory: Path) -> Path:
        """Where JSON lines appear while the trial runs."""
        ...
