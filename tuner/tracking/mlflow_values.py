"""What a trial is in MLflow's words: names, params, tags and metrics, all plain values. Imports no MLflow."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.format import duration, signed_percent, size
from tuner.records import Status, TrialResult, TrialSpec

MAX_PARAM_CHARS = 6000
"""Longer values are cut by MLflow, silently [MLflow 3.17]."""
MAX_TAG_CHARS = 5000
RUN_STATES = {Status.OK: "FINISHED", Status.FAILED: "FAILED", Status.STOPPED: "KILLED", Status.INTERRUPTED: "KILLED"}

_STEP_METRICS = {
    "loss": "train_loss",
    "tokens_per_s": "tokens_per_s",
    "grad_norm": "grad_norm",
    "lr": "learning_rate",
}


@dataclass(slots=True)
class Logged:
    """Finite metrics, short params and tags; ``texts`` are the long values, for artifacts, by file name."""

    metrics: dict[str, float] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def metric(self, name: str, value: float | None) -> None:
        """A finite value as a metric; NaN and infinity as a tag, since MLflow stores inf as 1.8e308 [mlflow#22826]."""
        if value is None:
            return
        if math.isfinite(value):
            self.metrics[name] = float(value)
        else:
            self.tags[f"{name}_non_finite"] = str(float(value))

    def param(self, name: str, value: Any) -> None:
        """A long value goes whole to ``params/NAME.txt``; the param keeps its hash, so that two never look alike."""
        text = str(value)
        if len(text) > MAX_PARAM_CHARS:
            self.texts[f"params/{name}.txt"] = text
            digest = hashlib.sha256(text.encode()).hexdigest()
            text = f"sha256:{digest} ({len(text)} characters, whole in params/{name}.txt)"
        self.params[name] = text

    def tag(self, name: str, value: Any) -> None:
        text = str(value)
        if len(text) > MAX_TAG_CHARS:
            self.texts[f"tags/{name}.txt"] = text
            text = f"{text[:MAX_TAG_CHARS]} ... (whole in tags/{name}.txt)"
        self.tags[name] = text


def trial_name(spec: TrialSpec) -> str:
    """``probe 07 · tp2 pp1 dp4 zero1 mb2``."""
    return f"{spec.purpose.value} {spec.id:02d} · {spec.layout}"


def at_start(spec: TrialSpec, adapter: str) -> Logged:
    out = Logged()
    for name, value in {**spec.layout.to_dict(), **spec.recipe.to_dict()}.items():
        out.param(name, value)
    for name in ("seed", "num_steps", "horizon_steps", "sequence_length", "num_devices", "wall_clock_s", "target_loss"):
        if (value := getattr(spec, name)) is not None:
            out.param(name, value)
    for name, value in spec.layout.to_dict().items():
        out.tag(name, value)
    out.tag("trial", spec.id)
    out.tag("round", spec.purpose.value)
    out.tag("status", "running")
    out.tag("adapter", adapter)
    if spec.label:
        out.tag("label", spec.label)
    out.metric("predicted_step_time_s", spec.predicted.step_time_s)
    out.metric("predicted_memory_bytes", spec.predicted.memory_bytes)
    return out


def at_line(spec: TrialSpec, line: Mapping[str, Any]) -> tuple[int, Logged]:
    """One line of ``metrics.jsonl``: its step, and what of it is logged."""
    out = Logged()
    step = int(line.get("step", 0))
    if line.get("kind") == "eval":
        out.metric("val_loss", line.get("val_loss"))
    elif line.get("kind") == "step":
        for key, name in _STEP_METRICS.items():
            out.metric(name, line.get(key))
        step_time_s = line.get("step_time_s")
        if "tokens_per_s" not in line and step_time_s:
            out.metric("tokens_per_s", spec.recipe.batch_tokens / step_time_s)
    out.tags = {name: f"{value} at step {step}" for name, value in out.tags.items()}
    return step, out


def at_end(
    result: TrialResult, time_to_loss_estimate_s: float | None, time_to_loss_lower_bound_s: float | None
) -> Logged:
    """Measurements, errors of prediction, and the time to the target where it was reached; else what bounds it."""
    out = Logged()
    spec, measured, failure = result.spec, result.measured, result.failure
    out.tag("status", result.status.value)
    if measured is not None:
        out.metric("measured_step_time_s", measured.step_time_s)
        out.metric("measured_memory_bytes", measured.memory_bytes)
        out.metric("measured_tokens_per_s", measured.tokens_per_s)
        out.metric("start_s", measured.start_s)
        out.metric("step_time_error", relative_error(spec.predicted.step_time_s, measured.step_time_s))
        out.metric("memory_error", relative_error(spec.predicted.memory_bytes, measured.memory_bytes))
        for part, value_s in measured.breakdown_s.items():
            out.metric(f"measured_{part}_s", value_s)
    out.metric("final_train_loss", result.final_train_loss)
    out.metric("final_val_loss", result.final_loss)
    out.metric("wall_clock_s", result.ended_s - result.started_s)
    if failure is not None:
        out.tag("failure_kind", failure.kind.value)
        out.tag("failure_evidence", failure.evidence)
        if failure.hint:
            out.tag("failure_hint", failure.hint)
        if failure.rank is not None:
            out.tag("failure_rank", failure.rank)
    _time_to_loss(out, result, time_to_loss_estimate_s, time_to_loss_lower_bound_s)
    out.tag("mlflow.note.content", _description(result))
    return out


def _time_to_loss(out: Logged, result: TrialResult, estimate_s: float | None, lower_bound_s: float | None) -> None:
    reached_s = result.time_to_loss_s
    if reached_s is not None and math.isfinite(reached_s):
        out.metric("time_to_loss_s", reached_s)
        return
    if lower_bound_s is None and result.spec.target_loss is not None and result.curve:
        lower_bound_s = result.curve[-1].train_s
    if estimate_s is not None:
        out.tag("time_to_loss_estimate", estimate_s)
    if lower_bound_s is not None:
        out.tag("time_to_loss_lower_bound", lower_bound_s)


def relative_error(predicted: float, measured: float | None) -> float | None:
    """``predicted / measured - 1``; None where nothing was measured."""
    return predicted / measured - 1 if measured else None


def _description(result: TrialResult) -> str:
    spec, measured = result.spec, result.measured
    what = f"{spec.purpose.value.capitalize()}{f' ({spec.label})' if spec.label else ''}, {result.status.value}."
    if result.failure is not None:
        return f"{what} {result.failure.kind.value}: {result.failure.evidence[:500]} {result.failure.hint}".rstrip()
    if measured is None:
        return f"{what} Nothing was measured."
    memory = f"{size(measured.memory_bytes)} where {size(spec.predicted.memory_bytes)} was predicted"
    error = signed_percent(relative_error(spec.predicted.step_time_s, measured.step_time_s))
    step = f"{duration(measured.step_time_s)}, predicted {duration(spec.predicted.step_time_s)} ({error})"
    return f"{what} Step {step}; memory {memory}."
