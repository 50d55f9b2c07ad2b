"""The accelerators of this machine as the driver tells them, and what torch was built for; torch is not imported."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tuner.cli.distributions import installed_version

NCCL = tuple(f"nvidia-nccl-cu{major}" for major in range(11, 16))
_CUDA = re.compile(r"""^cuda\b.*?=\s*["']([\d.]+)["']""", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """``names`` and ``memory_bytes`` are of the devices a trial would see; empty where there are none."""

    names: tuple[str, ...] = ()
    memory_bytes: tuple[int, ...] = ()
    driver: str | None = None
    driver_cuda: str | None = None
    torch: str | None = None
    torch_cuda: str | None = None
    nccl: tuple[tuple[str, str], ...] = ()
    note: str = ""
    """Why there are no devices, where there are none."""


def look() -> Accelerators:
    torch, torch_cuda, nccl = installed_version("torch"), torch_cuda_version(), nccl_versions()
    if find_spec("pynvml") is None:
        there = Path("/proc/driver/nvidia/version").exists()
        missing = "nvidia-ml-py is not installed to ask the NVIDIA driver" if there else "no NVIDIA driver"
        return Accelerators(torch=torch, torch_cuda=torch_cuda, nccl=nccl, note=missing)
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Accelerators(torch=torch, torch_cuda=torch_cuda, nccl=nccl, note=f"no NVIDIA driver answers ({error})")
    try:
        names, sizes = _visible(pynvml)
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        return Accelerators(
            names=names,
            memory_bytes=sizes,
            driver=_text(pynvml.nvmlSystemGetDriverVersion()),
            driver_cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            torch=torch,
            torch_cuda=torch_cuda,
            nccl=nccl,
            note="CUDA_VISIBLE_DEVICES hides every device",
        )
    finally:
        pynvml.nvmlShutdown()


def _visible(nvml: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    kept = [handles[i] for i in visible_devices(uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))]
    names = tuple(_text(nvml.nvmlDeviceGetName(handle)) for handle in kept)
    return names, tuple(int(nvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in kept)


def visible_devices(uuids: list[str], variable: str | None) -> tuple[int, ...]:
    """Indices that ``CUDA_VISIBLE_DEVICES`` leaves: numbers or beginnings of UUIDs, up to the first that is neither.

    MIG instances are not told apart: one counts as its device.
    """
    if variable is None:
        return tuple(range(len(uuids)))
    kept: list[int] = []
    for word in (w.strip() for w in variable.split(",")):
        if word.isdigit():
            index = int(word)
        else:
            index = next((i for i, uuid in enumerate(uuids) if word and uuid.startswith(word)), -1)
        if not 0 <= index < len(uuids):
            break
        kept.append(index)
    return tuple(kept)


def torch_cuda_version() -> str | None:
    """From ``torch/version.py``; None for a build without CUDA, or none at all."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = _CUDA.search(text)
    return found[1] if found else None


def nccl_versions() -> tuple[tuple[str, str], ...]:
    found = ((name, installed_version(name)) for name in NCCL)
    return tuple((name, version) for name, version in found if version is not None)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
