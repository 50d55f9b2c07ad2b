"""Plan: what came of pruning and ranking, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.layout import Layout
from tuner.records import Predicted
from tuner.space.search_space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Funnel:
    """Counts of layouts; ``invalid + does_not_fit + feasible == enumerated``. ``reasons`` counts per rule."""

    enumerated: int
    invalid: int
    does_not_fit: int
    feasible: int
    shortlisted: int
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayout:
    """One feasible layout with its price at each batch (in sequences) at which it is legal."""

    layout: Layout
    predictions: Mapping[int, Predicted]
    fit_probability: float
    limited_by: str
    """The largest term of its step time: compute, tensor_parallel, pipeline_bubble, data_parallel, ..."""
    mfu: float
    memory_parts_bytes: Mapping[str, float]
    time_parts_s: Mapping[str, float]
    best_batch: int
    """Batch (in sequences) at which it does most tokens per second."""

    def tokens_per_s(self, batch_sequences: int, sequence_length: int) -> float:
        return batch_sequences * sequence_length / self.predictions[batch_sequences].step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """One layout that was dropped: by a rule of legality, or by memory."""

    layout: Layout
    rule: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    space: SearchSpace
    funnel: Funnel
    feasible: tuple[PlannedLayout, ...]
    """Fastest first."""
    shortlist: tuple[PlannedLayout, ...]
    """In the order to probe."""
    rejected: tuple[Rejected, ...]
    assumptions: tuple[str, ...] = ()
