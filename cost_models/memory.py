"""Memory of one device at its peak, for one pipeline stage: who holds what, in bytes.

Symbols as in compute.py; D = dp cp is the group that ZeRO shards over; w, G, M the bytes of a weight, a gradient
and the optimizer's state (fp32 master and two moments).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from cost_models.activations import activation_bytes, layer_activation_bytes, logits_bytes
from cost_models.coefficients import Costs
from cost_models.compute import micro_batch_tokens, sequence_split
from cost_models.framework import TRAITS
from cost_models.layout import Layout, Layouts
from cost_models.params import StageParams, stage_params
from cost_models.shape import ModelShape
from cost_models.units import Number
from cost_models.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBreakdown:
    """Bytes on the fullest device, by holder. The parts sum to ``total``."""

    framework_base: Number
    weights: Number
    gradients: Number
    optimizer: Number
    activations: Number
    logits: Number
    gathered: Number
    """Whole weights and gradients of sharded units while they are in use."""
    communication_buffers: Number
    fragmentation: Number
    libraries: Number
    """Thread stacks, packing buffers and caches that libraries allocate at first use."""

    @property
    def total(self) -> Number:
        return sum((getattr(self, f.name) for f in fields(self)), 0.0)

    @property
    def model_states(self) -> Number:
        """Weights, gradients and optimizer state: what ZeRO shards."""
        return self.weights + self.gradients + self.optimizer

    def to_dict(self) -> dict[str, Number]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def optimizer_bytes_per_param(workload: Workload) -> int:
    """fp32 master (where weights are 16-bit) and AdamW's moments: 12, or 8 where weights are fp32."""
    return workload.precision.master_bytes + workload.moment_bytes


def state_bytes(params: StageParams, layout: Layout | Layouts, workload: Workload) -> tuple[Number, Number, Number]:
    """(weights, gradients, optimizer) [arXiv:1910.02054 figure 1].

    ZeRO 0 ``w + G + M``; 1 ``w + G + M/D``; 2 ``w + (G + M)/D``; 3 ``(w + G + M)/D``. FSDP2 keeps gradients and weights
    sharded from stage 2 on; what it gathers is in ``gathered_bytes``.
    """
    traits = TRAITS[workload.framework]
    shards = layout.dp * layout.cp
    weights_from = 2 if traits.fully_sharded else 3

    def over(stage: int) -> Number:
        return params.total / np.where(np.greater_equal(layout.zero, stage), shards, 1)

    weights = workload.precision.num_bytes * over(weights_from)
    return weights, workload.grad_bytes * over(2), optimizer_bytes_per_param(workload) * over(1)


def gathered_bytes(params: StageParams, layout: Layout | Layouts, workload: Workload) -> Number:
    """Whole copies that sharding needs while it computes.

    ZeRO 3: weights of two layers (in use and prefetched) and of what is outside the layers, and the gradients of one
    layer twice (as computed, and flattened for the reduce-scatter). FSDP2 as ZeRO 2: all weights stay gathered from
    forward to backward, beside the shard. Source: torch FSDP2 (``reshard_after_forward``); DeepSpeed stage 3.
    """
    traits = TRAITS[workload.framework]
    width, grad = workload.precision.num_bytes, workload.grad_bytes
    layers = np.minimum(2, params.num_layers)
    unit_gradients = 2.0 * grad * np.maximum(params.layer, params.outside)
    sharded = width * (layers * params.layer + params.outside) + unit_gradients
    kept = width * params.total + unit_gradients if traits.fully_sharded else 0.0
    held: Number = np.select([np.greater_equal(layout.zero, 3), np.equal(layout.zero, 2)], [sharded, kept], 0.0)
    return held


