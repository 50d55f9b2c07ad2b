from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from tuner import reporter


@pytest.fixture
def metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("TUNE_METRICS", str(path))
    return path


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_each_call_appends_one_line_with_its_time(metrics: Path) -> None:
    before = time.time()
    reporter.report(step=1, loss=2.5)
    reporter.report(step=2, loss=2.25, phase="warmup", done=False, note=None)
    first, second = lines(metrics)
    assert before <= first.pop("unix_s") <= second.pop("unix_s") <= time.time()
    assert first == {"step": 1, "loss": 2.5}
    assert second == {"step": 2, "loss": 2.25, "phase": "warmup", "done": False, "note": None}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float32("nan")])
def test_what_is_not_finite_is_null_and_named(metrics: Path, value: float) -> None:
    reporter.report(step=3, loss=value)
    (line,) = lines(metrics)
    assert line["loss"] is None
    assert line["not_finite"] == {"loss": str(float(value))}
    assert line["step"] == 3


def test_numbers_of_arrays_are_taken(metrics: Path) -> None:
    reporter.report(loss=np.float32(0.5), step=np.int64(7), mean=np.array(1.5))
    (line,) = lines(metrics)
    assert (line["loss"], line["step"], line["mean"]) == (0.5, 7, 1.5)


def test_a_list_is_refused_with_its_name(metrics: Path) -> None:
    with pytest.raises(TypeError, match="report\\(losses="):
        reporter.report(losses=[1.0])  # type: ignore[arg-type]
    assert not metrics.exists()


def test_its_own_names_are_refused(metrics: Path) -> None:
    with pytest.raises(ValueError, match="unix_s"):
        reporter.report(unix_s=1.0)


def test_unset_it_warns_once_and_writes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TUNE_METRICS", raising=False)
    monkeypatch.setattr(reporter, "_warned", False)
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="TUNE_METRICS is not set"):
        reporter.report(loss=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reporter.report(loss=1.0)
    assert list(tmp_path.iterdir()) == []


def _report_many(number: int) -> None:
    for step in range(200):
        reporter.report(process=number, step=step, text="x" * 200)


def test_lines_of_several_processes_do_not_mix(metrics: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_report_many, args=(number,)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [p.exitcode for p in processes] == [0, 0, 0]
    assert len(lines(metrics)) == 600


def test_it_imports_the_standard_library_only() -> None:
    code = "import sys; import tuner.reporter; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    outside = {
        name
        for name in done.stdout.split()
        if (top := name.partition(".")[0]) not in sys.stdlib_module_names and not top.startswith(("_", "sitecustomize"))
    }
    assert outside == {"tuner", "tuner.reporter"}
