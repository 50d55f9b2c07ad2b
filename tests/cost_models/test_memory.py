"""Memory against published formulas, and properties that must hold for any layout."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import Framework, Layout, ModelShape, Precision, Recompute, Workload, estimate, presets
from cost_models.activations import attention_activation_bytes, layer_activation_bytes
from cost_models.params import layer_params, stage_params
from cost_models.units import GIB

CLUSTER = presets.cluster("h100-sxm-80gb", num_nodes=8, framework_base_bytes=2 * GIB)
GPT_175B = ModelShape(
    name="gpt-175b", num_layers=96, hidden=12288, num_heads=96, num_kv_heads=96, head_dim=128, ffn_hidden=49152,
    vocab=51200, tied_embeddings=True, learned_positions=2048, attention_bias=True, output_bias=True, mlp_bias=True,
)  # fmt: skip
CLASSIC = Workload(
    sequence_length=2048,
    batch_sequences=64,
    precision=Precision.FP16,
    flash_attention=False,
    framework=Framework.MEGATRON,
)
SMALL = ModelShape(
    name="small", num_layers=8, hidden=256, num_heads=8, num_kv_heads=8, head_dim=32, ffn_hidden=1024, vocab=512
)


@pytest.mark.parametrize("tp", [1, 8])
def test_layer_activations_match_korthikanti(tp: int) -> None:
    """arXiv:2205.05198 table 2, tensor and sequence parallel: ``s b h / t (34 + 5 a s / h)`` bytes."""
    b, s, h, a = 1, 2048, 12288, 96
    layout = Layout(tp=tp, micro_batch=b)
    whole = layer_activation_bytes(GPT_175B, CLASSIC, layout) + attention_activation_bytes(GPT_175B, CLASSIC, layout)
    assert whole == pytest.approx(s * b * h / tp * (34 + 5 * a * s / h), rel=0.01)


def test_layer_activations_without_sequence_parallel() -> None:
    """arXiv:2205.05198 table 2, tensor parallel only: ``s b h (10 + 24 / t + 5 a s / (h t))``."""
    run, layout = replace(CLASSIC, framework=Framework.DEEPSPEED), Layout(tp=8)
    s, h, a, t = 2048, 12288, 96, 8
    whole = layer_activation_bytes(GPT_175B, run, layout) + attention_activation_bytes(GPT_175B, run, layout)
    assert whole == pytest.approx(s * h * (10 + 24 / t + 5 * a * s / (h * t)), rel=0.01)


def test_full_recompute_keeps_inputs_only() -> None:
    """arXiv:2205.05198 section 4.2: ``2 s b h`` a layer; FORMULAS of a 175 B run with tp 8, pp 8 give about 7 GiB."""
    cost = estimate(GPT_175B, CLUSTER, CLASSIC, Layout(tp=8, pp=8, recompute=Recompute.FULL))
    inputs = 2 * 2048 * 12288 / 8 * 12 * 8
    one_layer = 2048 * 12288 / 8 * (34 + 5 * 96 * 2048 / 12288)
    assert cost.memory.activations == pytest.approx(inputs + one_layer, rel=0.15)


@pytest.mark.parametrize(
    "zero,shards,expected",
    [(0, 64, 16 * 7.5e9), (1, 64, 4 * 7.5e9 + 12 * 7.5e9 / 64), (2, 64, 2 * 7.5e9 + 14 * 7.5e9 / 64),
     (3, 64, 16 * 7.5e9 / 64)],
)  # fmt: skip
def test_zero_states_match_the_paper(zero: int, shards: int, expected: float) -> None:
    """arXiv:1910.02054 figure 1: 7.5 B parameters, 64 devices: 120, 31.4, 16.6 and 1.9 GB."""
    shape = ModelShape(
        name="7.5b", num_layers=36, hidden=4096, num_heads=32, num_kv_heads=32, head_dim=128, ffn_hidden=16384,
        vocab=51200, tied_embeddings=True, learned_positions=2048,
    )  # fmt: skip
    run = Workload(
        sequence_length=2048, batch_sequences=64, precision=Precision.FP16, grad_bytes=2, framework=Framework.MEGATRON
    )
    cost = estimate(shape, CLUSTER, run, Layout(dp=shards, zero=zero))
    assert cost.memory.model_states == pytest.approx(expected * shape.num_params / 7.5e9, rel=0.002)
    assert cost.memory.model_states == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "qwen3-8b", "qwen2-7b"])
@pytest.mark.parametrize("framework", [Framework.NATIVE, Framework.DEEPSPEED])
def test_stages_hold_all_parameters(name: str, framework: Framework) -> None:
    """Parameters are the sum of the stages' (a tied table twice where p > 1); with tp 1 nothing is lost."""
    shape = presets.model(name)
    assert layer_params(shape, Layout()) == shape.layer_params
    for pp in (1, 2, 4):
        layout = Layout(pp=pp)
        held = sum(stage_params(shape, layout, framework, stage).total for stage in range(pp))
        doubled = shape.embedding_params if shape.tied_embeddings and pp > 1 else 0
        assert held == shape.num_params + doubled


