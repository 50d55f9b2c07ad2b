"""A decoder-only GPT built from a ModelShape, whole or as the layers of one pipeline stage.

Pre-norm residual blocks; LayerNorm or RMSNorm, GELU or gated SiLU MLP, grouped-query attention, learned or rotary
positions. Its distinct parameters number ``ModelShape.num_params``. Left out: dropout (a layout must not change the
mathematics, and random masks would), sliding windows, mixture of experts.
"""

from __future__ import annotations

import hashlib
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cost_models.shape import ModelShape, Norm

INIT_STD = 0.02
ROTARY_BASE = 10000.0
TOKEN_TABLE = "embeddings.tokens.weight"


NORM_EPSILON = 1e-5


class LayerNorm(nn.LayerNorm):
    """In fp32, also where FSDP has gathered its parameters in bf16."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps)


class RMSNorm(nn.RMSNorm):
    """In fp32, as LayerNorm above."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.normalized_shape, self.weight.float(), self.eps)


def norm_of(shape: ModelShape) -> nn.Module:
    if shape.norm is Norm.LAYER:
        return LayerNorm(shape.hidden, eps=NORM_EPSILON)
    return RMSNorm(shape.hidden, eps=NORM_EPSILON)


class Embeddings(nn.Module):
    """Token table, and the learned position table where there is one."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(shape.learned_positions, shape.hidden) if shape.learned_positions else None

    def forward(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.tokens(tokens)
        if self.positions is not None:
            embedded = embedded + self.positions.weight[: tokens.shape[-1]]
        return embedded.float()


class Attention(nn.Module):
    """Causal grouped-query attention with one fused projection.

    The rows of ``qkv`` are ordered by key-value head: the query heads it serves, its key, its value. A contiguous
    share of the rows is therefore whole groups, which is what tensor parallelism splits.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.queries = shape.num_heads // shape.num_kv_heads
        rows = shape.head_dim * (shape.num_heads + 2 * shape.num_kv_heads)
        self.qkv = nn.Linear(shape.hidden, rows, bias=shape.attention_bias)
        self.out = nn.Linear(shape.head_dim * shape.num_heads, shape.hidden, bias=shape.output_bias)
        self.query_norm = RMSNorm(shape.head_dim, eps=NORM_EPSILON) if shape.qk_norm else None
        self.key_norm = RMSNorm(shape.head_dim, eps=NORM_EPSILON) if shape.qk_norm else None

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        batch, length, hidden = x.shape
        grouped = self.qkv(x.reshape(-1, hidden)).view(batch, length, -1, self.queries + 2, self.head_dim)
        query, key, value = grouped.split((self.queries, 1, 1), dim=3)
        query = query.reshape(batch, length, -1, self.head_dim)
        key, value = key.squeeze(3), value.squeeze(3)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if rotary is not None:
            query, key = rotated(query, rotary), rotated(key, rotary)
        if self.queries > 1:
            key = key.repeat_interleave(self.queries, dim=2)
            value = value.repeat_interleave(self.queries, dim=2)
        query, key = query.to(value.dtype), key.to(value.dtype)
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True
        )
        projected: Tensor = self.out(mixed.transpose(1, 2).reshape(batch * length, -1))
        return projected.view(batch, length, hidden)


class Mlp(nn.Module):
    """``down(gelu(up x))``, or ``down(silu(gate x) * up x)`` when gated."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden, shape.ffn_hidden, bias=shape.mlp_bias) if shape.gated_mlp else None
        self.up = nn.Linear(shape.hidden, shape.ffn_hidden, bias=shape.mlp_bias)
        self.down = nn.Linear(shape.ffn_hidden, shape.hidden, bias=shape.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Rows (tokens, hidden): a product of two matrices is what DTensor dispatches with the fewest steps."""
        inner = F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        projected: Tensor = self.down(inner)
        return projected


