"""How training converges: the law for learning rate and batch, and the tail of a loss curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.units import Column

CHI2_90 = 2.7055
"""90 % quantile of chi-squared with one degree of freedom: how much worse a plausible fit may be."""
LEAST_POINTS = 4
RELATIVE_NOISE = 1e-3
"""Least noise of a validation loss, relative: fits are not trusted beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """Power laws in non-embedding parameters ``N`` and training tokens ``D``.

    ``learning_rate = lr_scale N^lr_parameters D^lr_tokens`` and ``batch = batch_scale D^batch_tokens_exponent``.
    The defaults are the Step Law [arXiv:2503.04715]: ``1.79 N^-0.713 D^0.307`` and ``0.58 D^0.571`` tokens, fitted
    on AdamW pre-training under a cosine schedule, 60 M to 1 B parameters; for mixtures of experts ``N`` is the
    active parameters. A prior, not a truth: what is far from its fitting range is far from its evidence.
    Leaves out: weight decay, warmup, architecture, tokenizer, and any dependence of the batch on ``N``.
    """

    num_parameters: float
    lr_scale: float = 1.79
    lr_parameters: float = -0.713
    lr_tokens: float = 0.307
    batch_scale: float = 0.58
    batch_tokens_exponent: float = 0.571

    def __post_init__(self) -> None:
        if not (math.isfinite(self.num_parameters) and self.num_parameters > 0):
            raise ValueError(
                f"num_parameters={self.num_parameters} must be above 0: give the model's non-embedding parameters"
            )

    def learning_rate(self, horizon_tokens: float) -> float:
        """Peak learning rate for a run annealed over ``horizon_tokens``."""
        return (
            self.lr_scale * math.pow(self.num_parameters, self.lr_parameters) * math.pow(horizon_tokens, self.lr_tokens)
        )

    def batch_tokens(self, horizon_tokens: float) -> float:
        """Tokens per optimizer step for a run of ``horizon_tokens``."""
        return self.batch_scale * math.pow(horizon_tokens, self.batch_tokens_exponent)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerTail:
    """``loss = floor + scale t^-exponent`` with t in tokens, and the other fits that the points allow."""

    floor: float
    scale: float
    exponent: float
    residual_sd: float
    plausible: Column
    """(k, 3): floor, scale, exponent of every fit within the 90 % region."""

    def loss_at(self, tokens: float) -> float:
        return float(self.floor + self.scale * tokens**-self.exponent)

    def tokens_to(self, target: float) -> tuple[float, float, float]:
        """(value, low, high) tokens at which the curve meets ``target``; infinite where a fit levels out above it."""
        best = _crossing(np.array([[self.floor, self.scale, self.exponent]]), target)
        spread = _crossing(self.plausible, target)
        return float(best[0]), float(min(spread.min(), best[0])), float(max(spread.max(), best[0]))


def fit_power_tail(tokens: Sequence[float], losses: Sequence[float]) -> PowerTail:
    """Fit ``E + A t^-alpha`` to the last nine tenths (in tokens) of a curve.

    A grid over alpha and E with A by least squares, and for each alpha the best E too; plausible are the fits whose
    squared error is within ``CHI2_90`` noise variances of the best. ValueError with the reason where the points do
    not allow a fit. Leaves out: the decay of the learning rate, which bends a curve down near its end.
    """
    t, y = _tail(np.asarray(tokens, dtype=float), np.asarray(losses, dtype=float))
    unit = t / t[-1]
    fits, errors = _grid(unit, y)
    if not len(fits) or y[-1] >= y[0]:
        raise ValueError(f"the loss does not fall over its last {len(t)} points ({y[0]:.4g} to {y[-1]:.4g})")
    best = int(np.argmin(errors))
    noise = max(errors[best] / max(len(t) - 3, 1), (RELATIVE_NOISE * float(y.mean())) ** 2)
    near = fits[errors <= errors[best] + CHI2_90 * noise].copy()
    near[:, 1] *= t[-1] ** near[:, 2]
    floor, scale, exponent = fits[best]
    return PowerTail(
        floor=float(floor),
        scale=float(scale * t[-1] ** exponent),
        exponent=float(exponent),
        residual_sd=float(np.sqrt(errors[best] / len(t))),
        plausible=near,
    )


def _tail(t: Column, y: Column) -> tuple[Column, Column]:
    if t.shape != y.shape or t.ndim != 1:
        raise ValueError(f"tokens and losses must be two lists of one length, got {t.shape} and {y.shape}")
    good = np.isfinite(t) & np.isfinite(y) & (t > 0)
    t, y = t[good], y[good]
    order = np.argsort(t)
    t, y = t[order], y[order]
    if len(t) < LEAST_POINTS:
        raise ValueError(f"a power tail needs {LEAST_POINTS} finite points, got {len(t)}: evaluate more often")
    start = min(int(np.searchsorted(t, t[-1] / 10)), len(t) - LEAST_POINTS)
    t, y = t[start:], y[start:]
    if t[0] == t[-1]:
        raise ValueError(f"all {len(t)} points are at {t[0]:g} tokens: a tail needs a span")
    return t, y


def _grid(unit: Column, y: Column) -> tuple[Column, Column]:
    """Fits (k, 3) with a falling curve, and their squared errors (k,)."""
    alphas = np.geomspace(0.03, 3.0, 121)
    powers = unit[None, :] ** -alphas[:, None]
    floors = np.linspace(0.0, 1.0, 81)[:-1] * y.min()
    every = np.broadcast_to(floors, (len(alphas), len(floors)))
    centred = powers - powers.mean(axis=1, keepdims=True)
    slopes = centred @ (y - y.mean()) / np.square(centred).sum(axis=1)
    free = np.clip(y.mean() - slopes * powers.mean(axis=1), 0.0, None)
    floor = np.concatenate([every, free[:, None]], axis=1)
    above = y[None, None, :] - floor[:, :, None]
    scale = (above * powers[:, None, :]).sum(axis=2) / np.square(powers).sum(axis=1)[:, None]
    error = np.square(above - scale[:, :, None] * powers[:, None, :]).sum(axis=2)
    exponent = np.broadcast_to(alphas[:, None], floor.shape)
    falls = scale > 0
    return np.stack([floor[falls], scale[falls], exponent[falls]], axis=1), error[falls]


def _crossing(fits: Column, target: float) -> Column:
    """Tokens at which each fit (k, 3) meets ``target``."""
    gap = target - fits[:, 0]
    reached = gap > 0
    with np.errstate(over="ignore"):
        tokens = (fits[:, 1] / np.where(reached, gap, 1.0)) ** (1.0 / fits[:, 2])
    return np.where(reached, tokens, np.inf)
