"""Rates of one core as numpy sees them, in a process of its own: only before a start can a BLAS be held to one thread.

Run as ``python -m tuner.launchers.numpy_rates``; prints one JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "MKL", "OMP", "BLIS", "VECLIB", "NUMEXPR")}
LIMIT_S = 15.0
WINDOW_S = 0.025
SMALL, MEDIUM = 64, 384


def rates() -> dict[str, float]:
    """``measured`` in a child held to one thread; in this process, threads and all, where none can be started."""
    command = [sys.executable, "-m", "tuner.launchers.numpy_rates"]
    try:
        done = subprocess.run(
            command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, timeout=LIMIT_S, check=True
        )
        return {name: float(value) for name, value in json.loads(done.stdout).items()}
    except (OSError, subprocess.SubprocessError, ValueError):
        return measured()


def measured() -> dict[str, float]:
    """Matmul ``2 n^3 / t`` at two sizes and the bandwidth of an addition, each the best of several windows."""
    import numpy as np

    def matmul_flops_per_s(size: int) -> float:
        left = np.ones((size, size), dtype=np.float32)
        out = np.empty_like(left)
        return 2.0 * size**3 / _best_s(lambda: np.matmul(left, left, out=out))

    a, b = (np.ones(1024 * 1024, dtype=np.float32) for _ in range(2))
    c = np.empty_like(a)
    return {
        "matmul_flops_per_s": matmul_flops_per_s(MEDIUM),
        "small_matmul_flops_per_s": matmul_flops_per_s(SMALL),
        "memory_bandwidth_bytes_per_s": 3.0 * a.nbytes / _best_s(lambda: np.add(a, b, out=c)),
    }


def _best_s(call: Callable[[], object]) -> float:
    call()
    best = float("inf")
    for _ in range(4):
        began, num_calls = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < WINDOW_S:
            call()
            num_calls += 1
        best = min(best, passed / max(1, num_calls))
    return best


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured()))
