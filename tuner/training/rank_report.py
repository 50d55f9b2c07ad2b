"""What a rank says about itself: ``rank-N.json``, replaced whole at each change, and rank 0's ``metrics.jsonl``."""

from __future__ import annotations

import json
import os
import re
import time
import traceback
from pathlib import Path
from statistics import median
from typing import Any

PARTS = ("data", "forward_backward", "sync", "optimizer")
WRITE_EVERY_S = 2.0
_SYMPTOM = re.compile(
    r"closed by peer|reset by peer|broken pipe|socket closed|timed out waiting|timeout|remote process exited"
    r"|connection refused|connectfullmesh|NCCL.*abort",
    re.IGNORECASE,
)
"""What a rank sees when another one has failed or is stuck."""


class NonFiniteLoss(FloatingPointError):
    """The loss or the gradient norm is not a number any more."""


class RankReport:
    """The state of one rank on disk."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._path = directory / f"rank-{rank}.json"
        self._written_s = 0.0
        self._parts: dict[str, list[float]] = {part: [] for part in PARTS}
        self.values: dict[str, Any] = {
            "rank": rank,
            "pid": os.getpid(),
            "phase": "starting",
            "first_forward_unix_s": None,
            "step_times_s": [],
            "breakdown_s": None,
            "memory_growth_bytes": None,
            "memory_base_bytes": None,
            "params_bytes": None,
            "gathered_params_bytes": None,
            "grad_bytes": None,
            "optimizer_bytes": None,
            "exception": None,
        }

    def enter(self, phase: str) -> None:
        self.values["phase"] = phase
        self.write()

    def add_step(self, parts: dict[str, float]) -> None:
        """One step's seconds by part; written out when the last writing is WRITE_EVERY_S ago."""
        for part, seconds in parts.items():
            self._parts[part].append(seconds)
        self.values["step_times_s"].append(sum(parts.values()))
        if time.monotonic() - self._written_s > WRITE_EVERY_S:
            self.write()

    def fail(self, error: BaseException) -> None:
        """Say what went wrong; where torch wrapped the error in its own, it is the first one that is named."""
        cause = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        self.values["exception"] = {
            "type": type(cause).__name__,
            "message": str(cause),
            "traceback": "".join(traceback.format_exception(error)),
            "unix_s": time.time(),
            "secondary": is_symptom(cause),
        }
        self.enter("failed")

    def write(self) -> None:
        if self.values["step_times_s"]:
            self.values["breakdown_s"] = {part: median(seconds) for part, seconds in self._parts.items()}
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(self.values), encoding="utf-8")
        os.replace(temporary, self._path)
        self._written_s = time.monotonic()


def is_symptom(error: BaseException) -> bool:
    """Whether the error tells of another rank's end rather than of this one's."""
    return not isinstance(error, (ValueError, NonFiniteLoss, MemoryError)) and bool(_SYMPTOM.search(str(error)))


class Metrics:
    """``metrics.jsonl``: one object a line, on disk as soon as it is known."""

    def __init__(self, directory: Path) -> None:
        self._file = (directory / "metrics.jsonl").open("a", encoding="utf-8", buffering=1)

    def append(self, **values: Any) -> None:
        self._file.write(json.dumps(values) + "\n")
