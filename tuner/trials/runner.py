"""Run trials and watch them: limits, live metrics, and one TrialResult for each, whatever happens."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tuner.adapters.protocol import Adapter
from tuner.launchers.forkserver import ForkServer, RankGroup
from tuner.records import CurvePoint, Failure, FailureKind, Status, TrialResult, TrialSpec
from tuner.trials.events import Event, TrialFinished, TrialPoint
from tuner.trials.failures import classify, failure
from tuner.trials.measure import measurement

FIRST_STEP_LIMIT_S = 60.0
"""No first metric after this long is a hang; a start takes about a second."""
HANG_MEDIANS = 30.0
"""A silence of this many median steps is a hang, ..."""
HANG_FLOOR_S = 20.0
"""... but never one shorter than this."""
DIVERGED_ABOVE = 1.2
"""A run whose validation loss ends so many times above its first one has diverged."""
PEER_GRACE_S = 2.0
"""How long the other ranks may take to end after the first failed."""


@dataclass(slots=True, kw_only=True)
class _Running:
    spec: TrialSpec
    directory: Path
    group: RankGroup
    started_s: float
    metrics: Path
    offset: int = 0
    step_times_s: list[float] = field(default_factory=list)
    curve: list[CurvePoint] = field(default_factory=list)
    last_sign_s: float = 0.0
    first_exit_s: float | None = None
    first_codes: tuple[int | None, ...] | None = None
    """Exit codes when the first rank failed: later ones include those this runner ended."""
    last_train_loss: float | None = None
    stop_status: Status | None = None
    verdict: Failure | None = None

    @property
    def log(self) -> Path:
        return self.directory / "log.txt"


class TrialRunner:
    """Starts trials from the warm server; ``poll`` says what happened since the last call.

    ``clock`` is the study's: seconds since the study began, going on after a resume.
    """

    def __init__(self, server: ForkServer, adapter: Adapter, clock: Callable[[], float]) -> None:
        self._server = server
        self._adapter = adapter
        self._clock = clock
        self._running: dict[int, _Running] = {}

    @property
    def num_running(self) -> int:
        return len(self._running)

    def start(self, spec: TrialSpec, directory: Path) -> None:
        """Prepare the files and start the ranks; returns once they are forked."""
        clear_remains(directory)
        launch = self._adapter.prepare(spec, directory)
        started = self._clock()
        group = self._server.launch(launch.entry, launch.num_ranks, launch.arguments, directory / "log.txt")
        self._running[spec.id] = _Running(
            spec=spec,
            directory=directory,
            group=group,
            started_s=started,
            metrics=self._adapter.metrics_file(directory),
            last_sign_s=started,
        )

    def stop(self, trial_id: int, status: Status) -> None:
        """End one trial early; its result still comes through ``poll``."""
        trial = self._running[trial_id]
        trial.stop_status = status
        trial.group.stop()

    def stop_all(self, status: Status) -> tuple[TrialResult, ...]:
        """End everything, as on Ctrl-C; the results of what was running."""
        for trial_id in tuple(self._running):
            self.stop(trial_id, status)
        return tuple(e.result for e in self.poll() if isinstance(e, TrialFinished))

    def poll(self) -> tuple[Event, ...]:
        events: list[Event] = []
        for trial in tuple(self._running.values()):
            events += self._read_metrics(trial)
            self._enforce_limits(trial)
            if not trial.group.is_running:
                events += self._read_metrics(trial)
                events.append(TrialFinished(result=self._result(trial)))
                trial.group.close()
                del self._running[trial.spec.id]
        return tuple(events)

    # -- metrics ---------------------------------------------------------------------------------
    def _read_metrics(self, trial: _Running) -> list[Event]:
        try:
            with trial.metrics.open("rb") as file:
                file.seek(trial.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        trial.offset += len(whole)
        lines = [json.loads(line) for line in whole.splitlines()]
        if lines:
            trial.last_sign_s = self._clock()
        return [TrialPoint(trial_id=trial.spec.id, line=line, point=_digest(trial, line)) for line in lines]

    # -- limits ----------------------------------------------------------------------------------
    def _enforce_limits(self, trial: _Running) -> None:
        if trial.stop_status is not None or trial.verdict is not None:
            return
        now = self._clock()
        codes = trial.group.exit_codes()
        if any(code not in (None, 0) for code in codes):
            if trial.first_exit_s is None:
                trial.first_exit_s, trial.first_codes = now, codes
            if now - trial.first_exit_s > PEER_GRACE_S and trial.group.is_running:
                trial.group.stop()
            return
        if now - trial.started_s > trial.spec.wall_clock_s:
            trial.verdict = failure(
                FailureKind.TIMEOUT, f"still running after its limit of {trial.spec.wall_clock_s:.0f} s"
            )
            trial.group.stop()
        elif now - trial.last_sign_s > self._patience_s(trial):
            trial.verdict = failure(
                FailureKind.HANG, f"no step for {now - trial.last_sign_s:.0f} s after {len(trial.step_times_s)} steps"
            )
            trial.group.stop()

    def _patience_s(self, trial: _Running) -> float:
        if not trial.step_times_s:
            return FIRST_STEP_LIMIT_S
        ordered = sorted(trial.step_times_s)
        return max(HANG_FLOOR_S, HANG_MEDIANS * ordered[len(ordered) // 2])

    # -- result ----------------------------------------------------------------------------------
    def _result(self, trial: _Running) -> TrialResult:
        reports = self._adapter.rank_reports(trial.directory, len(trial.group.processes))
        base = TrialResult(
            spec=trial.spec,
            status=Status.OK,
            measured=measurement(trial.spec, reports, trial.group.started_unix_s),
            curve=tuple(trial.curve),
            final_train_loss=trial.last_train_loss,
            started_s=trial.started_s,
            ended_s=self._clock(),
        )
        if trial.stop_status is not None:
            return replace(base, status=trial.stop_status)
        cause = trial.verdict or classify(reports, trial.first_codes or trial.group.exit_codes(), trial.log)
        if cause is None and base.measured is None:
            cause = failure(FailureKind.NO_METRICS, "every rank ended with exit code 0 and no step was reported")
        losses = [p.loss for p in trial.curve] + ([] if trial.last_train_loss is None else [trial.last_train_loss])
        if cause is None and not all(map(math.isfinite, losses)):
            cause = failure(FailureKind.NAN, f"a loss of {next(x for x in losses if not math.isfinite(x))}")
        if cause is None and len(trial.curve) > 1 and trial.curve[-1].loss > DIVERGED_ABOVE * trial.curve[0].loss:
            first, last = trial.curve[0].loss, trial.curve[-1].loss
            cause = failure(FailureKind.DIVERGED, f"the validation loss rose from {first:.4g} to {last:.4g}")
        return base if cause is None else replace(base, status=Status.FAILED, failure=cause)


def _digest(trial: _Running, line: dict[str, Any]) -> CurvePoint | None:
    if line["kind"] == "step":
        trial.step_times_s.append(float(line["step_time_s"]))
        trial.last_train_loss = float(line["loss"])
        return None
    if line["kind"] == "eval":
        point = CurvePoint(
            step=int(line["step"]),
            tokens=int(line["tokens"]),
            train_s=float(line["train_s"]),
            loss=float(line["val_loss"]),
        )
        trial.curve.append(point)
        return point
    return None


def clear_remains(directory: Path) -> None:
    """Remove what an interrupted run of the same trial left; the log is kept under another name."""
    log = directory / "log.txt"
    if log.exists():
        log.rename(directory / f"log-interrupted-{int(time.time())}.txt")
    for name in ("metrics.jsonl", "rendezvous", *(p.name for p in directory.glob("rank-*.json"))):
        (directory / name).unlink(missing_ok=True)
