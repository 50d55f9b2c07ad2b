"""estimate(): what a layout, or a million of them, would cost: step time and memory with intervals and reasons."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

from cost_models.calibrate import Z_90, Calibration
from cost_models.cluster import Cluster
from cost_models.coefficients import DEFAULT_COEFFICIENTS, Coefficients, Costs
from cost_models.compute import model_flops_per_token
from cost_models.framework import TRAITS
from cost_models.layout import Layout, Layouts
from cost_models.memory import MemoryBreakdown, worst_stage_memory
from cost_models.pipeline import num_micro_batches
from cost_models.shape import ModelShape
from cost_models.step_time import Context, StepTimeBreakdown, step_time
from cost_models.units import Column, Number
from cost_models.workload import Workload

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The price of one layout (floats) or of many ((n,) columns).

    ``low`` and ``high`` bound 90 % intervals. In columns a batch that does not divide has a NaN step time, and its
    memory is that of the next whole number of micro-batches.
    """

    step_time_s: Number
    step_time_low_s: Number
    step_time_high_s: Number
    memory_bytes: Number
    """The fullest stage, ``framework_base`` included."""
    memory_low_bytes: Number
    memory_high_bytes: Number
    fit_probability: Number
    """P(memory <= cluster.usable_memory_bytes), growth being lognormal."""
    num_micro_batches: Number
    tokens_per_s: Number
    mfu: Number
    """(6 N + 12 L a d s) flops per token over the peak: full attention, both tables, no recompute (PaLM)."""
    time: StepTimeBreakdown
    memory: MemoryBreakdown
    worst_stage: Number
    limited_by: str | Column
    """Name of the largest time term."""
    assumptions: tuple[str, ...]
    unmeasured: tuple[str, ...]
    """Coefficients used that were not measured on this device."""

    def row(self, index: int) -> Estimate:
        """The scalar estimate of one column entry."""
        chosen: Estimate = _map(self, lambda v: _plain(v[index]) if isinstance(v, np.ndarray) else v)
        return chosen

    def to_dict(self) -> dict[str, Any]:
        """Plain values; columns become lists, NaN and infinity None (JSON has neither)."""
        return {f.name: _json(getattr(self, f.name)) for f in fields(self)}


def estimate(
    shape: ModelShape,
    cluster: Cluster,
    workload: Workload,
    layout: Layout | Layouts,
    *,
    coefficients: Coefficients = DEFAULT_COEFFICIENTS,
    calibration: Calibration | None = None,
) -> Estimate:
    """Step time and memory of ``layout``. The same formulas price a Layout and Layouts.

    One layout whose batch does not divide raises ValueError; in columns such rows are NaN. Legality is not checked
    here (see legality.py). Without a calibration the priors' intervals stand.
    """
    costs = coefficients.of(cluster.device.kind)
    calibration = calibration or Calibration.cold()
    m = num_micro_batches(workload, layout)
    context = Context(shape=shape, cluster=cluster, workload=workload, layout=layout, costs=costs, num_micro_batches=m)
    factor, low, high = calibration.step_time_factor(layout)
    raw_time = step_time(context)
    seconds = _scaled(raw_time, factor)
    memory = _memory(shape, cluster, workload, layout, costs, calibration)
    total_s = seconds.total
    tokens_per_s = workload.batch_tokens / total_s
    flops_per_s = tokens_per_s * model_flops_per_token(shape, workload.sequence_length)
    raw = Estimate(
        step_time_s=total_s,
        step_time_low_s=raw_time.total * low,
        step_time_high_s=raw_time.total * high,
        num_micro_batches=m,
        tokens_per_s=tokens_per_s,
        mfu=flops_per_s / (layout.num_devices * context.peak_flops_per_s),
        time=seconds,
        limited_by=_largest(seconds),
        assumptions=_assumptions(shape, cluster, workload, calibration),
        unmeasured=tuple(f.name for f in fields(costs) if f.name not in coefficients.measured),
        **memory,
    )
    return _shaped(raw, layout)


