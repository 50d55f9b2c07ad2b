"""A study's tables as rows of text, for every form of report that is not the terminal."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.format import (
    ABSENT,
    count,
    duration,
    learning_rate,
    number,
    percent,
    signed_percent,
    size,
    tokens,
)
from tuner.report.figures import COLOURS
from tuner.report.plan_text import bar, plus_minus, plus_minus_size
from tuner.report.text import launch_numbers
from tuner.report.view import StudyView
from tuner.tracking.mlflow_values import relative_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """``numeric`` are the places of the columns that are set to the right."""

    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    colours: tuple[str, ...] = ()
    """One a row, where rows have one."""


def trial_rows(view: StudyView) -> Rows:
    """Every trial that ended, in that order."""
    head = (
        "trial", "round", "status", "loss", "time to loss", "layout", "batch", "lr", "warmup", "seed",
        "step", "predicted", "off", "memory", "predicted",
    )  # fmt: skip
    body = []
    for result in view.results:
        spec, measured = result.spec, result.measured
        step_s = measured.step_time_s if measured else None
        ended = result.status.value + (f": {result.failure.kind.value}" if result.failure else "")
        body.append(
            (
                str(spec.id),
                spec.purpose.value + (f" ({spec.label})" if spec.label else ""),
                ended,
                number(result.final_loss, 4),
                duration(result.time_to_loss_s),
                str(spec.layout),
                tokens(spec.recipe.batch_tokens),
                learning_rate(spec.recipe.learning_rate),
                str(spec.recipe.warmup),
                str(spec.seed),
                duration(step_s),
                duration(spec.predicted.step_time_s),
                signed_percent(relative_error(spec.predicted.step_time_s, step_s)),
                size(measured.memory_bytes if measured else None),
                size(spec.predicted.memory_bytes),
            )
        )
    colours = tuple(COLOURS[result.spec.purpose] for result in view.results)
    return Rows(head=head, body=tuple(body), numeric=frozenset({0, 3, 4, *range(6, 15)}), colours=colours)


def failure_rows(view: StudyView) -> Rows:
    """Failed trials by cause; each with its own evidence, since two of a kind need not be of one cause."""
    body = []
    for kind, results in view.failures_by_cause():
        for result in results:
            failure = result.failure
            rank = "" if failure is None or failure.rank is None else f"rank {failure.rank}: "
            evidence = rank + failure.evidence.strip() if failure else ABSENT
            body.append((kind, str(result.spec.id), str(result.spec.layout), evidence, failure.hint if failure else ""))
    return Rows(head=("cause", "trial", "layout", "evidence", "what to do"), body=tuple(body), numeric=frozenset({1}))


def reason_rows(view: StudyView) -> Rows:
    ordered = sorted(view.funnel.reasons.items(), key=lambda item: -item[1])
    body = tuple((f"{dropped:,}", rule) for rule, dropped in ordered)
    return Rows(head=("layouts dropped", "by rule"), body=body, numeric=frozenset({0}))


def shortlist_rows(view: StudyView) -> Rows:
    """The layouts to probe as predicted, each at its best batch, with 90 % intervals."""
    head = ("#", "layout", "memory", "", "step", "batch", "tokens/s", "MFU", "limited by")
    if view.plan is None:
        return Rows(head=head, body=())
    space = view.plan.space
    body = []
    for place, planned in enumerate(view.plan.shortlist, start=1):
        predicted = planned.predictions[planned.best_batch]
        body.append(
            (
                str(place),
                str(planned.layout),
                plus_minus_size(predicted.memory_bytes, predicted.memory_interval_bytes),
                bar(predicted.memory_bytes / space.cluster.usable_memory_bytes),
                plus_minus(predicted.step_time_s, predicted.step_time_interval_s),
                tokens(planned.best_batch * space.data.sequence_length),
                count(planned.tokens_per_s(planned.best_batch, space.data.sequence_length)),
                percent(planned.mfu),
                planned.limited_by.replace("_", " "),
            )
        )
    return Rows(head=head, body=tuple(body), numeric=frozenset({0, 5, 6, 7}))


def contender_rows(view: StudyView) -> Rows:
    """Winner and default side by side."""
    known = [(name, one) for name, one in (("winner", view.winner), ("default", view.default)) if one is not None]
    head = ("", *(name for name, _ in known))
    cells = [dict(launch_numbers(one)) for _, one in known]
    labels = dict.fromkeys(label for column in cells for label in column)
    body = tuple((label, *(column.get(label, "1") for column in cells)) for label in labels)
    return Rows(head=head, body=body)
