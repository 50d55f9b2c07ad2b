"""Coefficients: the few numbers that measurement may change, by name, per kind of device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Efficiencies and fixed costs on one kind of device. Defaults and their sources are in the two instances below."""

    matmul_efficiency: float
    """Share of the peak that a large matmul reaches."""
    matmul_overhead_s: float
    """Fixed cost of one matmul: ``t = flops / (efficiency peak) + overhead``, the form ``e x / (x + x0)``."""
    attention_efficiency: float
    """Share of the peak of a fused attention kernel, on the causal half of its flops."""
    bandwidth_efficiency: float
    """Share of the memory bandwidth that element-wise kernels reach."""
    link_efficiency: float
    """Share of a link's bandwidth that a large collective reaches."""
    collective_launch_s: float
    """Fixed cost of one collective, whatever its size."""
    layer_ops_forward: float
    """Operators launched in one layer's forward pass; backward launches twice as many."""
    host_overlap: float
    """Share of the launches hidden behind running kernels: 1 where kernels are asynchronous, 0 on a CPU."""
    optimizer_ops_per_tensor: float
    """Operators per parameter tensor in clipping and the AdamW step."""
    optimizer_bytes_per_param: float
    """Memory traffic of clipping and the AdamW step."""
    dtensor_dispatch_s: float
    """Host cost of one operator dispatched through DTensor, over the plain operator."""
    dtensor_ops_per_layer: float
    """DTensor operators in one layer's forward pass; backward as many again."""
    dtensor_ops_per_tensor: float
    """DTensor operators per parameter tensor in the optimizer step."""
    fully_sharded_unit_s: float
    """Host cost of gathering or reducing one fully sharded unit (hooks, copies in and out)."""
    pipeline_message_s: float
    """Host cost of one pipeline message beyond the link's time."""
    scheduler_wait_s: float
    """What a process that waits for a peer loses at each hop, for each process too many per core: a turn of the
    system's scheduler. Nothing where every device has its own processor."""
    gradient_overlap: float
    """Share of the last backward pass behind which a gradient exchange can hide."""
    prefetch_overlap: float
    """Share of a forward or backward pass behind which weight gathering can hide."""
    fragmentation: float
    """Allocator waste as a share of activations, logits and gathered weights."""
    heap_slack_layers: float
    """Holes of a plain heap, in layers' worth of saved activations of one micro-batch."""
    libraries_bytes: float
    """What libraries allocate at first use, after the framework's base: threads' stacks, packing buffers."""
    fully_sharded_bytes: float
    """The same for FSDP2."""
    dtensor_bytes: float
    """The same for DTensor: its dispatch caches."""


GPU_COSTS = Costs(
    # 3,510 A100 GEMMs measured by DebarghaG/estimate-train-time follow .822 x / (x + 4.56 GFLOP)
    matmul_efficiency=0.82,
    matmul_overhead_s=15e-6,  # 4.56 GFLOP at 312 TFLOP/s; GH200 10.2 GFLOP at 989 TFLOP/s gives 10e-6
    attention_efficiency=0.45,  # flash attention on A100, causal half counted [SimuMax A100 operator table]
    bandwidth_efficiency=0.75,  # 0.6-0.9 by size [Calculon]
    link_efficiency=0.8,
    collective_launch_s=20e-6,
    layer_ops_forward=25.0,
    host_overlap=1.0,
    optimizer_ops_per_tensor=1.0,  # fused or foreach
    optimizer_bytes_per_param=32.0,  # 30 for AdamW [Primus], and the gradient norm
    dtensor_dispatch_s=120e-6,
    dtensor_ops_per_layer=20.0,
    dtensor_ops_per_tensor=2.0,
    fully_sharded_unit_s=200e-6,
    pipeline_message_s=20e-6,
    scheduler_wait_s=0.0,
    gradient_overlap=0.7,
    prefetch_overlap=0.8,
    fragmentation=0.05,
    heap_slack_layers=0.0,
    libraries_bytes=0.0,  # on a GPU these lie outside the allocator: in framework_base or memory_reserve
    fully_sharded_bytes=0.0,
    dtensor_bytes=0.0,
)

CPU_COSTS = Costs(
    matmul_efficiency=0.85,
    matmul_overhead_s=4e-6,
    attention_efficiency=0.4,
    bandwidth_efficiency=0.7,
    link_efficiency=0.9,
    collective_launch_s=100e-6,
    layer_ops_forward=25.0,
    host_overlap=0.0,
    optimizer_ops_per_tensor=4.0,  # fused AdamW; norm and clipping tensor by tensor
    optimizer_bytes_per_param=40.0,  # AdamW 28, norm 4, clipping 8
    dtensor_dispatch_s=250e-6,
    dtensor_ops_per_layer=40.0,  # tp 2 took 15 to 30 ms a layer and micro-batch beyond its all-reduces
    dtensor_ops_per_tensor=2.0,
    fully_sharded_unit_s=4e-3,  # dp 2: 5 to 9 ms per gather or reduction of a unit, messages included
    pipeline_message_s=1e-3,
    scheduler_wait_s=3e-3,  # dp 4 on 2 cores: 25 ms of a 47 ms step; Linux's base slice is 0.75 to 3 ms
    gradient_overlap=0.0,  # the cores that would overlap are the ones computing
    prefetch_overlap=0.0,
    fragmentation=0.1,
    # Growth of the native trial's processes beyond their tensors, 27 layouts of 0.5 M parameters, 256 to 1024 tokens a
    # micro-batch, torch 2.13, one glibc heap: 1 to 3 MB; FSDP2 another 4 to 7 MB; DTensor 4 to 10 MB.
    heap_slack_layers=0.6,
    libraries_bytes=2e6,
    fully_sharded_bytes=6e6,
    dtensor_bytes=6e6,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """Costs for GPUs and for CPU processes. ``measured`` names the fields that were measured where they are used."""

    gpu: Costs = GPU_COSTS
    cpu: Costs = CPU_COSTS
    measured: frozenset[str] = field(default=frozenset())

    def of(self, kind: str) -> Costs:
        """The costs of one ``Device.kind``."""
        if kind not in ("gpu", "cpu"):
            raise ValueError(f"device kind {kind!r} has no coefficients; known kinds: gpu, cpu")
        return self.cpu if kind == "cpu" else self.gpu

    def to_dict(self) -> dict[str, Any]:
        return {"gpu": asdict(self.gpu), "cpu": asdict(self.cpu), "measured": sorted(self.measured)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Coefficients:
        known = {f.name for f in fields(Costs)}
        for kind in ("gpu", "cpu"):
            if unknown := set(values[kind]) - known:
                raise ValueError(f"unknown coefficients {sorted(unknown)} under {kind!r}; known: {sorted(known)}")
        return cls(
            gpu=Costs(**values["gpu"]), cpu=Costs(**values["cpu"]), measured=frozenset(values.get("measured", ()))
        )


DEFAULT_COEFFICIENTS = Coefficients()
