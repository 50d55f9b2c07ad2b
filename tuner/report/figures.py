"""The report's four figures, in plotly; each is None where there is nothing to draw yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tuner.format import duration, learning_rate
from tuner.outcome import Contender
from tuner.plan.plan import Funnel
from tuner.records import Purpose, Status, TrialResult
from tuner.report.view import StudyView

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLOURS = {Purpose.PROBE: "#8a63d2", Purpose.CONVERGE: "#2a7fd4", Purpose.CONFIRM: "#1f9d6b"}
FAILED_COLOUR = "#d1495b"
MUTED = "#7f8a95"
MAX_NAMED_CURVES = 24
"""Beyond so many, single curves are no longer told apart by a legend."""


def figures(view: StudyView) -> dict[str, go.Figure]:
    """By name, those that have something to show."""
    drawn = {
        "funnel": funnel_figure(view.funnel),
        "time_to_loss": time_to_loss_figure(view),
        "curves": curves_figure(view.results, view.outcome.target_loss if view.outcome else None),
        "predicted": predicted_figure(view.results),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def funnel_figure(funnel: Funnel) -> go.Figure | None:
    """Layouts left after each cut."""
    if not funnel.enumerated:
        return None
    import plotly.graph_objects as go

    left = funnel.enumerated - funnel.invalid
    stages = ("enumerated", "legal", "fit in memory", "to probe")
    counts = (funnel.enumerated, left, left - funnel.does_not_fit, funnel.shortlisted)
    bars = go.Bar(
        y=stages,
        x=counts,
        orientation="h",
        marker={"color": [MUTED, MUTED, COLOURS[Purpose.CONVERGE], COLOURS[Purpose.CONFIRM]]},
        text=[f"{n:,}" for n in counts],
        textposition="auto",
        hovertemplate="%{y}: %{x:,} layouts<extra></extra>",
    )
    figure = _styled(go.Figure(bars), height=220)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure.update_xaxes(title="layouts")


def predicted_figure(results: Sequence[TrialResult]) -> go.Figure | None:
    """Predicted over measured, step time and memory; the diagonal is a perfect prediction."""
    panels = [
        (name, points)
        for name, points in (("step time, s", _times(results)), ("memory, GiB", _memory(results)))
        if points
    ]
    if not panels:
        return None
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=len(panels), horizontal_spacing=0.12)
    named: set[Purpose] = set()
    for column, (name, points) in enumerate(panels, start=1):
        _scatter_panel(figure, column, points, named)
        figure.update_xaxes(title=f"measured {name}", col=column, row=1)
        figure.update_yaxes(title=f"predicted {name}", col=column, row=1)
    return _styled(figure, height=400)


_Pair = tuple[TrialResult, float, float]


def _times(results: Sequence[TrialResult]) -> list[_Pair]:
    """Of the trials that ran alone: beside others a step takes longer than what is predicted."""
    pairs = [
        (r, r.measured.step_time_s, r.spec.predicted.step_time_s)
        for r in results
        if r.measured is not None and r.spec.exclusive
    ]
    return [pair for pair in pairs if all(map(math.isfinite, pair[1:]))]


def _memory(results: Sequence[TrialResult]) -> list[_Pair]:
    pairs = [
        (r, r.measured.memory_bytes / 2**30, r.spec.predicted.memory_bytes / 2**30)
        for r in results
        if r.measured is not None and r.measured.memory_bytes is not None
    ]
    return [pair for pair in pairs if all(map(math.isfinite, pair[1:]))]


def _scatter_panel(figure: go.Figure, column: int, points: list[_Pair], named: set[Purpose]) -> None:
    low = min(min(x, y) for _, x, y in points) * 0.9
    high = max(max(x, y) for _, x, y in points) * 1.1
    line = {"color": MUTED, "dash": "dot", "width": 1}
    figure.add_scatter(
        x=[low, high], y=[low, high], mode="lines", line=line, showlegend=False, hoverinfo="skip", row=1, col=column
    )
    for purpose in Purpose:
        mine = [point for point in points if point[0].spec.purpose is purpose]
        if not mine:
            continue
        figure.add_scatter(
            x=[x for _, x, _ in mine],
            y=[y for _, _, y in mine],
            mode="markers",
            name=purpose.value,
            legendgroup=purpose.value,
            showlegend=purpose not in named,
            marker={"color": COLOURS[purpose], "size": 9, "opacity": 0.8},
            text=[f"trial {r.spec.id} · {r.spec.layout}" for r, _, _ in mine],
            hovertemplate="%{text}<br>measured %{x:.3g}<br>predicted %{y:.3g}<extra></extra>",
            row=1,
            col=column,
        )
        named.add(purpose)


def curves_figure(results: Sequence[TrialResult], target_loss: float | None) -> go.Figure | None:
    """Validation loss over training seconds, one curve a trial."""
    drawn = [(r, points) for r in results if (points := [p for p in r.curve if math.isfinite(p.loss)])]
    if not drawn:
        return None
    import plotly.graph_objects as go

    figure = go.Figure()
    groups: set[Purpose] = set()
    for result, points in drawn:
        purpose = result.spec.purpose
        figure.add_scatter(
            x=[p.train_s for p in points],
            y=[p.loss for p in points],
            mode="lines+markers" if len(points) < 3 else "lines",
            name=curve_name(result),
            legendgroup=purpose.value,
            legendgrouptitle={"text": purpose.value} if purpose not in groups else None,
            line=_curve_line(result),
            customdata=[[p.step, p.tokens] for p in points],
            hovertemplate="loss %{y:.4g} at %{x:.3g} s<br>step %{customdata[0]}, %{customdata[1]:,} tokens",
        )
        groups.add(purpose)
    if target_loss is not None and math.isfinite(target_loss):
        figure.add_hline(
            y=target_loss, line={"dash": "dot", "color": MUTED}, annotation_text=f"target {target_loss:.4g}"
        )
    figure.update_xaxes(title="training time, s").update_yaxes(title="validation loss")
    return _styled(figure, height=440).update_layout(showlegend=len(drawn) <= MAX_NAMED_CURVES, hovermode="closest")


def curve_name(result: TrialResult) -> str:
    """``07 · default · lr 2e-3 · seed 1``, and how it ended unless well."""
    spec = result.spec
    label = f" · {spec.label}" if spec.label else ""
    ended = (
        ""
        if result.status is Status.OK
        else f" · {result.failure.kind.value if result.failure else result.status.value}"
    )
    return f"{spec.id:02d}{label} · lr {learning_rate(spec.recipe.learning_rate)} · seed {spec.seed}{ended}"


def _curve_line(result: TrialResult) -> dict[str, Any]:
    if result.status is Status.FAILED:
        return {"color": FAILED_COLOUR, "dash": "dash", "width": 1.5}
    if result.status is not Status.OK:
        return {"color": MUTED, "width": 1.5}
    is_confirm = result.spec.purpose is Purpose.CONFIRM
    dash = "dot" if result.spec.label == "default" else "solid"
    return {"color": COLOURS[result.spec.purpose], "width": 2.5 if is_confirm else 1.5, "dash": dash}


def time_to_loss_figure(view: StudyView) -> go.Figure | None:
    """Winner and default with their 90 % intervals, the measured trials behind each as dots."""
    known = [(name, one) for name, one in (("default", view.default), ("winner", view.winner)) if _has_time(one)]
    if not known:
        return None
    import plotly.graph_objects as go

    figure = go.Figure()
    for name, one in known:
        assert one is not None
        assert one.time_to_loss_s is not None
        low, high = one.interval_s or (one.time_to_loss_s, one.time_to_loss_s)
        figure.add_bar(
            y=[name],
            x=[one.time_to_loss_s],
            orientation="h",
            marker={
                "color": COLOURS[Purpose.CONFIRM] if name == "winner" else MUTED,
                "pattern": _hatching(one),
            },
            error_x={"array": [high - one.time_to_loss_s], "arrayminus": [one.time_to_loss_s - low], "thickness": 1.5},
            text=duration(one.time_to_loss_s) + (" (extrapolated)" if one.extrapolated else ""),
            textposition="inside",
            insidetextanchor="start",
            insidetextfont={"color": "#ffffff"},
            hovertemplate=f"{one.layout}<br>%{{x:.4g}} s<extra></extra>",
        )
        _seed_dots(figure, name, one, view.results)
    figure.update_xaxes(title="seconds of training to the target loss", rangemode="tozero")
    return _styled(figure.update_layout(showlegend=False, bargap=0.35), height=220)


def _seed_dots(figure: go.Figure, name: str, one: Contender, results: Sequence[TrialResult]) -> None:
    dots = [r for r in results if r.spec.id in one.trial_ids and r.time_to_loss_s is not None]
    figure.add_scatter(
        y=[name] * len(dots),
        x=[r.time_to_loss_s for r in dots],
        mode="markers",
        marker={"color": "#ffffff", "size": 9, "line": {"color": "#333333", "width": 1.5}},
        text=[f"trial {r.spec.id}, seed {r.spec.seed}" for r in dots],
        hovertemplate="%{text}: %{x:.4g} s<extra></extra>",
    )


def _hatching(one: Contender) -> dict[str, str]:
    shape = "/" if one.extrapolated else ""
    return {"shape": shape, "fillmode": "overlay", "fgcolor": "rgba(255,255,255,0.45)"}


def _has_time(one: Contender | None) -> bool:
    return one is not None and one.time_to_loss_s is not None and math.isfinite(one.time_to_loss_s)


def _styled(figure: go.Figure, height: int) -> go.Figure:
    """Transparent and of one grey that reads on white and on black; the page's script recolours it by theme."""
    axis = {"gridcolor": "rgba(128,128,128,0.22)", "zerolinecolor": "rgba(128,128,128,0.35)", "automargin": True}
    axis |= {"ticks": "outside", "ticklen": 5, "tickcolor": "rgba(0,0,0,0)"}
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 10, "r": 16, "t": 16, "b": 44},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#808890"},
        legend={"font": {"size": 12}},
    )
    return figure.update_xaxes(axis).update_yaxes(axis)
