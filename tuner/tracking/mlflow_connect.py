"""Reaching MLflow's store: its tables, the experiment, a run that may be gone."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.tracking.mlflow_uri import artifact_location, sqlite_path

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient


def connect(uri: str) -> MlflowClient:
    """A client, with the store's tables made; only one process at a time makes those of an sqlite file.

    Several that open a fresh file at once crash in MLflow's migrations [MLflow 3.17].
    """
    from mlflow.tracking import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with _sole_maker(sqlite_path(uri)):
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
    return client


def living_run(client: MlflowClient, run_id: str) -> Run | None:
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
    except MlflowException:
        return None
    return run if run.info.lifecycle_stage == "active" else None


@contextmanager
def _sole_maker(database: Path | None) -> Iterator[None]:
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(database.with_name(database.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def experiment_id(client: MlflowClient, uri: str, name: str, run_dir: Path) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=artifact_location(uri, name, run_dir)))
        except MlflowException:  # another process was quicker
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)
