"""Hugging Face ``config.json`` -> ModelShape: one table of key spellings, one of families, one of refusals.

A family that is not listed is refused by name: a plausible wrong count is worse than a refusal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from cost_models.shape import ModelShape, Norm, UnsupportedModelError

ALIASES: Mapping[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "num_heads": ("num_attention_heads", "n_head", "num_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim", "attention_head_dim"),
    "ffn_hidden": ("intermediate_size", "ffn_hidden_size", "n_inner"),
    "vocab": ("vocab_size",),
    "positions": ("n_positions", "max_position_embeddings"),
}
"""Our name -> the spellings in use; the first one present and not null wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a ``model_type`` fixes beyond its sizes. Biases: a bool, or the config key that says."""

    norm: Norm = Norm.RMS
    gated: bool = True
    tied_default: bool = False
    attention_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool = False
    norms: int = 2
    learned_positions: bool = False


_LLAMA = Family(attention_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias")
_GPT2 = Family(
    norm=Norm.LAYER,
    gated=False,
    tied_default=True,
    attention_bias=True,
    output_bias=True,
    mlp_bias=True,
    learned_positions=True,
)
_PHI = Family(norm=Norm.LAYER, gated=False, attention_bias=True, output_bias=True, mlp_bias=True, norms=1)
_FALCON = Family(
    norm=Norm.LAYER, gated=False, tied_default=True, attention_bias="bias", output_bias="bias", mlp_bias="bias", norms=1
)
_QWEN2 = Family(attention_bias=True)
_QWEN3 = Family(qk_norm=True, attention_bias="attention_bias", output_bias="attention_bias")
_GEMMA2 = Family(tied_default=True, norms=4)
_GEMMA3 = Family(tied_default=True, norms=4, qk_norm=True)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(),
    "mistral3": Family(),
    "ministral": Family(),
    "ministral3": Family(),
    "baichuan": Family(),
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "gemma": Family(tied_default=True),
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gptj": Family(norm=Norm.LAYER, gated=False, mlp_bias=True, norms=1),
    "gpt_neox": Family(norm=Norm.LAYER, gated=False, attention_bias=True, output_bias=True, mlp_bias=True),
    "phi": _PHI,
    "phi-msft": _PHI,
    "falcon": _FALCON,
    "RefinedWeb": _FALCON,
    "RefinedWebModel": _FALCON,
}

REFUSED_TYPES: Mapping[str, tuple[str, ...]] = {
    "encoder-only: it has no next-token training step": (
        "bert",
        "roberta",
        "xlm-roberta",
        "distilbert",
        "albert",
        "electra",
        "deberta",
        "deberta-v2",
        "modernbert",
        "vit",
    ),
    "encoder-decoder: two stacks with cross attention": (
        "t5",
        "mt5",
        "umt5",
        "bart",
        "mbart",
        "pegasus",
        "marian",
        "m2m_100",
        "whisper",
        "longt5",
        "blenderbot",
    ),
    "no attention: a recurrent or state-space model": (
        "rwkv",
        "rwkv4",
        "rwkv5",
        "rwkv6",
        "mamba",
        "mamba2",
        "falcon_mamba",
    ),
    "hybrid: attention and state-space layers in a pattern": (
        "nemotron_h",
        "jamba",
        "bamba",
        "zamba",
        "zamba2",
        "recurrent_gemma",
        "falcon_h1",
        "granitemoehybrid",
        "qwen3_next",
        "lfm2",
        "plamo2",
    ),
    "heterogeneous layers: sizes differ from layer to layer": ("nemotron-nas", "deci", "decilm", "openelm", "gemma3n"),
}
"""Reason -> the model types refused for it, whatever keys they carry."""

REFUSED_KEYS: Mapping[str, tuple[str, ...]] = {
    "heterogeneous layers: sizes differ from layer to layer": ("block_configs",),
    "hybrid: attention and state-space layers in a pattern": (
        "hybrid_override_pattern",
        "mamba_num_heads",
        "mamba_d_state",
        "ssm_cfg",
        "attn_layer_period",
    ),
    "multi-head latent attention (MLA) is not modelled yet": ("kv_lora_rank",),
}
"""Reason -> keys that betray it, where they are set."""

EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def read_hf_config(source: str | PathLike[str] | Mapping[str, Any]) -> ModelShape:
    """The shape of a dense decoder, from a path to a ``config.json`` or its parsed mapping.

    Multimodal wrappers: the language part (``text_config``), which the shape's name then says.
    UnsupportedModelError names the model type and the reason; ValueError a missing or wrong key.
    """
    outer, label = _loaded(source)
    inner = outer.get("text_config")
    config: Mapping[str, Any] = {**outer, **inner} if isinstance(inner, Mapping) else outer
    name = f"{label} (language part)" if isinstance(inner, Mapping) else label
    model_type = str(config.get("model_type") or outer.get("model_type") or "")
    _refuse(config, outer, model_type, name)
    family = FAMILIES[model_type]
    hidden, heads = _size(config, "hidden", name), _size(config, "num_heads", name)
    return ModelShape(
        name=name,
        num_layers=_size(config, "num_layers", name),
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=_num_kv_heads(config, heads, name),
        head_dim=_head_dim(config, hidden, heads, name),
        ffn_hidden=_size(config, "ffn_hidden", name, default=4 * hidden if not family.gated else None),
        vocab=_size(config, "vocab", name),
        gated_mlp=family.gated,
        tied_embeddings=bool(config.get("tie_word_embeddings", family.tied_default)),
        learned_positions=_size(config, "positions", name) if family.learned_positions else 0,
        norm=family.norm,
        attention_bias=_flag(config, family.attention_bias),
        output_bias=_flag(config, family.output_bias),
        mlp_bias=_flag(config, family.mlp_bias),
        qk_norm=family.qk_norm,
        norms_per_layer=2 if config.get("new_decoder_architecture") else family.norms,
    )


def _loaded(source: str | PathLike[str] | Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The mapping, and what to call the model."""
    if isinstance(source, Mapping):
        label = source.get("name") or source.get("_name_or_path") or source.get("model_type") or "model"
        return source, str(label)
    path = Path(source)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file; give the path of a Hugging Face config.json") from error
    except IsADirectoryError as error:
        raise ValueError(f"{path} is a folder; give the config.json in it") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except UnicodeDecodeError as error:
        what = f"not UTF-8 text ({error.reason} at byte {error.start})"
        raise ValueError(f"{path}: {what}; is it a config.json?") from error
    if not isinstance(values, Mapping):
        raise ValueError(f"{path}: holds a {type(values).__name__}, expected an object of config keys")
    return values, path.parent.name if path.stem == "config" and path.parent.name else path.stem


