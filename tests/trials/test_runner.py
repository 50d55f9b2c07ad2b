"""Trials on real processes: what is measured, how failures are named, and that nothing is left running."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from cost_models.layout import Layout
from tests.trials.conftest import EntryAdapter, Once, spec_of
from tuner.adapters.native import NativeAdapter
from tuner.launchers.forkserver import ForkServer
from tuner.records import FailureKind, Status
from tuner.trials import runner as runner_module
from tuner.trials.runner import TrialRunner

MIB = 2**20


def test_a_good_trial_reports_the_slowest_rank_and_the_largest_memory(run_once: Once) -> None:
    result = run_once("well")
    assert result.status is Status.OK
    assert result.measured is not None
    assert result.measured.step_time_s == pytest.approx(0.011)
    assert result.measured.memory_bytes == 400 * MIB + 2 * MIB
    assert [p.loss for p in result.curve] == [2.5]
    assert result.measured.start_s is not None
    assert result.measured.start_s < 5


def test_out_of_memory_is_the_cause_and_the_lost_peer_the_symptom(run_once: Once) -> None:
    failure = run_once("out_of_memory_on_rank_1").failure
    assert failure is not None
    assert failure.kind is FailureKind.OOM
    assert failure.rank == 1
    assert "can't allocate memory" in failure.evidence
    assert failure.hint


def test_a_killed_rank_is_a_lost_rank_and_ends_the_others(run_once: Once) -> None:
    began = time.monotonic()
    failure = run_once("killed").failure
    assert failure is not None
    assert failure.kind is FailureKind.LOST_RANK
    assert "SIGKILL" in failure.evidence
    assert time.monotonic() - began < 15


def test_an_exception_without_a_report_is_read_from_the_log(run_once: Once) -> None:
    failure = run_once("crash").failure
    assert failure is not None
    assert failure.kind is FailureKind.LAUNCH
    assert "heads 4 do not divide by tp 3" in failure.evidence


def test_the_wall_clock_limit_is_a_timeout(run_once: Once) -> None:
    failure = run_once("hang", wall_clock_s=1.5).failure
    assert failure is not None
    assert failure.kind is FailureKind.TIMEOUT


def test_a_silence_is_a_hang(run_once: Once, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "HANG_FLOOR_S", 1.0)
    failure = run_once("hang").failure
    assert failure is not None
    assert failure.kind is FailureKind.HANG


def test_ending_well_without_a_word_is_no_metrics(run_once: Once) -> None:
    failure = run_once("silent").failure
    assert failure is not None
    assert failure.kind is FailureKind.NO_METRICS


def test_stopping_leaves_no_descendant(
    server: ForkServer, tmp_path: Path, quickstart_like_adapter: NativeAdapter
) -> None:
    runner = TrialRunner(server, EntryAdapter(name="grandchildren", reader=quickstart_like_adapter), time.monotonic)
    runner.start(spec_of(Layout(dp=2)), tmp_path)
    deadline = time.monotonic() + 20
    while len(list(tmp_path.glob("child-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = [int(p.read_text()) for p in tmp_path.glob("child-*")]
    assert len(pids) == 2
    (result,) = runner.stop_all(Status.INTERRUPTED)
    assert result.status is Status.INTERRUPTED
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert runner.num_running == 0


def test_ranks_are_fresh_and_take_the_servers_environment(server: ForkServer, tmp_path: Path) -> None:
    group = server.launch("tests.trials.entries:shown_environment", 2, (str(tmp_path),), tmp_path / "log.txt")
    assert group.wait(20)
    text = (tmp_path / "log.txt").read_text()
    assert "rank 0 sees 7" in text
    assert "rank 1 sees 7" in text
    assert [p.read_text() for p in tmp_path.glob("torch-*")] == ["False", "False"]
