"""What this machine does for a native trial, measured in about two seconds by as many processes as will train.

One rank alone gives the rates of one process; all ranks at once give how many of them compute at full rate; timed
collectives give the network between them. Every duration is a median or a best of several short windows, since other
work on the machine only ever slows one down. Left out: more than one thread per rank, and CUDA.

The entry is ``measure(directory, num_ranks, rank)``; rank 0 writes ``machine.json``. torch is imported in it only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

RESULT = "machine.json"
SMALL = (64, 64, 64)
SHAPES = ((256, 128, 512), (512, 256, 256), (512, 256, 1024))
"""(m, k, n) of the matmuls of small models: tokens of a micro-batch by hidden and feed-forward sizes."""
SHARED_SHAPE = SHAPES[-1]
ALL_REDUCE_BYTES = ((4, 15), (64 * 1024, 11), (512 * 1024, 9), (4 * 1024 * 1024, 5))
"""(payload, how often it is timed)."""
VECTOR_FLOATS = 1024 * 1024
CHAIN = 40
"""Operators in the chain that gives the cost of one."""
TOGETHER_S = 0.2
"""The window in which all ranks compute: several turns of the system's scheduler."""
LIMIT_S = 20.0
"""Longest wait of a collective."""


def measure(directory: str, num_ranks: int, rank: int) -> None:
    """One rank's part. ``directory`` is empty and shared by the ranks; the rendezvous is a file in it."""
    import torch
    import torch.distributed as dist

    from tuner.training.memory import use_one_heap

    use_one_heap()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if num_ranks > 1:
        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = dist.FileStore(os.path.join(directory, "rendezvous"), num_ranks)  # type: ignore[attr-defined]
        limit = timedelta(seconds=LIMIT_S)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=limit)
        dist.barrier()
    base_bytes = _largest(_resident_bytes(), num_ranks)
    figures: dict[str, Any] = {"framework_base_bytes": base_bytes}
    if rank == 0:
        figures |= _alone()
    together = _together(num_ranks)
    figures |= _network(num_ranks, rank) if num_ranks > 1 else {"all_reduce_s": [], "point_to_point_s": None}
    if rank == 0:
        alone = figures.pop("shared_shape_flops_per_s")
        figures["compute_slots"] = together / alone
        _write(Path(directory) / RESULT, figures)
    if num_ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


def _alone() -> dict[str, Any]:
    import torch

    fp32 = [matmul_flops_per_s(shape, torch.float32) for shape in SHAPES]
    return {
        "matmul_flops_per_s": {
            "fp32": median(fp32),
            "bf16": matmul_flops_per_s(SHARED_SHAPE, torch.bfloat16, windows=2),
            "fp16": matmul_flops_per_s(SHARED_SHAPE, torch.float16, windows=2),
        },
        "small_matmul_flops_per_s": matmul_flops_per_s(SMALL, torch.float32),
        "shared_shape_flops_per_s": fp32[-1],
        "memory_bandwidth_bytes_per_s": _bandwidth_bytes_per_s(),
        "operator_s": _operator_s(),
    }


def matmul_flops_per_s(shape: tuple[int, int, int], dtype: torch.dtype, windows: int = 4) -> float:
    """``2 m k n / t``, the best of ``windows`` windows of 25 ms."""
    import torch

    m, k, n = shape
    left, right = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    torch.mm(left, right)
    return 2.0 * m * k * n / min(_call_s(lambda: torch.mm(left, right), 0.025) for _ in range(windows))


def _bandwidth_bytes_per_s() -> float:
    """Of an addition of two vectors of 4 MiB into a third: two read, one written."""
    import torch

    a, b, c = (torch.ones(VECTOR_FLOATS) for _ in range(3))
    return 3 * 4 * VECTOR_FLOATS / min(_call_s(lambda: torch.add(a, b, out=c), 0.025) for _ in range(4))


def _operator_s() -> float:
    """Host cost of one operator on a tensor too small to compute with: forward is one, backward two.

    Leaves out: modules' own Python, which a model's forward adds.
    """
    import torch

    factor = torch.ones(64, requires_grad=True)

    def chain() -> None:
        x = factor
        for _ in range(CHAIN):
            x = x * factor
        x.sum().backward()  # type: ignore[no-untyped-call]
        factor.grad = None

    chain()
    return median(_call_s(chain, 0.02) for _ in range(5)) / (3 * CHAIN)


def _together(num_ranks: int) -> float:
    """Flops per second of all ranks computing at once, on every rank: products finished within one common window."""
    import torch

    m, k, n = SHARED_SHAPE
    left, right = torch.randn(m, k), torch.randn(k, n)
    best = 0.0
    for _ in range(2):
        begin_unix_s = _largest(time.time() + 0.005, num_ranks)
        num_products = 0
        while (now := time.time()) < begin_unix_s + TOGETHER_S:
            torch.mm(left, right)
            num_products += now >= begin_unix_s
        total = torch.tensor([2.0 * m * k * n * num_products / TOGETHER_S], dtype=torch.float64)
        if num_ranks > 1:
            torch.distributed.all_reduce(total)
        best = max(best, float(total))
    return best


def _network(num_ranks: int, rank: int) -> dict[str, Any]:
    """All-reduces among two ranks and among all, as (ranks, bytes, seconds), and one small message's time."""
    import torch.distributed as dist

    pair = dist.new_group([0, 1])
    groups = {2: pair} | ({num_ranks: dist.group.WORLD} if num_ranks > 2 else {})
    rows = []
    for size, members in groups.items():
        for num_bytes, repeats in ALL_REDUCE_BYTES:
            dist.barrier()
            if rank < size:
                rows.append([size, num_bytes, _all_reduce_s(members, num_bytes, repeats)])
    dist.barrier()
    message_s = _message_s(rank) if rank < 2 else None
    dist.barrier()
    return {"all_reduce_s": rows, "point_to_point_s": message_s}


def _all_reduce_s(members: Any, num_bytes: int, repeats: int) -> float:
    import torch
    import torch.distributed as dist

    payload = torch.zeros(max(1, num_bytes // 4))
    dist.all_reduce(payload, group=members)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        dist.all_reduce(payload, group=members)
        times.append(time.perf_counter() - began)
    return median(times)


def _message_s(rank: int, repeats: int = 15) -> float:
    """Half of a round trip of four bytes between ranks 0 and 1."""
    import torch
    import torch.distributed as dist

    word, times = torch.zeros(1), []
    for _ in range(repeats):
        began = time.perf_counter()
        if rank == 0:
            dist.send(word, 1)
            dist.recv(word, 1)
        else:
            dist.recv(word, 0)
            dist.send(word, 0)
        times.append((time.perf_counter() - began) / 2)
    return median(times)


def _call_s(call: Callable[[], object], window_s: float) -> float:
    """Mean seconds of one call within a window."""
    began = time.perf_counter()
    num_calls = 0
    while (passed := time.perf_counter() - began) < window_s:
        call()
        num_calls += 1
    return passed / num_calls if num_calls else window_s


def _largest(value: float, num_ranks: int) -> float:
    """Of all ranks; waits for them."""
    if num_ranks == 1:
        return value
    import torch
    import torch.distributed as dist

    held = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(held, op=dist.ReduceOp.MAX)
    return float(held)


def _resident_bytes() -> float:
    """Pages in memory, those shared with the fork server included; the peak where /proc is missing."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return float(pages * os.sysconf("SC_PAGE_SIZE"))
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _write(path: Path, values: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(values), encoding="utf-8")
    part.replace(path)