def test_parts_sum_to_the_whole() -> None:
    cost = estimate(SMALL, CLUSTER, Workload(sequence_length=512, batch_sequences=64), Layout(dp=4, tp=2, pp=2, zero=3))
    assert cost.memory.total == pytest.approx(cost.memory_bytes, rel=1e-12)
    assert cost.memory.framework_base == 2 * GIB


DEGREES = st.sampled_from([1, 2, 4, 8])
layouts = st.builds(
    Layout,
    dp=DEGREES,
    tp=DEGREES,
    pp=DEGREES,
    zero=st.integers(0, 3),
    micro_batch=st.sampled_from([1, 2, 4]),
    recompute=st.sampled_from(list(Recompute)),
)
workloads = st.builds(
    Workload,
    sequence_length=st.sampled_from([128, 1024]),
    batch_sequences=st.just(1024),
    precision=st.sampled_from(list(Precision)[:2]),
    flash_attention=st.booleans(),
    framework=st.sampled_from(list(Framework)),
)


@given(layout=layouts, run=workloads)
@settings(max_examples=150, deadline=None)
def test_memory_never_falls_with_a_larger_micro_batch(layout: Layout, run: Workload) -> None:
    small = estimate(SMALL, CLUSTER, run, layout)
    large = estimate(SMALL, CLUSTER, run, replace(layout, micro_batch=2 * layout.micro_batch))
    assert large.memory.total >= small.memory.total


@given(layout=layouts, run=workloads)
@settings(max_examples=150, deadline=None)
def test_memory_never_falls_with_a_longer_sequence(layout: Layout, run: Workload) -> None:
    short = estimate(SMALL, CLUSTER, run, layout)
    long = estimate(SMALL, CLUSTER, replace(run, sequence_length=2 * run.sequence_length), layout)
    assert long.memory_bytes >= short.memory_bytes


@given(layout=layouts, run=workloads)
@settings(max_examples=150, deadline=None)
def test_higher_zero_never_raises_model_states(layout: Layout, run: Workload) -> None:
    """The states themselves, also natively; FSDP2's gathered weights are another part and excepted."""
    states = [estimate(SMALL, CLUSTER, run, replace(layout, zero=z)).memory.model_states for z in range(4)]
    assert states == sorted(states, reverse=True)


@given(layout=layouts, run=workloads)
@settings(max_examples=100, deadline=None)
def test_recomputing_more_never_raises_memory(layout: Layout, run: Workload) -> None:
    held = [estimate(SMALL, CLUSTER, run, replace(layout, recompute=r)).memory_bytes for r in Recompute]
    if layout.pp * layout.num_micro_batches(run.batch_sequences) == 1 and SMALL.num_layers == 1:
        return
    assert held[2] <= held[0] * (1 + 1e-9)


def test_native_zero_2_keeps_weights_gathered(small: ModelShape) -> None:
    """torch FSDP2 without resharding: a shard (1/dp) beside the whole."""
    run = Workload(sequence_length=128, batch_sequences=8, precision=Precision.FP32)
    cost = estimate(small, CLUSTER, run, Layout(dp=4, zero=2))
    weights = 4 * small.num_params
    assert cost.memory.weights == pytest.approx(weights / 4)
    assert cost.memory.gathered >= weights
