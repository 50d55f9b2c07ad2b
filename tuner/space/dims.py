"""The forms of a dimension in the file, a scalar, a list or a range, as Fixed, Choice and Range with their roles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.space.dimensions import Choice, Dimension, Fixed, Range, Role, Value
from tuner.space.fields import RangeSpec

Notice = Callable[[str], None]

LAYOUT_DIMENSIONS = ("tp", "pp", "cp", "ep", "dp", "zero", "micro_batch", "recompute")

ROLES: dict[str, Role] = {
    **dict.fromkeys(LAYOUT_DIMENSIONS, Role.SPEED),
    **dict.fromkeys(
        ("learning_rate", "warmup", "weight_decay", "schedule", "clip_norm", "optimizer"), Role.CONVERGENCE
    ),
    **dict.fromkeys(("batch_tokens", "precision"), Role.BOTH),
}


def dimension(name: str, form: Any, notice: Notice, *, integer: bool = False) -> Dimension:
    """``form`` as the schema left it. A value listed twice is counted once, and a range ends where its step does."""
    role = ROLES[name]
    if isinstance(form, RangeSpec):
        if form.top != float(form.high):
            notice(
                f"{name}: the top of the range is {form.top:g}, since step {form.step:g} does not reach {form.high:g}"
            )
        low, step = float(form.low), None if form.step is None else float(form.step)
        return Range(low=low, high=form.top, role=role, log=form.log, step=step, integer=integer)
    if isinstance(form, list):
        values = tuple(dict.fromkeys(form))
        for value in values:
            if (times := form.count(value)) > 1:
                notice(f"{name}: {value} is listed {times} times and counted once")
        return Choice(values=values, role=role) if len(values) > 1 else Fixed(value=values[0], role=role)
    return Fixed(value=form, role=role)


def layout_dimension(name: str, form: Any, notice: Notice) -> Dimension:
    """As ``dimension``, with a range written out: layouts are enumerated. A log range doubles from its low."""
    made = dimension(name, form, notice, integer=True)
    if not isinstance(made, Range):
        return made
    values: list[Value] = []
    at = int(made.low)
    while at <= made.high and len(values) <= 4096:
        values.append(at)
        at = at * 2 if made.log else at + int(made.step or 1)
    return Choice(values=tuple(values), role=made.role) if len(values) > 1 else Fixed(value=values[0], role=made.role)
