"""Trials run for tests: entry functions of ranks, and what is read back of a trial."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from cost_models.shape import ModelShape, Norm
from tuner.training.job import Job

GPT = ModelShape(
    name="gpt", num_layers=4, hidden=32, num_heads=4, num_kv_heads=4, head_dim=8, ffn_hidden=64, vocab=256,
    tied_embeddings=True, learned_positions=32, attention_bias=True, output_bias=True, mlp_bias=True,
)  # fmt: skip
LLAMA = ModelShape(
    name="llama", num_layers=5, hidden=32, num_heads=4, num_kv_heads=2, head_dim=8, ffn_hidden=48, vocab=257,
    gated_mlp=True, norm=Norm.RMS, qk_norm=True,
)  # fmt: skip
"""A vocabulary that no degree divides, layers that pp 2 does not divide, norms inside the heads."""
CLIP_NORM = 1.7
"""In the midst of the gradient norms: AdamW undoes a scale that is the same at each step, so a wrong norm bends the
curve only where some steps are clipped and others are not."""
SHAPES = {shape.name: shape for shape in (GPT, LLAMA)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    exit_codes: tuple[int | None, ...]
    lines: tuple[dict[str, Any], ...]
    reports: tuple[dict[str, Any], ...]
    log: str
    live: tuple[dict[str, int], ...]
    """What train_watching_memory wrote, rank by rank; empty for other entries."""

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == "step"]

    @property
    def evals(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == "eval"]

    def said(self, name: str) -> list[Any]:
        return [report[name] for report in self.reports]


def job_of(directory: Path, **values: Any) -> Job:
    shape = values.pop("shape", GPT)
    defaults: dict[str, Any] = {
        "model": asdict(shape), "sequence_length": 32, "batch_sequences": 16, "micro_batch": 8, "learning_rate": 3e-3,
        "warmup": 4, "num_steps": 20, "horizon_steps": 40, "clip_norm": CLIP_NORM, "collective_timeout_s": 30.0,
    }  # fmt: skip
    return Job(**{**defaults, **values}, directory=str(directory))


def run(job: Job, entry: Callable[[str, int], None], timeout_s: float = 60.0) -> Trial:
    """All ranks of the job through ``entry`` in the fork server; whoever is left after the time-out is ended."""
    directory = Path(job.directory)
    path, log = directory / "job.json", directory / "log"
    job.write(path)
    context = multiprocessing.get_context("forkserver")
    ranks = [context.Process(target=into_log, args=(entry, str(path), str(log), r)) for r in range(job.world_size)]
    for rank in ranks:
        rank.start()
    deadline = time.monotonic() + timeout_s
    for rank in ranks:
        rank.join(max(0.1, deadline - time.monotonic()))
    codes = tuple(rank.exitcode for rank in ranks)
    for rank in ranks:
        rank.kill()
    metrics = directory / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
    reports = (directory / f"rank-{r}.json" for r in range(job.world_size))
    live = (directory / f"live-{r}.json" for r in range(job.world_size))
    return Trial(
        exit_codes=codes,
        lines=tuple(json.loads(line) for line in lines),
        reports=tuple(json.loads(report.read_text(encoding="utf-8")) for report in reports),
        log=log.read_text(encoding="utf-8") if log.exists() else "",
        live=tuple(json.loads(file.read_text(encoding="utf-8")) for file in live if file.exists()),
    )


# -- inside a rank ------------------------------------------------------------------------------------
def into_log(entry: Callable[[str, int], None], job_path: str, log: str, rank: int) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    entry(job_path, rank)


def train(job_path: str, rank: int) -> None:
    from tuner.training import worker

    worker.main(job_path, rank)


def train_counting_replicas_as_parts(job_path: str, rank: int) -> None:
    """The easy mistake: every rank's local squares are added up, whether others hold the same elements or not."""
    import torch

    from tuner.training import optimizer, worker

    def squared_norm(gradients: Any) -> Any:
        norms = torch.stack([p.local.grad.norm() for p in gradients._parameters])
        return norms.double().square().sum()

    optimizer.Gradients.squared_norm = squared_norm  # type: ignore[method-assign]
    worker.main(job_path, rank)


def train_without_summing_parts(job_path: str, rank: int) -> None:
    """Another one: the norms inside the heads keep the gradient of this tensor rank's own heads."""
    from tuner.training import optimizer, worker

    original = optimizer.Gradients.__init__

    def forgetful(gradients: Any, *arguments: Any) -> None:
        original(gradients, *arguments)
        gradients._partial = []

    optimizer.Gradients.__init__ = forgetful  # type: ignore[method-assign]
    worker.main(job_path, rank)


def fail_at_step_three(job_path: str, rank: int) -> None:
    """The last rank ends with an error in the middle of training; the others wait for it."""
    from tuner.training import engine, worker

    original = engine.Engine._step

    def step(trial: Any, number: int) -> Any:
        if number == 3 and rank == trial._mesh.world_size - 1:
            raise RuntimeError("a cause of its own")
        return original(trial, number)

    engine.Engine._step = step  # type: ignore[method-assign]
    worker.main(job_path, rank)


class _Mallinfo2(ctypes.Structure):
    """glibc's struct mallinfo2 (malloc.h)."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def given_out_bytes() -> int:
    """What malloc has given out and not got back: live bytes, without the holes between them."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Mallinfo2
    said = library.mallinfo2()
    return int(said.uordblks + said.hblkhd)


def train_watching_memory(job_path: str, rank: int) -> None:
    """Train, and write into ``live-N.json`` what malloc has given out since the start at moments of the second step."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from tuner.training import engine, model, worker

    original, forward, build = engine.Engine._step, model.GPT.forward, worker.build
    at_forward: list[int] = []
    at_start = peak = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal peak
            out = func(*args, **(kwargs or {}))
            peak = max(peak, given_out_bytes() - at_start)
            return out

    def watched_build(*arguments: Any) -> Any:
        nonlocal at_start
        at_start = given_out_bytes()
        return build(*arguments)

    def watched_forward(self: Any, x: Any) -> Any:
        at_forward.append(given_out_bytes() - at_start)
        return forward(self, x)

    def step(self: Any, number: int) -> Any:
        if number == 1:
            return original(self, number)
        at_forward.clear()
        with Watch():
            out = original(self, number)
        live = {"before": at_forward[0], "between": at_forward[-1], "peak": peak, "rest": given_out_bytes() - at_start}
        (Path(self._job.directory) / f"live-{rank}.json").write_text(json.dumps(live), encoding="utf-8")
        return out

    engine.Engine._step = step  # type: ignore[method-assign]
    model.GPT.forward = watched_forward  # type: ignore[method-assign]
    worker.build = watched_build
    worker.main(job_path, rank)
