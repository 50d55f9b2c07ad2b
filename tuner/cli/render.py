"""The only place that prints: people on the terminal, machines on stdout, progress on stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tuner.records import Status, TrialResult
from tuner.study.actions import Progress
from tuner.study.study import Study

LIVE_EVERY_S = 0.5
"""Between two looks at the rounds; each costs time that the trials would have."""
PLAIN_EVERY_S = 15.0
"""Without a terminal, a line of progress at this interval besides one per finished trial."""


PLAIN_WIDTH = 160
"""Columns where nobody's terminal sets them: wide enough for every table."""


def stdout() -> Console:
    return _console(Console(highlight=False))


def stderr() -> Console:
    return _console(Console(stderr=True, highlight=False))


def _console(console: Console) -> Console:
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


def show(*parts: RenderableType) -> None:
    console = stdout()
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


def show_raw(text: str) -> None:
    """Text as it is, unstyled and unwrapped."""
    stdout().out(text, highlight=False)


def show_json(value: Mapping[str, Any]) -> None:
    """One object on stdout; a number that is not finite is a bug and raises."""
    stdout().out(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False), highlight=False)


def complain(message: str) -> None:
    stderr().print(Text(message), style="red", soft_wrap=True)


class RunView:
    """A live table of the rounds where there is a terminal, plain lines where there is none."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._said_s = 0.0

    def __enter__(self) -> RunView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def finished(self, result: TrialResult) -> None:
        self.console.print(Text(trial_line(result)), soft_wrap=True)

    def refresh(self, study: Study, now: float) -> None:
        if now - self._said_s < (PLAIN_EVERY_S if self._live is None else LIVE_EVERY_S):
            return
        self._said_s = now
        if self._live is not None:
            self._live.update(rounds_table(study.progress(now)))
        else:
            self.console.print(Text(progress_line(study.progress(now))), soft_wrap=True)


def rounds_table(state: Progress) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    for row in state.rounds:
        bar = ProgressBar(total=max(1, row.total), completed=row.done, width=12)
        table.add_row(f" {row.name}", bar, f"{row.done}/{row.total}", row.note)
    left = max(0.0, state.budget_s - state.elapsed_s)
    foot = f" {minutes(left)} left of {minutes(state.budget_s)}   {'  |  '.join(state.running)}"
    return Group(table, Text(foot, style="dim"))


def progress_line(state: Progress) -> str:
    rounds = ", ".join(f"{row.name} {row.done}/{row.total}" for row in state.rounds)
    return f"[{minutes(state.elapsed_s)} of {minutes(state.budget_s)}] {rounds}"


def trial_line(result: TrialResult) -> str:
    """One finished trial in a line: what, how it ended, measured against predicted."""
    spec, measured = result.spec, result.measured
    parts = [f"{spec.purpose:<8} {spec.id:02d} {spec.layout}"]
    if spec.purpose != "probe":
        recipe = spec.recipe
        parts.append(f"lr {recipe.learning_rate:.2e} warmup {recipe.warmup} batch {recipe.batch_tokens}")
        parts.append(f"seed {spec.seed}")
    if result.failure is not None:
        parts.append(f"{result.failure.kind}: {result.failure.evidence[:120]}")
    elif result.status is not Status.OK:
        parts.append(str(result.status))
    elif measured is not None and spec.exclusive:
        error = measured.step_time_s / spec.predicted.step_time_s - 1 if spec.predicted.step_time_s else 0.0
        parts.append(f"{measured.step_time_s * 1e3:.1f} ms/step (predicted {error:+.0%} off)")
        if measured.memory_bytes is not None:
            predicted_mib = spec.predicted.memory_bytes / 2**20
            parts.append(f"{measured.memory_bytes / 2**20:.0f} MiB (predicted {predicted_mib:.0f})")
    if result.final_loss is not None:
        parts.append(f"loss {result.final_loss:.4f}")
    if result.time_to_loss_s is not None:
        parts.append(f"{result.time_to_loss_s:.1f} s to target")
    return "  ".join(p for p in (*parts, f"({spec.label})" if spec.label else "") if p)


def minutes(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d}" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
