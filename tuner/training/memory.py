"""How far a rank's memory grows over its start, and the limit at which an allocation really fails.

On the CPU the measure is ``VmData``: the writable private memory that Linux also holds against RLIMIT_DATA. glibc is
told to serve every size from one heap that never shrinks, so the figure at any time is the highest so far and needs
no sampling; freed tensors are reused without a page fault, which is also the faster way. Holes that imports left in
the heap are filled first, so that they neither hide growth nor add headroom. It is what a process really takes: live
tensors and the holes between them. With DDP and pipelines the holes are some 10 %; FSDP's many large blocks of unlike
sizes leave more, two times the live bytes where weights far outweigh activations (glibc 2.36, whose aligned
allocation does not reuse a freed block of the same size). Left out: memory of the kernel and of shared files.
On CUDA it is the caching allocator's peak of live bytes.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_LARGEST_HOLE_BYTES, _SMALLEST_HOLE_BYTES = 256 * 1024**2, 1024
_STATUS = Path("/proc/self/status")


def use_one_heap() -> None:
    """One growing heap for all sizes and threads; without glibc nothing is changed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for option, value in ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, 65536)):
        mallopt(option, value)


def fill_holes() -> None:
    """Take every free piece of the heap of 1 KiB and more, for good and without touching it.

    The limit stands at what is taken while this lasts, so malloc fails rather than grow the heap.
    """
    taken = taken_bytes(torch.device("cpu"))
    if sys.platform != "linux" or taken is None:
        return
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (taken, hard))
    try:
        size = _LARGEST_HOLE_BYTES
        while size >= _SMALLEST_HOLE_BYTES:
            if not libc.malloc(size):
                size //= 2
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


def taken_bytes(device: torch.device) -> int | None:
    """Highest so far; None where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if not _STATUS.exists():
        return None
    for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return None


@dataclass(slots=True, kw_only=True)
class MemoryWatch:
    """Growth since ``start``; the limit is lifted on ``lift`` so that a failed rank can still write its report."""

    device: torch.device
    base_bytes: int | None
    limit_before: int | None = None

    @classmethod
    def start(cls, device: torch.device, headroom_bytes: float | None) -> MemoryWatch:
        """Take the baseline, after the groups exist and a first product has woken the libraries."""
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            fill_holes()
        watch = cls(device=device, base_bytes=taken_bytes(device))
        if headroom_bytes is not None:
            watch.limit(headroom_bytes)
        return watch

    def limit(self, headroom_bytes: float) -> None:
        if self.device.type == "cuda":
            total = torch.cuda.get_device_properties(self.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, headroom_bytes / total), self.device)
            return
        if sys.platform != "linux" or self.base_bytes is None:
            raise RuntimeError("a memory limit on the CPU needs Linux (RLIMIT_DATA); leave cluster.memory out")
        self.limit_before, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (self.base_bytes + int(headroom_bytes), hard))

    def lift(self) -> None:
        if self.limit_before is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (self.limit_before, hard))

    @property
    def growth_bytes(self) -> int | None:
        now = taken_bytes(self.device)
        return None if now is None or self.base_bytes is None else max(0, now - self.base_bytes)


def warm_up(device: torch.device) -> None:
    """A product with its gradients and one update: threads and the workspaces of libraries come before the baseline."""
    weight = torch.ones(512, 512, device=device, requires_grad=True)
    torch.nn.functional.gelu(torch.ones_like(weight) @ weight).sum().backward()  # type: ignore[no-untyped-call]
    torch.optim.AdamW([weight], fused=True).step()
