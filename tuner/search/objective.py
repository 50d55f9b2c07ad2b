"""From a validation curve to a time to the target loss: reached, or not reached with an interval and a lower bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.records import CurvePoint

AUTO_TARGET_TOLERANCE = 0.003
"""Slack on an automatic target: about the loss noise between seeds, so that a repeat of the law's run reaches it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolation:
    """A time beyond the measured curve, with its interval. ``high_s`` None: nothing bounds it from above."""

    value_s: float
    low_s: float
    high_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The target was reached: after ``tokens``, that is after ``time_s`` seconds of training."""

    tokens: float
    time_s: float

    @property
    def log_time_s(self) -> float:
        return math.log(self.time_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReached:
    """The curve ended above the target. It takes at least ``lower_bound_s``; more only with an interval."""

    lower_bound_s: float
    best_loss: float
    extrapolation: Extrapolation | None
    reason: str
    """Why there is no figure, or what the extrapolation rests on."""

    @property
    def log_time_s(self) -> float | None:
        """For ranking only: the extrapolated time, never below the lower bound; None where there is none."""
        if self.extrapolation is None:
            return None
        return math.log(max(self.extrapolation.value_s, self.lower_bound_s, 1e-9))


def time_to_loss(
    curve: Sequence[CurvePoint], target: float, seconds_per_token: float | None = None
) -> Reached | NotReached:
    """When ``curve`` first came down to ``target``.

    Between two validations ``ln(loss)`` is taken as linear in the tokens (and in the seconds). Loss curves are convex
    there, so the chord errs late, by less than one validation interval. A first validation already at the target
    counts as reached at its own tokens. The time is the tokens times ``seconds_per_token`` (a converge trial, priced
    with the fastest measured layout of its batch), or without it the run's own ``train_s`` (a confirm trial).

    Leaves out: noise of single validations (the first crossing counts).
    """
    if not (math.isfinite(target) and target > 0):
        raise ValueError(f"target loss {target} must be a positive number")
    if seconds_per_token is not None and not (math.isfinite(seconds_per_token) and seconds_per_token > 0):
        raise ValueError(f"seconds_per_token={seconds_per_token} must be above 0: price the batch by a probe first")
    seen = _finite_head(curve)
    for index, point in enumerate(seen):
        if point.loss <= target:
            tokens, train_s = _crossing(seen[index - 1] if index else None, point, target)
            time_s = train_s if seconds_per_token is None else tokens * seconds_per_token
            return Reached(tokens=tokens, time_s=max(time_s, 1e-9))
    return _not_reached(seen, target, seconds_per_token, broke=len(seen) < len(curve))


def choose_target(
    curves: Sequence[Sequence[CurvePoint]], *, given: float | None = None, tolerance: float = AUTO_TARGET_TOLERANCE
) -> tuple[float, str]:
    """The target loss, and a sentence that says how it was chosen.

    ``given`` is the user's. Otherwise what the law's recipe (the first of ``curves``, in trial order) reaches at the
    end of the horizon, plus ``tolerance``; where that run ended without a finite loss, the next trial that has one.
    """
    if given is not None:
        return given, f"target loss {given:g}, as given in objective.target_loss"
    for index, curve in enumerate(curves):
        if curve and math.isfinite(curve[-1].loss):
            final = curve[-1].loss
            whose = "the scaling law's recipe" if index == 0 else f"converge trial {index + 1}, the first to finish,"
            target = final * (1 + tolerance)
            return target, (
                f"target loss {target:.4f}: {whose} reached {final:.4f} after {curve[-1].tokens:,} tokens, "
                f"plus {tolerance:.1%} for the noise between seeds"
            )
    raise ValueError(
        f"no target loss can be chosen: none of {len(curves)} converge trials ended with a finite loss. "
        f"Lower the learning rates, or give objective.target_loss"
    )


def _finite_head(curve: Sequence[CurvePoint]) -> list[CurvePoint]:
    head = []
    for point in curve:
        if not (math.isfinite(point.loss) and point.loss > 0):
            break
        head.append(point)
    return head


def _crossing(before: CurvePoint | None, after: CurvePoint, target: float) -> tuple[float, float]:
    """Tokens and training seconds at which ``target`` was passed between two validations."""
    if before is None or before.loss <= after.loss:
        return float(after.tokens), after.train_s
    share = math.log(before.loss / target) / math.log(before.loss / after.loss)
    tokens = before.tokens + share * (after.tokens - before.tokens)
    return tokens, before.train_s + share * (after.train_s - before.train_s)


def _not_reached(seen: list[CurvePoint], target: float, seconds_per_token: float | None, *, broke: bool) -> NotReached:
    if not seen:
        return NotReached(
            lower_bound_s=0.0, best_loss=math.inf, extrapolation=None, reason="no finite validation loss was seen"
        )
    last = seen[-1]
    spent_s = last.train_s if seconds_per_token is None else last.tokens * seconds_per_token
    best = min(p.loss for p in seen)
    if broke:
        reason = f"the loss stopped being finite after step {last.step}"
        return NotReached(lower_bound_s=spent_s, best_loss=best, extrapolation=None, reason=reason)
    rate = seconds_per_token if seconds_per_token is not None else last.train_s / max(last.tokens, 1)
    extrapolation, reason = _extrapolate(seen, target, rate, spent_s)
    return NotReached(lower_bound_s=spent_s, best_loss=best, extrapolation=extrapolation, reason=reason)


def _extrapolate(
    seen: list[CurvePoint], target: float, seconds_per_token: float, spent_s: float
) -> tuple[Extrapolation | None, str]:
    """By the power tail ``E + A t^-alpha`` of the curve. An annealed run's tail is steeper than a longer one's."""
    from cost_models.convergence import fit_power_tail

    points = [p for p in seen if p.tokens > 0]
    try:
        tail = fit_power_tail([float(p.tokens) for p in points], [p.loss for p in points])
        value, low, high = tail.tokens_to(target)
    except ValueError as error:
        return None, f"not extrapolated from {len(points)} validations: {error}"
    if not math.isfinite(value):
        return None, f"the curve levels out above the target {target:g}: no time can be given"
    extrapolation = Extrapolation(
        value_s=max(value * seconds_per_token, spent_s),
        low_s=max(low * seconds_per_token, spent_s),
        high_s=max(high * seconds_per_token, spent_s) if math.isfinite(high) else None,
    )
    return extrapolation, f"extrapolated by a power tail over {len(points)} validations"