def _refuse(config: Mapping[str, Any], outer: Mapping[str, Any], model_type: str, name: str) -> None:
    """UnsupportedModelError where the formulas do not hold."""
    reason = _refusal(config, outer, model_type)
    if reason:
        raise UnsupportedModelError(f"{name}: model_type {model_type or 'missing'!r} is not supported: {reason}")


def _refusal(config: Mapping[str, Any], outer: Mapping[str, Any], model_type: str) -> str | None:
    for reason, types in REFUSED_TYPES.items():
        if model_type in types or str(outer.get("model_type")) in types:
            return reason
    for reason, keys in REFUSED_KEYS.items():
        if found := [k for k in keys if config.get(k)]:
            return f"{reason} (it sets {found[0]})"
    if outer.get("is_encoder_decoder"):
        return "encoder-decoder: two stacks with cross attention (it sets is_encoder_decoder)"
    for key in EXPERT_KEYS:
        if isinstance(config.get(key), int) and config[key] > 1:
            return f"mixture of experts is not modelled yet (it sets {key} {config[key]})"
    if listed := [k for names in ALIASES.values() for k in names if isinstance(config.get(k), list)]:
        return f"heterogeneous layers: {listed[0]} is a list, one size per layer"
    if mixed := set(map(str, config.get("layer_types") or ())) - {"full_attention", "sliding_attention"}:
        return f"hybrid: layer_types holds {', '.join(sorted(mixed))}"
    if model_type not in FAMILIES:
        return f"not one of the dense decoders whose layers are known: {', '.join(FAMILIES)}"
    return None


def _first(config: Mapping[str, Any], field: str) -> tuple[str, Any]:
    """(spelling, value) of the first spelling present and not null."""
    for key in ALIASES[field]:
        if config.get(key) is not None:
            return key, config[key]
    return ALIASES[field][0], None


def _size(config: Mapping[str, Any], field: str, name: str, default: int | None = None) -> int:
    key, value = _first(config, field)
    if value is None and default is not None:
        return default
    if value is None:
        others = ", ".join(ALIASES[field][1:]) or "no other spelling"
        raise ValueError(f"{name}: config has no {key} (also looked for {others}); add it")
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"{name}: {key} must be a positive whole number, got {value!r}")
    return value


def _num_kv_heads(config: Mapping[str, Any], heads: int, name: str) -> int:
    """One under ``multi_query`` (unless the newer Falcon layout gives a count), else as said, else as many as heads."""
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    return _size(config, "num_kv_heads", name, default=heads)


def _head_dim(config: Mapping[str, Any], hidden: int, heads: int, name: str) -> int:
    """Explicit where given (it need not be hidden / heads), else the quotient, which must be whole."""
    if _first(config, "head_dim")[1] is None and hidden % heads:
        raise ValueError(f"{name}: hidden {hidden} is not a multiple of {heads} heads and no head_dim is given")
    return _size(config, "head_dim", name, default=hidden // heads)


def _flag(config: Mapping[str, Any], rule: bool | str) -> bool:
    return bool(config.get(rule, False)) if isinstance(rule, str) else rule
