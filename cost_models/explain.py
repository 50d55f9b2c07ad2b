"""explain(): every term of an estimate with its formula, value, share and source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cost_models.estimate import Estimate
from cost_models.units import Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One part of a step's time or of a device's memory. ``share`` is of that whole."""

    name: str
    formula: str
    value: float
    unit: str
    """``s`` or ``bytes``."""
    source: str
    share: float


TIME_FORMULAS: Mapping[str, tuple[str, str]] = {
    "compute": (
        "3 m (L/p 2 b s (h d (2 a + 2 g) + (2|3) h f) + 2 b s h V / p) / (t c e peak), and a fixed cost per matmul",
        "arXiv:2104.04473 eq. 3; efficiency from measured GEMMs",
    ),
    "attention": (
        "m L/p (1 + 2.5) 2 b s^2 a d / (t c e_attention peak); 12 b s^2 a d where unfused",
        "arXiv:2205.14135",
    ),
    "elementwise": (
        "3 m L/p w b s (10 h / S + (2|4) f / t + scores) / memory bandwidth",
        "operators of one layer, counted",
    ),
    "launch": ("max(m L/p passes x operators x launch - hidden share x busy, 0)", "operators of one layer, counted"),
    "recompute": ("m L/p (one layer's forward again), full; its scores only, selective", "arXiv:2205.05198 section 4"),
    "tensor_parallel": (
        "m L/p (4 + 2 if recomputed) all-reduce(w b s h), and host dispatch per operator",
        "arXiv:1909.08053 figure 4",
    ),
    "context_parallel": ("m L/p 3 (c - 1) 2 w b s g d / (c t) / bandwidth", "arXiv:2310.01889"),
    "pipeline_bubble": (
        "max(m (T_layers + T_head) + (p - 1) T_layers - work, 0)",
        "arXiv:2104.04473 eq. 1, unequal last stage",
    ),
    "pipeline_p2p": ("2 (m + p - 1) (latency + w b s h / bandwidth + peer wait)", "arXiv:2104.04473 section 3.2"),
    "data_parallel": (
        "all-reduce (zero 0) or reduce-scatter of G P, what backward does not hide, and waits for a shared core",
        "arXiv:1910.02054 section 7",
    ),
    "zero_gather": (
        "exposed all-gathers of w P: once (zero 1, 2), twice a micro-batch (zero 3)",
        "arXiv:1910.02054 section 7",
    ),
    "optimizer": (
        "traffic of AdamW and clipping over the local shard / memory bandwidth, and launches",
        "AdamW's accesses, counted",
    ),
}
MEMORY_FORMULAS: Mapping[str, tuple[str, str]] = {
    "framework_base": ("what the framework holds before the first tensor", "cluster.framework_base_bytes"),
    "weights": ("w P_stage / t, over dp cp where the weights are sharded", "arXiv:1910.02054 figure 1"),
    "gradients": ("G P_stage / t, over dp cp from zero 2 on", "arXiv:1910.02054 figure 1"),
    "optimizer": ("(master + moments) P_stage / t, over dp cp from zero 1 on", "arXiv:1910.02054 figure 1"),
    "activations": (
        "min(m, p - r) L/p x (w b s (4 h/S + (a + 2 g) d/t + a d/t + (2|4) f/t) + scores); w b s h when recomputed",
        "arXiv:2205.05198 table 2",
    ),
    "logits": ("b s V (w + 8) on the last stage, over t where they stay split", "operators of the loss, counted"),
    "gathered": ("whole weights and gradients of the units in use, zero 2 and 3", "torch FSDP2; DeepSpeed stage 3"),
    "communication_buffers": (
        "pipeline receives, reduce buckets, a flat gradient copy beyond freed activations",
        "the framework's buffers, counted",
    ),
    "fragmentation": ("a share of what each step allocates; on a plain heap, holes of about a layer", "coefficient"),
    "libraries": ("threads' stacks, packing buffers and caches at first use", "coefficient, growth measured on a CPU"),
}


def explain(estimate: Estimate) -> tuple[Term, ...]:
    """Time terms, then memory terms, each group largest first. One layout at a time: pass ``estimate.row(i)``."""
    if np.ndim(estimate.step_time_s):
        count = np.size(estimate.step_time_s)
        raise ValueError(f"explain takes one layout, this estimate has {count}: pass estimate.row(i)")
    seconds = _terms(estimate.time.to_dict(), TIME_FORMULAS, "s")
    held = _terms(estimate.memory.to_dict(), MEMORY_FORMULAS, "bytes")
    return (*seconds, *held)


def _terms(parts: Mapping[str, Number], formulas: Mapping[str, tuple[str, str]], unit: str) -> list[Term]:
    whole = sum(float(v) for v in parts.values())
    terms = [
        Term(
            name=name,
            formula=formulas[name][0],
            value=float(value),
            unit=unit,
            source=formulas[name][1],
            share=float(value) / whole if whole else 0.0,
        )
        for name, value in parts.items()
    ]
    return sorted(terms, key=lambda term: -term.value)
