"""tune plan and tune explain in this process, and what the quickstart space promises."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tuner.cli.app import run_app
from tuner.cli.errors import UsageError
from tuner.cli.plan import parse_layout, this_machine
from tuner.plan.build import build_plan
from tuner.search.recipe_space import horizon_steps
from tuner.space.load import load_space

SPACES = Path(__file__).parents[2] / "search_spaces"
QUICKSTART = SPACES / "quickstart.yaml"


def test_plan_json_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["plan", str(QUICKSTART), "--json", "--rejected"]) == 0
    plan = json.loads(capsys.readouterr().out)
    funnel = plan["funnel"]
    assert funnel["invalid"] + funnel["does_not_fit"] + funnel["feasible"] == funnel["enumerated"]
    assert len(plan["shortlist"]) == funnel["shortlisted"]
    assert len(plan["rejected"]) == funnel["invalid"] + funnel["does_not_fit"]
    assert sum(funnel["reasons"].values()) == len(plan["rejected"])


@pytest.mark.parametrize("path", sorted(SPACES.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_space_plans(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["plan", str(path)]) == 0
    out = capsys.readouterr().out
    assert "feasible" in out
    assert "tokens/s" in out


def test_quickstart_is_what_it_promises() -> None:
    space = load_space(QUICKSTART, this_machine=this_machine)
    funnel = build_plan(space).funnel
    legal = funnel.does_not_fit + funnel.feasible
    assert funnel.feasible >= 12
    assert funnel.does_not_fit >= legal / 4
    assert 300_000 <= space.model.num_params <= 3_000_000
    assert len(space.batch_sizes) == 3
    largest = max(space.batch_sizes) * space.data.sequence_length
    assert horizon_steps(space.budget.trial.tokens, largest) >= 100
    assert space.budget.wall_clock_s == 240


def test_explain_shows_each_term_with_its_formula(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["explain", str(QUICKSTART), "tp2 pp2 zero0 mb8", "--batch", "2048", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["layout"]["dp"] == 1
    times = [t for t in said["terms"] if t["unit"] == "s"]
    assert sum(t["value"] for t in times) == pytest.approx(said["estimate"]["step_time_s"], rel=1e-6)
    assert all(t["formula"] and t["source"] for t in said["terms"])
    assert run_app(["explain", str(QUICKSTART)]) == 0
    assert "limited by" in capsys.readouterr().out


def test_an_illegal_layout_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["explain", str(QUICKSTART), "tp1 pp1 dp1 zero2 mb4"]) == 2
    assert "not legal" in capsys.readouterr().err


def test_a_layout_is_read_as_it_is_printed() -> None:
    space = load_space(QUICKSTART, this_machine=this_machine)
    layout = build_plan(space).feasible[0].layout
    assert parse_layout(str(layout), space) == layout
    assert parse_layout("pp2 mb4", space).dp == 2
    with pytest.raises(UsageError, match="not part of a layout"):
        parse_layout("tp2 zap3", space)


def test_a_missing_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "optuna" else real(name))
    assert run_app(["run", str(QUICKSTART)]) == 2
    err = capsys.readouterr().err
    assert "optuna" in err
    assert "[train]" in err


def test_run_refuses_a_data_source_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = QUICKSTART.read_text(encoding="utf-8").replace("  sequence_length", "  source: ./no.txt\n  sequence_length")
    (tmp_path / "space.yaml").write_text(text, encoding="utf-8")
    assert run_app(["run", "space.yaml"]) == 2
    assert "no.txt" in capsys.readouterr().err
    assert not (tmp_path / "tune-runs").exists()
