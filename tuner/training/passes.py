"""Forward and backward over one rank's share of a batch: micro-batch by micro-batch, alone or in a 1F1B pipeline."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from tuner.training.job import Job
from tuner.training.mesh import Mesh, num_micro_batches
from tuner.training.model import GPT


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of next tokens, in fp32: logits (tokens, vocab), targets (batch, length)."""
    return F.cross_entropy(logits.float(), targets.reshape(-1))


class Passes(Protocol):
    def train(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Leave the gradients of the rank's mean loss on the parameters; return that loss, zero off the last stage."""
        ...

    def evaluate(self, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum of the sequences' mean losses without gradients; zero off the last stage."""
        ...

    @property
    def exposed_sync_s(self) -> float:
        """Seconds of the last ``train`` spent waiting for gradients of other ranks, where that can be told."""
        ...


def passes_of(job: Job, mesh: Mesh, model: GPT) -> Passes:
    return PipelinedPasses(job, mesh, model) if mesh.pp > 1 else PlainPasses(job, mesh, model)


class PlainPasses:
    """Accumulation on one stage. ZeRO-0 data ranks meet in DDP at the last micro-batch; FSDP ranks at each one."""

    def __init__(self, job: Job, mesh: Mesh, model: GPT) -> None:
        self._micro_batch = job.micro_batch
        self._num_micro_batches = num_micro_batches(job)
        self._model = model
        self._replicated: DistributedDataParallel | None = None
        self._timer = _ReduceTimer(mesh)
        if mesh.dp > 1 and job.zero == 0 and mesh.tp == 1:
            self._replicated = DistributedDataParallel(
                model,
                process_group=mesh.group("dp"),
                gradient_as_bucket_view=True,
                init_sync=False,
            )
            self._replicated.register_comm_hook(self._timer, lambda timer, bucket: timer.reduce(bucket))
            self._settle_buckets(self._replicated, mesh)

    def _settle_buckets(self, replicated: DistributedDataParallel, mesh: Mesh) -> None:
        """Have DDP make its final buckets and put the gradients into them, by two passes over one token.

        It orders the buckets after the first reduction, and turns gradients into views of them in a reduction only:
        otherwise a first accumulation would hold all gradients twice.
        """
        token = torch.zeros(1, 1, dtype=torch.int64, device=mesh.device)
        for _ in range(2):
            replicated.zero_grad(set_to_none=True)
            mean_loss(replicated(token), token).backward()  # type: ignore[no-untyped-call]
        replicated.zero_grad(set_to_none=False)

    def train(self, inputs: Tensor, targets: Tensor) -> Tensor:
        total = torch.zeros((), device=inputs.device)
        module: nn.Module = self._replicated or self._model
        for i in range(self._num_micro_batches):
            rows = slice(i * self._micro_batch, (i + 1) * self._micro_batch)
            is_last = i == self._num_micro_batches - 1
            with nullcontext() if self._replicated is None or is_last else self._replicated.no_sync():
                loss = mean_loss(module(inputs[rows]), targets[rows]) / self._num_micro_batches
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    @torch.no_grad()
    def evaluate(self, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        total = torch.zeros((), device=inputs.device)
        for x, y, w in _chunks(inputs, targets, weights, self._micro_batch):
            total += weighted_loss(self._model(x), y, w)
        return total

    @property
    def exposed_sync_s(self) -> float:
        return self._timer.exposed_s if self._replicated is not None else 0.0


class PipelinedPasses:
    """One stage of a 1F1B schedule [arXiv:2104.04473, section 2.2.1].

    The stage is wrapped in a plain module: given an FSDP module itself, PipelineStage would put off its gradient
    reduction to the last micro-batch and keep whole weights and gradients until then.
    """

    def __init__(self, job: Job, mesh: Mesh, model: GPT) -> None:
        self._mesh = mesh
        self._micro_batch = job.micro_batch
        self._hidden = (job.sequence_length, model.shape.hidden)
        self._model = _Plain(model)
        count = num_micro_batches(job)
        boundary = torch.empty(job.micro_batch, *self._hidden, device=mesh.device, requires_grad=True)
        tokens = torch.empty(job.micro_batch, job.sequence_length, dtype=torch.int64, device=mesh.device)
        rows = job.micro_batch * job.sequence_length
        logits = torch.empty(rows, model.shape.vocab, device="meta", requires_grad=True)
        stage = PipelineStage(
            self._model,
            mesh.pp_rank,
            mesh.pp,
            mesh.device,
            input_args=tokens if mesh.is_first_stage else boundary,
            output_args=logits if mesh.is_last_stage else boundary,
            group=mesh.group("pp"),
        )
        self._schedule = Schedule1F1B(
            stage, count, loss_fn=lambda logits, targets: mean_loss(logits, targets) / count, scale_grads=False
        )

    def train(self, inputs: Tensor, targets: Tensor) -> Tensor:
        losses: list[Tensor] = []
        self._schedule.step(
            *((inputs,) if self._mesh.is_first_stage else ()),
            target=targets if self._mesh.is_last_stage else None,
            losses=losses,
            return_outputs=False,
        )
        return torch.stack(losses).sum().detach() if losses else torch.zeros((), device=inputs.device)

    @torch.no_grad()
    def evaluate(self, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Sends the activations itself: the schedule would make its buffers anew at each change of mode."""
        mesh, group = self._mesh, self._mesh.group("pp")
        total = torch.zeros((), device=inputs.device)
        for x, y, w in _chunks(inputs, targets, weights, self._micro_batch):
            if not mesh.is_first_stage:
                x = torch.empty(len(y), *self._hidden, device=inputs.device)
                dist.recv(x, group=group, group_src=mesh.pp_rank - 1)
            out = self._model(x)
            if mesh.is_last_stage:
                total += weighted_loss(out, y, w)
            else:
                dist.send(out, group=group, group_dst=mesh.pp_rank + 1)
        return total

    @property
    def exposed_sync_s(self) -> float:
        return 0.0


class _Plain(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


class _ReduceTimer:
    """DDP's communication hook: the average, and the time from its last message to that message's end."""

    def __init__(self, mesh: Mesh) -> None:
        self._size = mesh.dp
        self._group = mesh.group("dp") if mesh.dp > 1 else None
        self._sent_s = self._ended_s = 0.0

    def reduce(self, bucket: Any) -> torch.futures.Future[Tensor]:
        self._sent_s = time.perf_counter()
        buffer = bucket.buffer().div_(self._size)
        work = dist.all_reduce(buffer, group=self._group, async_op=True)
        assert work is not None

        def ended(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            self._ended_s = time.perf_counter()
            return future.value()[0]

        averaged: torch.futures.Future[Tensor] = work.get_future().then(ended)
        return averaged

    @property
    def exposed_s(self) -> float:
        return max(0.0, self._ended_s - self._sent_s)


def weighted_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """``sum_i w_i l_i`` over sequences i with mean loss l_i; weight 0 marks padding."""
    each = F.cross_entropy(logits.float(), targets.reshape(-1), reduction="none")
    return torch.dot(each.view(targets.shape).mean(dim=1), weights)


def _chunks(inputs: Tensor, targets: Tensor, weights: Tensor, size: int) -> zip[tuple[Tensor, Tensor, Tensor]]:
    return zip(*(torch.split(t, size) for t in (inputs, targets, weights)), strict=True)
