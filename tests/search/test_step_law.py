"""On published grids of real pre-training runs: regret after five trials, from the law as published.

The losses are read where TUNE_REFERENCE_DATA points; they are not part of this repository.
"""

from __future__ import annotations

import csv
import math
import os
import statistics
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from cost_models.convergence import Law
from tuner.search.factorised import FactorisedSampler

LOSSES = Path(os.environ.get("TUNE_REFERENCE_DATA", "")) / "data" / "step_law.csv"
pytestmark = pytest.mark.usefixtures("reference_data")

TASKS = (
    "dense_N215M_D11.4B",
    "dense_N215M_D100.0B",
    "dense_N429M_D8.0B",
    "dense_N429M_D22.7B",
    "dense_N537M_D28.4B",
)


def runs_of(task: str) -> list[dict[str, str]]:
    with LOSSES.open(newline="", encoding="utf-8") as lines:
        return [row for row in csv.DictReader(lines) if row["task"] == task]


def regret_after(task: str, count: int, *, rate_error: float = 1.0, batch_error: float = 1.0, seed: int = 0) -> float:
    """Regret in nats after ``count`` runs of the grid, each the unused one nearest to what is proposed."""
    left = runs_of(task)
    rates, batches = ({float(r[k]) for r in left} for k in ("lr", "bs_tokens"))
    space = {
        "learning_rate": FloatDistribution(min(rates), max(rates), log=True),
        "batch_tokens": CategoricalDistribution(sorted(int(b) for b in batches)),
    }
    law = Law(num_parameters=float(left[0]["n_params"]), lr_scale=1.79 * rate_error, batch_scale=0.58 * batch_error)
    horizon = float(left[0]["d_tokens"])
    sampler = FactorisedSampler(law=law, horizon_tokens=horizon, distributions=space, seed=seed)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study, best = optuna.create_study(sampler=sampler), math.inf
    for _ in range(count):
        trial = study.ask(space)

        def distance(run: dict[str, str], wanted: dict[str, float] = trial.params) -> float:
            return math.hypot(
                math.log(float(run["lr"]) / wanted["learning_rate"]),
                math.log(float(run["bs_tokens"]) / wanted["batch_tokens"]),
            )

        run = min(left, key=distance)
        left.remove(run)
        trial.set_user_attr("final_loss", float(run["loss"]))
        trial.set_user_attr("diverged", run["diverged"] == "True")
        study.tell(trial, float(run["loss"]))
        best = min(best, float(run["regret"]))
    return best


def test_five_trials_from_the_published_law_leave_little():
    assert statistics.median(regret_after(task, 5) for task in TASKS) <= 0.004


def test_a_law_wrong_by_eight_times_in_rate_and_four_in_batch_recovers():
    regrets = [regret_after(task, 5, rate_error=8.0, batch_error=4.0) for task in TASKS]
    assert statistics.median(regrets) <= 0.02
