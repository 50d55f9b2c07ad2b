"""estimate(): one code path for one layout and many, intervals, and the directions that physics demands."""

from __future__ import annotations

import json
import math
import time
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import (
    Cluster,
    Framework,
    Layout,
    Layouts,
    ModelShape,
    Precision,
    Recompute,
    Workload,
    estimate,
    presets,
)
from cost_models.coefficients import DEFAULT_COEFFICIENTS, Coefficients
from cost_models.compute import model_flops_per_token

SHAPE = ModelShape(
    name="s", num_layers=8, hidden=512, num_heads=8, num_kv_heads=8, head_dim=64, ffn_hidden=2048, vocab=1024
)
CLUSTER = presets.cluster("a100-sxm-80gb", num_nodes=4)
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
frameworks = st.sampled_from(list(Framework))


def run_of(framework: Framework = Framework.NATIVE, **changes: object) -> Workload:
    return replace(Workload(sequence_length=512, batch_sequences=256, framework=framework), **changes)  # type: ignore[arg-type]


@given(rows=st.lists(layouts, min_size=1, max_size=6), framework=frameworks)
@settings(max_examples=100, deadline=None)
def test_one_layout_equals_its_row(rows: list[Layout], framework: Framework) -> None:
    run = run_of(framework)
    columns = estimate(SHAPE, CLUSTER, run, Layouts.of(rows))
    for i, layout in enumerate(rows):
        assert columns.row(i) == estimate(SHAPE, CLUSTER, run, layout)


@given(layout=layouts, framework=frameworks)
@settings(max_examples=100, deadline=None)
def test_parts_sum_and_intervals_hold_the_value(layout: Layout, framework: Framework) -> None:
    cost = estimate(SHAPE, CLUSTER, run_of(framework), layout)
    assert math.isclose(cost.time.total, cost.step_time_s, rel_tol=1e-12)
    assert all(v >= 0 for v in cost.time.to_dict().values())
    assert cost.step_time_low_s < cost.step_time_s < cost.step_time_high_s
    assert cost.memory_low_bytes < cost.memory_bytes < cost.memory_high_bytes
    assert 0 <= cost.fit_probability <= 1
    assert cost.time.to_dict()[str(cost.limited_by)] == max(cost.time.to_dict().values())


@given(
    layout=layouts, framework=frameworks, factor=st.floats(1.1, 20), link=st.sampled_from(["intra_node", "inter_node"])
)
@settings(max_examples=100, deadline=None)
def test_more_bandwidth_never_slows_a_step(layout: Layout, framework: Framework, factor: float, link: str) -> None:
    wire = getattr(CLUSTER, link)
    wider = replace(CLUSTER, **{link: replace(wire, bandwidth_bytes_per_s=factor * wire.bandwidth_bytes_per_s)})
    run = run_of(framework)
    assert estimate(SHAPE, wider, run, layout).step_time_s <= estimate(SHAPE, CLUSTER, run, layout).step_time_s * (
        1 + 1e-9
    )


@given(layout=layouts, framework=frameworks)
@settings(max_examples=60, deadline=None)
def test_faster_memory_and_compute_never_slow_a_step(layout: Layout, framework: Framework) -> None:
    device = CLUSTER.device
    quick = replace(
        device,
        memory_bandwidth_bytes_per_s=2 * device.memory_bandwidth_bytes_per_s,
        peak_flops_per_s={p: 2 * f for p, f in device.peak_flops_per_s.items()},
    )
    run = run_of(framework)
    faster = estimate(SHAPE, replace(CLUSTER, device=quick), run, layout).step_time_s
    assert faster <= estimate(SHAPE, CLUSTER, run, layout).step_time_s * (1 + 1e-9)


def test_rows_whose_batch_does_not_divide_are_nan() -> None:
    columns = estimate(SHAPE, CLUSTER, run_of(), Layouts.of([Layout(dp=3), Layout(dp=4)]))
    assert np.isnan(columns.step_time_s).tolist() == [True, False]
    assert np.isfinite(columns.memory_bytes).all()
    assert columns.to_dict()["step_time_s"][0] is None
    json.dumps(columns.to_dict(), allow_nan=False)


def test_mfu_is_the_palm_convention() -> None:
    """llm-foundry's table: 6.66 B parameters, 32 layers, h 4096, s 2048: 4,641 tokens/s on an A100 is 64.2 %."""
    params, layers, hidden, length = 6_658_859_008, 32, 4096, 2048
    assert 4641 * (6 * params + 12 * layers * hidden * length) / 312e12 == pytest.approx(0.642, abs=0.002)
    shape = presets.model("llama-2-7b")
    flops = model_flops_per_token(shape, length)
    assert flops == pytest.approx(6 * shape.num_active_params + 12 * layers * hidden * length)
    cost = estimate(shape, CLUSTER, run_of(sequence_length=length), Layout(dp=32, zero=3))
    assert cost.mfu == pytest.approx(cost.tokens_per_s * flops / (32 * 312e12))


