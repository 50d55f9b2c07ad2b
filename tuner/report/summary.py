"""The summary: what ``tune run --json`` prints, and what MLflow and the reports are written from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.outcome import Contender, Outcome, StudyStatus
from tuner.plan.plan import Funnel, Plan
from tuner.records import SCHEMA_VERSION, TrialResult


def summarise(
    *,
    name: str,
    run_dir: Path,
    plan: Plan | None,
    funnel: Funnel,
    results: Sequence[TrialResult],
    outcome: Outcome | None,
    mlflow_run_id: str | None,
    status: StudyStatus | str,
) -> dict[str, Any]:
    """A study at any stage as plain JSON values: whatever is not known, or not finite, is None.

    Beside the fixed keys it says ``target_loss``, ``target_source``, ``assumptions`` and ``notes``, without which
    the times have no meaning.
    """
    summary = {
        "schema_version": SCHEMA_VERSION,
        "study": name,
        "status": StudyStatus(status).value,
        "run_dir": str(Path(run_dir).absolute()),
        "mlflow_run_id": mlflow_run_id,
        "funnel": _funnel(funnel),
        "trials": [_trial(result) for result in results],
        "winner": _contender(outcome.winner if outcome else None),
        "default": _contender(outcome.default if outcome else None),
        "separable": outcome.separable if outcome else None,
        "target_loss": outcome.target_loss if outcome else None,
        "target_source": outcome.target_source if outcome else "",
        "assumptions": list(plan.assumptions) if plan else [],
        "notes": list(outcome.notes) if outcome else [],
    }
    return {key: _finite(value) for key, value in summary.items()}


def _funnel(funnel: Funnel) -> dict[str, Any]:
    return {
        "enumerated": funnel.enumerated,
        "invalid": funnel.invalid,
        "does_not_fit": funnel.does_not_fit,
        "feasible": funnel.feasible,
        "shortlisted": funnel.shortlisted,
        "reasons": dict(funnel.reasons),
    }


def _trial(result: TrialResult) -> dict[str, Any]:
    spec, measured = result.spec, result.measured
    return {
        "id": spec.id,
        "purpose": spec.purpose.value,
        "label": spec.label,
        "status": result.status.value,
        "layout": spec.layout.to_dict(),
        "recipe": spec.recipe.to_dict(),
        "predicted": {"step_time_s": spec.predicted.step_time_s, "memory_bytes": spec.predicted.memory_bytes},
        "measured": measured and {"step_time_s": measured.step_time_s, "memory_bytes": measured.memory_bytes},
        "failure": result.failure and result.failure.to_dict(),
        "time_to_loss_s": result.time_to_loss_s,
        "final_loss": result.final_loss,
        "seed": spec.seed,
    }


def _contender(contender: Contender | None) -> dict[str, Any] | None:
    if contender is None:
        return None
    return {**contender.to_dict(), "interval_s": list(contender.interval_s or (None, None))}


def _finite(value: Any) -> Any:
    """``value`` with None for every number that JSON has no word for."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
