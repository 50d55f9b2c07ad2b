"""Published cases, each with the source that reported it: facts from those threads, or arithmetic on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

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
from cost_models.legality import batch_violations, explain_violation, violations
from cost_models.params import padded_vocab
from cost_models.pipeline import in_flight, interleaving_fault
from cost_models.units import GIB


def legal(
    shape: ModelShape, framework: Framework, layouts: list[Layout], rules: set[str], cluster: Cluster
) -> list[Layout]:
    """The layouts that break none of ``rules``."""
    broken = violations(shape, cluster, framework, Layouts.of(layouts))
    bad = np.any([broken[r] for r in rules if r in broken], axis=0)
    return [layout for layout, is_bad in zip(layouts, bad, strict=True) if not is_bad]


def test_case_01_gpt2_large_v100_no_flash(gpt2_large: ModelShape) -> None:
    """NVIDIA/Megatron-LM#525: 774 M on a 32 GB V100 ran out of memory; 21.5 GB of it are activations with scores."""
    card = presets.cluster("v100-sxm2-32gb", num_nodes=1, devices_per_node=1)
    run = Workload(
        sequence_length=1024, batch_sequences=4, precision=Precision.FP16, grad_bytes=4, flash_attention=False,
        framework=Framework.MEGATRON,
    )  # fmt: skip
    layout = Layout(micro_batch=4)
    cost = estimate(gpt2_large, card, run, layout)
    assert cost.memory.model_states == pytest.approx(774e6 * 18, rel=0.005)
    assert cost.memory.activations == pytest.approx(36 * 1024 * 4 * 1280 * (34 + 5 * 20 * 1024 / 1280), rel=0.01)
    assert cost.memory.logits == pytest.approx(0.41e9 + 2 * 0.82e9, rel=0.02)
    assert cost.memory_bytes == pytest.approx(38e9, rel=0.05)
    assert cost.fit_probability < 0.05
    assert cost.memory_bytes > card.usable_memory_bytes == 31.74 * GIB
    fused = estimate(gpt2_large, card, replace(run, flash_attention=True), layout)
    selective = estimate(gpt2_large, card, run, replace(layout, recompute=Recompute.SELECTIVE))
    assert fused.memory_bytes == pytest.approx(23e9, rel=0.05)
    assert fused.fit_probability > 0.98
    assert selective.fit_probability > 0.9


def test_case_02_sixteen_bytes_is_a_floor() -> None:
    """NVIDIA/Megatron-LM#188: 16 bytes x 2.35 B is 35.0 GiB of states alone; each of two devices used 37.9 GB."""
    shape = ModelShape(
        name="2.35B", num_layers=46, hidden=2048, num_heads=16, num_kv_heads=16, head_dim=128, ffn_hidden=8192,
        vocab=16000, tied_embeddings=True, learned_positions=1024, attention_bias=True, output_bias=True, mlp_bias=True,
    )  # fmt: skip
    assert shape.num_params == pytest.approx(2.35e9, rel=0.01)
    cards = presets.cluster("a100-sxm-40gb", num_nodes=1, devices_per_node=2)
    run = Workload(
        sequence_length=1024, batch_sequences=2, precision=Precision.FP16, grad_bytes=2, framework=Framework.MEGATRON
    )
    cost = estimate(shape, cards, run, Layout(dp=2))
    assert cost.memory.model_states == pytest.approx(35.0 * GIB, rel=0.01)
    assert cost.memory_bytes > 35.0 * GIB
    assert cost.fit_probability < 0.9
    held = {name for name, value in cost.memory.to_dict().items() if value > 0}
    assert {"activations", "logits", "fragmentation"} <= held


def test_case_06_first_stage_holds_most() -> None:
    """deepspeedai/DeepSpeed#4477: equal stages, yet the first always uses most: p - r micro-batches are in flight."""
    stages = np.arange(8)
    assert np.asarray(in_flight(stages, 8, 16)).tolist() == [8, 7, 6, 5, 4, 3, 2, 1]
    assert np.asarray(in_flight(stages, 8, 4)).tolist() == [4, 4, 4, 4, 4, 3, 2, 1]


