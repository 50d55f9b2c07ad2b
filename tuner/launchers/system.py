"""What the operating system says of this machine: cores, memory, processor, installed distributions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import psutil


def usable_cores() -> float:
    try:
        allowed = float(len(os.sched_getaffinity(0)))
    except AttributeError:
        allowed = float(os.cpu_count() or 1)
    quota = _first_line(Path("/sys/fs/cgroup/cpu.max")).split()
    if len(quota) == 2 and quota[0].isdigit():
        allowed = min(allowed, int(quota[0]) / int(quota[1]))
    return max(allowed, 0.1)


def total_memory_bytes() -> float:
    """The machine's, or a container's limit if that is less."""
    total = float(psutil.virtual_memory().total)
    limit = _first_line(Path("/sys/fs/cgroup/memory.max"))
    return min(total, float(limit)) if limit.isdigit() else total


def cpu_model() -> str:
    return _cpu_field("model name") or platform.processor() or platform.machine() or "unknown"


def bf16_over_fp32() -> float:
    """Matrix units (AMX) make bf16 faster; without them or AVX-512 BF16 torch was 6-8 times slower in bf16."""
    flags = _cpu_field("flags").split()
    return 4.0 if "amx_bf16" in flags else 1.0 if "avx512_bf16" in flags else 1 / 7


def _cpu_field(name: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def installed_version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
