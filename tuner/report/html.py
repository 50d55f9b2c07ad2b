"""``report.html``: one file that shows a study, at any stage, without a network."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.format import count, duration, times
from tuner.report.rows import contender_rows, failure_rows, reason_rows, shortlist_rows, trial_rows
from tuner.report.text import claim_lines, opening_lines, prediction_lines
from tuner.report.view import StudyView
from tuner.tracking.errors import MissingExtra
from tuner.tracking.files import write_atomically

if TYPE_CHECKING:
    import plotly.graph_objects as go


def write_html(view: StudyView, path: Path) -> Path:
    """Render and replace ``path`` in one step."""
    write_atomically(path, report_html(view))
    return path


def report_html(view: StudyView) -> str:
    """The whole page: style, figures and plotly's script are inside it, once. MissingExtra without plotly or jinja2."""
    for package in ("plotly", "jinja2"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "train", "the HTML report")
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    from tuner.report.figures import figures

    drawn = figures(view)
    environment = Environment(
        loader=PackageLoader("tuner.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2")
    return page.render(
        view=view,
        facts=_facts(view),
        cards=_cards(view),
        figures={name: figure_json(figure) for name, figure in drawn.items()},
        heights={name: figure.layout.height for name, figure in drawn.items()},
        contenders=contender_rows(view),
        claims=claim_lines(view),
        assumptions=view.plan.assumptions if view.plan else (),
        reasons=reason_rows(view),
        shortlist=shortlist_rows(view),
        predictions=prediction_lines(view),
        failures=failure_rows(view),
        trials=trial_rows(view),
        opening=opening_lines(view),
        plotly_js=get_plotlyjs() if drawn else "",
    )


def figure_json(figure: go.Figure) -> str:
    """JSON that cannot end the script element it stands in."""
    text: str = figure.to_json()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _facts(view: StudyView) -> list[str]:
    facts = []
    if view.plan is not None:
        space = view.plan.space
        facts += [
            f"{space.model.name}, {count(space.model.num_params)} parameters",
            f"{space.cluster.num_devices} x {space.cluster.device.name}",
            f"{space.trials.adapter} on {space.trials.launcher}",
        ]
    if view.elapsed_s is not None:
        facts.append(
            f"{duration(view.elapsed_s)} so far" if view.status.value == "running" else duration(view.elapsed_s)
        )
    return facts


def _cards(view: StudyView) -> list[dict[str, Any]]:
    """The few large figures on top; those that are not known yet are left out."""
    cards: list[dict[str, Any]] = []
    if view.winner is not None:
        seeds = "1 seed" if view.winner.num_seeds == 1 else f"{view.winner.num_seeds} seeds"
        note = "extrapolated" if view.winner.extrapolated else f"measured, {seeds}"
        cards.append({"value": duration(view.winner.time_to_loss_s), "name": "winner's time to loss", "note": note})
    if view.gain is not None:
        cards.append({"value": times(view.gain), "name": "as fast as the default", "note": "same seeds and limits"})
    cards.append({"value": str(len(view.results)), "name": "trials ended", "note": f"{len(view.failed)} failed"})
    kept = f"{view.funnel.feasible:,} feasible, {view.funnel.shortlisted:,} shortlisted"
    cards.append({"value": f"{view.funnel.enumerated:,}", "name": "layouts considered", "note": kept})
    return cards
