"""Exit codes, and the mistakes of a user that end in one message."""

from __future__ import annotations

import importlib.util
from enum import IntEnum

DISTRIBUTION = "tune-layouts"


class Exit(IntEnum):
    DONE = 0
    BUG = 1
    USAGE = 2
    NOTHING_FEASIBLE = 3
    ALL_TRIALS_FAILED = 4
    DOCTOR_FAULT = 5
    INTERRUPTED = 130


class UsageError(Exception):
    """Something the user can put right; the message says what, where and what next."""


def require_extra(extra: str, modules: tuple[str, ...], purpose: str) -> None:
    """UsageError naming the extra where one of its modules is not installed; nothing is imported."""
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    if missing:
        raise UsageError(
            f"{purpose} needs {', '.join(missing)}, which the base install leaves out; "
            f"install the extra: pip install '{DISTRIBUTION}[{extra}]'"
        )
