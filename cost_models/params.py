"""Parameters that one device holds: its layers' share, and the tables at both ends of the pipeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.framework import TRAITS
from cost_models.layout import Layout, Layouts
from cost_models.shape import ModelShape
from cost_models.units import Number
from cost_models.workload import Framework


@dataclass(frozen=True, slots=True, kw_only=True)
class StageParams:
    """Parameters on one device of a stage: its layers, and what is outside them (tables, positions, final norm)."""

    layer: Number
    num_layers: Number
    outside: Number

    @property
    def total(self) -> Number:
        return self.layer * self.num_layers + self.outside


def padded_vocab(shape: ModelShape, layout: Layout | Layouts, framework: Framework) -> Number:
    """Rows of the token table: ``ceil(V / (128 t)) 128 t`` in Megatron-LM, V elsewhere.

    Source: Megatron-LM, ``make_vocab_size_divisible_by`` (128) times the tensor-parallel size.
    """
    multiple = TRAITS[framework].vocab_multiple
    return shape.vocab if multiple == 1 else -(-shape.vocab // (multiple * layout.tp)) * (multiple * layout.tp)


def layer_params(shape: ModelShape, layout: Layout | Layouts) -> Number:
    """One layer's parameters on one device: matrices over t, kv projections over min(t, g), the rest whole.

    Whole are the norms and the biases added after a reduction.
    """
    kv = 2 * shape.num_kv_heads * shape.head_dim * (shape.hidden + (1 if shape.attention_bias else 0))
    whole = shape.norms_per_layer * shape.norm_params + (2 * shape.head_dim if shape.qk_norm else 0)
    whole += (shape.hidden if shape.output_bias else 0) + (shape.hidden if shape.mlp_bias else 0)
    split = shape.layer_params - kv - whole
    return split / layout.tp + kv / np.minimum(layout.tp, shape.num_kv_heads) + whole


def stage_params(shape: ModelShape, layout: Layout | Layouts, framework: Framework, stage: Number) -> StageParams:
    """Stage ``stage``: L / p layers; the token table and positions on the first, the head and final norm on the last.

    A tied table is held twice when p > 1. Leaves out: uneven stages.
    """
    table = padded_vocab(shape, layout, framework) * shape.hidden / layout.tp
    first = np.equal(stage, 0)
    last = np.equal(stage, layout.pp - 1)
    has_head = last & (np.greater(layout.pp, 1) | (not shape.tied_embeddings))
    outside = first * (table + shape.position_params) + has_head * table + last * shape.norm_params
    return StageParams(layer=layer_params(shape, layout), num_layers=shape.num_layers / layout.pp, outside=outside)
