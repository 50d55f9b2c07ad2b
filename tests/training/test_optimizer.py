"""The schedules, and which parameters decay."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the native trial needs the [train] extra")

import torch

from tests.training.ranks import GPT, LLAMA, job_of
from tuner.training.job import Job
from tuner.training.mesh import Mesh, refuse_impossible
from tuner.training.optimizer import FLOOR, Gradients, Optimizer, schedule_factor
from tuner.training.parallel import build, local_parameters

KINDS = ("cosine", "wsd", "linear", "constant")


@pytest.mark.parametrize("kind", KINDS)
def test_warmup_is_a_line_to_the_peak(kind: str) -> None:
    assert [schedule_factor(kind, step, 4, 100) for step in (1, 2, 4)] == [0.25, 0.5, 1.0]
    assert schedule_factor(kind, 1, 0, 100) > 0.99


@pytest.mark.parametrize("kind", KINDS)
def test_schedules_end_at_the_floor_and_never_rise(kind: str) -> None:
    values = [schedule_factor(kind, step, 10, 100) for step in range(10, 151)]
    assert all(a >= b for a, b in pairwise(values))
    assert values[0] == 1.0
    assert values[-1] == values[90] == pytest.approx(1.0 if kind == "constant" else FLOOR)


def test_middles() -> None:
    assert schedule_factor("cosine", 55, 10, 100) == pytest.approx(0.55)
    assert schedule_factor("cosine", 40, 10, 100) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 3)))
    assert schedule_factor("linear", 55, 10, 100) == pytest.approx(0.55)
    assert schedule_factor("wsd", 80, 10, 100) == 1.0
    assert schedule_factor("wsd", 90, 10, 100) == pytest.approx(0.55)


def test_warmup_past_the_horizon_goes_on_rising() -> None:
    assert schedule_factor("cosine", 150, 200, 100) == 0.75


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="'stairs' is not known; use cosine"):
        schedule_factor("stairs", 9, 1, 10)


def alone() -> Mesh:
    return Mesh(rank=0, dp=1, tp=1, pp=1, device=torch.device("cpu"), axes=None)


def test_only_matrices_decay(tmp_path: Path) -> None:
    job = job_of(tmp_path, weight_decay=0.5)
    parameters = local_parameters(build(job, GPT, alone()), alone())
    Gradients(job, alone(), parameters).collect()
    before = {p.name: p.local.clone() for p in parameters}
    Optimizer(job, parameters).step(0.1)
    for p in parameters:
        kept = 1 - 0.1 * 0.5 if p.is_matrix else 1.0
        torch.testing.assert_close(p.local, before[p.name] * kept, msg=p.name)


def test_norm_and_clipping_of_one_process_are_those_of_torch(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    model = build(job, LLAMA, alone())
    parameters = local_parameters(model, alone())
    gradients = Gradients(job, alone(), parameters)
    tokens = torch.arange(32)[None]
    model(tokens).square().sum().backward()
    gradients.collect()
    norm = math.sqrt(float(gradients.squared_norm()))
    assert norm == pytest.approx(float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])), rel=1e-5)
    gradients.clip(norm, norm / 2)
    assert math.sqrt(float(gradients.squared_norm())) == pytest.approx(norm / 2, rel=1e-5)
    gradients.clip(norm / 2, norm)
    assert math.sqrt(float(gradients.squared_norm())) == pytest.approx(norm / 2, rel=1e-5)


@pytest.mark.parametrize(
    "values,words",
    [
        ({"micro_batch": 3}, "16 sequences is not a multiple of micro_batch 3 x dp 1; the nearest below is 15"),
        ({"pp": 4}, "1F1B over pp 4 needs as many micro-batches, got 2"),
        ({"pp": 8, "micro_batch": 1}, "pp 8 is more than the 4 layers"),
        ({"tp": 3}, "tp 3 does not divide num_kv_heads 4"),
        ({"dp": 2, "zero": 1}, r"job.zero is 1; the native trial does \[0, 2, 3\]"),
        ({"zero": 2}, "zero 2 over dp 1 shards nothing"),
        ({"recompute": "selective"}, "recompute is 'selective'"),
        ({"precision": "fp8"}, "precision is 'fp8'"),
        ({"optimizer": "muon"}, "optimizer is 'muon'"),
        ({"schedule": "stairs"}, "schedule is 'stairs'"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"sequence_length": 64}, "sequence_length 64 is more than the 32 learned positions"),
        ({"num_steps": 0}, "num_steps must be at least 1, got 0"),
    ],
)
def test_impossible_jobs_are_refused(tmp_path: Path, values: dict[str, object], words: str) -> None:
    job: Job = job_of(tmp_path, **values)
    with pytest.raises(ValueError, match=words):
        refuse_impossible(job, GPT)
