"""tune run and tune resume as a person starts them: real processes, real training, a real MLflow store."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import psutil
import pytest

from tests.cli.conftest import Desk


@pytest.mark.timeout(240)
def test_run_finds_and_confirms_a_winner(desk: Desk) -> None:
    desk.write(wall_clock_s=60)
    code, out, err = desk.tune("run", "space.yaml", "--json")
    assert code == 0, err[-3000:]
    study = json.loads(out)
    assert study["status"] == "finished"
    purposes = {t["purpose"] for t in study["trials"]}
    assert purposes == {"probe", "converge", "confirm"}
    assert study["winner"]["num_seeds"] == 1
    assert study["default"] is not None
    assert study["target_loss"] > 0
    assert "RUNNING" not in desk.mlflow_states()
    assert len(desk.mlflow_states()) == len(study["trials"]) + 1
    assert (desk.run_dir / "report.html").stat().st_size > 10_000
    assert {p.name for p in desk.run_dir.iterdir()} >= {
        "space.yaml", "trials.jsonl", "study.journal", "coefficients.json", "report.html", "trials",
    }  # fmt: skip
    code, out, _ = desk.tune("report", "--json")
    assert code == 0
    assert json.loads(out)["winner"] == study["winner"]
    code, _, err = desk.tune("resume")
    assert code == 2
    assert "is finished" in err


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_ended_run_resumes_without_repeating_a_finished_trial(desk: Desk, number: signal.Signals) -> None:
    desk.write(wall_clock_s=50)
    process = desk.start("run", "space.yaml")
    try:
        _wait_for(lambda: len(desk.record()) >= 3, limit_s=90, why="three trials")
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        process.wait(timeout=30)
    finally:
        process.kill()
    assert process.returncode == (130 if number is not signal.SIGKILL else -9)
    _wait_for(
        lambda: not any(p.is_running() and p.status() != "zombie" for p in family), limit_s=15, why="no rank left"
    )
    before = desk.record()
    if number is not signal.SIGKILL:
        assert "RUNNING" not in desk.mlflow_states()
    code, out, err = desk.tune("resume", "--json")
    assert code == 0, err[-3000:]
    after = desk.record()
    assert after[: len(before)] == before
    ids = [line["spec"]["id"] for line in after]
    assert len(ids) == len(set(ids))
    assert json.loads(out)["status"] == "finished"
    assert "RUNNING" not in desk.mlflow_states()


def _wait_for(holds: Any, *, limit_s: float, why: str) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"waited {limit_s} s for {why}"
        time.sleep(0.1)


def test_nothing_feasible_exits_3_with_rule_and_change(desk: Desk) -> None:
    desk.write(wall_clock_s=60, **{"memory: 700 MiB": "memory: 401 MiB"})
    code, _, err = desk.tune("run", "space.yaml")
    assert code == 3
    assert "MiB" in err
    assert not (desk.folder / "tune-runs").exists()


def test_a_mistake_exits_2_and_writes_nothing(desk: Desk) -> None:
    desk.write(wall_clock_s=60, **{"learning_rate:": "learning_rat:"})
    code, out, err = desk.tune("run", "space.yaml")
    assert code == 2
    assert "space.yaml:14:" in err
    assert "learning_rate" in err
    assert out == ""
    assert not (desk.folder / "tune-runs").exists()


@pytest.mark.parametrize("words", [("plan", "none.yaml"), ("report", "nothing"), ("resume",), ("fly",), ("plan",)])
def test_what_does_not_exist_is_one_message_and_exit_2(desk: Desk, words: tuple[str, ...]) -> None:
    code, out, err = desk.tune(*words)
    assert code == 2
    assert out == ""
    assert err.strip()
    assert "Traceback" not in err
