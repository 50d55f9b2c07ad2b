"""StudyView: all that a report is written from, at any stage of a study, and the few figures every form shows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.outcome import Contender, Outcome, StudyStatus
from tuner.plan.plan import Funnel, Plan
from tuner.records import Status, TrialResult
from tuner.report.summary import summarise
from tuner.tracking.mlflow_uri import mlflow_ui_hint
from tuner.tracking.run_directory import RunDirectory

NO_FUNNEL = Funnel(enumerated=0, invalid=0, does_not_fit=0, feasible=0, shortlisted=0, reasons={})
"""Of a study cut off before its plan was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionError:
    """How far the cost model was off, over the trials that measured it: median ``|predicted / measured - 1|``."""

    quantity: str
    num_trials: int
    median_error: float
    worst_error: float
    """The largest, with its sign: below 0 the model said too little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView:
    name: str
    run_dir: Path
    status: StudyStatus
    funnel: Funnel
    plan: Plan | None = None
    results: Sequence[TrialResult] = ()
    outcome: Outcome | None = None
    mlflow_run_id: str | None = None
    mlflow_hint: tuple[str, ...] = ()
    """As ``tuner.tracking.mlflow_uri.mlflow_ui_hint`` gives it."""
    elapsed_s: float | None = None
    problems: tuple[str, ...] = ()
    """What went wrong beside the trials: tracking, torn lines."""

    @classmethod
    def of(
        cls,
        run: RunDirectory,
        *,
        plan: Plan | None = None,
        status: StudyStatus | None = None,
        mlflow_run_id: str | None = None,
        problems: tuple[str, ...] = (),
    ) -> StudyView:
        """A study as its folder tells it; ``plan`` adds what was predicted of layouts that never ran."""
        study = run.read_study()
        results = run.results()
        tracked = run.read_tracked()
        hint = mlflow_ui_hint(tracked.mlflow_uri, tracked.experiment_id) if tracked else ()
        return cls(
            name=run.name,
            run_dir=run.path,
            status=status or study.status,
            funnel=run.read_funnel() or (plan.funnel if plan else NO_FUNNEL),
            plan=plan,
            results=results,
            outcome=run.read_outcome(),
            mlflow_run_id=mlflow_run_id or (tracked.parent_run_id if tracked else study.parent_run_id),
            mlflow_hint=hint,
            elapsed_s=study.elapsed_s or None,
            problems=(*run.problems, *problems),
        )

    @property
    def summary(self) -> dict[str, Any]:
        return summarise(
            name=self.name,
            run_dir=self.run_dir,
            plan=self.plan,
            funnel=self.funnel,
            results=self.results,
            outcome=self.outcome,
            mlflow_run_id=self.mlflow_run_id,
            status=self.status,
        )

    @property
    def winner(self) -> Contender | None:
        return self.outcome.winner if self.outcome else None

    @property
    def default(self) -> Contender | None:
        return self.outcome.default if self.outcome else None

    @property
    def gain(self) -> float | None:
        return self.outcome.gain if self.outcome else None

    @property
    def failed(self) -> tuple[TrialResult, ...]:
        return tuple(result for result in self.results if result.status is Status.FAILED)

    def failures_by_cause(self) -> list[tuple[str, list[TrialResult]]]:
        """Failed trials by kind of failure, the commonest first."""
        causes: dict[str, list[TrialResult]] = {}
        for result in self.failed:
            causes.setdefault(result.failure.kind.value if result.failure else "unknown", []).append(result)
        return sorted(causes.items(), key=lambda item: -len(item[1]))

    def prediction_errors(self) -> list[PredictionError]:
        """Of step time, by trials that ran alone, and of memory, by all; where anything was measured."""
        measured = [(r.spec, r.spec.predicted, r.measured) for r in self.results if r.measured is not None]
        times = [p.step_time_s / m.step_time_s - 1 for s, p, m in measured if s.exclusive and m.step_time_s]
        memory = [p.memory_bytes / m.memory_bytes - 1 for _, p, m in measured if m.memory_bytes]
        return [
            PredictionError(
                quantity=quantity,
                num_trials=len(errors),
                median_error=statistics.median(map(abs, errors)),
                worst_error=max(errors, key=abs),
            )
            for quantity, errors in (("step time", _finite(times)), ("memory", _finite(memory)))
            if errors
        ]

    def headline(self) -> str:
        """One sentence: where the study stands."""
        ended = _trials(len(self.results))
        target = "" if self.outcome is None or self.outcome.target_loss is None else f" {self.outcome.target_loss:.4g}"
        match self.status:
            case StudyStatus.RUNNING:
                return f"The study is running: {ended} ended so far, and nothing here is final."
            case StudyStatus.INTERRUPTED:
                return f"The study was interrupted after {ended}; `tune resume {self.run_dir}` goes on."
            case StudyStatus.FAILED:
                return f"The study failed: of {ended}, {len(self.failed)} failed. The causes are below."
            case StudyStatus.FINISHED if self.winner is None:
                return f"The study ended without a winner after {ended}."
            case StudyStatus.FINISHED if target == "":
                return f"The study is finished: {ended} of speed, and the fastest layout is the winner."
            case _ if self.winner is not None and self.winner.extrapolated:
                return f"The study is finished; its winner's time to the target loss{target} is an extrapolation."
            case _:
                return f"The study is finished; its winner was confirmed to the target loss{target}."


def _finite(values: list[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _trials(number: int) -> str:
    return "1 trial" if number == 1 else f"{number} trials"
