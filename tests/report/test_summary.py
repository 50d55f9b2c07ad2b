"""The summary keeps the published contract at every stage of a study."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tuner.outcome import StudyStatus
from tuner.report.view import StudyView

STAGES = ("finished", "running", "empty", "failed")


def strict(summary: dict[str, Any]) -> dict[str, Any]:
    """Through JSON that refuses NaN and infinity, and back."""
    return dict(json.loads(json.dumps(summary, allow_nan=False)))


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_is_strict_json_with_the_fixed_keys(stages: Any, stage: str) -> None:
    summary = strict(getattr(stages, stage).summary)
    fixed = "schema_version study status run_dir mlflow_run_id funnel trials winner default separable"
    assert set(summary) >= set(fixed.split())
    funnel = summary["funnel"]
    assert funnel["invalid"] + funnel["does_not_fit"] + funnel["feasible"] == funnel["enumerated"]
    assert Path(summary["run_dir"]).is_absolute()


@pytest.mark.skipif("TUNE_REFERENCE_DATA" not in os.environ, reason="TUNE_REFERENCE_DATA is not set")
@pytest.mark.parametrize("stage", STAGES)
def test_the_published_checker_agrees(stages: Any, stage: str) -> None:
    checker = Path(os.environ["TUNE_REFERENCE_DATA"]) / "check_json.py"
    text = json.dumps(getattr(stages, stage).summary, allow_nan=False)
    command = [sys.executable, str(checker), "run", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_trials_say_what_was_predicted_and_what_was_measured(stages: Any) -> None:
    trials = {trial["id"]: trial for trial in strict(stages.finished.summary)["trials"]}
    assert sorted(trials) == list(range(11))
    assert trials[0]["measured"] == {"step_time_s": 0.21, "memory_bytes": 400 * 2**20}
    assert trials[0]["predicted"]["step_time_s"] == pytest.approx(0.21 * 1.08)
    assert trials[2]["measured"] is None
    assert trials[2]["failure"]["kind"] == "oom"
    assert trials[6]["final_loss"] is None, "it was infinite"
    assert trials[9]["time_to_loss_s"] == pytest.approx(33.6)


def test_winner_and_default_have_the_same_keys(stages: Any) -> None:
    summary = strict(stages.finished.summary)
    assert set(summary["winner"]) == set(summary["default"])
    assert summary["winner"]["trial_ids"] == [9, 10]
    assert summary["winner"]["interval_s"] == pytest.approx([33.6 * 0.94, 33.6 * 1.07])


@pytest.mark.parametrize("interval_s", [None, (1.0, math.inf)])
def test_an_interval_that_is_not_known_is_a_pair_of_nulls(stages: Any, interval_s: Any) -> None:
    view: StudyView = stages.finished
    assert view.outcome is not None
    winner = replace(view.outcome.winner, interval_s=interval_s, time_to_loss_s=math.inf)
    summary = strict(replace(view, outcome=replace(view.outcome, winner=winner)).summary)
    low, high = summary["winner"]["interval_s"]
    assert high is None
    assert low in (None, 1.0)
    assert summary["winner"]["time_to_loss_s"] is None


def test_an_unknown_status_is_refused(stages: Any) -> None:
    with pytest.raises(ValueError, match="sleeping"):
        replace(stages.finished, status="sleeping").summary  # noqa: B018
    assert stages.running.summary["status"] == StudyStatus.RUNNING.value
