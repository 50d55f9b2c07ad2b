"""Device, Link and Cluster: the hardware's figures, each overridable, each with a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cost_models.workload import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One device's share of a network, one direction."""

    bandwidth_bytes_per_s: float
    latency_s: float
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator (or one CPU process): dense peaks, no sparsity.

    ``peak_flops_per_s`` maps a precision to its dense matmul peak. ``memory_bytes`` is what the driver
    reports as usable, ``nominal_memory_bytes`` what the data sheet says.
    """

    name: str
    peak_flops_per_s: Mapping[Precision, float]
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    nominal_memory_bytes: float = 0.0
    kind: str = "gpu"
    """``gpu`` or ``cpu``: a CPU device is a process, see ``Cluster.compute_slots_per_node``."""
    kernel_launch_s: float = 5e-6
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``num_nodes`` equal nodes of ``devices_per_node`` equal devices on a two-level network."""

    device: Device
    num_nodes: int
    devices_per_node: int
    intra_node: Link
    inter_node: Link
    memory_limit_bytes: float
    """Device limit including the framework's base."""
    memory_reserve_bytes: float = 0.0
    """Kept free on top of what is predicted (context, NCCL, fragmentation)."""
    framework_base_bytes: float = 0.0
    """What the framework holds before the first tensor."""
    compute_slots_per_node: float | None = None
    """How many devices of a node can compute at full rate at once; None: all. Four processes on two cores: 2."""
    price_per_device_hour: float | None = None

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node

    @property
    def usable_memory_bytes(self) -> float:
        return self.memory_limit_bytes - self.memory_reserve_bytes
