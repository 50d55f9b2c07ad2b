"""The tracker against a real sqlite store: states, tags, what is never a metric, and that the study never feels it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.outcome import StudyStatus
from tuner.records import CurvePoint, Failure, FailureKind, Purpose, Status, TrialResult, TrialSpec
from tuner.tracking.errors import MissingExtra
from tuner.tracking.mlflow_connect import connect
from tuner.tracking.mlflow_session import MlflowSession
from tuner.tracking.mlflow_tracker import MlflowTracker
from tuner.tracking.run_directory import RunDirectory

pytest.importorskip("mlflow")

Make = Callable[..., TrialResult]
MakeSpec = Callable[..., TrialSpec]
LIMIT_S = 30.0


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create("quick", tmp_path / "tune-runs", "version: 1\nname: quick\n")


@pytest.fixture
def tracker(store: str, run: RunDirectory) -> Iterator[MlflowTracker]:
    one = MlflowTracker.start(store, "made-up", "quick", run.path)
    yield one
    one.close(timeout_s=LIMIT_S)


def runs(tracker: MlflowTracker) -> list[Any]:
    """All runs of the store's experiment, oldest first."""
    client = connect(tracker.uri)
    return list(client.search_runs([tracker.experiment_id], order_by=["attributes.start_time ASC"]))


def children(tracker: MlflowTracker) -> dict[int, Any]:
    return {int(run.data.tags["trial"]): run for run in runs(tracker) if "trial" in run.data.tags}


def summary(run: RunDirectory, **changes: Any) -> dict[str, Any]:
    funnel = {"enumerated": 9, "invalid": 3, "does_not_fit": 2, "feasible": 4, "shortlisted": 2, "reasons": {}}
    base: dict[str, Any] = {
        "study": "quick", "status": "finished", "run_dir": str(run.path), "funnel": funnel, "trials": [],
        "winner": None, "default": None, "target_loss": 2.4,
    }  # fmt: skip
    return {**base, **changes}


def contender(spec: TrialSpec, time_s: float | None, *, extrapolated: bool = False) -> dict[str, Any]:
    return {
        "trial_ids": [spec.id], "layout": spec.layout.to_dict(), "recipe": spec.recipe.to_dict(), "num_seeds": 2,
        "time_to_loss_s": time_s, "interval_s": [time_s, time_s], "extrapolated": extrapolated,
    }  # fmt: skip


def test_a_trial_is_a_child_with_its_round_numbers_and_curve(
    tracker: MlflowTracker, make_spec: MakeSpec, make_result: Make
) -> None:
    spec = make_spec(7)
    tracker.trial_started(spec)
    for step in range(3):
        tracker.trial_point(7, {"kind": "step", "step": step, "loss": 5.0 - step, "step_time_s": 0.2})
    tracker.trial_point(7, {"kind": "eval", "step": 2, "tokens": 4096, "train_s": 0.4, "val_loss": 3.25})
    tracker.trial_finished(make_result(7))
    assert tracker.flush(LIMIT_S)
    child = children(tracker)[7]
    assert child.info.run_name == "probe 07 · tp2 pp1 dp4 zero1 mb2"
    assert child.info.status == "FINISHED"
    tags, metrics, params = child.data.tags, child.data.metrics, child.data.params
    assert tags["mlflow.parentRunId"] == tracker.run_id
    assert {k: tags[k] for k in ("round", "status", "tp", "dp", "adapter")} == {
        "round": "probe", "status": "ok", "tp": "2", "dp": "4", "adapter": "native",
    }  # fmt: skip
    assert params["learning_rate"] == "0.002"
    assert params["micro_batch"] == "2"
    assert metrics["step_time_error"] == pytest.approx(0.1)
    assert metrics["memory_error"] == pytest.approx(0.1)
    assert metrics["measured_memory_bytes"] == 4e8
    assert "time_to_loss_s" not in metrics
    client = connect(tracker.uri)
    curve = client.get_metric_history(child.info.run_id, "train_loss")
    assert [(m.step, m.value) for m in curve] == [(0, 5.0), (1, 4.0), (2, 3.0)]
    assert client.get_metric_history(child.info.run_id, "tokens_per_s")[0].value == pytest.approx(10240)
    assert client.get_metric_history(child.info.run_id, "val_loss")[0].value == 3.25


def test_thousands_of_points_go_in_few_calls(tracker: MlflowTracker, make_spec: MakeSpec) -> None:
    tracker.trial_started(make_spec(1))
    for step in range(1200):
        tracker.trial_point(1, {"kind": "step", "step": step, "loss": 1.0, "step_time_s": 0.1})
    assert tracker.flush(LIMIT_S)
    history = connect(tracker.uri).get_metric_history(children(tracker)[1].info.run_id, "train_loss")
    assert [m.step for m in history] == list(range(1200))
    assert tracker.problem is None


