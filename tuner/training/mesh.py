"""Mesh: the ranks of a trial as a grid (pp, dp, tp), its process groups, and the rules a layout must keep."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from cost_models.shape import ModelShape
from tuner.training.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Where this rank stands. ``dp`` is the outer axis of ``tp``: ranks of one tensor group are neighbours."""

    rank: int
    dp: int
    tp: int
    pp: int
    device: torch.device
    axes: DeviceMesh | None
    """None where the world is one process."""
    tied: dist.ProcessGroup | None = None
    """First and last stage of this data and tensor coordinate, where a tied table lives on both."""

    @property
    def world_size(self) -> int:
        return self.dp * self.tp * self.pp

    @property
    def tp_rank(self) -> int:
        return self.rank % self.tp

    @property
    def dp_rank(self) -> int:
        return self.rank // self.tp % self.dp

    @property
    def pp_rank(self) -> int:
        return self.rank // (self.tp * self.dp)

    @property
    def is_first_stage(self) -> bool:
        return self.pp_rank == 0

    @property
    def is_last_stage(self) -> bool:
        return self.pp_rank == self.pp - 1

    def axis(self, name: str) -> DeviceMesh:
        assert self.axes is not None
        return self.axes[name]

    def group(self, name: str) -> dist.ProcessGroup:
        return self.axis(name).get_group()

    def layers(self, num_layers: int) -> range:
        """The layers of this stage: as even as they come, the first stages taking what is left over."""
        each, left = divmod(num_layers, self.pp)
        start = self.pp_rank * each + min(self.pp_rank, left)
        return range(start, start + each + (1 if self.pp_rank < left else 0))


def num_micro_batches(job: Job) -> int:
    """Micro-batches per optimizer step and data-parallel rank: ``batch_sequences / (micro_batch dp)``."""
    return job.batch_sequences // (job.micro_batch * job.dp)


def refuse_impossible(job: Job, shape: ModelShape) -> None:
    """ValueError for the first rule that the job breaks."""
    for name in ("dp", "tp", "pp", "micro_batch", "sequence_length", "batch_sequences", "num_steps", "horizon_steps"):
        if getattr(job, name) < 1:
            raise ValueError(f"job.{name} must be at least 1, got {getattr(job, name)}")
    per_pass = job.micro_batch * job.dp
    if job.batch_sequences % per_pass:
        raise ValueError(
            f"batch of {job.batch_sequences} sequences is not a multiple of micro_batch {job.micro_batch} "
            f"x dp {job.dp}; the nearest below is {job.batch_sequences // per_pass * per_pass}"
        )
    if job.pp > 1 and num_micro_batches(job) < job.pp:
        raise ValueError(
            f"1F1B over pp {job.pp} needs as many micro-batches, got {num_micro_batches(job)} = {job.batch_sequences} "
            f"sequences / micro_batch {job.micro_batch} / dp {job.dp}; use a smaller micro_batch"
        )
    if job.pp > shape.num_layers:
        raise ValueError(f"pp {job.pp} is more than the {shape.num_layers} layers of {shape.name}")
    _refuse_uneven_heads(job, shape)
    _refuse_unknown_words(job)
    if shape.learned_positions and job.sequence_length > shape.learned_positions:
        raise ValueError(
            f"sequence_length {job.sequence_length} is more than the {shape.learned_positions} learned positions "
            f"of {shape.name}"
        )


def _refuse_uneven_heads(job: Job, shape: ModelShape) -> None:
    for name in ("num_kv_heads", "ffn_hidden"):
        if getattr(shape, name) % job.tp:
            raise ValueError(
                f"tp {job.tp} does not divide {name} {getattr(shape, name)} of {shape.name}; use a divisor of it"
            )


def _refuse_unknown_words(job: Job) -> None:
    known: dict[str, tuple[object, ...]] = {
        "zero": (0, 2, 3),
        "recompute": ("none", "full"),
        "precision": ("fp32", "bf16"),
        "optimizer": ("adamw",),
        "schedule": ("cosine", "wsd", "linear", "constant"),
        "device": ("cpu", "cuda"),
    }
    for name, values in known.items():
        if getattr(job, name) not in values:
            raise ValueError(f"job.{name} is {getattr(job, name)!r}; the native trial does {list(values)}")
    if job.zero and job.dp == 1:
        raise ValueError(f"zero {job.zero} over dp 1 shards nothing; use zero 0")


def device_of(job: Job, rank: int) -> torch.device:
    if job.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError("device cuda: torch finds no CUDA device; use device cpu, or install a CUDA build of torch")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def join(job: Job, rank: int, *, tied_embeddings: bool) -> Mesh:
    """Meet the other ranks over a file in the job's directory and make the groups; one process needs none."""
    device = device_of(job, rank)
    mesh = Mesh(rank=rank, dp=job.dp, tp=job.tp, pp=job.pp, device=device, axes=None)
    if job.world_size == 1:
        return mesh
    if job.device == "cpu" and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo" if job.device == "cpu" else "nccl",
        store=dist.FileStore(str(Path(job.directory) / "rendezvous"), job.world_size),  # type: ignore[attr-defined]
        rank=rank,
        world_size=job.world_size,
        timeout=timedelta(seconds=job.collective_timeout_s),
        device_id=None if job.device == "cpu" else device,
    )
    axes = init_device_mesh(device.type, (job.pp, job.dp, job.tp), mesh_dim_names=("pp", "dp", "tp"))
    tied = _tied_group(mesh) if tied_embeddings and job.pp > 1 else None
    return Mesh(rank=rank, dp=job.dp, tp=job.tp, pp=job.pp, device=device, axes=axes, tied=tied)


def _tied_group(mesh: Mesh) -> dist.ProcessGroup | None:
    """Each rank takes part in making every group, and keeps its own."""
    mine: dist.ProcessGroup | None = None
    per_stage = mesh.dp * mesh.tp
    for first in range(per_stage):
        members = [first, first + per_stage * (mesh.pp - 1)]
        group = dist.new_group(members)
        mine = group if mesh.rank in members else mine
    return mine


def leave() -> None:
    """Close the groups; a peer that is already gone does not matter any more."""
    if not dist.is_initialized():
        return
    try:
        dist.destroy_process_group()
    except RuntimeError:
        return
