"""AdamW, its schedule, and the global gradient norm, right for every layout.

All of it works on each rank's local tensors: the update of AdamW is element by element, so a shard is updated as its
part of the whole would be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from tuner.training.job import Job
from tuner.training.mesh import Mesh
from tuner.training.parallel import LocalParameter, local_gradient

FLOOR = 0.1
"""Where schedules end, as a fraction of the peak learning rate."""
WSD_DECAY_FRACTION = 0.2
BETAS = (0.9, 0.95)
EPSILON = 1e-8


def schedule_factor(schedule: str, step: int, warmup: int, horizon_steps: int) -> float:
    """Learning rate of the 1-based ``step`` over its peak.

    Linear warmup to 1 at step ``warmup``; then to FLOOR at ``horizon_steps`` by a cosine [arXiv:1608.03983], a line,
    or a line over the last fifth (warmup-stable-decay) [arXiv:2404.06395]; constant stays.
    """
    if step <= warmup:
        return step / warmup
    if schedule == "constant":
        return 1.0
    start = warmup
    if schedule == "wsd":
        start = max(warmup, round(horizon_steps * (1 - WSD_DECAY_FRACTION)))
    done = min(1.0, max(0.0, (step - start) / max(1, horizon_steps - start)))
    if schedule == "cosine":
        return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * done))
    if schedule in ("linear", "wsd"):
        return 1 - (1 - FLOOR) * done
    raise ValueError(f"schedule {schedule!r} is not known; use cosine, wsd, linear or constant")


class Optimizer:
    """AdamW on the local tensors; weight decay on matrices only [arXiv:1711.05101]."""

    def __init__(self, job: Job, parameters: Sequence[LocalParameter]) -> None:
        self._job = job
        self._parameters = parameters
        groups = [
            {"params": [p.local for p in parameters if p.is_matrix], "weight_decay": job.weight_decay},
            {"params": [p.local for p in parameters if not p.is_matrix], "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(
            [g for g in groups if g["params"]], lr=job.learning_rate, betas=BETAS, eps=EPSILON, fused=True
        )

    def learning_rate(self, step: int) -> float:
        job = self._job
        return job.learning_rate * schedule_factor(job.schedule, step, job.warmup, job.horizon_steps)

    def step(self, learning_rate: float) -> None:
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()

    @property
    def state_bytes(self) -> int:
        """Moments of this rank; zero before the first step."""
        moments = [t for state in self._adamw.state.values() for k, t in state.items() if k != "step"]
        return sum(t.numel() * t.element_size() for t in moments)


class Gradients:
    """From what the backward pass left on the parameters to local gradients that are right in the global sense.

    Where the layout leaves plain gradients and no DDP buckets, they live in one buffer that is made before the first
    step: the data ranks' average is then one message without a copy, and gradients do not end up between activations.
    """

    def __init__(self, job: Job, mesh: Mesh, parameters: Sequence[LocalParameter]) -> None:
        self._mesh = mesh
        self._parameters = parameters
        is_split = mesh.tp > 1 or mesh.pp > 1
        self._is_averaged_here = mesh.dp > 1 and job.zero == 0 and is_split
        self._partial = [p for p in parameters if p.is_partial]
        self._tied = [p for p in parameters if p.is_tied]
        shares = [1.0 / p.num_replicas for p in parameters]
        self._shares = torch.tensor(shares, dtype=torch.float64, device=mesh.device)
        self._buffer: Tensor | None = None
        self._are_kept = job.zero == 0 and mesh.tp == 1
        if self._are_kept and (mesh.dp == 1 or is_split):
            self._buffer = torch.zeros(sum(p.local.numel() for p in parameters), device=mesh.device)
            for p, view in zip(parameters, _views(self._buffer, parameters), strict=True):
                p.parameter.grad = view

    def collect(self) -> None:
        """Put each rank's own gradients on the local tensors, summed where ranks have parts of them."""
        for p in self._parameters:
            p.local.grad = local_gradient(p.parameter)
        if self._partial:
            self._all_reduce(self._partial, self._mesh.group("tp"))
        if self._tied:
            assert self._mesh.tied is not None
            self._all_reduce(self._tied, self._mesh.tied)
        if self._is_averaged_here:
            group = self._mesh.group("dp")
            if self._buffer is not None:
                dist.all_reduce(self._buffer, group=group)
            else:
                self._all_reduce(self._parameters, group)
            torch._foreach_div_([self._gradient(p) for p in self._parameters], self._mesh.dp)

    def _all_reduce(self, parameters: Sequence[LocalParameter], group: dist.ProcessGroup) -> None:
        """One message for all of them, copied out and back."""
        flat = torch.cat([self._gradient(p).reshape(-1) for p in parameters])
        dist.all_reduce(flat, group=group)
        for p, view in zip(parameters, _views(flat, parameters), strict=True):
            self._gradient(p).copy_(view)

    def release(self) -> None:
        """Ready for the next step: gradients in the buffer or in DDP's are cleared, others are let go of."""
        if self._are_kept:
            torch._foreach_zero_([self._gradient(p) for p in self._parameters])
            return
        for p in self._parameters:
            p.parameter.grad = None
            p.local.grad = None

    def _gradient(self, p: LocalParameter) -> Tensor:
        assert p.local.grad is not None, f"{p.name} has no gradient"
        return p.local.grad

    def squared_norm(self) -> Tensor:
        """This rank's part of the squared global norm: all ranks' parts add up to it, replicas counted once."""
        norms = torch.stack(torch._foreach_norm([self._gradient(p) for p in self._parameters]))
        return torch.dot(norms.double().square(), self._shares)

    def clip(self, norm: float, limit: float) -> None:
        """Scale to ``limit`` where the norm is above it; a limit of 0 clips nothing."""
        if 0 < limit < norm:
            torch._foreach_mul_([self._gradient(p) for p in self._parameters], limit / norm)

    @property
    def held_bytes(self) -> int:
        return sum(g.numel() * g.element_size() for p in self._parameters if (g := p.local.grad) is not None)


def _views(flat: Tensor, parameters: Sequence[LocalParameter]) -> list[Tensor]:
    """``flat`` cut into one view per parameter, in its shape."""
    parts = torch.split(flat, [p.local.numel() for p in parameters])
    return [part.view_as(p.local) for part, p in zip(parts, parameters, strict=True)]