def test_case_54_long_params_are_whole_in_a_file_and_told_apart_by_hash(store: str, tmp_path: Path) -> None:
    texts = ["x" * 6000 + end for end in ("a", "b")]
    params = []
    for text in texts:
        run = RunDirectory.create("long", tmp_path, text)
        tracker = MlflowTracker.start(store, "long", run.name, run.path)
        assert tracker.run_id is not None
        assert tracker.close(StudyStatus.FINISHED, LIMIT_S)
        client = connect(store)
        params.append(client.get_run(tracker.run_id).data.params["space_yaml"])
        path = client.download_artifacts(tracker.run_id, "params/space_yaml.txt", str(tmp_path))
        assert Path(path).read_text() == text
    assert params[0] != params[1]
    assert all(len(p) < 6000 for p in params)


def test_case_56_infinity_is_never_stored_as_a_number(
    tracker: MlflowTracker, make_spec: MakeSpec, make_result: Make
) -> None:
    spec = make_spec(3, purpose=Purpose.CONFIRM, target_loss=2.0)
    tracker.trial_started(spec)
    for step, loss in enumerate((5.0, math.inf, math.nan)):
        tracker.trial_point(3, {"kind": "step", "step": step, "loss": loss, "step_time_s": 0.2})
    tracker.trial_point(3, {"kind": "eval", "step": 2, "tokens": 1, "train_s": 0.4, "val_loss": math.inf})
    curve = (CurvePoint(step=2, tokens=1, train_s=0.4, loss=math.inf),)
    tracker.trial_finished(
        make_result(spec=spec, time_to_loss_s=math.inf, final_train_loss=math.nan, curve=curve),
        time_to_loss_estimate_s=9.5,
    )
    assert tracker.flush(LIMIT_S)
    child = children(tracker)[3]
    client = connect(tracker.uri)
    stored = [m.value for name in child.data.metrics for m in client.get_metric_history(child.info.run_id, name)]
    assert stored
    assert all(math.isfinite(value) and abs(value) < 1e300 for value in stored)
    assert not {"time_to_loss_s", "val_loss", "final_train_loss"} & set(child.data.metrics)
    assert child.data.tags["train_loss_non_finite"] == "inf at step 1"
    assert child.data.tags["val_loss_non_finite"] == "inf at step 2"
    assert child.data.tags["time_to_loss_estimate"] == "9.5"
    assert child.data.tags["time_to_loss_lower_bound"] == "0.4"


def test_case_57_final_states_come_from_the_driver(
    tracker: MlflowTracker, make_spec: MakeSpec, make_result: Make
) -> None:
    crash = Failure(kind=FailureKind.CRASH, evidence="e" * 9000, rank=1, hint="look at the log")
    killed = Failure(kind=FailureKind.OOM, evidence="exit code -9")
    ends = (
        (Status.OK, None, "FINISHED"),
        (Status.FAILED, crash, "FAILED"),
        (Status.STOPPED, None, "KILLED"),
        (Status.FAILED, killed, "FAILED"),
        (Status.INTERRUPTED, None, "KILLED"),
    )
    for i, (status, failure, _) in enumerate(ends):
        tracker.trial_started(make_spec(i))
        tracker.trial_finished(make_result(i, status=status, failure=failure))
    tracker.trial_started(make_spec(9))
    assert tracker.close(timeout_s=LIMIT_S)
    found = children(tracker)
    assert [found[i].info.status for i in range(len(ends))] == [state for _, _, state in ends]
    assert found[9].info.status == "KILLED", "running when the study was cut off"
    assert found[9].data.tags["status"] == "interrupted"
    assert {run.info.status for run in runs(tracker)} <= {"FINISHED", "FAILED", "KILLED"}
    tags = found[1].data.tags
    assert (tags["failure_kind"], tags["failure_rank"], tags["failure_hint"]) == ("crash", "1", "look at the log")
    path = connect(tracker.uri).download_artifacts(found[1].info.run_id, "tags/failure_evidence.txt")
    assert Path(path).read_text() == "e" * 9000


