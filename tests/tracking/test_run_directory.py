"""The run directory: what a crash may leave, who may drive, and what is said of a study that is not there."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cost_models.layout import Layout
from tuner.outcome import Contender, Outcome, StudyStatus
from tuner.plan.plan import Funnel
from tuner.records import CurvePoint, Recipe, TrialResult, TrialSpec
from tuner.tracking.errors import DamagedRecord, StudyLocked, StudyNotFound
from tuner.tracking.run_directory import RunDirectory

Make = Callable[..., TrialResult]
MakeSpec = Callable[..., TrialSpec]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create("quick", tmp_path, "version: 1\n")


def test_a_taken_name_gets_a_number(tmp_path: Path) -> None:
    made = [RunDirectory.create("quick", tmp_path, f"a: {i}\n") for i in range(3)]
    assert [one.path.name for one in made] == ["quick", "quick-2", "quick-3"]
    assert [one.space_text for one in made] == ["a: 0\n", "a: 1\n", "a: 2\n"]
    assert made[1].read_study().name == "quick-2"


def test_a_name_never_leaves_its_folder(tmp_path: Path) -> None:
    run = RunDirectory.create("../../etc/a b", tmp_path, "")
    assert run.path.parent == tmp_path


def test_default_place_is_tune_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert RunDirectory.create("quick", None, "").path == tmp_path / "tune-runs" / "quick"
    assert RunDirectory.open().path == RunDirectory.open("quick").path == tmp_path / "tune-runs" / "quick"


def test_open_by_path_name_and_newest(tmp_path: Path) -> None:
    old, new = (RunDirectory.create("quick", tmp_path, "") for _ in range(2))
    old.update_study(created="2001-01-01T00:00:00+00:00")
    assert RunDirectory.open(str(old.path)).path == old.path
    assert RunDirectory.open("quick", out=tmp_path).path == old.path
    assert RunDirectory.open(out=tmp_path).path == new.path
    assert RunDirectory.open(tmp_path).path == new.path, "a folder of studies means the newest in it"


def test_not_found_says_what_was_sought_and_what_exists(tmp_path: Path) -> None:
    with pytest.raises(StudyNotFound, match=r"no study yet.*there is no study in .*tune run"):
        RunDirectory.open(out=tmp_path)
    RunDirectory.create("quick", tmp_path, "")
    with pytest.raises(StudyNotFound, match=r"no study 'quack'.*holds: quick"):
        RunDirectory.open("quack", out=tmp_path)


def test_results_come_back_equal(run: RunDirectory, make_result: Make) -> None:
    results = [make_result(i) for i in range(3)]
    for result in results:
        run.append_result(result)
    assert list(run.results()) == results
    assert json.loads((run.trial_dir(1) / "result.json").read_text())["spec"]["id"] == 1


def test_a_torn_last_line_is_left_out_and_told(run: RunDirectory, make_result: Make) -> None:
    run.append_result(make_result(0))
    run.append_result(make_result(1))
    whole = run.record_path.read_bytes()
    run.record_path.write_bytes(whole[:-40])
    assert [r.spec.id for r in run.results()] == [0]
    assert len(run.problems) == 1
    assert "trials.jsonl:2" in run.problems[0]


def test_a_line_after_a_torn_one_is_whole(run: RunDirectory, make_result: Make) -> None:
    run.append_result(make_result(0))
    with run.record_path.open("ab") as file:
        file.write(b'{"spec": {"id"')
    run.append_result(make_result(1))
    run.append_result(make_result(2))
    assert [r.spec.id for r in run.results()] == [0, 1, 2]
    assert len(run.problems) == 1


def test_a_line_of_another_version_is_refused_with_its_place(run: RunDirectory, make_result: Make) -> None:
    run.append_result(make_result(0))
    values = json.loads(run.record_path.read_text())
    run.record_path.write_text(json.dumps({**values, "schema_version": 99}) + "\n")
    with pytest.raises(DamagedRecord, match=r"trials\.jsonl:1: .*schema_version 99"):
        run.results()
    run.record_path.write_text(json.dumps({**values, "colour": "red"}) + "\n")
    with pytest.raises(DamagedRecord, match="colour"):
        run.results()


def test_the_record_is_strict_json_and_keeps_what_is_not_finite(run: RunDirectory, make_result: Make) -> None:
    curve = (CurvePoint(step=1, tokens=2, train_s=0.5, loss=math.inf),)
    run.append_result(make_result(0, curve=curve, final_train_loss=math.nan))

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    json.loads(run.record_path.read_text(), parse_constant=refuse)
    (result,) = run.results()
    assert result.curve[0].loss == math.inf
    assert result.final_train_loss is not None
    assert math.isnan(result.final_train_loss)


def test_a_spec_without_a_line_is_an_interrupted_trial(
    run: RunDirectory, make_spec: MakeSpec, make_result: Make
) -> None:
    for i in (10, 2, 9):
        run.write_spec(make_spec(i))
    run.append_result(make_result(9))
    assert [s.id for s in run.read_specs()] == [2, 9, 10]
    assert [s.id for s in run.interrupted()] == [2, 10]
    assert run.read_specs()[0] == make_spec(2)


def test_study_is_updated_in_one_step(run: RunDirectory) -> None:
    run.update_study(status=StudyStatus.FINISHED, elapsed_s=12.5, parent_run_id="abc", target_loss=2.4)
    study = RunDirectory.open(run.path).read_study()
    assert (study.status, study.elapsed_s, study.parent_run_id, study.target_loss) == ("finished", 12.5, "abc", 2.4)
    assert not [p for p in run.path.iterdir() if p.name.startswith(".study")], "nothing half-written is left"
    (run.path / "study.json").write_text("{}")
    with pytest.raises(DamagedRecord, match=r"study\.json"):
        run.read_study()


def test_funnel_outcome_and_coefficients_come_back(run: RunDirectory) -> None:
    assert (run.read_funnel(), run.read_outcome(), run.read_coefficients()) == (None, None, None)
    funnel = Funnel(enumerated=3, invalid=1, does_not_fit=1, feasible=1, shortlisted=1, reasons={"memory": 1})
    winner = Contender(
        trial_ids=(1, 2),
        layout=Layout(dp=4),
        recipe=Recipe(batch_tokens=2048, learning_rate=1e-3, warmup=9),
        time_to_loss_s=3.0,
        interval_s=(2.5, 3.5),
        extrapolated=False,
        num_seeds=2,
    )
    outcome = Outcome(
        winner=winner, default=None, separable=None, target_loss=2.0, target_source="given", gain=None, notes=("a",)
    )
    run.write_funnel(funnel)
    run.write_outcome(outcome)
    run.write_coefficients({"mfu": 0.4})
    again = RunDirectory.open(run.path)
    assert (again.read_funnel(), again.read_outcome(), again.read_coefficients()) == (funnel, outcome, {"mfu": 0.4})


def test_a_second_driver_is_refused_by_name_of_the_first(run: RunDirectory) -> None:
    with run.lock(), pytest.raises(StudyLocked, match=rf"process {os.getpid()}\b"), run.lock():
        pass
    with run.lock():
        pass


def test_the_lock_goes_with_its_holder(run: RunDirectory) -> None:
    code = (
        "import sys; from pathlib import Path; from tuner.tracking.run_directory import RunDirectory\n"
        "with RunDirectory(Path(sys.argv[1])).lock():\n    print('held', flush=True); sys.stdin.read()\n"
    )
    root = Path(__file__).parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(StudyLocked, match=rf"process {child.pid}\b"), run.lock():
            pass
    finally:
        child.kill()
        child.communicate(timeout=10)
    with run.lock():
        pass
