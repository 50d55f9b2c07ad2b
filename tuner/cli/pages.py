"""Renderables of verbs that are about no study: explain and doctor. Nothing here prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cost_models.estimate import Estimate
from cost_models.explain import Term
from cost_models.layout import Layout
from tuner.format import duration, percent, size
from tuner.space.search_space import SearchSpace

if TYPE_CHECKING:
    from tuner.cli.doctor import Finding

LEVELS = {"ok": "green", "warn": "yellow", "fault": "red"}


def explanation(
    space: SearchSpace, layout: Layout, batch_tokens: int, cost: Estimate, terms: Sequence[Term]
) -> tuple[RenderableType, ...]:
    """Where one layout's step time and memory go, term by term, largest first."""
    low, high = float(cost.step_time_low_s), float(cost.step_time_high_s)
    usable = space.cluster.usable_memory_bytes
    head = Group(
        Text(f"{space.name} · {layout} · batch {batch_tokens:,} tokens", style="bold"),
        Text(
            f"  step {duration(float(cost.step_time_s))} (90 %: {duration(low)} to {duration(high)}), "
            f"{float(cost.tokens_per_s):,.0f} tokens/s, MFU {percent(float(cost.mfu))} (PaLM: 6N + 12Lhs), "
            f"limited by {str(cost.limited_by).replace('_', ' ')}"
        ),
        Text(
            f"  memory {size(float(cost.memory_bytes))} on the fullest stage "
            f"(90 %: {size(float(cost.memory_low_bytes))} to {size(float(cost.memory_high_bytes))}) "
            f"of {size(usable)} usable: fits with probability {percent(float(cost.fit_probability))}"
        ),
    )
    notes = [Text(f"  assumed: {a}", style="dim") for a in cost.assumptions]
    return (head, _terms_table("time", terms, "s"), _terms_table("memory", terms, "bytes"), *notes)


def _terms_table(title: str, terms: Sequence[Term], unit: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
    for name in (title, "", "share", "formula", "source"):
        table.add_column(name, justify="right" if name in ("", "share") else "left", overflow="fold")
    for term in sorted((t for t in terms if t.unit == unit and t.value), key=lambda t: -t.value):
        value = duration(term.value) if unit == "s" else size(term.value)
        table.add_row(term.name.replace("_", " "), value, percent(term.share), term.formula, term.source)
    return table


def health_page(findings: Sequence[Finding]) -> tuple[RenderableType, ...]:
    """What the doctor found: faults first, each with what to do."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2))
    for finding in sorted(findings, key=lambda f: list(LEVELS)[::-1].index(f.level)):
        words = f"{finding.evidence}\n-> {finding.next_step}" if finding.next_step else finding.evidence
        table.add_row(Text(finding.level, style=LEVELS[finding.level]), finding.what, words)
    faults = sum(f.level == "fault" for f in findings)
    return (table, Text(f"{faults} fault{'s' if faults != 1 else ''} found" if faults else "nothing stands in the way"))