def test_nothing_is_left_running_after_ctrl_c(store: str, run: RunDirectory) -> None:
    code = """
import sys, time
from pathlib import Path
from tests_spec import spec
from tuner.tracking.mlflow_tracker import MlflowTracker
tracker = MlflowTracker.start(sys.argv[1], "made-up", "quick", Path(sys.argv[2]))
tracker.trial_started(spec)
tracker.flush(60)
print(tracker.run_id, flush=True)
time.sleep(60)
"""
    spec_code = (
        "from cost_models.layout import Layout\nfrom tuner.records import *\n"
        "spec = TrialSpec(id=1, purpose=Purpose.PROBE, layout=Layout(), seed=0, num_steps=1, horizon_steps=1,\n"
        " recipe=Recipe(batch_tokens=8, learning_rate=1e-3, warmup=1), eval_every=0, sequence_length=8,\n"
        " wall_clock_s=1.0, predicted=Predicted(step_time_s=1.0, memory_bytes=1.0))\n"
    )
    (run.path / "tests_spec.py").write_text(spec_code)
    root = Path(__file__).parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", code, store, str(run.path)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{run.path}"},
    )  # fmt: skip
    try:
        assert child.stdout is not None
        parent_id = child.stdout.readline().strip()
        child.send_signal(2)
        child.wait(timeout=60)
    finally:
        child.kill()
        child.communicate(timeout=10)
    client = connect(store)
    parent = client.get_run(parent_id)
    found = client.search_runs([parent.info.experiment_id])
    assert len(found) == 2
    assert {one.info.status for one in found} == {"KILLED"}


def test_a_resume_goes_on_with_the_same_parent(
    store: str, run: RunDirectory, make_spec: MakeSpec, make_result: Make
) -> None:
    session = MlflowSession.open(store, "made-up", "quick", run.path, parent_run_id=None, adapter="native")
    session.trial_started(make_spec(0))
    session.trial_finished(make_result(0), None, None)
    session.trial_started(make_spec(3))
    session.trial_finished(make_result(3, status=Status.INTERRUPTED), None, None)
    session.trial_started(make_spec(1))  # and here the process was killed
    run.append_result(make_result(0))
    run.append_result(make_result(2))  # finished, while MLflow was away
    run.append_result(make_result(3))  # cut off first, repeated and finished while MLflow was away
    (run.trial_dir(2) / "metrics.jsonl").write_text(
        json.dumps({"kind": "step", "step": 1, "loss": 4.5, "step_time_s": 0.2}) + '\n{"kind": "st'
    )
    tracker = MlflowTracker.start(store, "made-up", "quick", run.path, parent_run_id=session.parent_run_id)
    assert tracker.run_id == session.parent_run_id
    tracker.trial_started(make_spec(1))
    tracker.trial_finished(make_result(1))
    assert tracker.close(StudyStatus.FINISHED, LIMIT_S)
    found = [(int(r.data.tags["trial"]), r.info.status) for r in runs(tracker) if "trial" in r.data.tags]
    assert sorted(found) == [
        (0, "FINISHED"),
        (1, "FINISHED"),
        (1, "KILLED"),
        (2, "FINISHED"),
        (3, "FINISHED"),
        (3, "KILLED"),
    ]
    assert children(tracker)[2].data.metrics["train_loss"] == 4.5
    parents = [r for r in runs(tracker) if "trial" not in r.data.tags]
    assert [(r.info.run_id, r.info.status) for r in parents] == [(session.parent_run_id, "FINISHED")]


def test_a_killed_driver_leaves_its_parent_to_be_found(store: str, run: RunDirectory, make_spec: MakeSpec) -> None:
    killed = MlflowSession.open(store, "made-up", "quick", run.path, parent_run_id=None, adapter="native")
    killed.trial_started(make_spec(1))
    assert run.read_study().parent_run_id is None, "it never came to write that"
    tracker = MlflowTracker.start(store, "made-up", "quick", run.path)
    assert tracker.run_id == killed.parent_run_id
    assert tracker.close(StudyStatus.FINISHED, LIMIT_S)
    assert [one.info.status for one in runs(tracker)] == ["FINISHED", "KILLED"]


def test_a_resume_whose_parent_is_gone_begins_another(store: str, run: RunDirectory, make_result: Make) -> None:
    run.append_result(make_result(0))
    tracker = MlflowTracker.start(store, "made-up", "quick", run.path, parent_run_id="0" * 32)
    assert tracker.close(StudyStatus.FINISHED, LIMIT_S)
    assert tracker.problem is None
    assert tracker.run_id not in (None, "0" * 32)
    assert children(tracker)[0].info.status == "FINISHED"


