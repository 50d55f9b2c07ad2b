"""Where MLflow's store is, made absolute, and how a person opens it."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from urllib.parse import quote

_SQLITE = "sqlite:///"
_SORT_BY = "metrics.`time_to_loss_s`"
LOCAL_UI = "http://127.0.0.1:5000"


def absolute_uri(uri: str, base: Path | None = None) -> str:
    """``uri`` with a relative sqlite path resolved against ``base`` (the working directory).

    ValueError for a folder: MLflow's file store is off unless ``MLFLOW_ALLOW_FILE_STORE=true`` [MLflow 3.17].
    """
    base = base or Path.cwd()
    if uri.startswith(_SQLITE):
        return _SQLITE + str((base / Path(uri.removeprefix(_SQLITE)).expanduser()).absolute())
    if re.match(r"^[a-z][a-z0-9+.-]+://", uri) and not uri.startswith("file:"):
        return uri
    if os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() in {"true", "1"}:
        return "file://" + str((base / uri.removeprefix("file://").removeprefix("file:")).absolute())
    raise ValueError(
        f"tracking.mlflow: {uri!r} names a folder, and MLflow no longer keeps runs in plain files; "
        "use a database such as sqlite:///mlflow.db, or the address of a server such as http://host:5000"
    )


def sqlite_path(uri: str) -> Path | None:
    """The database file of an absolute sqlite URI."""
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None


def artifact_location(uri: str, experiment: str, run_dir: Path) -> str | None:
    """Where a new experiment's artifacts go: beside the sqlite file, beside the studies for another database;
    None with a server, which knows itself."""
    if uri.startswith(("http://", "https://", "databricks")):
        return None
    database = sqlite_path(uri)
    parent = database.parent if database else run_dir.absolute().parent
    folder = re.sub(r"[^\w.-]+", "-", experiment).strip("-.") or "experiment"
    return (parent / "mlartifacts" / folder).as_uri()


def mlflow_ui_hint(uri: str, experiment_id: str | None) -> tuple[str, ...]:
    """The command that starts MLflow's UI (none for a server, which runs) and a link to the trials, fastest first.

    ``workflowType`` leaves the view made for language-model traces and ``orderByKey`` flattens the tree, so that all
    trials show sorted [MLflow 3.17].
    """
    is_server = uri.startswith(("http://", "https://"))
    site = uri.rstrip("/") if is_server else LOCAL_UI
    command = () if is_server else (f"mlflow ui --backend-store-uri {shlex.quote(uri)}",)
    if experiment_id is None:
        return (*command, site)
    query = f"workflowType=machine_learning&orderByKey={quote(_SORT_BY, safe='')}&orderByAsc=true"
    return (*command, f"{site}/#/experiments/{experiment_id}/runs?{query}")
