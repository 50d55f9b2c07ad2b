"""The report as Markdown, to paste into an issue or a pull request."""

from __future__ import annotations

from tuner.report.rows import Rows, contender_rows, failure_rows, reason_rows, shortlist_rows, trial_rows
from tuner.report.text import claim_lines, funnel_line, opening_lines, prediction_lines
from tuner.report.view import StudyView


def report_md(view: StudyView) -> str:
    """Everything but the figures, in the order of the HTML report."""
    parts = [f"# {view.name} ({view.status.value})", view.headline()]
    parts += [f"> {problem}" for problem in view.problems]
    parts += ["## The winner"]
    parts.append(_table(contender_rows(view)) if view.winner else "None.")
    parts += [_bullets(claim_lines(view))]
    parts += ["## Layouts", funnel_line(view.funnel).plain, _table(reason_rows(view)), _table(shortlist_rows(view))]
    parts += ["## Predicted against measured", _bullets(prediction_lines(view)) or "Nothing was measured."]
    if view.plan and view.plan.assumptions:
        parts += ["Assumed:", _bullets(list(view.plan.assumptions))]
    parts += ["## Failures", _table(failure_rows(view)) or "No trial failed."]
    parts += ["## Trials", _table(trial_rows(view)) or "No trial has ended."]
    parts += ["## How to look further", "```\n" + "\n".join(opening_lines(view)) + "\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(rows: Rows) -> str:
    if not rows.body:
        return ""
    rule = ["---:" if place in rows.numeric else "---" for place in range(len(rows.head))]
    return "\n".join(_line(cells) for cells in ((rows.head), tuple(rule), *rows.body))


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    """What Markdown or HTML would take for its own is escaped; a cell is one line."""
    for mark, meant in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("`", "\\`"), ("*", "\\*"), ("_", "\\_")):
        text = text.replace(mark, meant)
    return " ".join(text.split())


def _bullets(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
