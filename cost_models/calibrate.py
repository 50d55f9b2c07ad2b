"""Calibration: a few measured runs correct the predictions, held back by priors so that few runs cannot drive nonsense.

Log of measured over predicted is a linear function of a layout's features with a Gaussian prior on every weight
(Bayesian ridge). Far from what was measured the prior's width comes back into the interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cost_models.layout import Layout, Layouts
from cost_models.units import Column, Number

FEATURES = ("bias", "tp>1", "pp>1", "dp>1", "zero>=2", "recompute=full", "log2(micro_batch)")
Z_90 = 1.6448536269514722
"""Half-width of a 90 % interval in standard deviations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Standard deviations of the weights before any run, and of a run around its prediction, in log units."""

    weight_sd: tuple[float, ...]
    noise_sd: float


STEP_TIME_PRIOR = Prior(weight_sd=(0.20, 0.15, 0.10, 0.10, 0.10, 0.05, 0.05), noise_sd=0.05)
"""About +-40 % on one device cold, wider where more kinds of parallelism meet."""
MEMORY_PRIOR = Prior(weight_sd=(0.06, 0.03, 0.03, 0.02, 0.03, 0.03, 0.01), noise_sd=0.02)
"""About +-12 % of what grows over the framework's base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One measured run beside its uncalibrated prediction. None where a quantity was not measured."""

    layout: Layout
    predicted_step_time_s: float
    measured_step_time_s: float | None
    predicted_memory_bytes: float
    measured_memory_bytes: float | None
    framework_base_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A posterior: mean (f,) and covariance (f, f) of the weights, and the noise, in log units."""

    mean: Column
    covariance: Column
    noise_sd: float

    @classmethod
    def prior(cls, prior: Prior) -> Weights:
        sd = np.array(prior.weight_sd)
        return cls(mean=np.zeros(len(sd)), covariance=np.diag(sd**2), noise_sd=prior.noise_sd)

    @classmethod
    def posterior(cls, prior: Prior, features: Column, log_ratios: Column) -> Weights:
        """Bayesian linear regression: ``S = (X'X/n^2 + P)^-1``, ``mean = S X'y/n^2`` [Bishop 2006 eq. 3.53]."""
        precision = np.diag(1.0 / np.array(prior.weight_sd) ** 2) + features.T @ features / prior.noise_sd**2
        covariance = np.linalg.inv(precision)
        mean = covariance @ features.T @ log_ratios / prior.noise_sd**2
        return cls(mean=mean, covariance=covariance, noise_sd=prior.noise_sd)

    def log_factor(self, features: Column) -> tuple[Number, Number]:
        """(mean, standard deviation of a new run) of the log ratio, per row of features."""
        spread = np.einsum("...i,ij,...j->...", features, self.covariance, features)
        return features @ self.mean, np.sqrt(spread + self.noise_sd**2)

    def to_dict(self) -> dict[str, Any]:
        return {"mean": self.mean.tolist(), "covariance": self.covariance.tolist(), "noise_sd": self.noise_sd}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Weights:
        mean, covariance = np.array(values["mean"]), np.array(values["covariance"])
        count = len(FEATURES)
        if mean.shape != (count,) or covariance.shape != (count, count):
            raise ValueError(
                f"calibration weights have shapes {mean.shape} and {covariance.shape}, expected ({count},) and "
                f"({count}, {count}) for {FEATURES}: calibrate again"
            )
        return cls(mean=mean, covariance=covariance, noise_sd=float(values["noise_sd"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Corrections of step time and of memory growth, with what they are still unsure of."""

    step_time: Weights
    memory: Weights
    num_step_times: int = 0
    num_memories: int = 0

    @classmethod
    def cold(cls) -> Calibration:
        """Nothing measured: factors of one and the priors' intervals."""
        return cls(step_time=Weights.prior(STEP_TIME_PRIOR), memory=Weights.prior(MEMORY_PRIOR))

    @classmethod
    def fit(cls, observations: Iterable[Observation]) -> Calibration:
        """The posterior given runs. Unmeasured quantities are skipped; measured ones must be positive and finite."""
        rows = list(observations)
        timed = [
            (o.layout, _log_ratio(o.measured_step_time_s, o.predicted_step_time_s, "step time"))
            for o in rows
            if o.measured_step_time_s is not None
        ]
        grown = [(o.layout, _growth_log_ratio(o)) for o in rows if o.measured_memory_bytes is not None]
        return cls(
            step_time=_fitted(STEP_TIME_PRIOR, timed),
            memory=_fitted(MEMORY_PRIOR, grown),
            num_step_times=len(timed),
            num_memories=len(grown),
        )

    def step_time_factor(self, layout: Layout | Layouts) -> tuple[Number, Number, Number]:
        """(factor, low, high): multiply an uncalibrated step time; low and high are the 90 % interval."""
        return _factors(self.step_time, layout)

    def memory_factor(self, layout: Layout | Layouts) -> tuple[Number, Number, Number]:
        """(factor, low, high) of the growth over ``framework_base_bytes``."""
        return _factors(self.memory, layout)

    def to_dict(self) -> dict[str, Any]:
        return {
            "features": list(FEATURES),
            "step_time": self.step_time.to_dict(),
            "memory": self.memory.to_dict(),
            "num_step_times": self.num_step_times,
            "num_memories": self.num_memories,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        if tuple(values["features"]) != FEATURES:
            raise ValueError(
                f"calibration was made with features {values['features']}, these are {list(FEATURES)}: calibrate again"
            )
        return cls(
            step_time=Weights.from_dict(values["step_time"]),
            memory=Weights.from_dict(values["memory"]),
            num_step_times=int(values["num_step_times"]),
            num_memories=int(values["num_memories"]),
        )


def layout_features(layout: Layout | Layouts) -> Column:
    """``FEATURES`` of one layout (f,) or of columns (n, f)."""
    columns = (
        np.ones_like(layout.tp),
        np.greater(layout.tp, 1),
        np.greater(layout.pp, 1),
        np.greater(layout.dp, 1),
        np.greater_equal(layout.zero, 2),
        np.equal(layout.recompute_level, 2),
        np.log2(layout.micro_batch),
    )
    return np.stack([np.asarray(c, dtype=float) for c in columns], axis=-1)


def _factors(weights: Weights, layout: Layout | Layouts) -> tuple[Number, Number, Number]:
    mean, sd = weights.log_factor(layout_features(layout))
    return np.exp(mean), np.exp(mean - Z_90 * sd), np.exp(mean + Z_90 * sd)


def _fitted(prior: Prior, rows: list[tuple[Layout, float]]) -> Weights:
    if not rows:
        return Weights.prior(prior)
    features = np.stack([layout_features(layout) for layout, _ in rows])
    return Weights.posterior(prior, features, np.array([ratio for _, ratio in rows]))


def _log_ratio(measured: float, predicted: float, what: str) -> float:
    if not (np.isfinite(measured) and np.isfinite(predicted) and measured > 0 and predicted > 0):
        raise ValueError(f"calibration needs a positive, finite {what}: measured {measured}, predicted {predicted}")
    return float(np.log(measured / predicted))


def _growth_log_ratio(run: Observation) -> float:
    assert run.measured_memory_bytes is not None
    measured = run.measured_memory_bytes - run.framework_base_bytes
    predicted = run.predicted_memory_bytes - run.framework_base_bytes
    return _log_ratio(measured, predicted, "memory growth over the framework's base")
