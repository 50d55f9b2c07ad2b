"""Time to the target from a validation curve: interpolated, or extrapolated with an interval and a lower bound."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import pytest

from tuner.records import CurvePoint
from tuner.search.objective import NotReached, Reached, choose_target, time_to_loss


def curve(*losses: float, tokens: int = 1000, seconds: float = 2.0) -> tuple[CurvePoint, ...]:
    return tuple(
        CurvePoint(step=10 * i, tokens=tokens * i, train_s=seconds * i, loss=loss)
        for i, loss in enumerate(losses, start=1)
    )


class _Tail:
    def __init__(self, answer: tuple[float, float, float]) -> None:
        self._answer = answer

    def tokens_to(self, target: float) -> tuple[float, float, float]:
        return self._answer


@pytest.fixture
def tail(monkeypatch):
    """Puts a fit of known outcome in the place of cost_models.convergence's."""

    def place(answer):
        def fit(tokens, losses):
            if isinstance(answer, Exception):
                raise answer
            return _Tail(answer)

        module = ModuleType("cost_models.convergence")
        module.fit_power_tail = fit  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "cost_models.convergence", module)

    return place


def test_between_validations_the_logarithm_of_the_loss_is_linear():
    middle = math.sqrt(4.0 * 3.0)
    found = time_to_loss(curve(5.0, 4.0, 3.0), middle, seconds_per_token=0.01)
    assert isinstance(found, Reached)
    assert found.tokens == pytest.approx(2500)
    assert found.time_s == pytest.approx(25.0)


def test_without_a_price_the_measured_seconds_count():
    found = time_to_loss(curve(5.0, 4.0, 3.0), math.sqrt(12.0))
    assert isinstance(found, Reached)
    assert found.time_s == pytest.approx(5.0)
    assert found.log_time_s == pytest.approx(math.log(5.0))


def test_the_first_crossing_counts_and_a_first_point_below_is_reached_at_its_own_tokens():
    found = time_to_loss(curve(5.0, 2.9, 3.4, 2.5), 3.0, seconds_per_token=1.0)
    assert isinstance(found, Reached)
    assert 1000 < found.tokens < 2000
    assert time_to_loss(curve(2.0, 1.9), 3.0, seconds_per_token=1.0) == Reached(tokens=1000.0, time_s=1000.0)


def test_not_reached_gives_an_interval_and_at_least_the_time_spent(tail):
    tail((5000.0, 4000.0, 9000.0))
    found = time_to_loss(curve(5.0, 4.0, 3.5), 3.0, seconds_per_token=0.01)
    assert isinstance(found, NotReached)
    assert found.lower_bound_s == pytest.approx(30.0)
    assert found.best_loss == 3.5
    assert found.extrapolation is not None
    assert (found.extrapolation.value_s, found.extrapolation.low_s, found.extrapolation.high_s) == (50.0, 40.0, 90.0)
    assert found.log_time_s == pytest.approx(math.log(50.0))


def test_an_extrapolation_is_never_below_what_was_already_spent(tail):
    tail((2000.0, 1000.0, math.inf))
    found = time_to_loss(curve(5.0, 4.0, 3.5), 3.0)
    assert isinstance(found, NotReached)
    assert found.extrapolation is not None
    assert found.extrapolation.value_s == found.extrapolation.low_s == found.lower_bound_s == pytest.approx(6.0)
    assert found.extrapolation.high_s is None


@pytest.mark.parametrize(
    "answer, words",
    [((math.inf, 9000.0, math.inf), "levels out above"), (ValueError("3 points are too few"), "3 points are too few")],
)
def test_where_no_time_can_be_given_the_reason_is(tail, answer, words):
    tail(answer)
    found = time_to_loss(curve(5.0, 4.0, 3.5), 3.0, seconds_per_token=0.01)
    assert isinstance(found, NotReached)
    assert found.extrapolation is None
    assert found.log_time_s is None
    assert words in found.reason
    assert found.lower_bound_s == pytest.approx(30.0)


def test_a_loss_that_breaks_is_never_extrapolated():
    found = time_to_loss(curve(5.0, 4.0, math.nan, 2.0), 3.0, seconds_per_token=0.01)
    assert isinstance(found, NotReached)
    assert found.extrapolation is None
    assert "stopped being finite after step 20" in found.reason
    assert found.lower_bound_s == pytest.approx(20.0)
    empty = time_to_loss((), 3.0)
    assert isinstance(empty, NotReached)
    assert empty.lower_bound_s == 0.0


def test_the_real_power_tail_recovers_a_power_law():
    tokens = [1000 * i for i in range(1, 31)]
    points = tuple(
        CurvePoint(step=i, tokens=t, train_s=t / 500, loss=2.0 + 40.0 * t**-0.4) for i, t in enumerate(tokens)
    )
    target = 2.0 + 40.0 * 60_000**-0.4
    found = time_to_loss(points, target, seconds_per_token=0.001)
    assert isinstance(found, NotReached)
    assert found.extrapolation is not None
    assert found.extrapolation.value_s == pytest.approx(60.0, rel=0.25)
    assert found.extrapolation.low_s <= 60.0 <= (found.extrapolation.high_s or math.inf)


@pytest.mark.parametrize("target, price", [(0.0, None), (math.nan, None), (3.0, 0.0), (3.0, math.inf)])
def test_senseless_targets_and_prices_are_refused(target, price):
    with pytest.raises(ValueError, match="must be"):
        time_to_loss(curve(5.0), target, seconds_per_token=price)


def test_the_target_is_what_the_laws_recipe_reaches_and_a_little():
    target, sentence = choose_target([curve(5.0, 3.0), curve(5.0, 2.0)])
    assert target == pytest.approx(3.009)
    assert "scaling law" in sentence
    assert "3.0090" in sentence
    assert "0.3%" in sentence


def test_a_law_that_diverged_hands_over_to_the_next_trial_and_a_given_target_stands():
    target, sentence = choose_target([curve(5.0, math.nan), (), curve(4.0, 2.0)])
    assert target == pytest.approx(2.006)
    assert "trial 3" in sentence
    assert choose_target([], given=3.2) == (3.2, "target loss 3.2, as given in objective.target_loss")
    with pytest.raises(ValueError, match="none of 1 converge trials"):
        choose_target([curve(math.inf)])