class Block(nn.Module):
    """One layer; with full recompute only its input is kept for the backward pass."""

    def __init__(self, shape: ModelShape, *, recompute: str) -> None:
        super().__init__()
        self.attention_norm = norm_of(shape)
        self.attention = Attention(shape)
        self.mlp_norm = norm_of(shape)
        self.mlp = Mlp(shape)
        self.recompute = recompute

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        if self.recompute == "full" and torch.is_grad_enabled():
            again: Tensor = checkpoint(self._layer, x, rotary, use_reentrant=False, preserve_rng_state=False)
            return again
        return self._layer(x, rotary)

    def _layer(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary)
        mixed: Tensor = x + self.mlp(self.mlp_norm(x).view(-1, x.shape[-1])).view(x.shape)
        return mixed


class Head(nn.Module):
    """Final norm and the projection to the vocabulary: logits (batch x length, vocab)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.norm = norm_of(shape)
        self.projection = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.projection(self.norm(x).view(-1, x.shape[-1]))
        return logits


class GPT(nn.Module):
    """The layers ``layers``, with the embeddings before the first layer and the head after the last one.

    Tokens (batch, length) or activations (batch, length, hidden) in; activations or logits out. Under ``bf16`` the
    products are bf16 by autocast and the residual stream stays fp32.
    """

    def __init__(self, shape: ModelShape, layers: range, *, recompute: str = "none", precision: str = "fp32") -> None:
        super().__init__()
        refuse_unsupported(shape)
        self.shape = shape
        self.precision = precision
        self.embeddings = Embeddings(shape) if layers.start == 0 else None
        self.blocks = nn.ModuleDict({str(i): Block(shape, recompute=recompute) for i in layers})
        self.head = Head(shape) if layers.stop == shape.num_layers else None
        self._rotary: tuple[Tensor, Tensor] | None = None
        self.tie()

    def tie(self) -> None:
        """Make the head use the token table itself, where both are here and the shape says so."""
        if self.shape.tied_embeddings and self.embeddings is not None and self.head is not None:
            self.head.projection.weight = self.embeddings.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            if self.embeddings is not None:
                x = self.embeddings(x)
            rotary = self._rotary_of(x)
            for block in self.blocks.values():
                x = block(x, rotary)
            return x if self.head is None else self.head(x)

    def _rotary_of(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        if self.shape.learned_positions:
            return None
        if self._rotary is None or self._rotary[0].shape[0] != x.shape[1]:
            self._rotary = rotary_table(x.shape[1], self.shape.head_dim, x.device)
        return self._rotary


def refuse_unsupported(shape: ModelShape) -> None:
    if shape.norms_per_layer != 2:
        raise ValueError(
            f"{shape.name}: norms_per_layer is {shape.norms_per_layer}, the native trial trains blocks with 2; "
            "choose another adapter for this model"
        )
    if not shape.learned_positions and shape.head_dim % 2:
        raise ValueError(f"{shape.name}: rotary positions need an even head_dim, got {shape.head_dim}")


def rotary_table(length: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine (length, 1, head_dim / 2) of ``p ROTARY_BASE^(-2i/d)`` [arXiv:2104.09864, eq. 15]."""
    frequency = ROTARY_BASE ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency)[:, None, :]
    return angle.cos(), angle.sin()


def rotated(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (i, i + d/2) of each head (batch, length, heads, d) by their position's angle."""
    cosine, sine = rotary
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


def initialise(module: nn.Module, prefix: str, shape: ModelShape, seed: int) -> None:
    """Fill the parameters of ``module``; each one's values depend on ``seed`` and its full name only.

    So a stage, or one layer, gets the values it would have in the whole model. Normal with deviation 0.02, divided
    by ``sqrt(2 L)`` where it writes to the residual stream; scales one, biases zero.
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            full = f"{prefix}{name}"
            if shape.tied_embeddings and full == "head.projection.weight":
                full = TOKEN_TABLE
            if parameter.ndim < 2:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            is_residual = name.endswith(("attention.out.weight", "mlp.down.weight"))
            std = INIT_STD / math.sqrt(2 * shape.num_layers) if is_residual else INIT_STD
            digest = hashlib.sha256(f"{seed}/{full}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            parameter.copy_(torch.randn(parameter.shape, generator=generator).mul_(std))
