"""A plan as the terminal shows it: rich renderables and strings. Nothing here prints."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tuner.format import count, duration, half_width_ratio, percent, size, tokens
from tuner.plan.plan import Funnel, Plan
from tuner.report.fitted import Column, FittedTable
from tuner.space.search_space import SearchSpace

_ARROW = " -> "
_BAR_CELLS = 8


def plan_page(plan: Plan, *, with_rejected: bool = False) -> tuple[RenderableType, ...]:
    """What ``tune plan`` shows: the space, the funnel and its reasons, the shortlist, and what is assumed."""
    parts: list[RenderableType] = [
        space_line(plan.space),
        Text("  ").append_text(funnel_line(plan.funnel, plan.space.cluster.usable_memory_bytes)),
    ]
    if plan.funnel.reasons:
        parts += [Text(), reasons_table(plan.funnel)]
    parts += [Text(), shortlist_table(plan) if plan.shortlist else Text("no layout is feasible")]
    parts += [Text(f"assumed: {line}", style="dim") for line in plan.assumptions]
    parts += [Text(f"note: {line}", style="yellow") for line in plan.space.notices]
    if with_rejected:
        parts += [Text(), rejected_table(plan)]
    return tuple(parts)


def rejected_table(plan: Plan) -> Table:
    """Every layout that was dropped, by which rule, and why."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("dropped layout", "rule", "reason"):
        table.add_column(name)
    for rejected in plan.rejected:
        table.add_row(str(rejected.layout), Text(rejected.rule), Text(rejected.reason))
    return table


def space_line(space: SearchSpace) -> Text:
    """``llama-3-8b · 8.03B parameters · 16 x h100-sxm-80gb``."""
    model, cluster = space.model, space.cluster
    text = Text(model.name, style="bold")
    return text.append(
        f" · {count(model.num_params)} parameters · {cluster.num_devices} x {cluster.device.name}", style="not bold"
    )


def funnel_line(funnel: Funnel, usable_memory_bytes: float | None = None) -> Text:
    """``648 layouts -> 324 are not legal -> 35 do not fit in 74 GiB -> 289 feasible -> 24 to try``."""
    fits = "do not fit" if usable_memory_bytes is None else f"do not fit in {size(usable_memory_bytes)}"
    parts = (
        (f"{funnel.enumerated:,} layouts", ""),
        (f"{funnel.invalid:,} are not legal", "dim"),
        (f"{funnel.does_not_fit:,} {fits}", "dim"),
        (f"{funnel.feasible:,} feasible", ""),
        (f"{funnel.shortlisted:,} to try", "bold"),
    )
    return Text(_ARROW, style="dim").join(Text(words, style=style) for words, style in parts)


def reasons_table(funnel: Funnel) -> Table:
    """Layouts dropped per rule, the deadliest first."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("dropped", justify="right")
    table.add_column("by rule")
    for rule, dropped in sorted(funnel.reasons.items(), key=lambda item: -item[1]):
        table.add_row(f"{dropped:,}", Text(rule))
    return table


def shortlist_table(plan: Plan) -> FittedTable:
    """The layouts to probe, each at its best batch, with the 90 % interval of what is predicted."""
    rows = plan.shortlist
    at = [planned.predictions[planned.best_batch] for planned in rows]
    limit_bytes = plan.space.cluster.usable_memory_bytes
    sequence_length = plan.space.data.sequence_length
    layouts = [
        Column(name=axis, cells=[str(p.layout.micro_batch if axis == "mb" else getattr(p.layout, axis)) for p in rows])
        for axis in _axes(plan)
    ]
    recompute = Column(
        name="recompute", cells=[p.layout.recompute.value for p in rows], justify="left", rank=_rank(plan)
    )
    return FittedTable(
        columns=[
            Column(name="#", cells=[str(place) for place in range(1, len(rows) + 1)]),
            *layouts,
            recompute,
            Column(
                name="memory",
                cells=[plus_minus_size(x.memory_bytes, x.memory_interval_bytes) for x in at],
                justify="left",
            ),
            Column(name="of limit", cells=[bar(x.memory_bytes / limit_bytes) for x in at], justify="left", rank=5),
            Column(name="fits", cells=[percent(p.fit_probability) for p in rows]),
            Column(name="step", cells=[plus_minus(x.step_time_s, x.step_time_interval_s) for x in at], justify="left"),
            Column(name="batch", cells=[tokens(p.best_batch * sequence_length) for p in rows], rank=3),
            Column(name="tokens/s", cells=[count(p.tokens_per_s(p.best_batch, sequence_length)) for p in rows], rank=1),
            Column(name="MFU", cells=[percent(p.mfu) for p in rows], rank=4),
            Column(name="limited by", cells=[p.limited_by.replace("_", " ") for p in rows], justify="left", rank=2),
        ]
    )


def _rank(plan: Plan) -> int:
    """Recompute goes first where every layout has the same."""
    return 6 if len({p.layout.recompute for p in plan.shortlist}) == 1 else 0


def _axes(plan: Plan) -> list[str]:
    optional = [axis for axis in ("cp", "ep") if any(getattr(p.layout, axis) > 1 for p in plan.shortlist)]
    return ["tp", "pp", *optional, "dp", "zero", "mb"]


def plus_minus(value_s: float, interval_s: tuple[float, float] | None) -> str:
    """``5.84 s ± 9 %``."""
    half = half_width_ratio(value_s, interval_s)
    return duration(value_s) if half is None else f"{duration(value_s)} ± {percent(half)}"


def plus_minus_size(value_bytes: float, interval_bytes: tuple[float, float] | None) -> str:
    """``65.3 GiB ± 3.1 GiB``."""
    if interval_bytes is None:
        return size(value_bytes)
    return f"{size(value_bytes)} ± {size((interval_bytes[1] - interval_bytes[0]) / 2)}"


def bar(ratio: float) -> str:
    """How full, in eight cells: ``▇▇▇▇▇▇▇▁``."""
    full = max(0, min(_BAR_CELLS, round(ratio * _BAR_CELLS)))
    return "▇" * full + "▁" * (_BAR_CELLS - full)
