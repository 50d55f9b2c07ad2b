"""Seconds of one optimizer step, split into named terms that sum to it.

Work (what a device computes) is an average over stages; ``pipeline_bubble`` is what the critical path is longer than
that work, so on a machine whose processes share cores a bubble that others fill costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from cost_models import compute
from cost_models.cluster import Cluster
from cost_models.coefficients import Costs
from cost_models.collectives import Group, all_gather_s, all_reduce_s, group, point_to_point_s, reduce_scatter_s
from cost_models.framework import TRAITS, Traits
from cost_models.layout import Layout, Layouts
from cost_models.memory import optimizer_bytes_per_param, state_bytes
from cost_models.params import StageParams, padded_vocab, stage_params
from cost_models.pipeline import path_s
from cost_models.shape import ModelShape
from cost_models.units import Number
from cost_models.workload import Workload

TENSORS_PER_LAYER = 12
"""Parameter tensors of a GPT layer (8 matrices and biases, 4 of the norms)."""
BUCKET_BYTES = 25 * 1024**2
"""Gradients are reduced in buckets of this size (torch DDP's default)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeBreakdown:
    """Seconds of one optimizer step by cause. The parts sum to ``total``."""

    compute: Number
    attention: Number
    elementwise: Number
    launch: Number
    recompute: Number
    tensor_parallel: Number
    context_parallel: Number
    pipeline_bubble: Number
    pipeline_p2p: Number
    data_parallel: Number
    zero_gather: Number
    optimizer: Number

    @property
    def total(self) -> Number:
        return sum((getattr(self, f.name) for f in fields(self)), 0.0)

    def to_dict(self) -> dict[str, Number]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every term needs, gathered once."""

    shape: ModelShape
    cluster: Cluster
    workload: Workload
    layout: Layout | Layouts
    costs: Costs
    num_micro_batches: Number

    @property
    def traits(self) -> Traits:
        return TRAITS[self.workload.framework]

    @property
    def peak_flops_per_s(self) -> float:
        """The device's dense matmul peak in this precision. ValueError where the device has none."""
        peaks = self.cluster.device.peak_flops_per_s
        if self.workload.precision not in peaks:
            raise ValueError(
                f"{self.cluster.device.name} has no {self.workload.precision.value} peak; "
                f"it has {', '.join(p.value for p in peaks)}: choose one of these as the precision"
            )
        return peaks[self.workload.precision]

    @property
    def vocab(self) -> Number:
        return padded_vocab(self.shape, self.layout, self.workload.framework)

    @property
    def oversubscription(self) -> Number:
        """Processes per core slot on a node, at least 1: four processes on two cores take twice as long each."""
        slots = self.cluster.compute_slots_per_node
        if slots is None:
            return 1.0
        return np.maximum(1.0, self.layout.num_devices / self.cluster.num_nodes / slots)

    @property
    def peer_wait_s(self) -> Number:
        """Per hop between processes that share cores: ``(processes per core - 1) x scheduler wait``."""
        return (self.oversubscription - 1.0) * self.costs.scheduler_wait_s

    def matmul_s(self, flops: Number, num_calls: float) -> Number:
        """``flops / (e peak) + n overhead``."""
        return flops / (self.costs.matmul_efficiency * self.peak_flops_per_s) + num_calls * self.costs.matmul_overhead_s

    def traffic_s(self, num_bytes: Number) -> Number:
        return num_bytes / (self.costs.bandwidth_efficiency * self.cluster.device.memory_bandwidth_bytes_per_s)

    def group(self, size: Number, stride: Number) -> Group:
        return group(self.cluster, self.costs, size=size, stride=stride)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """One layer, one micro-batch, forward and backward, seconds."""

    compute: Number
    attention: Number
    elementwise: Number
    launch: Number
    recompute: Number
    tensor_parallel: Number
    dispatch: Number
    """The part of tensor parallelism that is the host's work, not the network's."""
    context_parallel: Number

    @property
    def total(self) -> Number:
        return sum((getattr(self, f.name) for f in fields(self)), 0.0)


def layer_times(ctx: Context) -> LayerTimes:
    """Matmuls, attention core, element-wise traffic, launches, recomputation and the layer's own collectives."""
    shape, workload, layout, costs = ctx.shape, ctx.workload, ctx.layout, ctx.costs
    calls = compute.num_matmuls(shape)
    forward = ctx.matmul_s(compute.layer_matmul_flops(shape, workload, layout), calls)
    core_flops = compute.attention_core_flops(shape, workload, layout)
    core = core_flops / (costs.attention_efficiency * ctx.peak_flops_per_s)
    moves = ctx.traffic_s(compute.layer_elementwise_bytes(shape, workload, layout, ctx.traits))
    core_backward = compute.ATTENTION_BACKWARD if workload.flash_attention else compute.BACKWARD
    full = np.equal(layout.recompute_level, 2)
    selective = np.equal(layout.recompute_level, 1) & (not workload.flash_attention)
    again = np.where(full, forward + core + moves, np.where(selective, core, 0.0))
    busy = (1 + compute.BACKWARD) * (forward + moves) + (1 + core_backward) * core + again
    passes = 1 + compute.BACKWARD + full
    launch = passes * costs.layer_ops_forward * ctx.cluster.device.kernel_launch_s
    exposed = np.maximum(launch - costs.host_overlap * busy, 0.0)
    with_dispatch = np.maximum(launch + _dispatch_s(ctx, full) - costs.host_overlap * busy, 0.0)
    return LayerTimes(
        compute=(1 + compute.BACKWARD) * forward,
        attention=(1 + core_backward) * core,
        elementwise=(1 + compute.BACKWARD) * moves,
        launch=exposed,
        recompute=again,
        tensor_parallel=_tensor_parallel_s(ctx, full),
        dispatch=with_dispatch - exposed,
        context_parallel=_context_parallel_s(ctx, full),
    )


def _tensor_parallel_s(ctx: Context, full: Number) -> Number:
    """Two all-reduces of ``w b s h`` forward, two backward, two more when the forward is repeated.

    [arXiv:1909.08053 figure 4]. Under sequence parallelism each is a reduce-scatter and an all-gather: the same bytes.
    """
    ranks = ctx.group(ctx.layout.tp, np.ones_like(ctx.layout.tp))
    payload = ctx.workload.precision.num_bytes * compute.micro_batch_tokens(ctx.workload, ctx.layout) * ctx.shape.hidden
    return (4 + 2 * full) * all_reduce_s(ranks, payload, ctx.costs)


def _dispatch_s(ctx: Context, full: Number) -> Number:
    """Host cost of DTensor, ``ops x dispatch`` per pass: beside the launches, hidden where those would be."""
    if not ctx.traits.dtensor:
        return np.zeros_like(ctx.layout.tp, dtype=float)
    ops = (2 + full) * ctx.costs.dtensor_ops_per_layer
    return np.where(np.greater(ctx.layout.tp, 1), ops * ctx.costs.dtensor_dispatch_s, 0.0)


def _context_parallel_s(ctx: Context, full: Number) -> Number:
    """Ring attention: keys and values of the other ``c - 1`` parts, ``2 w b s/c g d / t`` each; twice that backward."""
    ranks = ctx.group(ctx.layout.cp, ctx.layout.tp)
    tokens = compute.micro_batch_tokens(ctx.workload, ctx.layout)
    part = 2.0 * ctx.workload.precision.num_bytes * tokens * ctx.shape.num_kv_heads * ctx.shape.head_dim / ctx.layout.tp
    return (3 + full) * all_gather_s(ranks, part * ctx.layout.cp, ctx.costs)


def head_s(ctx: Context) -> Number:
    """Output projection and loss of one micro-batch, forward and backward, and a split table's two all-reduces."""
    flops = compute.head_flops(ctx.shape, ctx.workload, ctx.layout, ctx.vocab)
    ranks = ctx.group(ctx.layout.tp, np.ones_like(ctx.layout.tp))
    payload = ctx.workload.precision.num_bytes * compute.micro_batch_tokens(ctx.workload, ctx.layout) * ctx.shape.hidden
    exchange = 2 * all_reduce_s(ranks, payload, ctx.costs)
    moves = ctx.traffic_s(compute.loss_bytes(ctx.workload, ctx.layout, ctx.vocab))
    return (1 + compute.BACKWARD) * ctx.matmul_s(flops, 1) + moves + exchange


def data_parallel_s(ctx: Context, params: StageParams, forward_s: Number) -> tuple[Number, Number]:
    """(gradient exchange, weight gathering) exposed per step, over the D = dp cp group.

    ZeRO 0: one all-reduce of ``G P``. ZeRO 1: reduce-scatter ``G P``, all-gather ``w P``, once. ZeRO 2: the same, its
    reduce-scatter every micro-batch where the framework does so. ZeRO 3: two gathers and a reduce-scatter every
    micro-batch [arXiv:1910.02054 section 7]. ``forward_s`` is a micro-batch's forward: gathers hide
    behind it, and what runs during backward shares one window of twice its length.
    """
    layout, costs, m = ctx.layout, ctx.costs, ctx.num_micro_batches
    ranks = ctx.group(layout.dp * layout.cp, layout.tp)
    grad_bytes = ctx.workload.grad_bytes * params.total
    weight_bytes = ctx.workload.precision.num_bytes * params.total
    zero, sharded = layout.zero, np.greater_equal(layout.zero, 2)
    calls = np.where(np.greater_equal(zero, 2), params.num_layers + 1, np.ceil(grad_bytes / BUCKET_BYTES))
    reduce_one = np.where(
        np.equal(zero, 0),
        all_reduce_s(ranks, grad_bytes, costs, num_calls=calls),
        reduce_scatter_s(ranks, grad_bytes, costs, num_calls=calls),
    )
    gather_one = all_gather_s(ranks, weight_bytes, costs, num_calls=calls)
    every = sharded if ctx.traits.reduces_every_micro_batch else np.greater_equal(zero, 3)
    times = np.where(every, m, 1)
    regathers = np.greater_equal(zero, 3)
    forward_gathers = np.where(regathers, m, np.greater_equal(zero, 1))
    alone = np.greater(layout.tp * layout.pp, 1) & np.equal(zero, 0) & (not ctx.traits.overlaps_gradients)
    window = np.where(alone, 0.0, costs.gradient_overlap) * compute.BACKWARD * forward_s
    backward = _exposed_share(reduce_one + regathers * gather_one, window)
    forward = _exposed_share(gather_one, costs.prefetch_overlap * forward_s)
    gather = gather_one * (forward_gathers * forward + regathers * m * backward)
    unit_work = (forward_gathers + regathers * m + times) * (params.num_layers + 1) * costs.fully_sharded_unit_s
    units = np.where(sharded & np.greater(layout.dp * layout.cp, 1), unit_work * ctx.oversubscription, 0.0)
    hops = np.where(np.equal(zero, 0), 2.0 * calls * (ranks.size - 1), 0.0)
    return times * reduce_one * backward + hops * ctx.peer_wait_s, gather + units


def _exposed_share(seconds: Number, window: Number) -> Number:
    """Share of an exchange that a window of computing does not hide; a tenth always shows."""
    return np.maximum(1.0 - window / np.maximum(seconds, 1e-12), 0.1)


def optimizer_s(ctx: Context, params: StageParams) -> Number:
    """AdamW and clipping: memory traffic over the local shard of the state, and its operators' launches."""
    layout, costs = ctx.layout, ctx.costs
    state = state_bytes(params, layout, ctx.workload)[2] / optimizer_bytes_per_param(ctx.workload)
    traffic = ctx.traffic_s(costs.optimizer_bytes_per_param * state)
    tensors = params.num_layers * TENSORS_PER_LAYER + 4
    launch = tensors * costs.optimizer_ops_per_tensor * ctx.cluster.device.kernel_launch_s
    split = np.greater(layout.tp, 1) & ctx.traits.dtensor
    dispatch = np.where(split, tensors * costs.dtensor_ops_per_tensor * costs.dtensor_dispatch_s, 0.0)
    return traffic + launch + dispatch


def step_time(ctx: Context) -> StepTimeBreakdown:
    """All terms of one optimizer step."""
    layout, m = ctx.layout, ctx.num_micro_batches
    layer, head = layer_times(ctx), head_s(ctx)
    num_layers = ctx.shape.num_layers / layout.pp
    params = stage_params(ctx.shape, layout, ctx.workload.framework, np.zeros_like(layout.pp))
    busy = ctx.oversubscription
    per_step = m * num_layers
    work = per_step * busy
    compute_s = work * layer.compute + m * head * busy / layout.pp
    network_s = per_step * (layer.tensor_parallel + layer.context_parallel)
    host_s = work * (layer.attention + layer.elementwise + layer.launch + layer.recompute + layer.dispatch)
    path = path_s(m, layout.pp, num_layers * layer.total, head)
    idle = np.maximum(path - (compute_s + network_s + host_s), 0.0)
    busy_s = layer.compute + layer.elementwise + layer.attention + layer.launch
    forward = num_layers * busy_s / (1 + compute.BACKWARD)
    exchange, gather = data_parallel_s(ctx, params, forward)
    return StepTimeBreakdown(
        compute=compute_s,
        attention=work * layer.attention,
        elementwise=work * layer.elementwise,
        launch=work * layer.launch,
        recompute=work * layer.recompute,
        tensor_parallel=per_step * layer.tensor_parallel + work * layer.dispatch,
        context_parallel=per_step * layer.context_parallel,
        pipeline_bubble=np.where(np.greater(layout.pp, 1), idle, 0.0),
        pipeline_p2p=_pipeline_p2p_s(ctx),
        data_parallel=exchange,
        zero_gather=gather,
        optimizer=optimizer_s(ctx, params) * busy,
    )


def _pipeline_p2p_s(ctx: Context) -> Number:
    """Two messages per micro-batch (activations on, gradients back) along the critical path of m + p - 1 slots."""
    layout = ctx.layout
    payload = ctx.workload.precision.num_bytes * compute.micro_batch_tokens(ctx.workload, layout) * ctx.shape.hidden
    payload = payload / compute.sequence_split(layout, ctx.traits)
    leaves = np.greater(layout.num_devices, ctx.cluster.devices_per_node)
    one = point_to_point_s(ctx.cluster, ctx.costs, payload, leaves_node=leaves)
    one = one + ctx.costs.pipeline_message_s + ctx.peer_wait_s
    return np.where(np.greater(layout.pp, 1), 2 * (ctx.num_micro_batches + layout.pp - 1) * one, 0.0)
