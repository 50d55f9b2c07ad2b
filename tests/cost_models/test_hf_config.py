"""Reading config.json: families counted exactly, everything else refused by name with the reason."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from cost_models import ModelShape, UnsupportedModelError, presets

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip


@pytest.mark.parametrize(
    "name,count",
    [("gpt2", 124_439_808), ("llama-2-7b", 6_738_415_616), ("llama-2-13b", 13_015_864_320),
     ("llama-3-8b", 8_030_261_248),
     ("llama-3.1-70b", 70_553_706_496), ("llama-3.1-405b", 405_853_388_800), ("mistral-7b-v0.1", 7_241_732_096),
     ("qwen2-7b", 7_615_616_512), ("qwen3-8b", 8_190_735_360)],
)  # fmt: skip
def test_presets_count_exactly(name: str, count: int) -> None:
    """Totals of the published checkpoints."""
    assert presets.model(name).num_params == count


def test_reference_configs(reference_data: Path) -> None:
    """Every file of the folder: dense within 0.5 %, the rest refused; mixtures of experts are refused for now."""
    folder = reference_data / "hf_configs"
    accepted = refused = 0
    for row in csv.DictReader((folder / "EXPECTED.csv").read_text().splitlines()):
        path = folder / f"{row['model']}.json"
        is_moe = bool(row["exact_active_computed_incl_both_embeddings"])
        if row["expected_verdict"].startswith("REFUSE") or is_moe:
            reason = "experts" if is_moe else row["expected_verdict"].removeprefix("REFUSE: ").split()[0]
            with pytest.raises(UnsupportedModelError, match=f"(?i)model_type .* {reason}|{reason}"):
                ModelShape.from_hf_config(path)
            refused += 1
        else:
            shape = ModelShape.from_hf_config(path)
            assert shape.num_params == pytest.approx(int(row["exact_total_computed"]), rel=0.005), row["model"]
            accepted += 1
    assert accepted >= 20
    assert refused >= 10


@pytest.mark.parametrize(
    "changes,reason",
    [
        ({"model_type": "bert"}, "encoder-only"),
        ({"model_type": "t5"}, "encoder-decoder"),
        ({"model_type": "rwkv5"}, "no attention"),
        ({"model_type": "nemotron_h"}, "hybrid"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"block_configs": [{}]}, "heterogeneous layers"),
        ({"intermediate_size": [1, 2]}, "heterogeneous layers"),
        ({"num_local_experts": 8}, "experts"),
        ({"num_experts": 8}, "experts"),
        ({"n_routed_experts": 64}, "experts"),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "hybrid"),
        ({"model_type": "brand_new"}, "not one of the dense decoders"),
        ({"model_type": None}, "missing"),
    ],
)
def test_refusals_name_type_and_reason(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        ModelShape.from_hf_config({**LLAMA, **changes})
    assert "\n" not in str(caught.value)


def test_one_expert_is_dense() -> None:
    assert ModelShape.from_hf_config({**LLAMA, "num_experts": 1}).num_heads == 4


def test_explicit_head_dim_wins() -> None:
    assert ModelShape.from_hf_config({**LLAMA, "head_dim": 32}).head_dim == 32
    assert ModelShape.from_hf_config(LLAMA).head_dim == 16
    with pytest.raises(ValueError, match="no head_dim"):
        ModelShape.from_hf_config({**LLAMA, "hidden_size": 66})


def test_text_config_is_read_and_said() -> None:
    shape = ModelShape.from_hf_config(
        {"model_type": "qwen3_vl", "text_config": {**LLAMA, "model_type": "qwen3_vl_text"}}
    )
    assert "language part" in shape.name
    assert shape.qk_norm


@pytest.mark.parametrize(
    "key,value", [("hidden_size", "64"), ("vocab_size", 0), ("num_hidden_layers", 2.5), ("vocab_size", True)]
)
def test_wrong_sizes_say_key_and_value(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{key} must be a positive whole number, got"):
        ModelShape.from_hf_config({**LLAMA, key: value})


def test_missing_keys_are_named() -> None:
    with pytest.raises(ValueError, match=r"no hidden_size \(also looked for n_embd, d_model\)"):
        ModelShape.from_hf_config({k: v for k, v in LLAMA.items() if k != "hidden_size"})


def test_bad_files_say_where(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        ModelShape.from_hf_config(tmp_path / "none.json")
    with pytest.raises(ValueError, match="is a folder"):
        ModelShape.from_hf_config(tmp_path)
    broken = tmp_path / "config.json"
    broken.write_text('{"a": 1,\n x}')
    with pytest.raises(ValueError, match=r"config\.json:2:2: not JSON"):
        ModelShape.from_hf_config(broken)
    broken.write_text("[1]")
    with pytest.raises(ValueError, match="holds a list"):
        ModelShape.from_hf_config(broken)
    broken.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        ModelShape.from_hf_config(broken)


def test_infinity_in_a_file_does_not_crash(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "model_type": "nemotron_h", "time_step_limit": [0.0, float("inf")]}))
    with pytest.raises(UnsupportedModelError, match="hybrid"):
        ModelShape.from_hf_config(path)
