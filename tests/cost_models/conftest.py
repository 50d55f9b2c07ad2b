"""Shapes and clusters that the tests price."""

from __future__ import annotations

import pytest

from cost_models import Cluster, Device, Link, ModelShape, Precision, presets
from cost_models.units import GIB


@pytest.fixture
def gpt2_large() -> ModelShape:
    return presets.model("gpt2-large")


@pytest.fixture
def llama() -> ModelShape:
    return presets.model("llama-3-8b")


@pytest.fixture
def h100s() -> Cluster:
    return presets.cluster("h100-sxm-80gb", num_nodes=2, framework_base_bytes=3 * GIB)


@pytest.fixture
def four_processes() -> Cluster:
    """Four CPU processes that share two cores."""
    cpu = Device(
        name="cpu", kind="cpu", peak_flops_per_s={Precision.FP32: 5e10}, memory_bytes=4 * GIB,
        memory_bandwidth_bytes_per_s=8e9, kernel_launch_s=8e-6,
    )  # fmt: skip
    loopback = Link(bandwidth_bytes_per_s=0.6e9, latency_s=6e-4)
    return Cluster(
        device=cpu, num_nodes=1, devices_per_node=4, intra_node=loopback, inter_node=loopback,
        memory_limit_bytes=4 * GIB, compute_slots_per_node=2,
    )  # fmt: skip


@pytest.fixture
def small() -> ModelShape:
    """A byte-level GPT of 1.9 M parameters."""
    return ModelShape(
        name="small", num_layers=4, hidden=192, num_heads=6, num_kv_heads=6, head_dim=32, ffn_hidden=768, vocab=256,
        learned_positions=256, attention_bias=True, output_bias=True, mlp_bias=True,
    )  # fmt: skip
