"""Validated sections to a SearchSpace: defaults that depend on other sections, and what two sections must agree on."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cost_models.cluster import Cluster
from cost_models.shape import ModelShape
from cost_models.workload import Precision
from tuner.space.checks import check_hyperparameters, check_layout, check_limits
from tuner.space.dimensions import Choice, Dimension, Fixed, Range
from tuner.space.dims import LAYOUT_DIMENSIONS, ROLES, dimension, layout_dimension
from tuner.space.hardware import THIS_MACHINE, build_cluster
from tuner.space.model import build_model
from tuner.space.schema import BudgetSpec, DataSpecForm, HyperparameterSpec, LayoutSpec, ObjectiveSpec
from tuner.space.search_space import (
    Budget,
    ConfirmLimits,
    DataSpec,
    Minimize,
    Objective,
    SearchOptions,
    SearchSpace,
    TrackingOptions,
    TrialLimits,
    TrialOptions,
)
from tuner.space.source import Source

TOKENS_PER_PARAMETER = 20
"""The compute-optimal length of training [Hoffmann et al. 2022, arXiv:2203.15556, table 3]."""
DEFAULT_TRIAL_STEPS = 100
DEFAULT_LEARNING_RATE = (1e-4, 1e-2)


def build_space(
    source: Source,
    path: Path | None,
    forms: Mapping[str, Any],
    notices: list[str],
    this_machine: Callable[[int], Cluster] | None,
) -> SearchSpace:
    """Check across sections, then build. ``forms`` lacks the sections that are wrong in themselves."""
    folder = path.parent if path else Path.cwd()
    model = build_model(source, forms["head"].model, folder) if "head" in forms else None
    cluster = None
    if "cluster" in forms and forms["cluster"].device != THIS_MACHINE:
        cluster = build_cluster(source, forms["cluster"], None)
    check_hyperparameters(source, forms.get("hyperparameters"), forms.get("data"))
    check_layout(source, forms.get("layout"))
    check_limits(source, forms, model)
    source.stop_if_wrong()
    if cluster is None:
        cluster = build_cluster(source, forms["cluster"], this_machine)
    source.stop_if_wrong()
    assert model is not None
    assert cluster is not None
    return _assemble(source, path, forms, notices, model, cluster)


def _assemble(
    source: Source, path: Path | None, forms: Mapping[str, Any], notices: list[str], model: ModelShape, cluster: Cluster
) -> SearchSpace:
    name = forms["head"].name or _name_from(path)
    data = _data(forms["data"], model, path.parent if path else Path.cwd(), notices)
    hyperparameters = _hyperparameters(source, forms["hyperparameters"], cluster, notices)
    budget = _budget(forms["budget"], data, hyperparameters["batch_tokens"], notices)
    _note_long_warmup(hyperparameters, budget, notices)
    objective: ObjectiveSpec = forms["objective"]
    layout: LayoutSpec = forms["layout"]
    search, trials, tracking = forms["search"], forms["trials"], forms["tracking"]
    source.stop_if_wrong()
    return SearchSpace(
        name=name,
        model=model,
        cluster=cluster,
        data=data,
        layout={d: layout_dimension(d, getattr(layout, d), _under("layout", notices)) for d in LAYOUT_DIMENSIONS},
        require=tuple(layout.require),
        hyperparameters=hyperparameters,
        objective=Objective(minimize=Minimize(objective.minimize), target_loss=objective.target_loss),
        budget=budget,
        search=SearchOptions(sampler=search.sampler, shortlist=search.shortlist, seed=search.seed),
        trials=TrialOptions(adapter=trials.adapter, launcher=trials.launcher),
        tracking=TrackingOptions(mlflow=tracking.mlflow, experiment=tracking.experiment or name),
        text=source.text,
        path=path,
        notices=tuple(dict.fromkeys(notices)),
    )


def _under(section: str, notices: list[str]) -> Callable[[str], None]:
    return lambda text: notices.append(f"{section}.{text}")


def _name_from(path: Path | None) -> str:
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem if path else "").strip("-._")[:100]
    return stem or "study"


def _data(form: DataSpecForm, model: ModelShape, folder: Path, notices: list[str]) -> DataSpec:
    source = (folder / Path(form.source).expanduser()) if form.source else None
    if source is not None and not source.exists():
        notices.append(f"data.source: {source} is not there; a plan does not read it, a run will")
    tokens = form.tokens
    if tokens is None:
        tokens = TOKENS_PER_PARAMETER * model.num_params
        notices.append(f"data.tokens: left out, so {TOKENS_PER_PARAMETER} per parameter: {tokens:.3g}")
    return DataSpec(sequence_length=form.sequence_length, tokens=float(tokens), source=source)


def _hyperparameters(
    source: Source, form: HyperparameterSpec, cluster: Cluster, notices: list[str]
) -> dict[str, Dimension]:
    notice = _under("hyperparameters", notices)
    made = {
        name: dimension(name, value, notice, integer=name == "batch_tokens")
        for name in ROLES
        if name not in LAYOUT_DIMENSIONS and (value := getattr(form, name)) is not None
    }
    made["warmup"] = _whole_steps(made["warmup"])
    if form.learning_rate is None:
        low, high = DEFAULT_LEARNING_RATE
        made["learning_rate"] = Range(low=low, high=high, log=True, role=ROLES["learning_rate"])
        notices.append(f"hyperparameters.learning_rate: left out, so {low:g} to {high:g} (log)")
    if form.precision is None:
        default = Precision.FP32 if cluster.device.kind == "cpu" else Precision.BF16
        made["precision"] = Fixed(value=default.value, role=ROLES["precision"])
    elif (precision := Precision(str(made["precision"].values[0]))) not in cluster.device.peak_flops_per_s:  # type: ignore[union-attr]
        able = ", ".join(sorted(p.value for p in cluster.device.peak_flops_per_s))
        keys = ("hyperparameters", "precision")
        source.problem_at(
            keys, f"{cluster.device.name} has no matmul rate for {precision.value}", f"write one of: {able}"
        )
    return made


def _whole_steps(warmup: Dimension) -> Dimension:
    """A warmup of 1 or more is steps, and steps are whole numbers."""
    if isinstance(warmup, Range):
        return replace(warmup, integer=warmup.low >= 1)
    values = tuple(int(v) if float(v) >= 1 else v for v in warmup.values)
    return replace(warmup, values=values) if isinstance(warmup, Choice) else replace(warmup, value=values[0])


def _budget(form: BudgetSpec, data: DataSpec, batch_tokens: Dimension, notices: list[str]) -> Budget:
    largest = batch_tokens.high if isinstance(batch_tokens, Range) else max(float(v) for v in batch_tokens.values)
    tokens = form.trial.tokens
    if tokens is None:
        tokens = round(max(largest, min(data.tokens, DEFAULT_TRIAL_STEPS * largest)))
        notices.append(
            f"budget.trial.tokens: left out, so {tokens} ({tokens / largest:.0f} steps of the largest batch)"
        )
    wall_clock_s = form.trial.wall_clock or form.wall_clock / 4
    confirm = ConfirmLimits(best=form.confirm.best, seeds=form.confirm.seeds, tokens=form.confirm.tokens)
    trial = TrialLimits(tokens=tokens, wall_clock_s=wall_clock_s)
    return Budget(wall_clock_s=form.wall_clock, trials=form.trials, trial=trial, confirm=confirm)


def _note_long_warmup(hyperparameters: Mapping[str, Dimension], budget: Budget, notices: list[str]) -> None:
    """Say so where a trial would end inside its warmup: a fraction of the horizon never does."""
    warmup, batch = hyperparameters["warmup"], hyperparameters["batch_tokens"]
    longest = warmup.high if isinstance(warmup, Range) else max(float(v) for v in warmup.values)
    largest = batch.high if isinstance(batch, Range) else max(float(v) for v in batch.values)
    steps = math.floor(budget.trial.tokens / largest)
    if longest >= 1 and longest >= steps:
        notices.append(
            f"hyperparameters.warmup: up to {longest:g} steps, but a trial of {budget.trial.tokens} tokens is {steps} "
            f"steps of the largest batch; write a fraction of the horizon, such as 0.05, or raise budget.trial.tokens"
        )
