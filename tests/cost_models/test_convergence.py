"""The Step Law, and fits of loss-curve tails."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.convergence import Law, fit_power_tail


def test_step_law_at_one_billion() -> None:
    """arXiv:2503.04715 eq. 1: N = 1e9, D = 1e11: lr 1.79e-... and batch by hand."""
    law = Law(num_parameters=1e9)
    assert law.learning_rate(1e11) == pytest.approx(1.79 * 10 ** (-0.713 * 9 + 0.307 * 11), rel=1e-9)
    assert law.batch_tokens(1e11) == pytest.approx(0.58 * 10 ** (0.571 * 11), rel=1e-9)
    assert 1e-3 < law.learning_rate(1e11) < 2e-3
    assert 1.0e6 < law.batch_tokens(1e11) < 1.2e6


def test_step_law_directions() -> None:
    assert Law(num_parameters=1e8).learning_rate(1e10) > Law(num_parameters=1e9).learning_rate(1e10)
    assert Law(num_parameters=1e8).learning_rate(1e11) > Law(num_parameters=1e8).learning_rate(1e10)
    with pytest.raises(ValueError, match="must be above 0"):
        Law(num_parameters=0)


def test_tail_is_recovered_without_noise() -> None:
    t = np.linspace(1e5, 2e6, 20)
    tail = fit_power_tail(t.tolist(), (1.5 + 30 * t**-0.3).tolist())
    assert tail.loss_at(1e6) == pytest.approx(1.5 + 30 * 1e6**-0.3, rel=1e-3)
    value, low, high = tail.tokens_to(1.5 + 30 * 4e6**-0.3)
    assert value == pytest.approx(4e6, rel=0.05)
    assert low <= value <= high


def test_interval_covers_the_truth_under_noise() -> None:
    t = np.linspace(1e5, 2e6, 15)
    covered = 0
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(0, 0.01, len(t))
        _, low, high = fit_power_tail(t.tolist(), (1.5 + 30 * t**-0.3 + noise).tolist()).tokens_to(1.5 + 30 * 4e6**-0.3)
        covered += low <= 4e6 <= high
    assert covered >= 15


def test_unreachable_target_is_infinite() -> None:
    t = np.linspace(1e5, 2e6, 30)
    value, _, high = fit_power_tail(t.tolist(), (3.0 + 1e6 * t**-1.5).tolist()).tokens_to(2.0)
    assert value == np.inf
    assert high == np.inf


@pytest.mark.parametrize(
    "tokens,losses,why",
    [
        ([1, 2, 3], [3, 2, 1], "needs 4 finite points, got 3"),
        ([1, 2, 3, 4, 5], [1.0, 1.1, 1.2, 1.3, 1.4], "does not fall"),
        ([1, 2, 3, 4], [3.0, float("nan"), 2.0, 1.0], "got 3"),
        ([1, 2, 3], [1.0, 2.0], "one length"),
        ([5, 5, 5, 5], [4.0, 3.0, 2.0, 1.0], "needs a span"),
    ],
)
def test_what_cannot_be_fitted_says_why(tokens: list[float], losses: list[float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        fit_power_tail(tokens, losses)
