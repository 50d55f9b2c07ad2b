"""Activations: what a stage saves for its backward pass, and the logits.

Symbols as in compute.py; S is over how many devices norms and residuals are split.
"""

from __future__ import annotations

import numpy as np

from cost_models.compute import micro_batch_tokens, sequence_split
from cost_models.framework import TRAITS, Traits
from cost_models.layout import Layout, Layouts
from cost_models.params import padded_vocab
from cost_models.pipeline import in_flight
from cost_models.shape import ModelShape, Norm
from cost_models.units import Number
from cost_models.workload import Workload


def layer_activation_bytes(shape: ModelShape, workload: Workload, layout: Layout | Layouts) -> Number:
    """Saved by one layer's forward pass for its backward, one micro-batch, nothing recomputed.

    ``w b s/c { 4 h / S + [d (a + 2 g) + a d] / t + (2|4) f / t }`` and the attention part below. Inputs and outputs of
    both norms (4 h, over S = t under sequence parallelism), q k v and the attention's output, fc1's output and the
    activation's (gated: gate, up, silu and product), rotated copies of q and k, dropout masks (1 byte, 2 h).
    For GPT this is the ``s b h (10 + 24/t)`` of arXiv:2205.05198 table 2. Leaves out: unfused RMSNorm's copies.
    """
    traits = TRAITS[workload.framework]
    width = workload.precision.num_bytes
    a, g, d = shape.num_heads, shape.num_kv_heads, shape.head_dim
    masks = 2.0 * shape.hidden if _keeps_dropout(shape, traits) else 0.0
    copies = 4.0 + traits.split_copies * np.greater(layout.tp, 1)
    residual = (copies * width * shape.hidden + masks) / sequence_split(layout, traits)
    rope = 0 if shape.learned_positions else (a + g) * d
    heads = width * (d * (a + 2 * g) + a * d + rope) / layout.tp
    mlp = width * (4.0 if shape.gated_mlp else 2.0) * shape.ffn_hidden / layout.tp
    statistics = 16.0 if shape.norm is Norm.LAYER else 8.0
    return micro_batch_tokens(workload, layout) * (residual + heads + mlp + statistics)


def attention_activation_bytes(shape: ModelShape, workload: Workload, layout: Layout | Layouts) -> Number:
    """The attention core's share: the log-sum-exp, ``4 a`` a token, where fused; else ``5 a s^2 b / t`` of scores.

    Unfused: softmax output (w), and with dropout its mask (1) and output (w) [arXiv:2205.05198 eq. 2].
    """
    tokens = micro_batch_tokens(workload, layout)
    width = workload.precision.num_bytes
    if workload.flash_attention:
        return 4.0 * tokens * shape.num_heads / layout.tp
    per_score = 2.0 * width + 1.0 if _keeps_dropout(shape, TRAITS[workload.framework]) else float(width)
    return per_score * tokens * workload.sequence_length * shape.num_heads / layout.tp


def activation_bytes(
    shape: ModelShape, workload: Workload, layout: Layout | Layouts, stage: Number, num_micro_batches: Number
) -> Number:
    """Activations of a stage at its peak: in flight x layers x what recomputation leaves, and one layer's working set.

    none keeps all; selective drops the unfused scores; full keeps each layer's input and rebuilds one layer at a time
    [arXiv:2205.05198 section 4.2]. While a layer's backward runs,
    gradients of its widest tensors (h + 2 f / t) are held, in the room that the logits leave.
    """
    traits = TRAITS[workload.framework]
    tokens, width = micro_batch_tokens(workload, layout), workload.precision.num_bytes
    plain = layer_activation_bytes(shape, workload, layout)
    core = attention_activation_bytes(shape, workload, layout)
    entry = width * tokens * shape.hidden / sequence_split(layout, traits)
    scores_kept = core if workload.flash_attention else 0.0
    selective = np.equal(layout.recompute_level, 1)
    full = np.equal(layout.recompute_level, 2)
    kept = np.where(full, entry, plain + np.where(selective, scores_kept, core))
    rebuilt = np.where(full, plain + core, np.where(selective, core - scores_kept, 0.0))
    gradients = width * tokens * (shape.hidden + 2.0 * shape.ffn_hidden / layout.tp)
    backward = np.maximum(gradients - logits_bytes(shape, workload, layout, stage), 0.0)
    held = in_flight(stage, layout.pp, num_micro_batches)
    outputs = np.less(stage, layout.pp - 1) * entry if traits.keeps_stage_outputs else 0.0
    return held * (kept * (shape.num_layers / layout.pp) + outputs) + rebuilt + backward


def logits_bytes(shape: ModelShape, workload: Workload, layout: Layout | Layouts, stage: Number) -> Number:
    """Logits (w), their fp32 log-softmax (4) and gradient (4): ``b s V (w + 8) / (t c)`` on the last stage.

    Where a framework gathers them, they are not split, and a rank's own part (w) stays beside them.
    Leaves out: a fused or chunked cross entropy, which keeps about ``2 b s V``.
    """
    vocab = padded_vocab(shape, layout, workload.framework)
    width = workload.precision.num_bytes
    if TRAITS[workload.framework].gathered_logits:
        per_row: Number = vocab * (width + 8.0) + np.where(np.greater(layout.tp, 1), width * vocab / layout.tp, 0.0)
    else:
        per_row = (width + 8.0) * vocab / layout.tp
    return np.equal(stage, layout.pp - 1) * micro_batch_tokens(workload, layout) * per_row


def _keeps_dropout(shape: ModelShape, traits: Traits) -> bool:
    return traits.dropout_masks and shape.norm is Norm.LAYER and shape.learned_positions > 0
