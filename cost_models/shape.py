"""ModelShape: the numbers of a decoder-only transformer that its cost depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from os import PathLike
from typing import Any


class Norm(StrEnum):
    LAYER = "layer"
    RMS = "rms"


class UnsupportedModelError(ValueError):
    """The model is outside what the formulas cover; the message names the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense GPT or Llama shaped decoder. All sizes are counts of elements."""

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    gated_mlp: bool = False
    tied_embeddings: bool = False
    learned_positions: int = 0
    """Rows of a learned position table; 0 where positions are rotary or absent."""
    norm: Norm = Norm.LAYER
    attention_bias: bool = False
    """Bias on the q, k, v projections (GPT-2, Qwen2)."""
    output_bias: bool = False
    """Bias on the attention's output projection (GPT-2)."""
    mlp_bias: bool = False
    qk_norm: bool = False
    norms_per_layer: int = 2

    def __post_init__(self) -> None:
        for field in ("num_layers", "hidden", "num_heads", "num_kv_heads", "head_dim", "ffn_hidden", "vocab"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                raise ValueError(f"{self.name}: {field} must be a positive whole number, got {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.name}: num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads} "
                f"({self.num_heads} % {self.num_kv_heads} = {self.num_heads % self.num_kv_heads}); "
                "each key-value head serves the same number of query heads"
            )

    @classmethod
    def from_hf_config(cls, source: str | PathLike[str] | Mapping[str, Any]) -> ModelShape:
        """Read a Hugging Face ``config.json`` (a path or its parsed mapping).

        Raises UnsupportedModelError with the reason for architectures that are not modelled.
        """
        from cost_models.hf_config import read_hf_config

        return read_hf_config(source)

    # -- parameters ------------------------------------------------------------------------------
    @property
    def norm_params(self) -> int:
        """Parameters of one norm: a scale, and a shift for LayerNorm."""
        return self.hidden * (2 if self.norm is Norm.LAYER else 1)

    @property
    def attention_params(self) -> int:
        """One layer's projections: ``h d (a + 2 g) + a d h`` and their biases."""
        d, a, g, h = self.head_dim, self.num_heads, self.num_kv_heads, self.hidden
        weights = h * d * (a + 2 * g) + a * d * h
        biases = (d * (a + 2 * g) if self.attention_bias else 0) + (h if self.output_bias else 0)
        return weights + biases + (2 * d if self.qk_norm else 0)

    @property
    def mlp_params(self) -> int:
        """One layer's MLP: ``2 h f``, or ``3 h f`` when gated, and its biases."""
        matrices = 3 if self.gated_mlp else 2
        biases = ((matrices - 1) * self.ffn_hidden + self.hidden) if self.mlp_bias else 0
        return matrices * self.hidden * self.ffn_hidden + biases

    @property
    def layer_params(self) -> int:
        return self.attention_params + self.mlp_params + self.norms_per_layer * self.norm_params

    @property
    def embedding_params(self) -> int:
        """One token table: ``V h``."""
        return self.vocab * self.hidden

    @property
    def position_params(self) -> int:
        return self.learned_positions * self.hidden

    @property
    def num_params(self) -> int:
        """Distinct parameters: a tied table is counted once."""
        tables = 1 if self.tied_embeddings else 2
        return self.num_non_embedding_params + tables * self.embedding_params + self.position_params

    @property
    def num_active_params(self) -> int:
        """Parameters that a token meets; both embedding tables counted, tied or not."""
        return self.num_non_embedding_params + 2 * self.embedding_params + self.position_params

    @property
    def num_non_embedding_params(self) -> int:
        return self.num_layers * self.layer_params + self.norm_params