def test_case_06_worst_stage_decides(llama: ModelShape, h100s: Cluster) -> None:
    run = Workload(sequence_length=2048, batch_sequences=32, framework=Framework.MEGATRON)
    cost = estimate(llama, h100s, run, Layout(pp=8, dp=2))
    assert cost.worst_stage == 0


def test_case_13_heads_mod_tp(h100s: Cluster) -> None:
    """THU-KEG/AdaptThink#1: 28 heads cannot be split 8 ways; Megatron's kv rule (4 groups) also drops 7 and 14."""
    qwen = presets.model("qwen2-7b")
    layouts = [Layout(tp=tp) for tp in (1, 2, 4, 7, 8, 14, 28)]
    by_heads = legal(qwen, Framework.MEGATRON, layouts, {"heads_divide_tp"}, h100s)
    assert [x.tp for x in by_heads] == [1, 2, 4, 7, 14, 28]
    both = legal(qwen, Framework.MEGATRON, layouts, {"heads_divide_tp", "kv_heads_tp"}, h100s)
    assert [x.tp for x in both] == [1, 2, 4, 28]
    said = explain_violation("heads_divide_tp", qwen, h100s, Layout(tp=8))
    assert "num_attention_heads 28 is not a multiple of tp 8" in said


@pytest.mark.parametrize("kv_heads", [5, 0, -1])
def test_case_15_heads_mod_kv(kv_heads: int) -> None:
    """NVIDIA/Megatron-LM#5755: 32 heads with 5 groups passed validation and crashed in the forward pass."""
    with pytest.raises(ValueError, match=r"32 % 5 = 2|num_kv_heads must be a positive"):
        ModelShape(
            name="x",
            num_layers=1,
            hidden=64,
            num_heads=32,
            num_kv_heads=kv_heads,
            head_dim=2,
            ffn_hidden=256,
            vocab=256,
        )


def test_case_16_layers_mod_pp_silent(small: ModelShape, h100s: Cluster) -> None:
    """NVIDIA/Megatron-LM#1304: 30 layers on 4 stages silently trained 28. Never floor-divide."""
    shape = replace(small, num_layers=30)
    layouts = [Layout(pp=pp) for pp in (1, 2, 3, 4, 5, 6, 8, 10, 15)]
    for framework in Framework:
        kept = legal(shape, framework, layouts, {"layers_divide_pp"}, h100s)
        assert [x.pp for x in kept] == [1, 2, 3, 5, 6, 10, 15]
    assert "30 % 4 = 2" in explain_violation("layers_divide_pp", shape, h100s, Layout(pp=4))
    kept = legal(replace(small, num_layers=46), Framework.MEGATRON, [Layout(pp=p) for p in range(1, 47)],
                 {"layers_divide_pp"}, h100s)  # fmt: skip
    assert [x.pp for x in kept] == [1, 2, 23, 46]


@pytest.mark.parametrize(
    "pp,chunks,overlaps,valid",
    [(1, 2, True, False), (1, 2, False, False), (2, 2, True, True), (2, 2, False, False), (4, 2, True, True),
     (4, 2, False, True), (1, 1, False, True), (2, 1, False, True)],
)  # fmt: skip
def test_case_18_vpp_needs_pp(pp: int, chunks: int, overlaps: bool, valid: bool) -> None:
    """NVIDIA/Megatron-LM#750: interleaving needs pp > 1 with overlapped messages, pp > 2 without."""
    fault = interleaving_fault(pp=pp, num_chunks=chunks, overlaps_p2p=overlaps)
    assert (fault is None) == valid
    assert valid or f"got pp {pp}" in str(fault)


def test_case_18_interleaving_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="vpp"):
        Layout.from_dict({"pp": 4, "vpp": 2})


