"""The model of one rank: its stage, cut over tensor ranks (DTensor) and sharded or replicated over data ranks.

Layer by layer: make it, fill it, split it, shard it. So building never holds more than one whole layer beyond what
the layout keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from cost_models.shape import ModelShape
from tuner.training.job import Job
from tuner.training.mesh import Mesh
from tuner.training.model import GPT, initialise


def build(job: Job, shape: ModelShape, mesh: Mesh) -> GPT:
    """The stage of this rank, with the weights that the seed gives the whole model."""
    with torch.device("meta"):
        model = GPT(shape, mesh.layers(shape.num_layers), recompute=job.recompute, precision=job.precision)
    for name, block in model.blocks.items():
        block.to_empty(device=mesh.device)
        initialise(block, f"blocks.{name}.", shape, job.seed)
        if mesh.tp > 1:
            parallelize_module(block, mesh.axis("tp"), _block_plan(shape), src_data_rank=None)
        if job.zero:
            _shard(block, job, mesh)
    for name in ("embeddings", "head"):
        module = getattr(model, name)
        if module is not None:
            module.to_empty(device=mesh.device)
    model.tie()
    for name in ("embeddings", "head"):
        module = getattr(model, name)
        if module is not None:
            initialise(module, f"{name}.", shape, job.seed)
    if mesh.tp > 1 and shape.vocab % mesh.tp == 0:
        _split_vocabulary(model, mesh)
    if job.zero:
        _shard(model, job, mesh)
    return model


def _block_plan(shape: ModelShape) -> dict[str, ParallelStyle]:
    """Megatron's split [arXiv:1909.08053, section 3]: columns in, rows out, one all-reduce each way and half."""
    plan: dict[str, ParallelStyle] = {
        "attention.qkv": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(),
    }
    if shape.gated_mlp:
        plan["mlp"] = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
        plan["mlp.gate"] = ColwiseParallel()
    return plan


def _split_vocabulary(model: GPT, mesh: Mesh) -> None:
    """Token table and projection by vocabulary rows; the logits are gathered whole."""
    axis = mesh.axis("tp")
    if model.embeddings is not None:
        parallelize_module(
            model.embeddings, axis, {"tokens": RowwiseParallel(input_layouts=Replicate())}, src_data_rank=None
        )
    if model.head is not None:
        style = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(model.head, axis, {"projection": style}, src_data_rank=None)
    model.tie()


def _shard(module: nn.Module, job: Job, mesh: Mesh) -> None:
    """FSDP2. ZeRO-2 keeps the gathered weights from the first forward to the optimizer, ZeRO-3 lets go of them."""
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    if job.precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    sharded = fully_shard(module, mesh=mesh.axis("dp"), reshard_after_forward=job.zero == 3, mp_policy=policy)
    sharded.set_reshard_after_backward(job.zero == 3, recurse=False)


def let_go_of_gathered(model: nn.Module) -> None:
    """Back to shards, wherever ZeRO-2 still holds whole weights."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@dataclass(slots=True, kw_only=True)
class LocalParameter:
    """One parameter as this rank holds it: what the optimizer, the norm and the byte counts work on."""

    name: str
    parameter: nn.Parameter
    local: Tensor
    """The storage itself, without DTensor around it."""
    is_matrix: bool
    num_replicas: int
    """Ranks of the world that hold the same elements."""
    is_partial: bool
    """Each tensor rank has seen only its own heads: the gradients must be summed over them."""
    is_tied: bool
    """Another stage holds it too: the gradients must be summed over both."""


def local_parameters(model: GPT, mesh: Mesh) -> list[LocalParameter]:
    """The parameters at rest, in a fixed order that is the same on all ranks of a stage."""
    tied = model.shape.tied_embeddings and mesh.pp > 1
    return [
        LocalParameter(
            name=name,
            parameter=parameter,
            local=_local(parameter),
            is_matrix=parameter.ndim > 1,
            num_replicas=_num_replicas(parameter, mesh) * (2 if (is_tied := tied and name in _TABLES) else 1),
            is_partial=mesh.tp > 1 and name.endswith(("query_norm.weight", "key_norm.weight")),
            is_tied=is_tied,
        )
        for name, parameter in model.named_parameters()
    ]


_TABLES = ("embeddings.tokens.weight", "head.projection.weight")


def _local(tensor: Tensor) -> Tensor:
    detached = tensor.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


def local_gradient(parameter: nn.Parameter) -> Tensor | None:
    """The gradient of the elements that this rank holds.

    DTensor may leave it with other placements than the parameter's: whole on each rank, or partial sums. Taken as
    they are these would give a wrong norm without any error.
    """
    gradient = parameter.grad
    if not isinstance(gradient, DTensor):
        return gradient
    assert isinstance(parameter, DTensor)
    if gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
    return gradient.to_local()


def _num_replicas(parameter: nn.Parameter, mesh: Mesh) -> int:
    """``dp tp`` over the sizes of the axes along which the parameter is split."""
    replicas = mesh.dp * mesh.tp
    if isinstance(parameter, DTensor):
        for axis, placement in enumerate(parameter.placements):
            if not placement.is_replicate():
                replicas //= parameter.device_mesh.size(axis)
    return replicas


def held_bytes(tensors: Iterator[Tensor] | list[Tensor]) -> int:
    """Bytes of this rank's part of the tensors."""
    return sum(_local(t).numel() * t.element_size() for t in tensors)
