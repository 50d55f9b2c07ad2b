"""What a run's description in MLflow says: five lines on the parent, one paragraph on the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.format import contender_words, duration, duration_interval, times

RUNNING_NOTE = (
    "This study is running; its trials are the runs below it. The description becomes the result when it ends."
)


def study_note(summary: Mapping[str, Any], hint: tuple[str, ...]) -> str:
    """Winner, interval, gain over the default, what was extrapolated, how to open. Markdown, five lines."""
    winner, default = summary.get("winner"), summary.get("default")
    opening = f"**How to open:** `tune report {summary['run_dir']}`" + "".join(f"; {_linked(part)}" for part in hint)
    if winner is None:
        lines = (
            f"**Winner:** none, the study is {summary['status']}.",
            f"**Interval:** none; {len(summary['trials'])} trials ended, {num_failed(summary)} of them failed.",
            "**Gain over the default:** not known without a winner.",
            "**Extrapolated:** nothing.",
        )
    else:
        layout, recipe = contender_words(winner)
        lines = (
            f"**Winner:** {layout} · {recipe}",
            f"**Interval:** {duration(winner['time_to_loss_s'])}{_target(summary)}, "
            f"90 % interval {duration_interval(tuple(winner['interval_s']))}, {seeds(winner['num_seeds'])}",
            f"**Gain over the default:** {_gain(winner, default)}",
            f"**Extrapolated:** {_extrapolated(winner, default)}",
        )
    return "\n\n".join((*lines, opening))


def experiment_note(summary: Mapping[str, Any]) -> str:
    """The banner above the experiment's runs: what they are and what the last study found."""
    winner = summary.get("winner")
    found = (
        "found no winner"
        if winner is None
        else f"found {' · '.join(contender_words(winner))}, {duration(winner['time_to_loss_s'])}{_target(summary)}"
    )
    return (
        f"The latest study, {summary['study']}, {found}. Sort by `time_to_loss_s`: each parent run is a study by tune, "
        "each child a trial; probes time layouts, converge trials search the recipe, confirm trials decide."
    )


def gain_over_default(winner: Mapping[str, Any] | None, default: Mapping[str, Any] | None) -> float | None:
    """The default's time over the winner's; None where either is not known."""
    if not winner or not default or not winner["time_to_loss_s"] or not default["time_to_loss_s"]:
        return None
    return float(default["time_to_loss_s"]) / float(winner["time_to_loss_s"])


def num_failed(summary: Mapping[str, Any]) -> int:
    return sum(trial["status"] == "failed" for trial in summary["trials"])


def seeds(number: int) -> str:
    return "1 seed" if number == 1 else f"{number} seeds"


def _target(summary: Mapping[str, Any]) -> str:
    target = summary.get("target_loss")
    return "" if target is None else f" to a loss of {target:.4g}"


def _gain(winner: Mapping[str, Any], default: Mapping[str, Any] | None) -> str:
    gain = gain_over_default(winner, default)
    if default is None:
        return "the default was not confirmed, so there is nothing to compare with."
    layout, recipe = contender_words(default)
    return f"{times(gain)}; the default ({layout} · {recipe}) took {duration(default['time_to_loss_s'])}"


def _extrapolated(winner: Mapping[str, Any], default: Mapping[str, Any] | None) -> str:
    named = [
        name
        for name, one in (("the winner's time", winner), ("the default's time", default))
        if one and one["extrapolated"]
    ]
    return (
        f"{' and '.join(named)}: the target was not reached within the limits."
        if named
        else "nothing; the target was reached in training."
    )


def _linked(part: str) -> str:
    return f"[trials by time to loss]({part})" if part.startswith("http") else f"`{part}`"
