"""The entry of a rank: ``main(job_path, rank)`` in a freshly forked process, or ``python -m tuner.training.worker``."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from cost_models.shape import ModelShape, Norm
from tuner.training import data
from tuner.training.engine import Engine
from tuner.training.job import Job
from tuner.training.memory import MemoryWatch, use_one_heap, warm_up
from tuner.training.mesh import Mesh, join, leave, refuse_impossible
from tuner.training.parallel import build
from tuner.training.rank_report import RankReport

_PR_SET_PDEATHSIG = 1


def main(job_path: str, rank: int) -> None:
    """Run rank ``rank`` of the job; SystemExit(1) where it fails, after ``rank-N.json`` says why."""
    die_with_parent()
    job = Job.read(Path(job_path))
    report = RankReport(Path(job.directory), rank)
    report.enter("starting")
    try:
        run(job, rank, report)
    except Exception as error:
        report.fail(error)
        print(report.values["exception"]["traceback"], file=sys.stderr, flush=True)
        raise SystemExit(1) from None


def run(job: Job, rank: int, report: RankReport) -> None:
    """The phases of a trial; raises what went wrong."""
    shape = shape_of(job)
    refuse_impossible(job, shape)
    if job.device == "cpu":
        use_one_heap()
    torch.set_num_threads(job.threads_per_rank)
    report.enter("init")
    mesh = join(job, rank, tied_embeddings=shape.tied_embeddings)
    dataset = _load(job, mesh, shape)
    wake(mesh)
    report.enter("build")
    memory = MemoryWatch.start(mesh.device, job.memory_headroom_bytes)
    report.values["memory_base_bytes"] = memory.base_bytes
    try:
        engine = Engine(job, mesh, build(job, shape, mesh), dataset, report, memory)
        gc.collect()
        gc.freeze()
        report.enter("train")
        engine.run()
    finally:
        memory.lift()
        report.values["memory_growth_bytes"] = memory.growth_bytes
    if mesh.world_size > 1:
        dist.barrier()
    report.enter("done")
    leave()


def shape_of(job: Job) -> ModelShape:
    values = dict(job.model)
    values["norm"] = Norm(values.get("norm", Norm.LAYER))
    return ModelShape(**values)


def _load(job: Job, mesh: Mesh, shape: ModelShape) -> data.Dataset:
    """Rank 0 first, so that the cache is built once."""
    if mesh.world_size == 1:
        return data.load(job.data_source, vocab=shape.vocab, sequence_length=job.sequence_length)
    if mesh.rank == 0:
        dataset = data.load(job.data_source, vocab=shape.vocab, sequence_length=job.sequence_length)
        dist.barrier()
        return dataset
    dist.barrier()
    return data.load(job.data_source, vocab=shape.vocab, sequence_length=job.sequence_length)


def wake(mesh: Mesh) -> None:
    """Open every connection and start every thread that training needs, before memory is measured."""
    warm_up(mesh.device)
    if mesh.world_size == 1:
        return
    word = torch.zeros(1, device=mesh.device)
    for name in ("pp", "dp", "tp"):
        if getattr(mesh, name) > 1:
            dist.all_reduce(word, group=mesh.group(name))
    if mesh.tied is not None:
        dist.all_reduce(word, group=mesh.tied)
    dist.all_reduce(word)


def die_with_parent() -> None:
    """On Linux: SIGKILL for this process when its parent ends, so that no rank is left behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[2].isdigit():
        sys.exit("usage: python -m tuner.training.worker JOB.json RANK")
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except SystemExit as ended:
        sys.stdout.flush()
        os._exit(int(ended.code or 0))
