"""A quickstart-like space on a machine of fixed figures, planned; and a proposer in a temporary folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cost_models.cluster import Cluster, Device, Link
from cost_models.workload import Precision
from tuner.plan.build import build_plan
from tuner.search.proposer import Proposer
from tuner.search.recipe_space import RecipeSpace
from tuner.space.load import load_space
from tuner.study.study import Study

SPACE = """
version: 1
name: simulated
model: {layers: 4, hidden: 96, heads: 4, ffn: 384, vocab: 256, positions: 128}
cluster: {device: this-machine, nodes: 1, devices_per_node: 4, framework_base: 400 MiB, memory: 900 MiB}
data: {sequence_length: 128, tokens: 400k}
layout:
  tp: [1, 2]
  pp: [1, 2]
  zero: [0, 2]
  micro_batch: [1, 2, 4]
  recompute: [none, full]
hyperparameters:
  batch_tokens: [1024, 2048, 4096]
  learning_rate: {low: 1e-3, high: 5e-2, log: true}
  warmup: {low: 0.02, high: 0.3, log: true}
  precision: fp32
objective: {minimize: OBJECTIVE, target_loss: TARGET}
budget:
  wall_clock: WALL s
  trial: {tokens: 400k, wall_clock: 60 s}
  confirm: {best: 2, seeds: 2}
search: {sampler: factorised, shortlist: 6, seed: 0}
"""


def machine(num_devices: int) -> Cluster:
    device = Device(
        name="this-machine",
        kind="cpu",
        peak_flops_per_s={Precision.FP32: 5e10},
        memory_bytes=4e9,
        memory_bandwidth_bytes_per_s=5e9,
        kernel_launch_s=1e-5,
    )
    link = Link(bandwidth_bytes_per_s=1e9, latency_s=1e-3)
    return Cluster(
        device=device,
        num_nodes=1,
        devices_per_node=num_devices,
        intra_node=link,
        inter_node=link,
        memory_limit_bytes=4e9,
        framework_base_bytes=4e8,
        compute_slots_per_node=2,
    )


StudyMaker = Callable[..., Study]


@pytest.fixture
def make_study(tmp_path: Path) -> StudyMaker:
    """``make_study(objective=..., target=..., wall_clock_s=...)``; called twice it opens the same journal again."""

    def make(
        *, objective: str = "time_to_loss", target: str = "auto", wall_clock_s: int = 240, **changes: str
    ) -> Study:
        text = SPACE.replace("OBJECTIVE", objective).replace("TARGET", target).replace("WALL", str(wall_clock_s))
        for old, new in changes.items():
            text = text.replace(old, new)
        space = load_space(text, this_machine=machine)
        plan = build_plan(space)
        batches = [b * space.data.sequence_length for b in space.batch_sizes]
        proposer = Proposer.open(
            tmp_path,
            space,
            RecipeSpace.of(space, batches),
            dict.fromkeys(batches, 5e-05),
            space.budget.trial.tokens,
            space.model.num_non_embedding_params,
        )
        return Study(plan, proposer)

    return make
