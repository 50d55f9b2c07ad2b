"""What this machine can do: measured in a second with numpy, or in a few with torch, kept, and told as a Cluster."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import platformdirs

from cost_models.cluster import Cluster, Device, Link
from cost_models.coefficients import DEFAULT_COEFFICIENTS, Costs
from cost_models.workload import Precision
from tuner.launchers.numpy_rates import rates
from tuner.launchers.system import bf16_over_fp32, cpu_model, installed_version, total_memory_bytes, usable_cores

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
BENCH = "tuner.training.bench:measure"
QUICK_RANKS = 0
"""The key under which figures that no rank measured are kept."""

GLOO_ALL_REDUCE_S = ((2, 4, 1.3e-3), (2, 4 * 1024**2, 7.5e-3), (4, 4 * 1024**2, 11.5e-3))
"""(ranks, bytes, seconds) seen once with torch 2.13 and gloo on two cores: an order of magnitude, until measured."""
FITTED_BYTES = 16 * 1024
FRAMEWORK_BASE_BYTES = 235.0 * 1024**2
"""Resident size of a forked rank in its group before the first tensor, torch 2.13 CPU build: 235 MiB seen."""
OPERATOR_S = 6e-6
"""Host cost of one small torch operator: 4.5-7 microseconds seen."""


class MeasurementFailed(RuntimeError):
    """The ranks that measure did not finish; the message has the end of their log."""


class Ranks(Protocol):
    """Started processes; ``tuner.launchers.forkserver.RankGroup`` is one."""

    def wait(self, timeout_s: float) -> bool: ...
    def stop(self) -> None: ...
    def exit_codes(self) -> tuple[int | None, ...]: ...


Start = Callable[[str, int, Sequence[Any], Path], Ranks]
"""``(entry, num_ranks, arguments, log)``: ``ForkServer.launch``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFigures:
    """Rates of one single-threaded process, and how several get along. ``assumed`` names what was not measured."""

    cpu_model: str
    cores: float
    """Cores this process may use: its affinity, or a container's quota if that is less."""
    memory_bytes: float
    num_ranks: int
    """Processes that measured together; 0: numpy alone."""
    torch_version: str | None
    matmul_flops_per_s: Mapping[str, float]
    """By precision, at the sizes of a small model."""
    small_matmul_flops_per_s: float
    """fp32, 64 x 64 x 64."""
    memory_bandwidth_bytes_per_s: float
    operator_s: float
    compute_slots: float
    """How many ranks' worth of full rate all of them reach together."""
    all_reduce_s: tuple[tuple[int, int, float], ...]
    """(ranks, bytes, seconds)."""
    point_to_point_s: float | None
    framework_base_bytes: float
    measured_unix_s: float
    assumed: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MachineFigures:
        known = {f.name for f in fields(cls)}
        if set(values) - known or known - set(values):
            raise ValueError(f"machine figures with keys {sorted(values)}; expected {sorted(known)}")
        rows = tuple((int(ranks), int(size), float(seconds)) for ranks, size, seconds in values["all_reduce_s"])
        return cls(**{**values, "all_reduce_s": rows, "assumed": tuple(values["assumed"])})


# -- measuring -----------------------------------------------------------------------------------
def quick_figures() -> MachineFigures:
    """With numpy alone, in about half a second, or as kept from an earlier call; gloo and torch are assumed."""
    kept = _read(QUICK_RANKS)
    if kept is not None:
        return kept
    seen = rates()
    fp32 = seen["matmul_flops_per_s"]
    figures = MachineFigures(
        cpu_model=cpu_model(),
        cores=usable_cores(),
        memory_bytes=total_memory_bytes(),
        num_ranks=QUICK_RANKS,
        torch_version=installed_version("torch"),
        matmul_flops_per_s={"fp32": fp32, "bf16": fp32 * bf16_over_fp32(), "fp16": fp32},
        small_matmul_flops_per_s=seen["small_matmul_flops_per_s"],
        memory_bandwidth_bytes_per_s=seen["memory_bandwidth_bytes_per_s"],
        operator_s=OPERATOR_S,
        compute_slots=usable_cores(),
        all_reduce_s=GLOO_ALL_REDUCE_S,
        point_to_point_s=None,
        framework_base_bytes=FRAMEWORK_BASE_BYTES,
        measured_unix_s=time.time(),
        assumed=("bf16", "fp16", "operator_s", "compute_slots", "all_reduce_s", "framework_base_bytes"),
    )
    _keep(figures)
    return figures


