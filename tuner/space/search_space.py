"""SearchSpace: a space.yaml after validation, as frozen values. Nothing below the YAML edge sees text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from cost_models.cluster import Cluster
from cost_models.shape import ModelShape
from tuner.space.dimensions import Dimension


class Minimize(StrEnum):
    TIME_TO_LOSS = "time_to_loss"
    STEP_TIME = "step_time"
    TOKENS_PER_S = "tokens_per_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """``source`` None is the bundled offline corpus; ``tokens`` is the full run that is tuned for."""

    sequence_length: int
    tokens: float
    source: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """``target_loss`` None means auto: chosen from the first trials, and said."""

    minimize: Minimize = Minimize.TIME_TO_LOSS
    target_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLimits:
    """One converge trial: its horizon in tokens, and a wall-clock limit for any one trial."""

    tokens: int
    wall_clock_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmLimits:
    best: int = 2
    seeds: int = 2
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    wall_clock_s: float
    trials: int | None
    trial: TrialLimits
    confirm: ConfirmLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    sampler: str = "factorised"
    shortlist: int = 24
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    adapter: str = "native"
    launcher: str = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingOptions:
    mlflow: str
    experiment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What may be tried.

    ``layout`` holds the dimensions tp, pp, cp, dp, zero, micro_batch, recompute (all Fixed or Choice; dp is
    Fixed("rest") unless listed); ``hyperparameters`` holds batch_tokens, learning_rate, warmup, weight_decay,
    schedule, clip_norm, precision, optimizer. ``warmup`` below 1 is a fraction of the horizon, else steps.
    """

    name: str
    model: ModelShape
    cluster: Cluster
    data: DataSpec
    layout: Mapping[str, Dimension]
    require: tuple[str, ...]
    hyperparameters: Mapping[str, Dimension]
    objective: Objective
    budget: Budget
    search: SearchOptions
    trials: TrialOptions
    tracking: TrackingOptions
    text: str
    """The YAML as read, kept beside the study."""
    path: Path | None = None
    notices: tuple[str, ...] = field(default=())
    """What validation changed or wants said (a range's top moved by its step, ...)."""

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Batches to price and try, in sequences per optimizer step, ascending."""
        from tuner.space.batches import batch_sizes

        return batch_sizes(self)
