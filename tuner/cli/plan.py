"""tune plan and tune explain: what the cost model says, on the base install alone."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cost_models.cluster import Cluster
from cost_models.estimate import estimate
from cost_models.explain import explain
from cost_models.layout import Layout, Layouts, Recompute
from cost_models.legality import batch_violations, explain_violation, violations
from tuner.cli.errors import Exit, UsageError
from tuner.cli.pages import explanation
from tuner.cli.render import show, show_json
from tuner.launchers.machine import cached_figures, machine_cluster, quick_figures
from tuner.plan.build import build_plan
from tuner.plan.plan import Plan, PlannedLayout
from tuner.plan.workload import workload_of
from tuner.records import SCHEMA_VERSION
from tuner.report.plan_text import plan_page
from tuner.space.load import load_space
from tuner.space.quantities import QuantityError, whole_number
from tuner.space.search_space import SearchSpace

_LAYOUT_PART = re.compile(r"(tp|pp|dp|cp|ep|zero|mb)(\d+)|recompute-(none|selective|full)")


def this_machine(num_devices: int) -> Cluster:
    """This machine as a cluster: its cached figures, or what numpy alone can measure in a second."""
    figures = cached_figures(num_devices) or quick_figures()
    return machine_cluster(figures, num_devices)


def plan_space(path: Path, *, with_rejected: bool, as_json: bool) -> int:
    plan = build_plan(load_space(path, this_machine=this_machine))
    if as_json:
        show_json(plan_json(plan, with_rejected=with_rejected))
    else:
        show(*plan_page(plan, with_rejected=with_rejected))
    return Exit.DONE


def plan_json(plan: Plan, *, with_rejected: bool) -> dict[str, Any]:
    sequence = plan.space.data.sequence_length
    return {
        "schema_version": SCHEMA_VERSION,
        "study": plan.space.name,
        "funnel": asdict(plan.funnel) | {"reasons": dict(plan.funnel.reasons)},
        "shortlist": [_planned_json(p, sequence) for p in plan.shortlist],
        "feasible": [_planned_json(p, sequence) for p in plan.feasible],
        "assumptions": list(plan.assumptions),
        "notices": list(plan.space.notices),
    } | (
        {"rejected": [{"layout": r.layout.to_dict(), "rule": r.rule, "reason": r.reason} for r in plan.rejected]}
        if with_rejected
        else {}
    )


def _planned_json(planned: PlannedLayout, sequence_length: int) -> dict[str, Any]:
    return {
        "layout": planned.layout.to_dict(),
        "fit_probability": planned.fit_probability,
        "limited_by": planned.limited_by,
        "mfu": planned.mfu,
        "predicted": {
            str(batch * sequence_length): predicted.to_dict() for batch, predicted in planned.predictions.items()
        },
    }


def explain_layout(path: Path, text: str | None, *, batch: str | None, as_json: bool) -> int:
    """``batch`` as a space file may write it: 4096, 4Ki, 1M."""
    space = load_space(path, this_machine=this_machine)
    layout, sequences = _chosen(space, text, None if batch is None else _tokens(batch))
    workload = workload_of(space, sequences)
    cost = estimate(space.model, space.cluster, workload, layout)
    if as_json:
        show_json(
            {
                "schema_version": SCHEMA_VERSION,
                "layout": layout.to_dict(),
                "batch_tokens": workload.batch_tokens,
                "estimate": cost.to_dict(),
                "terms": [asdict(term) for term in explain(cost)],
            }
        )
    else:
        show(*explanation(space, layout, workload.batch_tokens, cost, explain(cost)))
    return Exit.DONE


def _tokens(text: str) -> int:
    try:
        return whole_number(text)
    except QuantityError as error:
        raise UsageError(f"--batch {text}: {error.message}; {error.next_step}") from error


def _chosen(space: SearchSpace, text: str | None, batch_tokens: int | None) -> tuple[Layout, int]:
    """The layout and batch (in sequences) that are meant."""
    plan = build_plan(space)
    planned = {p.layout: p for p in plan.feasible}
    wanted = None if batch_tokens is None else batch_tokens / space.data.sequence_length
    runs_it = [p.layout for p in plan.feasible if wanted is None or wanted in p.predictions]
    layout = (runs_it or [plan.feasible[0].layout])[0] if text is None else parse_layout(text, space)
    if batch_tokens is None:
        batch = planned[layout].best_batch if layout in planned else space.batch_sizes[0]
    elif batch_tokens < 1 or batch_tokens % space.data.sequence_length:
        length = space.data.sequence_length
        nearest = max(1, round(batch_tokens / length)) * length
        raise UsageError(
            f"--batch {batch_tokens} tokens is not a positive multiple of the sequence length {length}; "
            f"the nearest is {nearest}"
        )
    else:
        batch = batch_tokens // space.data.sequence_length
    workload = workload_of(space, batch)
    rows = Layouts.of([layout])
    broken = violations(space.model, space.cluster, workload.framework, rows) | batch_violations(workload, rows)
    for rule in (name for name, breaks in broken.items() if breaks[0]):
        reason = explain_violation(rule, space.model, space.cluster, layout, workload)
        raise UsageError(f"{layout} is not legal at {workload.batch_tokens} tokens a step: {reason}")
    return layout, batch


def parse_layout(text: str, space: SearchSpace) -> Layout:
    """A layout as tune prints it; what is left out is 1 (dp: the rest of the devices)."""
    values: dict[str, int | str] = {}
    words = text.replace(",", " ").split()
    if not words:
        raise UsageError('an empty layout; write it as "tp2 pp1 dp4 zero0 mb2", or leave it out for the fastest')
    for word in words:
        match = _LAYOUT_PART.fullmatch(word)
        if match is None:
            raise UsageError(f'"{word}" is not part of a layout; write it as "tp2 pp1 dp4 zero0 mb2 recompute-full"')
        key = "recompute" if match[3] else "micro_batch" if match[1] == "mb" else match[1]
        if key in values:
            raise UsageError(f'"{word}": {key} is given twice in "{text}"; keep one')
        values[key] = Recompute(match[3]) if match[3] else int(match[2])
    layout = Layout.from_dict(values)
    if "dp" in values:
        return layout
    rest = space.cluster.num_devices // layout.num_devices
    return Layout.from_dict({**layout.to_dict(), "dp": max(1, rest)})