def _memory(
    shape: ModelShape,
    cluster: Cluster,
    workload: Workload,
    layout: Layout | Layouts,
    costs: Costs,
    calibration: Calibration,
) -> dict[str, Any]:
    """The fullest stage's calibrated parts, their total and interval, and the probability that they fit."""
    passes = np.maximum(1, np.ceil(workload.batch_sequences / (layout.micro_batch * layout.dp)))
    raw, stage = worst_stage_memory(
        shape, workload, layout, costs, num_micro_batches=passes, base_bytes=cluster.framework_base_bytes
    )
    factor, low, high = calibration.memory_factor(layout)
    base = cluster.framework_base_bytes
    growth = raw.total - base
    parts = replace(_scaled(raw, factor), framework_base=base)
    room = cluster.usable_memory_bytes - base
    sd = np.log(high / low) / (2 * Z_90)
    if room <= 0:
        fits: Number = np.zeros_like(growth)
    else:
        fits = _normal_cdf((np.log(room) - np.log(growth * factor)) / sd)
    return {
        "memory_bytes": parts.total,
        "memory_low_bytes": base + growth * low,
        "memory_high_bytes": base + growth * high,
        "fit_probability": fits,
        "memory": parts,
        "worst_stage": stage,
    }


def _normal_cdf(z: Number) -> Number:
    """Phi(z) to 1e-7 [Abramowitz & Stegun 26.2.17]; numpy has no erf."""
    t = 1.0 / (1.0 + 0.2316419 * np.abs(z))
    poly = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = np.exp(-0.5 * np.square(z)) / np.sqrt(2 * np.pi) * poly
    below: Number = np.clip(np.where(np.greater(z, 0), 1.0 - tail, tail), 0.0, 1.0)
    return below


def _scaled(parts: T, factor: Number) -> T:
    values = {f.name: getattr(parts, f.name) * factor for f in fields(parts)}  # type: ignore[arg-type]
    return type(parts)(**values)


def _largest(seconds: StepTimeBreakdown) -> Column:
    parts = seconds.to_dict()
    names = np.array(list(parts), dtype=object)
    columns = np.stack(np.broadcast_arrays(*parts.values()))
    return np.asarray(names[np.argmax(np.nan_to_num(columns), axis=0)])


def _shaped(raw: Estimate, layout: Layout | Layouts) -> Estimate:
    """Floats for one layout, full (n,) columns for many."""
    if isinstance(layout, Layout):
        one: Estimate = _map(raw, _plain)
        return one
    count = len(layout)
    many: Estimate = _map(raw, lambda v: v if isinstance(v, tuple) else np.array(np.broadcast_to(v, (count,))))
    return many


def _map(value: Any, change: Any) -> Any:
    """``change`` applied to every leaf of nested dataclasses."""
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: _map(getattr(value, f.name), change) for f in fields(value)})
    return change(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, np.generic):
        value = value.item()
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, np.ndarray):
        return [_json(v) for v in value.tolist()]
    if isinstance(value, tuple):
        return [_json(v) for v in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value


def _assumptions(shape: ModelShape, cluster: Cluster, workload: Workload, calibration: Calibration) -> tuple[str, ...]:
    """What the numbers take for granted, in words."""
    traits = TRAITS[workload.framework]
    said = [
        f"{workload.precision.value} compute, {workload.grad_bytes}-byte gradients, AdamW",
        "fused attention, causal half computed" if workload.flash_attention else "unfused attention, scores kept",
        "equal pipeline stages, 1F1B without interleaving",
        "devices numbered tp first, then cp, dp, pp",
        "MFU counts 6N + 12Lhs flops per token (full attention, both embedding tables, no recompute)",
    ]
    if traits.sequence_parallel:
        said.append("sequence parallelism wherever tp > 1")
    if cluster.compute_slots_per_node is not None:
        said.append(f"processes of a node share {cluster.compute_slots_per_node:g} cores' worth of compute")
    if calibration.num_step_times == 0:
        said.append("not calibrated: intervals are the priors'")
    return tuple(said)
