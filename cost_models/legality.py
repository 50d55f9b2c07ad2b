"""Which layouts a framework cannot run: named rules over columns, and the sentence that explains one of them.

A rule is a condition that breaks and an explanation with numbers. Batch rules also need the workload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from cost_models.cluster import Cluster
from cost_models.layout import Layout, Layouts
from cost_models.shape import ModelShape
from cost_models.units import Column
from cost_models.workload import Framework, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``breaks`` marks the rows (n,) that cannot run; ``explains`` says why for one layout."""

    breaks: Callable[[ModelShape, Cluster, Layouts], Column]
    explains: Callable[[ModelShape, Cluster, Layout], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRule:
    """A rule that depends on the batch."""

    breaks: Callable[[Workload, Layouts], Column]
    explains: Callable[[Workload, Layout], str]


def violations(shape: ModelShape, cluster: Cluster, framework: Framework, layouts: Layouts) -> dict[str, Column]:
    """Rule name -> the rows (n,) that break it, for every rule of ``framework`` that no batch can change."""
    return {n: _column(RULES[n].breaks(shape, cluster, layouts), layouts) for n in RULES_BY_FRAMEWORK[framework]}


def batch_violations(workload: Workload, layouts: Layouts) -> dict[str, Column]:
    """Rule name -> the rows (n,) that break it with this batch, sequence and kernels, in the workload's framework."""
    names = BATCH_RULES_BY_FRAMEWORK[workload.framework]
    return {n: _column(BATCH_RULES[n].breaks(workload, layouts), layouts) for n in names}


def explain_violation(
    rule: str, shape: ModelShape, cluster: Cluster, layout: Layout, workload: Workload | None = None
) -> str:
    """Why ``layout`` breaks ``rule``, with the numbers. Batch rules need the workload."""
    if rule in RULES:
        return RULES[rule].explains(shape, cluster, layout)
    if rule not in BATCH_RULES:
        raise ValueError(f"unknown rule {rule!r}; known: {', '.join([*RULES, *BATCH_RULES])}")
    if workload is None:
        raise ValueError(f"rule {rule!r} depends on the batch: pass the workload to explain it")
    return BATCH_RULES[rule].explains(workload, layout)


def num_devices_text(layout: Layout) -> str:
    """The product, factor by factor."""
    return f"dp {layout.dp} x tp {layout.tp} x pp {layout.pp} x cp {layout.cp} = {layout.num_devices} devices"


def nearest_batches(workload: Workload, layout: Layout) -> tuple[int, ...]:
    """The batches (sequences) around the workload's that ``micro_batch x dp`` divides; one where none lies below."""
    per_pass = layout.micro_batch * layout.dp
    below = workload.batch_sequences // per_pass * per_pass
    return (below, below + per_pass) if below else (per_pass,)


def _column(broken: Column, layouts: Layouts) -> Column:
    return np.array(np.broadcast_to(broken, (len(layouts),)), dtype=bool)


def _not_multiple(name: str, size: int, axis: str, degree: int) -> str:
    return f"{name} {size} is not a multiple of {axis} {degree} ({size} % {degree} = {size % degree})"


def _divides(name: str, size: Callable[[ModelShape], int], axis: str) -> Rule:
    """``size % axis == 0``."""
    return Rule(
        breaks=lambda shape, _, rows: size(shape) % getattr(rows, axis) != 0,
        explains=lambda shape, _, row: _not_multiple(name, size(shape), axis, getattr(row, axis)),
    )


def _kv_multiple_or_divisor(shape: ModelShape, _: Cluster, rows: Layouts) -> Column:
    return np.asarray((shape.num_kv_heads % rows.tp != 0) & (rows.tp % shape.num_kv_heads != 0))


RULES: Mapping[str, Rule] = {
    "world_size": Rule(
        breaks=lambda _, cluster, rows: rows.num_devices != cluster.num_devices,
        explains=lambda _, cluster, row: f"{num_devices_text(row)}, but the cluster has {cluster.num_devices}",
    ),
    "heads_divide_tp": _divides("num_attention_heads", lambda s: s.num_heads, "tp"),
    "kv_heads_divide_tp": _divides("num_key_value_heads", lambda s: s.num_kv_heads, "tp"),
    "kv_heads_tp": Rule(
        breaks=_kv_multiple_or_divisor,
        explains=lambda shape, _, row: (
            f"num_key_value_heads {shape.num_kv_heads} is neither a multiple nor a divisor of tp {row.tp}"
        ),
    ),
    "ffn_divides_tp": _divides("intermediate_size", lambda s: s.ffn_hidden, "tp"),
    "hidden_divides_tp": _divides("hidden_size", lambda s: s.hidden, "tp"),
    "vocab_divides_tp": _divides("vocab_size", lambda s: s.vocab, "tp"),
    "layers_divide_pp": _divides("num_hidden_layers", lambda s: s.num_layers, "pp"),
    "zero_needs_dp": Rule(
        breaks=lambda _, __, rows: (rows.zero > 0) & (rows.dp * rows.cp == 1),
        explains=lambda _, __, row: f"zero {row.zero} shards over data-parallel ranks, and dp is {row.dp}: use zero 0",
    ),
    "zero1_native": Rule(
        breaks=lambda _, __, rows: rows.zero == 1,
        explains=lambda _, __, row: (
            "zero 1 is not offered by the native trainer: torch's FSDP2 shards gradients too, so its bytes would be "
            "those of zero 2; use zero 0, 2 or 3"
        ),
    ),
    "cp_native": Rule(
        breaks=lambda _, __, rows: rows.cp > 1,
        explains=lambda _, __, row: f"cp {row.cp}: the native trainer does not split sequences; use cp 1",
    ),
    "cp_deepspeed": Rule(
        breaks=lambda _, __, rows: rows.cp > 1,
        explains=lambda _, __, row: f"cp {row.cp}: DeepSpeed has no ring context parallelism; use cp 1",
    ),
    "ep_needs_experts": Rule(
        breaks=lambda _, __, rows: rows.ep > 1,
        explains=lambda shape, _, row: f"ep {row.ep}: {shape.name} is dense, it has no experts to spread; use ep 1",
    ),
    "zero_with_pp": Rule(
        breaks=lambda _, __, rows: (rows.pp > 1) & (rows.zero >= 2),
        explains=lambda _, __, row: (
            f"zero {row.zero} with pp {row.pp}: DeepSpeed's pipeline accumulates whole gradients, which zero 2 and 3 "
            "partition; use zero 0 or 1, or pp 1"
        ),
    ),
}


def _splits_sequence(workload: Workload, rows: Layouts) -> Column:
    return np.asarray((rows.cp > 1) & (workload.sequence_length % (2 * rows.cp) != 0))


def _selective_is_inert(workload: Workload, rows: Layouts) -> Column:
    return np.asarray((rows.recompute_level == 1) & workload.flash_attention)


def _too_few_micro_batches(workload: Workload, rows: Layouts) -> Column:
    passes = workload.batch_sequences // (rows.micro_batch * rows.dp)
    return np.asarray((rows.pp > 1) & (passes < rows.pp))


def _explain_batch(workload: Workload, row: Layout) -> str:
    per_pass = row.micro_batch * row.dp
    nearest = " and ".join(map(str, nearest_batches(workload, row)))
    return (
        f"batch of {workload.batch_sequences} sequences is not a multiple of "
        f"micro_batch {row.micro_batch} x dp {row.dp} "
        f"({workload.batch_sequences} % {per_pass} = {workload.batch_sequences % per_pass}); nearest: {nearest}"
    )


def _explain_pipeline(workload: Workload, row: Layout) -> str:
    per_pass = row.micro_batch * row.dp
    return (
        f"pp {row.pp} needs at least {row.pp} micro-batches per step, and {workload.batch_sequences} sequences give "
        f"{workload.batch_sequences // per_pass} of {per_pass}; "
        f"use a batch of {per_pass * row.pp} sequences or more, or a smaller micro_batch"
    )


BATCH_RULES: Mapping[str, BatchRule] = {
    "batch_divides": BatchRule(
        breaks=lambda workload, rows: workload.batch_sequences % (rows.micro_batch * rows.dp) != 0,
        explains=_explain_batch,
    ),
    "cp_divides_sequence": BatchRule(
        breaks=_splits_sequence,
        explains=lambda workload, row: (
            f"sequence_length {workload.sequence_length} is not a multiple of 2 x cp {row.cp} "
            f"({workload.sequence_length} % {2 * row.cp} = {workload.sequence_length % (2 * row.cp)})"
        ),
    ),
    "pipeline_needs_micro_batches": BatchRule(breaks=_too_few_micro_batches, explains=_explain_pipeline),
    "selective_native": BatchRule(
        breaks=_selective_is_inert,
        explains=lambda _, __: (
            "recompute selective drops attention scores, and fused attention keeps none: use none or full"
        ),
    ),
}

_EVERYWHERE = (
    "world_size",
    "heads_divide_tp",
    "ffn_divides_tp",
    "layers_divide_pp",
    "zero_needs_dp",
    "ep_needs_experts",
)
RULES_BY_FRAMEWORK: Mapping[Framework, tuple[str, ...]] = {
    Framework.NATIVE: (
        *_EVERYWHERE,
        "kv_heads_divide_tp",
        "hidden_divides_tp",
        "vocab_divides_tp",
        "zero1_native",
        "cp_native",
    ),
    Framework.MEGATRON: (*_EVERYWHERE, "kv_heads_tp"),
    Framework.DEEPSPEED: (*_EVERYWHERE, "kv_heads_divide_tp", "vocab_divides_tp", "cp_deepspeed", "zero_with_pp"),
}
BATCH_RULES_BY_FRAMEWORK: Mapping[Framework, tuple[str, ...]] = {
    Framework.NATIVE: ("batch_divides", "pipeline_needs_micro_batches", "selective_native"),
    Framework.MEGATRON: ("batch_divides", "cp_divides_sequence"),
    Framework.DEEPSPEED: ("batch_divides",),
}
