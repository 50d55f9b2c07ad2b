"""Entry points of made-up ranks: each shows one way for a trial to go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LOSS = 2.5


def _step(directory: Path, step: int, loss: float = LOSS) -> None:
    line = {"kind": "step", "step": step, "tokens": step * 512, "loss": loss, "step_time_s": 0.01}
    with (directory / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _report(directory: Path, rank: int, **said: object) -> None:
    values = {"rank": rank, "phase": "done", "first_forward_unix_s": time.time(), **said}
    (directory / f"rank-{rank}.json").write_text(json.dumps(values), encoding="utf-8")


def well(folder: str, rank: int) -> None:
    directory = Path(folder)
    if rank == 0:
        for step in range(1, 11):
            _step(directory, step)
        line = {"kind": "eval", "step": 10, "tokens": 5120, "train_s": 0.1, "val_loss": LOSS}
        with (directory / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    _report(directory, rank, step_times_s=[0.01 + 0.001 * rank] * 10, memory_growth_bytes=(1 + rank) * 2**20)


def out_of_memory_on_rank_1(folder: str, rank: int) -> None:
    """Rank 1 is the cause; rank 0 only notices that its peer is gone, and says so first in the log."""
    directory = Path(folder)
    if rank == 1:
        message = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."
        exception = {"type": "RuntimeError", "message": message, "unix_s": 10.0, "secondary": False}
        _report(directory, rank, phase="failed", exception=exception)
    else:
        message = "Connection closed by peer [127.0.0.1]:1234"
        exception = {"type": "RuntimeError", "message": message, "unix_s": 9.0, "secondary": True}
        _report(directory, rank, phase="failed", exception=exception)
    sys.exit(1)


def killed(folder: str, rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def crash(folder: str, rank: int) -> None:
    raise ValueError("heads 4 do not divide by tp 3")


def hang(folder: str, rank: int) -> None:
    if rank == 0:
        _step(Path(folder), 1)
    time.sleep(120)


def silent(folder: str, rank: int) -> None:
    """Ends well and says nothing."""


def grandchildren(folder: str, rank: int) -> None:
    """Leaves a process in a session of its own, which a process group would miss."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
    (Path(folder) / f"child-{rank}").write_text(str(child.pid), encoding="utf-8")
    time.sleep(300)


def shown_environment(folder: str, rank: int) -> None:
    sys.stdout.write(f"rank {rank} sees {os.environ.get('OMP_NUM_THREADS')}\n")
    sys.stdout.flush()
    (Path(folder) / f"torch-{rank}").write_text(str("torch" in sys.modules), encoding="utf-8")
