"""What is written about a trial: frozen values that go to JSON and come back equal."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from cost_models.layout import Layout

SCHEMA_VERSION = 1

T = TypeVar("T")


class Purpose(StrEnum):
    """The round a trial belongs to."""

    PROBE = "probe"
    CONVERGE = "converge"
    CONFIRM = "confirm"


class Status(StrEnum):
    """How a trial ended. ``stopped`` is an early stop by the driver, ``interrupted`` an outside end."""

    OK = "ok"
    FAILED = "failed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


class FailureKind(StrEnum):
    OOM = "oom"
    NAN = "nan"
    DIVERGED = "diverged"
    HANG = "hang"
    TIMEOUT = "timeout"
    CRASH = "crash"
    LOST_RANK = "lost_rank"
    LAUNCH = "launch"
    NO_METRICS = "no_metrics"


class _Record:
    """JSON both ways for frozen dataclasses; unknown keys are an error, so that files never drift silently."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        return {f.name: _plain(getattr(self, f.name)) for f in fields(cast(Any, self))}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        return cast(Self, _typed(values, cls))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(_Record):
    """The dimensions that change how a model learns. ``warmup`` is in optimizer steps."""

    batch_tokens: int
    learning_rate: float
    warmup: int
    weight_decay: float = 0.1
    schedule: str = "cosine"
    clip_norm: float = 1.0
    precision: str = "fp32"
    optimizer: str = "adamw"


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted(_Record):
    """What the cost model said before the trial ran, with its 90 % intervals."""

    step_time_s: float
    memory_bytes: float
    step_time_interval_s: tuple[float, float] | None = None
    memory_interval_bytes: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec(_Record):
    """Everything one trial needs; written to ``trials/NNNN/spec.json`` before anything starts.

    ``num_steps`` is the optimizer steps to run; ``horizon_steps`` the length that the schedule anneals over
    (equal but for probes, whose few steps stand at a schedule's start). ``target_loss`` stops a confirm trial
    once the validation loss is at or under it.
    """

    id: int
    purpose: Purpose
    layout: Layout
    recipe: Recipe
    seed: int
    num_steps: int
    horizon_steps: int
    eval_every: int
    """Steps between validation losses; 0: never."""
    sequence_length: int
    wall_clock_s: float
    predicted: Predicted
    target_loss: float | None = None
    label: str = ""
    """What it is for, in words: ``law``, ``default``, ``finalist 1``, ..."""
    proposal: int | None = None
    """The sampler's own number for this recipe."""
    exclusive: bool = True
    """Whether its timings count, so that nothing may run beside it."""

    @property
    def num_devices(self) -> int:
        return self.layout.num_devices

    @property
    def batch_sequences(self) -> int:
        return self.recipe.batch_tokens // self.sequence_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(_Record):
    """Medians over the steps after warm-up; the slowest rank's step, the largest rank's memory."""

    step_time_s: float
    memory_bytes: float | None
    """None where no rank could tell."""
    num_steps: int
    tokens_per_s: float
    step_time_interval_s: tuple[float, float] | None = None
    breakdown_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds per step by part: data, forward_backward, sync, optimizer."""
    start_s: float | None = None
    """From the launch call to the first forward begun on all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(_Record):
    kind: FailureKind
    evidence: str
    """The line that shows it."""
    rank: int | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint(_Record):
    """One validation: training tokens and training seconds (evaluations excluded) before it."""

    step: int
    tokens: int
    train_s: float
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult(_Record):
    """One line of ``trials.jsonl``."""

    spec: TrialSpec
    status: Status
    measured: Measurement | None = None
    failure: Failure | None = None
    curve: tuple[CurvePoint, ...] = ()
    time_to_loss_s: float | None = None
    """Measured training seconds to ``spec.target_loss``; None where it was not reached."""
    final_train_loss: float | None = None
    started_s: float = 0.0
    """On the study's clock, which resumes where it stopped."""
    ended_s: float = 0.0
    schema_version: int = SCHEMA_VERSION

    @property
    def final_loss(self) -> float | None:
        return self.curve[-1].loss if self.curve else None


def _plain(value: Any) -> Any:
    if isinstance(value, _Record):
        return value.to_dict()
    if isinstance(value, Layout):
        return value.to_dict()
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def _typed(value: Any, hint: Any) -> Any:
    """``value`` (from JSON) as ``hint`` says: dataclasses, enums, tuples, optionals; scalars pass through."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (inner,) = [a for a in typing.get_args(hint) if a is not type(None)]
        return _typed(value, inner)
    if origin is tuple:
        args = typing.get_args(hint)
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        return tuple(_typed(v, k) for v, k in zip(value, kinds, strict=True))
    if hint is Layout:
        return Layout.from_dict(value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint(value)
    if isinstance(hint, type) and is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        unknown = set(value) - set(hints)
        if unknown:
            raise ValueError(f"{hint.__name__}: unknown keys {sorted(unknown)}; known: {sorted(hints)}")
        return hint(**{k: _typed(v, hints[k]) for k, v in value.items()})
    return value