def communication_bytes(
    shape: ModelShape,
    workload: Workload,
    layout: Layout | Layouts,
    params: StageParams,
    stage: Number,
    num_micro_batches: Number,
    freed_bytes: Number,
) -> Number:
    """Buffers of the exchanges at the peak.

    Pipeline receives: one per micro-batch and direction where preallocated, else two. ZeRO buckets. A flat copy of the
    gradients counts only beyond ``freed_bytes``, the activations that are gone by the time it is made. DDP's second set
    of buckets.
    """
    traits = TRAITS[workload.framework]
    message = workload.precision.num_bytes * micro_batch_tokens(workload, layout) * shape.hidden
    message = message / sequence_split(layout, traits)
    directions = np.greater(stage, 0) * 1.0 + np.less(stage, layout.pp - 1) * 1.0
    receives = directions * message * (num_micro_batches if traits.preallocated_receives else 1)
    bucket = np.minimum(params.total, traits.bucket_elements) * workload.grad_bytes * np.greater_equal(layout.zero, 1)
    copies = np.equal(layout.zero, 0) & np.greater(layout.dp, 1) & (np.greater(layout.tp, 1) | np.greater(layout.pp, 1))
    flat = copies * workload.grad_bytes * params.total if traits.flat_gradient_copy else 0.0
    plain = np.equal(layout.zero, 0) & np.greater(layout.dp, 1) & np.equal(layout.tp * layout.pp, 1)
    rebuilt = plain * workload.grad_bytes * params.total if traits.rebuilds_buckets else 0.0
    whole: Number = receives + bucket + rebuilt + np.maximum(flat - freed_bytes, 0.0)
    return whole


def libraries_bytes(workload: Workload, layout: Layout | Layouts, costs: Costs) -> Number:
    """Fixed growth by the machinery in use: any process, FSDP, DTensor."""
    sharded = np.greater_equal(layout.zero, 2) & TRAITS[workload.framework].dtensor
    tensor = np.greater(layout.tp, 1) & TRAITS[workload.framework].dtensor
    return costs.libraries_bytes + sharded * costs.fully_sharded_bytes + tensor * costs.dtensor_bytes


def stage_memory(
    shape: ModelShape,
    workload: Workload,
    layout: Layout | Layouts,
    costs: Costs,
    *,
    stage: Number,
    num_micro_batches: Number,
    base_bytes: float,
) -> MemoryBreakdown:
    """All parts of one stage (0-based)."""
    params = stage_params(shape, layout, workload.framework, stage)
    weights, gradients, optimizer = state_bytes(params, layout, workload)
    activations = activation_bytes(shape, workload, layout, stage, num_micro_batches)
    logits = logits_bytes(shape, workload, layout, stage)
    gathered = gathered_bytes(params, layout, workload)
    buffers = communication_bytes(shape, workload, layout, params, stage, num_micro_batches, activations + logits)
    return MemoryBreakdown(
        framework_base=base_bytes,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        logits=logits,
        gathered=gathered,
        communication_buffers=buffers,
        fragmentation=costs.fragmentation * (activations + logits + gathered)
        + costs.heap_slack_layers * layer_activation_bytes(shape, workload, layout),
        libraries=libraries_bytes(workload, layout, costs),
    )


def worst_stage_memory(
    shape: ModelShape,
    workload: Workload,
    layout: Layout | Layouts,
    costs: Costs,
    *,
    num_micro_batches: Number,
    base_bytes: float,
) -> tuple[MemoryBreakdown, Number]:
    """The fullest stage's parts, and which stage it is.

    Only the first, the second and the last can be: with equal layers every later middle stage holds what the second
    does, for fewer micro-batches in flight.
    """
    candidates = (np.zeros_like(layout.pp), np.minimum(1, layout.pp - 1), layout.pp - 1)
    priced = [
        stage_memory(
            shape, workload, layout, costs, stage=stage, num_micro_batches=num_micro_batches, base_bytes=base_bytes
        )
        for stage in candidates
    ]
    fullest = np.argmax(np.stack(np.broadcast_arrays(*[parts.total for parts in priced])), axis=0)
    columns = [parts.to_dict() for parts in priced]
    worst = {name: np.choose(fullest, [column[name] for column in columns]) for name in columns[0]}
    return MemoryBreakdown(**worst), np.choose(fullest, [np.asarray(stage) for stage in candidates])
