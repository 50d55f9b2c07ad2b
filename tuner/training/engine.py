"""The step loop: batch, passes, gradients, norm, update; and the validation loss between steps."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from tuner.training.data import NUM_HELD_OUT_SEQUENCES, Dataset
from tuner.training.job import Job
from tuner.training.memory import MemoryWatch
from tuner.training.mesh import Mesh
from tuner.training.model import GPT
from tuner.training.optimizer import Gradients, Optimizer
from tuner.training.parallel import held_bytes, let_go_of_gathered, local_parameters
from tuner.training.passes import passes_of
from tuner.training.rank_report import Metrics, NonFiniteLoss, RankReport


class Engine:
    """One rank's trial, from built model to last step. All ranks take the same decisions from the same sums."""

    def __init__(
        self, job: Job, mesh: Mesh, model: GPT, dataset: Dataset, report: RankReport, memory: MemoryWatch
    ) -> None:
        self._job, self._mesh, self._model, self._dataset = job, mesh, model, dataset
        self._report, self._memory = report, memory
        self._parameters = local_parameters(model, mesh)
        self._gradients = Gradients(job, mesh, self._parameters)
        self._optimizer = Optimizer(job, self._parameters)
        self._passes = passes_of(job, mesh, model)
        self._metrics = Metrics(Path(job.directory)) if mesh.rank == 0 else None
        self._train_s = 0.0
        self._validation = self._held_out_share()
        self._report.values["params_bytes"] = held_bytes([p.parameter for p in self._parameters])
        self._sampler = model.register_forward_hook(self._sample_gathered)

    def run(self) -> None:
        """Train ``num_steps`` steps, or until an evaluation reaches the target."""
        job = self._job
        for step in range(1, job.num_steps + 1):
            loss, norm, parts = self._step(step)
            seconds = sum(parts.values())
            self._train_s += seconds
            self._report.values["memory_growth_bytes"] = self._memory.growth_bytes
            self._report.add_step(parts)
            self._log_step(step, loss, norm, seconds)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise NonFiniteLoss(
                    f"step {step}: loss {loss}, gradient norm {norm} at learning rate "
                    f"{self._optimizer.learning_rate(step):.3g}; use a lower learning rate or a longer warmup"
                )
            is_due = job.eval_every > 0 and (step % job.eval_every == 0 or step == job.num_steps)
            if is_due and self._evaluate(step):
                return

    def _step(self, step: int) -> tuple[float, float, dict[str, float]]:
        job, mesh = self._job, self._mesh
        began = time.perf_counter()
        rows = self._dataset.share(job.seed, step, job.batch_sequences, dp_rank=mesh.dp_rank, dp=mesh.dp)
        share = torch.from_numpy(rows).to(mesh.device)
        drawn = time.perf_counter()
        if step == 1:
            self._report.values["first_forward_unix_s"] = time.time()
        loss = self._passes.train(share[:, :-1], share[:, 1:])
        passed = time.perf_counter()
        if job.zero == 2:
            let_go_of_gathered(self._model)
        self._gradients.collect()
        mean, norm = self._global(loss)
        synced = time.perf_counter()
        self._gradients.clip(norm, job.clip_norm)
        self._optimizer.step(self._optimizer.learning_rate(step))
        if step == 1:
            self._report.values["grad_bytes"] = self._gradients.held_bytes
            self._report.values["optimizer_bytes"] = self._optimizer.state_bytes
        self._gradients.release()
        if mesh.device.type == "cuda":
            torch.cuda.synchronize(mesh.device)
        ended = time.perf_counter()
        exposed = min(self._passes.exposed_sync_s, passed - drawn)
        return (
            mean,
            norm,
            {
                "data": drawn - began,
                "forward_backward": passed - drawn - exposed,
                "sync": synced - passed + exposed,
                "optimizer": ended - synced,
            },
        )

    def _global(self, loss: Tensor) -> tuple[float, float]:
        """Mean loss and gradient norm of the whole batch, in one message of two numbers."""
        mesh = self._mesh
        pair = torch.stack((loss.double() / (mesh.dp * mesh.tp), self._gradients.squared_norm()))
        if mesh.world_size > 1:
            dist.all_reduce(pair)
        mean, squared = pair.tolist()
        return mean, math.sqrt(squared) if squared >= 0 else math.nan

    def _log_step(self, step: int, loss: float, norm: float, seconds: float) -> None:
        if self._metrics is None:
            return
        batch_tokens = self._job.batch_sequences * self._job.sequence_length
        self._metrics.append(
            kind="step",
            step=step,
            tokens=step * batch_tokens,
            loss=loss,
            grad_norm=norm,
            lr=self._optimizer.learning_rate(step),
            step_time_s=seconds,
            tokens_per_s=batch_tokens / seconds,
            train_s=self._train_s,
        )

    # -- validation ------------------------------------------------------------------------------
    def _held_out_share(self) -> tuple[Tensor, Tensor, Tensor]:
        """This data rank's validation sequences; padded with weight 0, so that all ranks make as many passes."""
        mesh = self._mesh
        sequences = self._dataset.held_out_sequences()
        count = -(-NUM_HELD_OUT_SEQUENCES // mesh.dp)
        index = np.arange(mesh.dp_rank * count, (mesh.dp_rank + 1) * count)
        weights = torch.from_numpy((index < len(sequences)).astype(np.float32)).to(mesh.device)
        share = torch.from_numpy(sequences[np.minimum(index, len(sequences) - 1)]).to(mesh.device)
        return share[:, :-1], share[:, 1:], weights

    def _evaluate(self, step: int) -> bool:
        """Log the validation loss; True, on all ranks alike, when the target is reached."""
        job, mesh = self._job, self._mesh
        total = self._passes.evaluate(*self._validation).double() / (mesh.tp * NUM_HELD_OUT_SEQUENCES)
        if job.zero == 2:
            let_go_of_gathered(self._model)
        if mesh.world_size > 1:
            dist.all_reduce(total)
            dist.broadcast(total, src=0)
        loss = float(total)
        if self._metrics is not None:
            tokens = step * job.batch_sequences * job.sequence_length
            self._metrics.append(kind="eval", step=step, tokens=tokens, train_s=self._train_s, val_loss=loss)
        return job.target_loss is not None and loss <= job.target_loss

    def _sample_gathered(self, *_: object) -> None:
        """Once, between the first forward and its backward: the weights held then, gathered ones included."""
        self._report.values["gathered_params_bytes"] = held_bytes(list(self._model.parameters()))
        self._sampler.remove()
