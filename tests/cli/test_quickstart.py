"""The quickstart itself, whole: four minutes of real search."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Desk

QUICKSTART = Path(__file__).parents[2] / "search_spaces" / "quickstart.yaml"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_quickstart_keeps_its_budget_and_its_promises(desk: Desk) -> None:
    began = time.monotonic()
    code, out, err = desk.tune("run", str(QUICKSTART), "--json", limit_s=500)
    wall_s = time.monotonic() - began
    assert code == 0, err[-3000:]
    assert wall_s <= 1.2 * 240
    study = json.loads(out)
    trials = study["trials"]
    assert {t["purpose"] for t in trials} == {"probe", "converge", "confirm"}
    assert sum((t["failure"] or {}).get("kind") == "oom" for t in trials) >= 1
    assert study["winner"]["num_seeds"] == 2
    assert study["winner"]["time_to_loss_s"] <= study["default"]["time_to_loss_s"]
