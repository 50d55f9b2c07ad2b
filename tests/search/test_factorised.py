"""The law with an uncertain centre: finds an optimum the law misses, listens to prices, keeps clear of divergence."""

from __future__ import annotations

import math
import statistics

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from cost_models.convergence import Law
from tuner.search.bowl import Points, Prior, believe
from tuner.search.factorised import FactorisedSampler

HORIZON = 1e9
LAW = Law(num_parameters=5e7)
RATES = FloatDistribution(1e-4, 3e-2, log=True)
BATCHES = CategoricalDistribution([2**k for k in range(14, 21)])
SPACE = {"learning_rate": RATES, "batch_tokens": BATCHES}


@pytest.fixture(autouse=True)
def quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


def toy_loss(rate, batch, centre):
    """Excess loss of a tilted bowl, ``centre`` doublings away from the law; infinite beyond the edge."""
    u = math.log2(rate / LAW.learning_rate(HORIZON)) - centre[0]
    v = math.log2(batch / LAW.batch_tokens(HORIZON)) - centre[1]
    if u > 2.7:
        return math.inf
    return 3.0 + 0.01 * u * u + 0.008 * v * v - 0.006 * u * v


def run(sampler, centre, count, space=SPACE):
    """Best excess loss after ``count`` trials, and what was proposed."""
    study = optuna.create_study(sampler=sampler)
    losses, proposed = [], []
    for _ in range(count):
        trial = study.ask(space)
        loss = toy_loss(trial.params["learning_rate"], trial.params["batch_tokens"], centre)
        proposed.append(dict(trial.params))
        losses.append(loss)
        trial.set_user_attr("diverged", not math.isfinite(loss))
        if math.isfinite(loss):
            trial.set_user_attr("final_loss", loss)
        study.tell(trial, min(loss, 9.0))
    return min(losses) - 3.0, proposed


def factorised(seed=0, **changes):
    return FactorisedSampler(law=LAW, horizon_tokens=HORIZON, distributions=SPACE, seed=seed, **changes)


def test_after_five_trials_it_is_clearly_ahead_of_random_even_where_the_law_is_off():
    centres = [(-1.5, 0.5), (-2.0, -1.0), (1.0, 1.0), (-3.0, 1.5), (0.5, -1.5)]
    ours = [run(factorised(seed), c, 5)[0] for seed, c in enumerate(centres)]
    drawn = [
        run(optuna.samplers.RandomSampler(seed=10 * s + i), c, 5)[0] for s in range(9) for i, c in enumerate(centres)
    ]
    assert statistics.median(ours) < 0.5 * statistics.median(drawn)
    assert statistics.median(ours) < 0.006


def test_the_first_proposal_is_the_law_at_the_nearest_legal_values():
    _, proposed = run(factorised(), (0.0, 0.0), 1)
    assert proposed[0]["learning_rate"] == pytest.approx(LAW.learning_rate(HORIZON), rel=5e-3)
    assert proposed[0]["batch_tokens"] == 2**16
    assert LAW.batch_tokens(HORIZON) == pytest.approx(2**16, rel=0.45)


def test_a_law_wrong_by_eight_times_recovers_and_never_goes_back_above_a_divergence():
    excess, proposed = run(factorised(), (-3.0, -2.0), 8)
    assert excess < 0.01
    assert all(p["learning_rate"] < proposed[0]["learning_rate"] / 2 for p in proposed[1:])


def test_prices_pull_the_batch_towards_what_is_cheap():
    flat = FactorisedSampler(law=LAW, horizon_tokens=HORIZON, distributions=SPACE, seed=1)
    steep = FactorisedSampler(law=LAW, horizon_tokens=HORIZON, distributions=SPACE, seed=1)
    steep.set_prices({2**k: 1e-6 / 2 ** (k - 14) for k in range(14, 21)})
    batches = [[p["batch_tokens"] for p in run(s, (0.0, 0.0), 5)[1][1:]] for s in (flat, steep)]
    assert min(batches[1]) > max(2**16, statistics.median(batches[0]))


def test_equal_seeds_agree_and_proposals_are_distinct():
    first, second = (run(factorised(3), (0.5, 0.5), 6)[1] for _ in range(2))
    assert first == second
    assert len({tuple(p.items()) for p in first}) == 6


