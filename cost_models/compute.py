"""What one micro-batch costs one device in flops and bytes moved.

All sizes are of one layer's forward pass on one device unless a name says otherwise; backward is twice that.
Symbols: b micro-batch, s sequence, h hidden, a heads, g kv heads, d head dim, f ffn, V vocabulary, t tp, c cp.
"""

from __future__ import annotations

from cost_models.framework import Traits
from cost_models.layout import Layout, Layouts
from cost_models.shape import ModelShape
from cost_models.units import Number
from cost_models.workload import Workload

BACKWARD = 2.0
"""Backward over forward for matmuls: one product for the inputs and one for the weights."""
ATTENTION_BACKWARD = 2.5
"""The fused kernel recomputes the scores: 5 products for 2 [arXiv:2205.14135]."""


def micro_batch_tokens(workload: Workload, layout: Layout | Layouts) -> Number:
    """Tokens of one micro-batch on one device, ``b s / c``."""
    return layout.micro_batch * workload.sequence_length / layout.cp


def sequence_split(layout: Layout | Layouts, traits: Traits) -> Number:
    """Over how many devices norms and residuals are split: t under sequence parallelism, else 1."""
    return layout.tp if traits.sequence_parallel else 1


def num_matmuls(shape: ModelShape) -> int:
    """Matmuls of a layer's forward pass with a fused qkv: 4, or 5 with a gated MLP."""
    return 5 if shape.gated_mlp else 4


def layer_matmul_flops(shape: ModelShape, workload: Workload, layout: Layout | Layouts) -> Number:
    """``2 b s (h d (a + 2 g) + a d h + (2|3) h f) / (t c)`` [arXiv:2104.04473 eq. 3, without the attention core].

    Leaves out: biases; the replication of kv heads where ``g < t``.
    """
    attention = shape.hidden * shape.head_dim * (2 * shape.num_heads + 2 * shape.num_kv_heads)
    mlp = (3 if shape.gated_mlp else 2) * shape.hidden * shape.ffn_hidden
    return 2.0 * micro_batch_tokens(workload, layout) * (attention + mlp) / layout.tp


def attention_core_flops(shape: ModelShape, workload: Workload, layout: Layout | Layouts) -> Number:
    """Scores and values, ``4 b s^2 a d / (t c)``; half of it where a fused kernel skips the causal mask's upper part.

    Leaves out: sliding windows and packed documents, which need less.
    """
    causal = 0.5 if workload.flash_attention else 1.0
    width = shape.num_heads * shape.head_dim
    return causal * 4.0 * micro_batch_tokens(workload, layout) * workload.sequence_length * width / layout.tp


def head_flops(shape: ModelShape, workload: Workload, layout: Layout | Layouts, vocab: Number) -> Number:
    """The output projection, ``2 b s h V / (t c)``, with V as padded."""
    return 2.0 * micro_batch_tokens(workload, layout) * shape.hidden * vocab / layout.tp


def layer_elementwise_bytes(shape: ModelShape, workload: Workload, layout: Layout | Layouts, traits: Traits) -> Number:
    """Bytes read and written outside matmuls: 2 norms and 2 residual adds (10 h), activation (2 f, or 4 f gated).

    Without a fused kernel the ``a s^2 b`` scores are scaled, masked and normalised: about 8 accesses each.
    """
    width = workload.precision.num_bytes
    tokens = micro_batch_tokens(workload, layout)
    residual = 10.0 * shape.hidden / sequence_split(layout, traits)
    mlp = (4.0 if shape.gated_mlp else 2.0) * shape.ffn_hidden / layout.tp
    rope = 0.0 if shape.learned_positions else 2.0 * (shape.num_heads + shape.num_kv_heads) * shape.head_dim / layout.tp
    scores = 0.0 if workload.flash_attention else 8.0 * shape.num_heads * workload.sequence_length / layout.tp
    return width * tokens * (residual + mlp + rope + scores)


def loss_bytes(workload: Workload, layout: Layout | Layouts, vocab: Number) -> Number:
    """Bytes moved by the cross entropy, forward and backward: about 6 fp32 passes over ``b s V / (t c)`` logits."""
    return 6.0 * 4.0 * micro_batch_tokens(workload, layout) * vocab / layout.tp


def model_flops_per_token(shape: ModelShape, sequence_length: int) -> float:
    """``6 N + 12 L a d s``: the PaLM convention for MFU [arXiv:2204.02311 app. B].

    Full (not causal) attention, N with both embedding tables, no recompute.
    """
    attention = 12.0 * shape.num_layers * shape.num_heads * shape.head_dim * sequence_length
    return 6.0 * shape.num_active_params + attention
