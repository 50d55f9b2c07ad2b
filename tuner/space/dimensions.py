"""Fixed, Choice and Range: what one dimension of a search space may be, and the role it plays."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Which factor of ``time_to_loss = step_time x steps`` a dimension stands in."""

    SPEED = "speed"
    CONVERGENCE = "convergence"
    BOTH = "both"


Value = int | float | str | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    value: Value
    role: Role

    @property
    def values(self) -> tuple[Value, ...]:
        return (self.value,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    values: tuple[Value, ...]
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """``low <= x <= high``; ``step`` and ``log`` exclude each other; ``integer`` ranges yield whole numbers."""

    low: float
    high: float
    role: Role
    log: bool = False
    step: float | None = None
    integer: bool = False


Dimension = Fixed | Choice | Range