def test_case_20_gbs_divisibility(small: ModelShape, h100s: Cluster) -> None:
    """mosaicml/examples#41, deepspeedai/DeepSpeed#17: 256 sequences on 7 devices with micro-batch 2: never round."""
    run = Workload(sequence_length=256, batch_sequences=256)
    seven, eight = Layout(dp=7, micro_batch=2), Layout(dp=8, micro_batch=2)
    assert batch_violations(run, Layouts.of([seven, eight]))["batch_divides"].tolist() == [True, False]
    said = explain_violation("batch_divides", small, h100s, seven, run)
    assert "256 % 14 = 4" in said
    assert "252 and 266" in said
    assert eight.num_micro_batches(256) == 16
    with pytest.raises(ValueError, match="252 and 266"):
        estimate(small, h100s, Workload(sequence_length=256, batch_sequences=256), seven)


@pytest.mark.parametrize("tp,dp", [(2, 8), (4, 4)])
def test_case_21_dp_not_world(tp: int, dp: int) -> None:
    """deepspeedai/DeepSpeed#8395: batch arithmetic divides by dp = world / (tp pp cp), not by all devices."""
    layout = Layout(tp=tp, dp=dp, micro_batch=8)
    assert layout.num_devices == 16
    run = Workload(sequence_length=128, batch_sequences=64)
    assert not batch_violations(run, Layouts.of([layout]))["batch_divides"][0]
    assert layout.num_micro_batches(64) == 64 // (8 * dp)


def test_case_22_zero23_with_pp(llama: ModelShape, h100s: Cluster) -> None:
    """deepspeedai/DeepSpeed#823: its pipeline refuses ZeRO 2 and 3; other frameworks combine them."""
    piped = [Layout(pp=2, dp=8, zero=z) for z in range(4)]
    plain = [Layout(dp=16, zero=z) for z in range(4)]
    kept = legal(llama, Framework.DEEPSPEED, [*piped, *plain], {"zero_with_pp"}, h100s)
    assert [(x.pp, x.zero) for x in kept] == [(2, 0), (2, 1), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert "zero_with_pp" not in violations(llama, h100s, Framework.NATIVE, Layouts.of(piped))


@pytest.mark.parametrize(
    "vocab,tp,padded",
    [(50257, 1, 50304), (50257, 2, 50432), (50257, 8, 51200), (128256, 1, 128256), (128256, 8, 129024),
     (129280, 24, 132096), (151936, 2, 152064), (32001, 2, 32256)],
)  # fmt: skip
def test_case_28_vocab_padding(small: ModelShape, h100s: Cluster, vocab: int, tp: int, padded: int) -> None:
    """hpcaitech/ColossalAI#6124, Megatron-LM build_tokenizer: ceil(V / (128 tp)) 128 tp; strict frameworks refuse."""
    shape = replace(small, vocab=vocab)
    layouts = Layouts.of([Layout(tp=tp)])
    assert padded_vocab(shape, Layout(tp=tp), Framework.MEGATRON) == padded
    assert "vocab_divides_tp" not in violations(shape, h100s, Framework.MEGATRON, layouts)
    strict = violations(shape, h100s, Framework.NATIVE, layouts)["vocab_divides_tp"]
    assert bool(strict[0]) == (vocab % tp != 0)


@pytest.mark.parametrize("length,fine", [(4098, {1, 3}), (8192, {1, 2, 4}), (6144, {1, 2, 3, 4})])
def test_case_25_sequence_mod_2cp(length: int, fine: set[int]) -> None:
    """Megatron-LM arguments.py: load-balanced context parallelism cuts the sequence into 2 cp chunks."""
    run = Workload(sequence_length=length, batch_sequences=8, framework=Framework.MEGATRON)
    broken = batch_violations(run, Layouts.of([Layout(cp=c) for c in (1, 2, 3, 4)]))["cp_divides_sequence"]
    assert {c for c, bad in zip((1, 2, 3, 4), broken, strict=True) if not bad} == fine
