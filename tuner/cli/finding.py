"""Finding: one thing that tune doctor looked at, and how it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAULT = "fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``evidence`` is what was seen; ``next_step`` is empty where nothing is to be done."""

    level: Level
    what: str
    evidence: str
    next_step: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "level": self.level.value}


def fine(what: str, evidence: str) -> Finding:
    return Finding(level=Level.OK, what=what, evidence=evidence)