def test_it_drives_a_plain_optimize_with_parameters_it_was_not_told_of():
    sampler = FactorisedSampler(law=LAW, horizon_tokens=HORIZON, seed=0)
    study = optuna.create_study(sampler=sampler)

    def objective(trial):
        rate = trial.suggest_float("learning_rate", 1e-4, 3e-2, log=True)
        warmup = trial.suggest_int("warmup", 10, 5000, log=True)
        batch = trial.suggest_categorical("batch_tokens", list(BATCHES.choices))
        decay = trial.suggest_float("weight_decay", 0.0, 0.3, step=0.05)
        schedule = trial.suggest_categorical("schedule", ["cosine", "linear"])
        loss = (
            toy_loss(rate, batch, (-1.0, 0.0)) + 0.02 * (schedule == "linear") + 0.002 * math.log2(warmup / 1000) ** 2
        )
        if not math.isfinite(loss):
            trial.set_user_attr("diverged", True)
            raise optuna.TrialPruned
        trial.set_user_attr("final_loss", loss + 0.01 * decay)
        return loss

    study.optimize(objective, n_trials=8)
    assert len(study.trials) == 8
    assert all(t.state is TrialState.COMPLETE for t in study.trials)
    assert study.trials[0].params["weight_decay"] == pytest.approx(0.1)
    assert study.best_value < study.trials[0].value
    assert len({tuple(sorted(t.params.items())) for t in study.trials}) == 8


def test_pending_trials_push_the_next_proposal_elsewhere():
    study = optuna.create_study(sampler=factorised())
    asked = [study.ask(SPACE).params for _ in range(4)]
    points = [(math.log2(p["learning_rate"]), math.log2(p["batch_tokens"])) for p in asked]
    gaps = [math.dist(a, b) for i, a in enumerate(points) for b in points[:i]]
    assert min(gaps) > 0.3


def test_a_shorter_horizon_shifts_with_the_law_and_keeps_its_own_level():
    """Cheap runs at a tenth of the tokens, optimum one doubling under their law: seen at the long horizon too."""
    study = optuna.create_study(sampler=factorised())
    short = HORIZON / 10
    for shift in (-2.5, -1.5, -0.5, 0.5):
        for batch in (2**14, 2**16):
            rate = LAW.learning_rate(short) * 2**shift
            loss = 4.0 + 0.01 * (shift + 1) ** 2 + 0.008 * math.log2(batch / LAW.batch_tokens(short)) ** 2
            study.add_trial(
                optuna.trial.create_trial(
                    params={"learning_rate": rate, "batch_tokens": batch},
                    distributions=SPACE,
                    value=1.0,
                    user_attrs={"final_loss": loss, "tokens": short, "diverged": False},
                )
            )
    rate = study.ask(SPACE).params["learning_rate"]
    assert abs(math.log2(rate / LAW.learning_rate(HORIZON)) + 1) < 0.7


def test_the_belief_moves_to_the_optimum_and_tightens():
    prior = Prior(centre_spread=np.array([0.7]), curvature=np.array([0.01]), rate=0)

    def points(values):
        z = np.array(values, dtype=float).reshape(-1, 1)
        return Points(z=z, codes=np.zeros((len(z), 0), dtype=np.int64), horizon=np.zeros(len(z), dtype=np.int64))

    rng = np.random.default_rng(0)
    none = points([])
    before = believe(prior, none, np.array([]), np.array([]), none, rng).particles[:, 0]
    z = np.array([0.0, -1.0, -2.0, -3.0])
    losses = 0.01 * (z + 2) ** 2
    after = believe(prior, points(z), losses, np.full(4, 0.0015), none, rng).particles[:, 0]
    assert abs(np.median(before)) < 0.2
    assert abs(np.median(after) + 2) < 0.25
    assert np.percentile(after, 90) - np.percentile(after, 10) < 0.5 * np.ptp(np.percentile(before, [10, 90]))
    edge = believe(prior, none, np.array([]), np.array([]), points([0.0]), rng).particles[:, 0]
    assert np.median(edge) < -1.5


def test_senseless_arguments_are_refused():
    with pytest.raises(ValueError, match="horizon_tokens"):
        FactorisedSampler(law=LAW, horizon_tokens=0)
    with pytest.raises(ValueError, match="seconds per token"):
        factorised(prices={1024: 0.0})
    with pytest.raises(ValueError, match="non-embedding"):
        Law(num_parameters=0)
