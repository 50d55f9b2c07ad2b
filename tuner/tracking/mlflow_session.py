"""MlflowSession: one study's parent and children, through a client with explicit run ids. It lives in one thread."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.outcome import StudyStatus
from tuner.records import Status, TrialResult, TrialSpec
from tuner.tracking.mlflow_connect import connect, experiment_id, living_run
from tuner.tracking.mlflow_uri import mlflow_ui_hint
from tuner.tracking.mlflow_values import RUN_STATES, Logged, at_end, at_line, at_start, trial_name
from tuner.tracking.note import RUNNING_NOTE, experiment_note, gain_over_default, num_failed, study_note
from tuner.tracking.run_directory import RunDirectory
from tuner.tracking.study_record import TrackedAt

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

MAX_BATCH = 1000
"""Metrics that one call may carry [MLflow 3.17]."""
NOTE = "mlflow.note.content"
PARENT = "mlflow.parentRunId"
STUDY_STATES = {
    StudyStatus.FINISHED: "FINISHED",
    StudyStatus.FAILED: "FAILED",
    StudyStatus.INTERRUPTED: "KILLED",
    StudyStatus.RUNNING: "KILLED",
}


@dataclass(slots=True, kw_only=True)
class _Child:
    run_id: str
    spec: TrialSpec
    points: list[Metric] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class MlflowSession:
    client: MlflowClient
    uri: str
    experiment_id: str
    parent_run_id: str
    run_dir: Path
    adapter: str
    children: dict[int, _Child] = field(default_factory=dict)
    """Those that are RUNNING, by trial."""

    # -- opening ---------------------------------------------------------------------------------
    @classmethod
    def open(
        cls, uri: str, experiment: str, study_name: str, run_dir: Path, *, parent_run_id: str | None, adapter: str
    ) -> MlflowSession:
        """Connect, and begin the parent run, or go on with the one given or noted in the run directory.

        The note is made at once, so that a driver that is killed leaves its parent to be found; a parent that was
        deleted since is replaced, and every finished trial told to the new one.
        """
        client = connect(uri)
        where = experiment_id(client, uri, experiment, run_dir)
        record = RunDirectory(run_dir)
        earlier = record.read_tracked()
        if parent_run_id is None and earlier is not None and earlier.mlflow_uri == uri:
            parent_run_id = earlier.parent_run_id
        known = None if parent_run_id is None else living_run(client, parent_run_id)
        if known is not None:
            where = known.info.experiment_id
            client.update_run(known.info.run_id, status="RUNNING")
            client.set_tag(known.info.run_id, "status", StudyStatus.RUNNING.value)
        tags = {
            "study": study_name,
            "status": StudyStatus.RUNNING.value,
            "adapter": adapter,
            "run_dir": str(run_dir),
            NOTE: RUNNING_NOTE,
        }
        parent = known or client.create_run(where, run_name=study_name, tags=tags)
        session = cls(
            client=client,
            uri=uri,
            experiment_id=where,
            parent_run_id=parent.info.run_id,
            run_dir=run_dir,
            adapter=adapter,
        )
        record.write_tracked(TrackedAt(mlflow_uri=uri, experiment_id=where, parent_run_id=session.parent_run_id))
        if known is None:
            session._log_space()
        if parent_run_id is not None:
            session._reconcile()
        return session

    def _log_space(self) -> None:
        space = self.run_dir / "space.yaml"
        if space.exists():
            logged = Logged()
            logged.param("space_yaml", space.read_text(encoding="utf-8"))
            self._write(self.parent_run_id, logged)
            self.client.log_artifact(self.parent_run_id, str(space))

    def _reconcile(self) -> None:
        """After a resume: children left RUNNING end as KILLED; finished trials that MLflow never heard of are told."""
        known: set[int] = set()
        for run in self._all_children():
            if run.info.status == "RUNNING":
                self.client.set_tag(run.info.run_id, "status", "interrupted")
                self.client.set_terminated(run.info.run_id, status="KILLED")
            elif "trial" in run.data.tags and run.data.tags.get("status") != Status.INTERRUPTED:
                known.add(int(run.data.tags["trial"]))
        record = RunDirectory(self.run_dir)
        for result in record.results():
            if result.spec.id not in known and result.status is not Status.INTERRUPTED:
                self._replay(result, record.trial_dir(result.spec.id) / "metrics.jsonl")

    def _replay(self, result: TrialResult, metrics: Path) -> None:
        self.trial_started(result.spec)
        for text in metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else ():
            try:
                line = json.loads(text)
            except json.JSONDecodeError:
                continue
            self.trial_point(result.spec.id, line, time.time())
        self.trial_finished(result, None, None)

    def _all_children(self) -> Iterator[Any]:
        token: str | None = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id],
                filter_string=f"tags.`{PARENT}` = '{self.parent_run_id}'",
                max_results=1000,
                page_token=token,
            )
            yield from page
            token = page.token
            if not token:
                return

    # -- trials ----------------------------------------------------------------------------------
    def trial_started(self, spec: TrialSpec) -> None:
        if (earlier := self.children.pop(spec.id, None)) is not None:
            self.client.set_terminated(earlier.run_id, status="KILLED")
        logged = at_start(spec, self.adapter)
        tags = {**logged.tags, PARENT: self.parent_run_id}
        run = self.client.create_run(self.experiment_id, run_name=trial_name(spec), tags=tags)
        self.children[spec.id] = _Child(run_id=run.info.run_id, spec=spec)
        logged.tags = {}
        self._write(run.info.run_id, logged)

    def trial_point(self, trial_id: int, line: Mapping[str, Any], unix_s: float) -> None:
        """Kept until ``write_points``, which the thread calls about once a second."""
        child = self.children.get(trial_id)
        if child is None:
            return
        from mlflow.entities import Metric

        step, logged = at_line(child.spec, line)
        child.points += [Metric(name, value, int(unix_s * 1000), step) for name, value in logged.metrics.items()]
        child.tags |= {name: text for name, text in logged.tags.items() if name not in child.said}
        child.said |= set(logged.tags)

    def write_points(self) -> None:
        for child in self.children.values():
            self._write_points_of(child)

    def _write_points_of(self, child: _Child) -> None:
        while child.points:
            self.client.log_batch(child.run_id, metrics=child.points[:MAX_BATCH])
            del child.points[:MAX_BATCH]
        while child.tags:
            name, text = next(iter(child.tags.items()))
            self.client.set_tag(child.run_id, name, text)
            del child.tags[name]

    def trial_finished(self, result: TrialResult, estimate_s: float | None, lower_bound_s: float | None) -> None:
        if result.spec.id not in self.children:
            self.trial_started(result.spec)
        child = self.children[result.spec.id]
        self._write_points_of(child)
        self._write(child.run_id, at_end(result, estimate_s, lower_bound_s))
        self.client.set_terminated(child.run_id, status=RUN_STATES[result.status])
        del self.children[result.spec.id]

    # -- the study -------------------------------------------------------------------------------
    def study_finished(self, summary: Mapping[str, Any], status: StudyStatus) -> None:
        """Headline figures, the five lines, and the files that a reader wants beside them."""
        hint = mlflow_ui_hint(self.uri, self.experiment_id)
        logged = Logged()
        winner, default = summary.get("winner"), summary.get("default")
        logged.metric("winner_time_to_loss_s", winner and winner["time_to_loss_s"])
        logged.metric("default_time_to_loss_s", default and default["time_to_loss_s"])
        logged.metric("gain_over_default", gain_over_default(winner, default))
        logged.metric("num_trials", len(summary["trials"]))
        logged.metric("num_failed_trials", num_failed(summary))
        logged.metric("target_loss", summary.get("target_loss"))
        for key in ("enumerated", "feasible", "shortlisted"):
            logged.metric(f"layouts_{key}", summary["funnel"][key])
        logged.tag("status", status.value)
        logged.tag(NOTE, study_note(summary, hint))
        if winner:
            for key, value in {**winner["layout"], **winner["recipe"]}.items():
                logged.tag(f"winner.{key}", value)
        self._write(self.parent_run_id, logged)
        self.client.set_experiment_tag(self.experiment_id, NOTE, experiment_note(summary))
        for name in ("space.yaml", "trials.jsonl", "coefficients.json", "report.html"):
            if (path := self.run_dir / name).exists():
                self.client.log_artifact(self.parent_run_id, str(path))

    def close(self, state: str) -> None:
        """End every child and the parent. One that cannot be ended does not keep the others from it."""
        problems: list[Exception] = []
        for child in tuple(self.children.values()):
            try:
                self._write_points_of(child)
                self.client.set_tag(child.run_id, "status", "interrupted")
            except Exception as error:
                problems.append(error)
            try:
                self.client.set_terminated(child.run_id, status="KILLED")
                del self.children[child.spec.id]
            except Exception as error:
                problems.append(error)
        if (
            state != "FINISHED"
            and self.client.get_run(self.parent_run_id).data.tags.get("status") == StudyStatus.RUNNING.value
        ):
            left = StudyStatus.FAILED if state == "FAILED" else StudyStatus.INTERRUPTED
            self.client.set_tag(self.parent_run_id, "status", left.value)
        self.client.set_terminated(self.parent_run_id, status=state)
        if problems:
            raise problems[0]

    def _write(self, run_id: str, logged: Logged) -> None:
        from mlflow.entities import Metric, Param, RunTag

        now_ms = int(time.time() * 1000)
        self.client.log_batch(
            run_id,
            metrics=[Metric(name, value, now_ms, 0) for name, value in logged.metrics.items()],
            params=[Param(name, text) for name, text in logged.params.items()],
            tags=[RunTag(name, text) for name, text in logged.tags.items()],
        )
        for name, text in logged.texts.items():
            self.client.log_text(run_id, text, name)