def full_figures(num_ranks: int, *, launch: Start, timeout_s: float = 60.0) -> MachineFigures:
    """With torch, on ``num_ranks`` processes at once that ``launch`` starts; kept for ``cached_figures``.

    MeasurementFailed where they do not all end well within ``timeout_s``.
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks={num_ranks}: a machine is measured by one process or more")
    with tempfile.TemporaryDirectory(prefix="tune-machine-") as folder:
        said = _measure(Path(folder), num_ranks, launch, timeout_s)
    assumed: tuple[str, ...] = ()
    if num_ranks == 1:
        said["all_reduce_s"], assumed = GLOO_ALL_REDUCE_S, ("all_reduce_s",)
    cores = usable_cores()
    said["compute_slots"] = cores if num_ranks == 1 else float(np.clip(said["compute_slots"], 1.0, cores))
    figures = MachineFigures.from_dict(
        {
            "cpu_model": cpu_model(),
            "cores": cores,
            "memory_bytes": total_memory_bytes(),
            "num_ranks": num_ranks,
            "torch_version": installed_version("torch"),
            "measured_unix_s": time.time(),
            "assumed": assumed,
            **said,
        }
    )
    _keep(figures)
    return figures


def _measure(folder: Path, num_ranks: int, launch: Start, timeout_s: float) -> dict[str, Any]:
    shared = folder / "shared"
    shared.mkdir()
    output = folder / "log.txt"
    group = launch(BENCH, num_ranks, (str(shared), num_ranks), output)
    in_time = group.wait(timeout_s)
    if not in_time:
        group.stop()
    codes = group.exit_codes()
    result = shared / "machine.json"
    if not in_time or any(codes) or not result.exists():
        text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
        ended = f"exit codes {list(codes)}" if in_time else f"not done within {timeout_s:g} s"
        raise MeasurementFailed(
            f"measuring this machine with {num_ranks} processes: {ended}\n{text[-2000:]}"
            f"  -> `tune doctor` looks for the cause; cluster.device may name a preset instead of this-machine"
        )
    values: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return values


# -- as a cluster --------------------------------------------------------------------------------
def machine_cluster(figures: MachineFigures, num_devices: int, *, costs: Costs = DEFAULT_COEFFICIENTS.cpu) -> Cluster:
    """One node of ``num_devices`` single-threaded processes that share its cores and its memory evenly.

    The figures are rates reached, and the cost model multiplies a device's figures by the efficiencies in ``costs``:
    they are divided by these here, so that what comes out again is what was measured.
    """
    if num_devices < 1:
        raise ValueError(f"num_devices={num_devices}: a machine has one device or more")
    link = _link(figures, costs)
    share = figures.memory_bytes / num_devices
    peaks = {Precision(p): rate / costs.matmul_efficiency for p, rate in figures.matmul_flops_per_s.items()}
    device = Device(
        name="this-machine",
        kind="cpu",
        peak_flops_per_s=peaks,
        memory_bytes=share,
        nominal_memory_bytes=share,
        memory_bandwidth_bytes_per_s=figures.memory_bandwidth_bytes_per_s / costs.bandwidth_efficiency,
        kernel_launch_s=figures.operator_s,
        sources=_sources(figures),
    )
    return Cluster(
        device=device,
        num_nodes=1,
        devices_per_node=num_devices,
        intra_node=link,
        inter_node=link,
        memory_limit_bytes=share,
        framework_base_bytes=figures.framework_base_bytes,
        compute_slots_per_node=figures.compute_slots,
    )


def _link(figures: MachineFigures, costs: Costs) -> Link:
    """Latency and bandwidth from timed all-reduces: ``t = 2 (n - 1) L + launch + 2 (n - 1)/n S / (e B)``.

    The pair with the least squares of ``log(t / measured)``, on a grid of 3 % steps: positive whatever the noise, and
    no size counts more than another. Payloads of a few bytes are left out where larger ones were timed: gloo sends
    fewer messages for them. Left out: waiting for a core, which grows with ranks and is not linear in bytes.
    """
    rows = [r for r in figures.all_reduce_s if r[1] >= FITTED_BYTES]
    rows = rows if len({size for _, size, _ in rows}) > 1 else list(figures.all_reduce_s)
    ranks, size, seconds = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    latency_s = np.geomspace(1e-6, 1e-2, 312)[:, None, None]
    bandwidth = np.geomspace(1e7, 1e11, 312)[None, :, None]
    ring = 2 * (ranks - 1) / ranks * size / costs.link_efficiency
    told = 2 * (ranks - 1) * latency_s + costs.collective_launch_s + ring / bandwidth
    wrong = np.sum(np.log(told / seconds) ** 2, axis=-1)
    at = np.unravel_index(int(np.argmin(wrong)), wrong.shape)
    listed = ", ".join(f"{n} x {int(num_bytes)} B {s * 1e3:.3g} ms" for n, num_bytes, s in figures.all_reduce_s)
    return Link(
        bandwidth_bytes_per_s=float(bandwidth[0, at[1], 0]),
        latency_s=float(latency_s[at[0], 0, 0]),
        source=f"{_how(figures, 'all_reduce_s')}: fit of gloo all-reduces {listed}",
    )


def _sources(figures: MachineFigures) -> dict[str, str]:
    named = {f"peak_flops_per_s.{p}": p for p in figures.matmul_flops_per_s} | {
        "memory_bandwidth_bytes_per_s": "memory_bandwidth_bytes_per_s",
        "kernel_launch_s": "operator_s",
        "compute_slots_per_node": "compute_slots",
        "framework_base_bytes": "framework_base_bytes",
    }
    said = {field: _how(figures, name) for field, name in named.items()}
    return said | {"memory_bytes": "this machine's memory in equal shares", "device": figures.cpu_model}


def _how(figures: MachineFigures, name: str) -> str:
    if name in figures.assumed:
        return "assumed"
    if figures.num_ranks == QUICK_RANKS:
        return "measured with numpy, one thread"
    return f"measured with torch {figures.torch_version}, {figures.num_ranks} processes"


# -- kept figures --------------------------------------------------------------------------------
def cached_figures(num_ranks: int) -> MachineFigures | None:
    """What ``full_figures`` measured on this machine with this torch and as many ranks; None where it has not."""
    return _read(num_ranks) if installed_version("torch") is not None else None


def cache_path(num_ranks: int) -> Path:
    """One file per CPU model, cores, torch version and ranks, under the user's cache folder."""
    key = json.dumps([SCHEMA_VERSION, cpu_model(), usable_cores(), installed_version("torch"), num_ranks])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("tune")) / f"machine-{digest}.json"


def _read(num_ranks: int) -> MachineFigures | None:
    path = cache_path(num_ranks)
    try:
        figures = MachineFigures.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning("%s cannot be read (%s); this machine is measured again", path, error)
        return None
    return replace(figures, memory_bytes=total_memory_bytes())


def _keep(figures: MachineFigures) -> None:
    path = cache_path(figures.num_ranks)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(figures.to_dict(), indent=1), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        log.warning("%s cannot be written (%s); this machine will be measured again next time", path, error)
