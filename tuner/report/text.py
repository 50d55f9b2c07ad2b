"""A study as the terminal shows it: rich renderables and strings. Nothing here prints.

The plan's part is plan_text.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.format import (
    ABSENT,
    duration,
    duration_interval,
    learning_rate,
    number,
    percent,
    signed_percent,
    times,
    tokens,
)
from tuner.outcome import Contender
from tuner.report.fitted import Column, FittedTable
from tuner.report.plan_text import funnel_line, plan_page, reasons_table, shortlist_table
from tuner.report.view import StudyView
from tuner.tracking.mlflow_values import relative_error

__all__ = [
    "claim_lines",
    "contenders_table",
    "failures_table",
    "funnel_line",
    "launch_numbers",
    "opening_lines",
    "plan_page",
    "prediction_lines",
    "reasons_table",
    "report_page",
    "result_block",
    "result_page",
    "shortlist_table",
    "trials_table",
]


def result_page(view: StudyView) -> tuple[RenderableType, ...]:
    """What ``tune run`` ends with."""
    return (Text(), result_block(view))


def report_page(view: StudyView) -> tuple[RenderableType, ...]:
    """What ``tune report`` shows: the funnel, every trial, the result."""
    parts: list[RenderableType] = [Text(f"{view.name} ({view.status.value})", style="bold")]
    if view.funnel.enumerated:
        parts += [Text("  ").append_text(funnel_line(view.funnel))]
    parts += [Text(), trials_table(view) if view.results else Text("no trial has ended"), Text()]
    return (*parts, result_block(view))


def trials_table(view: StudyView) -> FittedTable:
    """One line a trial: what ran, how it ended, predicted beside measured."""
    rows = view.results
    specs = [r.spec for r in rows]
    step_s = [r.measured.step_time_s if r.measured else None for r in rows]
    off = [signed_percent(relative_error(spec.predicted.step_time_s, s)) for spec, s in zip(specs, step_s, strict=True)]
    states = [r.failure.kind.value if r.failure else r.status.value for r in rows]
    return FittedTable(
        columns=[
            Column(name="#", cells=[str(spec.id) for spec in specs]),
            Column(name="round", cells=[spec.purpose.value for spec in specs], justify="left", rank=1),
            Column(name="status", cells=states, justify="left"),
            Column(name="layout", cells=[str(spec.layout) for spec in specs], justify="left"),
            Column(name="batch", cells=[tokens(spec.recipe.batch_tokens) for spec in specs], rank=3),
            Column(name="lr", cells=[learning_rate(spec.recipe.learning_rate) for spec in specs], rank=2),
            Column(name="step", cells=[duration(s) for s in step_s], rank=4),
            Column(name="off", cells=off, rank=5),
            Column(name="loss", cells=[number(r.final_loss, 4) for r in rows]),
            Column(name="time to loss", cells=[duration(r.time_to_loss_s) for r in rows]),
        ]
    )


def result_block(view: StudyView) -> Group:
    """The end of a study: winner, gain, predicted against measured, failures, and how to look further."""
    parts: list[RenderableType] = [Text(view.headline(), style="bold")]
    if view.winner is not None:
        parts += [Text(), contenders_table(view)]
    parts += [Text(f"  {line}") for line in claim_lines(view)]
    if errors := prediction_lines(view):
        parts += [Text(), *(Text(line) for line in errors)]
    if view.failed:
        parts += [Text(), failures_table(view)]
    parts += [Text(f"! {problem}", style="yellow") for problem in view.problems]
    parts += [Text(), *(Text(line, overflow="fold") for line in opening_lines(view))]
    return Group(*parts)


def contenders_table(view: StudyView) -> Table:
    """Winner and default side by side: what to launch, and what it took."""
    columns = [(name, one) for name, one in (("winner", view.winner), ("default", view.default)) if one is not None]
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for name, _ in columns:
        table.add_column(name, style="bold green" if name == "winner" else "")
    cells = [launch_numbers(one) for _, one in columns]
    for row, label in enumerate(label for label, _ in cells[0]):
        table.add_row(f"  {label}", *(column[row][1] for column in cells))
    return table


def launch_numbers(contender: Contender) -> list[tuple[str, str]]:
    """Every number that a launch needs, then what the claim rests on; (label, text) in reading order."""
    layout, recipe = contender.layout, contender.recipe
    shared = " (extrapolated)" if contender.extrapolated else ""
    return [
        ("time to loss", duration(contender.time_to_loss_s) + shared),
        ("90 % interval", duration_interval(contender.interval_s)),
        ("seeds", str(contender.num_seeds)),
        ("data parallel", str(layout.dp)),
        ("tensor parallel", str(layout.tp)),
        ("pipeline parallel", str(layout.pp)),
        *((("context parallel", str(layout.cp)),) if layout.cp > 1 else ()),
        *((("expert parallel", str(layout.ep)),) if layout.ep > 1 else ()),
        ("ZeRO stage", str(layout.zero)),
        ("micro-batch", f"{layout.micro_batch} sequences"),
        ("recompute", layout.recompute.value),
        ("batch", f"{tokens(recipe.batch_tokens)} tokens"),
        ("learning rate", learning_rate(recipe.learning_rate)),
        ("warmup", f"{recipe.warmup} steps"),
        ("schedule", recipe.schedule),
        ("weight decay", number(recipe.weight_decay, 2)),
        ("clip norm", number(recipe.clip_norm, 2)),
        ("precision", recipe.precision),
        ("optimizer", recipe.optimizer),
    ]


def claim_lines(view: StudyView) -> list[str]:
    """Gain, target, extrapolation and whether the two factors were seen to be separable, in words."""
    outcome = view.outcome
    if outcome is None:
        return []
    lines = []
    if outcome.target_loss is not None:
        lines.append(outcome.target_source or f"target loss {outcome.target_loss:.4g}")
    if outcome.gain is not None:
        goal = "" if outcome.target_loss is None else " to the target"
        lines.append(f"{times(outcome.gain)} as fast{goal} as the default")
    elif outcome.winner is not None:
        lines.append("gain over the default: not known, since the default has no time to compare with")
    named = [name for name, one in (("winner", view.winner), ("default", view.default)) if one and one.extrapolated]
    if named:
        lines.append(f"extrapolated: the {' and the '.join(named)} did not reach the target within the limits")
    if outcome.separable is False:
        lines.append("layouts of equal batch did NOT give the same loss curve; trust the confirm round only")
    return [*lines, *outcome.notes]


def prediction_lines(view: StudyView) -> list[str]:
    """``predicted step time was off by 4 % (median of 12 trials, worst -11 %)``."""
    return [
        f"predicted {error.quantity} was off by {percent(error.median_error)} "
        f"(median of n = {error.num_trials}, worst {signed_percent(error.worst_error)})"
        for error in view.prediction_errors()
    ]


def failures_table(view: StudyView) -> Table:
    """Failed trials by cause, with the evidence of the first and what to do."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("failed", "cause", "trials", "evidence", "what to do"):
        table.add_column(name, justify="right" if name == "failed" else "left")
    for kind, results in view.failures_by_cause():
        first = results[0].failure
        ids = [str(result.spec.id) for result in results]
        table.add_row(
            str(len(results)),
            kind,
            ", ".join(ids[:6]) + (", ..." if len(ids) > 6 else ""),
            Text(first.evidence.strip()[:160] if first else ABSENT),
            Text(first.hint if first else ""),
        )
    return table


def opening_lines(view: StudyView) -> list[str]:
    """Where everything is, and the commands that open it."""
    lines = [f"study   {view.run_dir}", f"report  {view.run_dir / 'report.html'}"]
    names = ("mlflow", "  then") if len(view.mlflow_hint) > 1 else ("mlflow",)
    lines += [f"{name:<7} {part}" for name, part in zip(names, view.mlflow_hint, strict=False)]
    return lines
