"""A migrated MLflow store made once a session and copied, and trials made up by hand."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cost_models.layout import Layout
from tuner.records import Measurement, Predicted, Purpose, Recipe, Status, TrialResult, TrialSpec


@pytest.fixture(scope="session")
def migrated_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mlflow")
    from tuner.tracking.mlflow_connect import connect

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    connect(f"sqlite:///{path}")
    return path


@pytest.fixture
def store(migrated_store: Path, tmp_path: Path) -> str:
    """The URI of a fresh store."""
    shutil.copy(migrated_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def make_spec() -> Callable[..., TrialSpec]:
    def make(trial_id: int = 7, **changes: Any) -> TrialSpec:
        values: dict[str, Any] = {
            "id": trial_id,
            "purpose": Purpose.PROBE,
            "layout": Layout(dp=4, tp=2, zero=1, micro_batch=2),
            "recipe": Recipe(batch_tokens=2048, learning_rate=2e-3, warmup=20),
            "seed": 0,
            "num_steps": 12,
            "horizon_steps": 200,
            "eval_every": 4,
            "sequence_length": 64,
            "wall_clock_s": 60.0,
            "predicted": Predicted(step_time_s=0.22, memory_bytes=4.4e8),
        }
        return TrialSpec(**{**values, **changes})

    return make


@pytest.fixture
def make_result(make_spec: Callable[..., TrialSpec]) -> Callable[..., TrialResult]:
    def make(trial_id: int = 7, **changes: Any) -> TrialResult:
        spec = changes.pop("spec", None) or make_spec(trial_id)
        measured = Measurement(step_time_s=0.2, memory_bytes=4e8, num_steps=9, tokens_per_s=10240.0)
        values: dict[str, Any] = {"spec": spec, "status": Status.OK, "measured": measured, "ended_s": 8.0}
        return TrialResult(**{**values, **changes})

    return make


@pytest.fixture(autouse=True)
def _log_levels() -> Any:
    """MLflow's and alembic's loggers as they were."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)
