"""Contradictions inside and between sections, each at its place in the file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from cost_models.shape import ModelShape
from tuner.space.batches import whole_sequences
from tuner.space.fields import RangeSpec
from tuner.space.require import RequireError, condition
from tuner.space.schema import BudgetSpec, DataSpecForm, HyperparameterSpec, LayoutSpec, ObjectiveSpec
from tuner.space.source import PathKey, Source

MAX_LAYOUTS = 1_000_000
BYTE_VOCABULARY = 256


def check_hyperparameters(source: Source, form: HyperparameterSpec | None, data: DataSpecForm | None) -> None:
    if form is None:
        return
    for name, low, may_equal in (("learning_rate", 0.0, False), ("weight_decay", 0.0, True), ("clip_norm", 0.0, False)):
        for where, value in _numbers(getattr(form, name)):
            if value < low or (value == low and not may_equal):
                limit = "0 or more" if may_equal else "above 0"
                source.problem_at(
                    ("hyperparameters", name, *where), f"{value:g} is not {limit}", f"write a value {limit}"
                )
    _check_warmup(source, form)
    if isinstance(form.precision, list) and len(set(form.precision)) > 1:
        message = "one precision at a time in this version: it changes both the step time and the convergence"
        source.problem_at(("hyperparameters", "precision"), message, f"write one of them, such as {form.precision[0]}")
    if data is not None:
        _check_batches(source, form.batch_tokens, data.sequence_length)


def _check_warmup(source: Source, form: HyperparameterSpec) -> None:
    keys = ("hyperparameters", "warmup")
    for where, value in _numbers(form.warmup):
        if value < 0:
            source.problem_at(
                (*keys, *where), f"{value:g} is below 0", "write steps (1 or more) or a fraction of the horizon"
            )
        elif value >= 1 and value != int(value):
            source.problem_at(
                (*keys, *where), f"{value:g} steps is not whole", "write whole steps, or a fraction below 1"
            )
    if isinstance(form.warmup, RangeSpec) and 0 <= form.warmup.low < 1 <= form.warmup.high:
        message = f"{form.warmup.low:g} is a fraction of the horizon and {form.warmup.high:g} is steps"
        source.problem_at(keys, message, "write both as steps (1 or more) or both as fractions (below 1)")


def _check_batches(source: Source, form: Any, sequence_length: int) -> None:
    for where, tokens in _numbers(form):
        if where == ("high",):
            if int(tokens) // sequence_length < 1:
                message = f"{int(tokens)} tokens are less than one sequence of {sequence_length}"
                source.problem_at(
                    ("hyperparameters", "batch_tokens", *where), message, f"write {sequence_length} or more"
                )
            continue
        try:
            whole_sequences(int(tokens), sequence_length)
        except ValueError as error:
            message, _, nearest = str(error).partition("; ")
            source.problem_at(("hyperparameters", "batch_tokens", *where), message, f"write the {nearest}")
    if isinstance(form, RangeSpec) and form.step is not None:
        try:
            whole_sequences(int(form.step), sequence_length)
        except ValueError:
            message = f"step {form.step} is not a multiple of sequence_length {sequence_length}"
            source.problem_at(
                ("hyperparameters", "batch_tokens", "step"), message, f"write a multiple, such as {sequence_length}"
            )


def check_layout(source: Source, form: LayoutSpec | None) -> None:
    if form is None:
        return
    for where, degree in _numbers(form.ep):
        if degree != 1:
            message = f"ep {degree:g} spreads experts, and only dense models are priced in this version"
            source.problem_at(("layout", "ep", *where), message, "remove ep, or write ep: 1")
    for index, text in enumerate(form.require):
        try:
            condition(text)
        except RequireError as error:
            source.problem_at(("layout", "require", index), error.message, error.next_step)
    count = math.prod(
        _count(getattr(form, name)) for name in ("tp", "pp", "cp", "dp", "zero", "micro_batch", "recompute")
    )
    if count > MAX_LAYOUTS:
        source.problem_at(
            ("layout",), f"{count} layouts to enumerate", f"shorten the lists to at most {MAX_LAYOUTS}", at_key=True
        )


def check_limits(source: Source, forms: Mapping[str, Any], model: ModelShape | None) -> None:
    """Budget against data, objective against cluster, sequence length against the model."""
    data, budget, objective = forms.get("data"), forms.get("budget"), forms.get("objective")
    if data is not None and model is not None:
        _check_sequence(source, data, model)
    if budget is not None:
        _check_budget(source, budget, data, forms.get("hyperparameters"))
    if objective is not None:
        _check_objective(source, objective)


def _check_sequence(source: Source, data: DataSpecForm, model: ModelShape) -> None:
    if model.learned_positions and data.sequence_length > model.learned_positions:
        message = (
            f"{data.sequence_length} is longer than the {model.learned_positions} learned positions of {model.name}"
        )
        next_step = f"write {model.learned_positions} or less, or a model with rotary positions"
        source.problem_at(("data", "sequence_length"), message, next_step)
    if data.source is None and model.vocab < BYTE_VOCABULARY:
        message = f"the bundled corpus is bytes, and {model.name} has a vocabulary of {model.vocab}"
        source.problem_at(
            ("model", "vocab"), message, f"write vocab: {BYTE_VOCABULARY} or more, or name your own data.source"
        )


def _check_budget(
    source: Source, form: BudgetSpec, data: DataSpecForm | None, recipe: HyperparameterSpec | None
) -> None:
    if form.trial.wall_clock is not None and form.trial.wall_clock > form.wall_clock:
        message = f"one trial's {form.trial.wall_clock:g} s is longer than the budget of {form.wall_clock:g} s"
        source.problem_at(("budget", "trial", "wall_clock"), message, "shorten the trial or raise budget.wall_clock")
    for name, tokens in (("trial", form.trial.tokens), ("confirm", form.confirm.tokens)):
        if tokens is not None and data is not None and data.tokens is not None and tokens > data.tokens:
            message = f"{tokens} tokens are more than the whole run's {data.tokens}"
            source.problem_at(("budget", name, "tokens"), message, "shorten it, or raise data.tokens")
        if tokens is not None and recipe is not None:
            largest = max(value for _, value in _numbers(recipe.batch_tokens))
            if tokens < largest:
                message = f"{tokens} tokens are less than one step of the largest batch, {largest:.0f}"
                source.problem_at(("budget", name, "tokens"), message, "raise it to many steps of the largest batch")


def _check_objective(source: Source, form: ObjectiveSpec) -> None:
    if form.target_loss is not None and form.minimize != "time_to_loss":
        message = f"{form.minimize} has no target loss"
        source.problem_at(("objective", "target_loss"), message, "remove it, or minimise time_to_loss")


def _numbers(form: Any) -> Iterator[tuple[tuple[PathKey, ...], float]]:
    """Every number in a dimension's form, with where it stands below the key."""
    if isinstance(form, RangeSpec):
        yield ("low",), form.low
        yield ("high",), form.high
    elif isinstance(form, list):
        yield from (((index,), value) for index, value in enumerate(form))
    elif form is not None and not isinstance(form, str):
        yield (), form


def _count(form: Any) -> int:
    if isinstance(form, RangeSpec):
        span = max(1, int(form.high) // max(1, int(form.low)))
        return span.bit_length() if form.log else 1 + (int(form.high) - int(form.low)) // int(form.step or 1)
    return len(form) if isinstance(form, list) else 1
