"""StudyRecord (``study.json``): what a study is and where it stands. TrackedAt (``mlflow.json``): its run."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.outcome import StudyStatus
from tuner.records import SCHEMA_VERSION, _Record


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord(_Record):
    """``mlflow_uri`` is absolute; ``elapsed_s`` is the study's clock when this was written, where a resume goes on."""

    name: str
    created: str
    """UTC, ISO 8601."""
    tune_version: str
    status: StudyStatus = StudyStatus.RUNNING
    elapsed_s: float = 0.0
    mlflow_uri: str | None = None
    experiment: str | None = None
    experiment_id: str | None = None
    space_path: str | None = None
    """Where the space file was first read: its relative paths and its name are meant from there."""
    parent_run_id: str | None = None
    target_loss: float | None = None
    target_source: str = ""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedAt(_Record):
    """``mlflow.json``: the study's parent run, noted by the tracker as soon as it exists."""

    mlflow_uri: str
    experiment_id: str
    parent_run_id: str
