"""The 1F1B pipeline: micro-batches in flight, the bubble, and what interleaving would need."""

from __future__ import annotations

import numpy as np

from cost_models.layout import Layout, Layouts
from cost_models.units import Number
from cost_models.workload import Workload


def num_micro_batches(workload: Workload, layout: Layout | Layouts) -> Number:
    """``m = B / (b dp)``. One layout: ValueError if not whole. Columns: NaN in the rows where it is not."""
    if isinstance(layout, Layout):
        return layout.num_micro_batches(workload.batch_sequences)
    per_pass = layout.micro_batch * layout.dp
    whole = workload.batch_sequences % per_pass == 0
    return np.where(whole, workload.batch_sequences // per_pass, np.nan)


def in_flight(stage: Number, pp: Number, num_micro_batches: Number) -> Number:
    """Micro-batches whose activations stage ``stage`` (0-based) holds at its peak: ``min(m, p - r)``.

    1F1B [arXiv:2104.04473 section 2.2]. The first stage holds most.
    """
    return np.minimum(num_micro_batches, pp - stage)


def path_s(num_micro_batches: Number, pp: Number, layers_s: Number, head_s: Number) -> Number:
    """Critical path of 1F1B whose last stage has the head on top: ``m (T_l + T_h) + (p - 1) T_l``.

    ``layers_s`` is one micro-batch forward and backward through a stage's layers, ``head_s`` through head and loss.
    With equal stages this is the bubble ``(p - 1) (t_f + t_b)`` of arXiv:2104.04473 eq. 1. Leaves out: uneven splits.
    """
    return num_micro_batches * (layers_s + head_s) + (pp - 1) * layers_s


def interleaving_fault(*, pp: int, num_chunks: int, overlaps_p2p: bool) -> str | None:
    """Why ``num_chunks`` model chunks per stage cannot run, or None: Megatron-LM's rule.

    pp > 1 where point-to-point messages overlap, pp > 2 where they do not; one chunk is no interleaving at all.
    """
    if num_chunks == 1:
        return None
    least = 2 if overlaps_p2p else 3
    if pp >= least:
        return None
    how = "with" if overlaps_p2p else "without"
    return f"{num_chunks} chunks per stage need pp >= {least} {how} overlapped point-to-point, got pp {pp}"