def test_the_parent_says_the_result_in_five_lines(
    tracker: MlflowTracker, run: RunDirectory, make_spec: MakeSpec, make_result: Make
) -> None:
    run.append_result(make_result(0))
    run.report_path.write_text("<p>report</p>")
    spec = make_spec(0)
    result = summary(run, winner=contender(spec, 30.0), default=contender(spec, 45.0, extrapolated=True))
    tracker.study_finished(result, StudyStatus.FINISHED)
    assert tracker.close(timeout_s=LIMIT_S)
    client = connect(tracker.uri)
    assert tracker.run_id is not None
    parent = client.get_run(tracker.run_id)
    note = parent.data.tags["mlflow.note.content"].split("\n\n")
    assert len(note) == 5
    for line, words in zip(
        note, ("lr 2e-3", "30.0 s to a loss of 2.4", "1.50 x", "the default's time", "mlflow ui"), strict=True
    ):
        assert words in line
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["status"] == "finished"
    assert parent.data.metrics["gain_over_default"] == 1.5
    assert {f.path for f in client.list_artifacts(tracker.run_id)} == {"space.yaml", "trials.jsonl", "report.html"}
    experiment = client.get_experiment(parent.info.experiment_id)
    assert "time_to_loss_s" in experiment.tags["mlflow.note.content"]
    assert str(run.path.parents[1]) in experiment.artifact_location


@pytest.mark.parametrize("status, state", [("finished", "FINISHED"), ("failed", "FAILED"), ("interrupted", "KILLED")])
def test_the_parent_ends_as_the_study_did(tracker: MlflowTracker, run: RunDirectory, status: str, state: str) -> None:
    tracker.study_finished(summary(run, status=status), status)
    assert tracker.close(timeout_s=LIMIT_S)
    (parent,) = runs(tracker)
    assert parent.info.status == state
    assert "**Winner:** none" in parent.data.tags["mlflow.note.content"]


def test_a_study_never_hears_of_a_broken_store(tmp_path: Path, make_spec: MakeSpec, make_result: Make) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"this is no database at all, and not a short one either" * 40)
    tracker = MlflowTracker.start(f"sqlite:///{tmp_path}/mlflow.db", "made-up", "quick", tmp_path / "quick")
    tracker.trial_started(make_spec(1))
    tracker.trial_finished(make_result(1))
    assert tracker.flush(LIMIT_S)
    assert tracker.run_id is None
    assert tracker.problem is not None
    assert "could not be opened" in tracker.problem
    assert not tracker.close(timeout_s=LIMIT_S)


class _Slow:
    """A session whose every call takes long."""

    parent_run_id, experiment_id = "p", "1"

    def __init__(self, release: threading.Event) -> None:
        self._release = release

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self._release.wait(LIMIT_S) and None


def test_a_study_never_waits_for_a_slow_server(make_spec: MakeSpec, make_result: Make) -> None:
    release = threading.Event()
    tracker = MlflowTracker("http://slow", lambda: _Slow(release))  # type: ignore[arg-type,return-value]
    before = time.monotonic()
    for i in range(200):
        tracker.trial_started(make_spec(i))
        tracker.trial_point(i, {"kind": "step", "step": 1, "loss": 1.0, "step_time_s": 0.1})
        tracker.trial_finished(make_result(i))
    assert not tracker.flush(0.05)
    assert not tracker.close(timeout_s=0.05)
    assert time.monotonic() - before < 2.0
    assert tracker.problem is not None
    assert "did not answer" in tracker.problem
    release.set()


def test_one_failed_call_is_said_once_and_the_rest_goes_on(
    tracker: MlflowTracker, make_spec: MakeSpec, make_result: Make, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def broken(*_: Any) -> None:
        raise ConnectionError("no route")

    assert tracker.run_id is not None
    with monkeypatch.context() as patch:
        patch.setattr(MlflowSession, "trial_started", broken)
        tracker.trial_started(make_spec(0))
        tracker.trial_started(make_spec(1))
        assert tracker.flush(LIMIT_S)
    tracker.trial_finished(make_result(0))
    assert tracker.flush(LIMIT_S)
    assert children(tracker)[0].info.status == "FINISHED", "begun when it ended, since the beginning was lost"
    assert tracker.problem is not None
    assert "no route" in tracker.problem
    assert caplog.text.count("no route") == 1


def test_workers_do_not_inherit_a_run(store: str, run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "abc")
    tracker = MlflowTracker.start(store, "made-up", "quick", run.path)
    assert "MLFLOW_RUN_ID" not in os.environ
    tracker.close(timeout_s=LIMIT_S)


def test_without_mlflow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"mlflow.*\[train\]"):
        MlflowTracker.start("sqlite:///mlflow.db", "e", "s", tmp_path)