def test_full_recompute_costs_about_a_third() -> None:
    """Aleph-Alpha's 13 B sheet: the same layout takes 1.24 to 1.33 times as long with full recompute."""
    shape = replace(presets.model("llama-2-13b"), vocab=128000)
    cluster = presets.cluster("a100-sxm-80gb", num_nodes=8)
    run = run_of(Framework.MEGATRON, sequence_length=2048, batch_sequences=2048)
    for layout in (Layout(dp=32, pp=2, zero=1), Layout(dp=32, tp=2, zero=1)):
        kept = estimate(shape, cluster, run, layout).step_time_s
        again = estimate(shape, cluster, run, replace(layout, recompute=Recompute.FULL)).step_time_s
        assert 1.20 <= again / kept <= 1.40


def test_pipeline_against_tensor_parallel_depends_on_micro_batches() -> None:
    """NVIDIA/Megatron-LM#258: inside one A100 node pp 8 wins with many micro-batches, tp 8 with few."""
    shape = ModelShape(
        name="10b",
        num_layers=48,
        hidden=4096,
        num_heads=32,
        num_kv_heads=32,
        head_dim=128,
        ffn_hidden=16384,
        vocab=50304,
    )
    node = presets.cluster("a100-sxm-80gb", num_nodes=1)

    def seconds(batch: int, layout: Layout) -> float:
        run = run_of(Framework.MEGATRON, batch_sequences=batch)
        return float(estimate(shape, node, run, layout).step_time_s)

    assert seconds(4, Layout(tp=8)) < seconds(4, Layout(pp=8))
    assert seconds(256, Layout(pp=8)) < seconds(256, Layout(tp=8))


def test_processes_that_share_cores(small: ModelShape, four_processes: Cluster) -> None:
    """Four processes on two cores do no more work a second than two; a bubble that others fill costs nothing."""
    run = Workload(sequence_length=256, batch_sequences=32, precision=Precision.FP32)
    one, two, four = (estimate(small, four_processes, run, Layout(dp=dp, micro_batch=4)) for dp in (1, 2, 4))
    assert one.step_time_s > 1.7 * two.step_time_s
    assert four.step_time_s > 0.95 * two.step_time_s
    free = estimate(small, replace(four_processes, compute_slots_per_node=None), run, Layout(pp=4, micro_batch=4))
    shared = estimate(small, four_processes, run, Layout(pp=4, micro_batch=4))
    assert free.time.pipeline_bubble > 0
    assert shared.time.pipeline_bubble < 0.5 * free.time.pipeline_bubble
    assert shared.time.compute == pytest.approx(2 * free.time.compute)


def test_tensor_parallel_on_cpu_pays_for_dispatch(small: ModelShape, four_processes: Cluster) -> None:
    run = Workload(sequence_length=256, batch_sequences=16, precision=Precision.FP32)
    split = estimate(small, four_processes, run, Layout(tp=2, micro_batch=1))
    replicated = estimate(small, four_processes, run, Layout(dp=2, micro_batch=1))
    assert split.step_time_s > 1.5 * replicated.step_time_s
    assert split.limited_by == "tensor_parallel"


def test_missing_precision_is_an_error() -> None:
    v100s = presets.cluster("v100-sxm2-32gb", num_nodes=1)
    with pytest.raises(ValueError, match=r"no bf16 peak; it has fp32, fp16"):
        estimate(SHAPE, v100s, run_of(), Layout())


def test_coefficients_survive_json_and_name_what_is_unmeasured() -> None:
    measured = replace(DEFAULT_COEFFICIENTS, measured=frozenset({"matmul_efficiency"}))
    assert Coefficients.from_dict(json.loads(json.dumps(measured.to_dict()))) == measured
    cost = estimate(SHAPE, CLUSTER, run_of(), Layout(), coefficients=measured)
    assert "matmul_efficiency" not in cost.unmeasured
    assert "link_efficiency" in cost.unmeasured
    with pytest.raises(ValueError, match="unknown coefficients"):
        Coefficients.from_dict({"gpu": {"nonsense": 1}, "cpu": {}})


def test_a_hundred_thousand_layouts_in_a_blink() -> None:
    n = 100_000
    base = Layouts.of(
        [Layout(dp=d, tp=t, pp=p, zero=z) for d in (1, 2, 4) for t in (1, 2) for p in (1, 2) for z in (0, 3)]
    )
    many = Layouts(**{f.name: np.resize(getattr(base, f.name), n) for f in fields(base)})
    began = time.process_time()
    assert np.shape(estimate(SHAPE, CLUSTER, run_of(), many).step_time_s) == (n,)
    assert time.process_time() - began < 5
