from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tuner.tracking.mlflow_uri import absolute_uri, artifact_location, mlflow_ui_hint


def test_a_relative_sqlite_file_is_made_absolute() -> None:
    assert absolute_uri("sqlite:///mlflow.db", Path("/data")) == "sqlite:////data/mlflow.db"
    assert absolute_uri("sqlite:////srv/mlflow.db", Path("/data")) == "sqlite:////srv/mlflow.db"
    assert absolute_uri("http://host:5000") == "http://host:5000"
    assert absolute_uri("postgresql://u@host/db") == "postgresql://u@host/db"


@pytest.mark.parametrize("uri", ["./mlruns", "file:///data/mlruns"])
def test_a_folder_is_refused_with_what_to_write(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(ValueError, match=r"mlruns.*sqlite:///mlflow\.db"):
        absolute_uri(uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert absolute_uri(uri, Path("/data")) == "file:///data/mlruns"


def test_artifacts_stand_beside_the_database() -> None:
    run_dir = Path("/data/tune-runs/quick")
    assert artifact_location("sqlite:////srv/mlflow.db", "a b", run_dir) == "file:///srv/mlartifacts/a-b"
    assert artifact_location("postgresql://host/db", "a", run_dir) == "file:///data/tune-runs/mlartifacts/a"
    assert artifact_location("http://host:5000", "a", run_dir) is None


def test_hint_is_a_command_and_a_link_to_sorted_trials() -> None:
    command, link = mlflow_ui_hint("sqlite:////data/my runs/mlflow.db", "3")
    assert command == "mlflow ui --backend-store-uri 'sqlite:////data/my runs/mlflow.db'"
    path, _, query = urlsplit(link).fragment.partition("?")
    assert path == "/experiments/3/runs"
    assert parse_qs(query) == {
        "workflowType": ["machine_learning"],
        "orderByKey": ["metrics.`time_to_loss_s`"],
        "orderByAsc": ["true"],
    }
    assert "`" not in link


def test_a_server_needs_no_command() -> None:
    (link,) = mlflow_ui_hint("http://host:5000/", "3")
    assert link.startswith("http://host:5000/#/experiments/3/")
