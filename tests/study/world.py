"""A world in which trials cost no time: true step times, true curves, true memory, and a clock of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from cost_models.layout import Layout
from tuner.outcome import StudyStatus
from tuner.records import (
    CurvePoint,
    Failure,
    FailureKind,
    Measurement,
    Purpose,
    Status,
    TrialResult,
    TrialSpec,
)
from tuner.study.actions import Finish, Launch, Stop
from tuner.study.study import Study
from tuner.trials.events import TrialFinished

START_S = 0.5


@dataclass(slots=True, kw_only=True)
class World:
    """``s_per_token`` by layout; a run of learning rate x loses ``curvature ln(x / best)^2`` nats at its end."""

    best_learning_rate: float = 6e-3
    best_batch_tokens: int = 2048
    curvature: float = 0.05
    out_of_memory: frozenset[Layout] = frozenset()
    crash: bool = False
    s_per_token: dict[Layout, float] = field(default_factory=dict)
    launched: list[TrialSpec] = field(default_factory=list)
    now: float = 0.0

    def step_time_s(self, spec: TrialSpec) -> float:
        rate = self.s_per_token.get(spec.layout, 5e-5)
        return rate * spec.recipe.batch_tokens + 2e-3 * spec.layout.num_micro_batches(spec.batch_sequences)

    def loss(self, spec: TrialSpec, step: int) -> float:
        share = step / spec.horizon_steps
        miss = math.log(spec.recipe.learning_rate / self.best_learning_rate) ** 2 * self.curvature
        miss += math.log(spec.recipe.batch_tokens / self.best_batch_tokens) ** 2 * 0.02
        return 2.0 + miss + 3.0 * math.exp(-4 * share) + 0.002 * math.sin(spec.seed)

    def result(self, spec: TrialSpec) -> TrialResult:
        step_s = self.step_time_s(spec)
        if self.crash:
            return self._failed(spec, FailureKind.LAUNCH, "unknown option --local-rank")
        if spec.layout in self.out_of_memory:
            return self._failed(spec, FailureKind.OOM, "can't allocate memory")
        steps = range(spec.eval_every, spec.num_steps + 1, spec.eval_every) if spec.eval_every else ()
        curve: list[CurvePoint] = []
        for step in steps:
            loss = self.loss(spec, step)
            tokens = step * spec.recipe.batch_tokens
            curve.append(CurvePoint(step=step, tokens=tokens, train_s=step * step_s, loss=loss))
            if spec.target_loss is not None and loss <= spec.target_loss:
                break
        num_steps = curve[-1].step if curve else spec.num_steps
        measured = Measurement(
            step_time_s=step_s,
            memory_bytes=spec.predicted.memory_bytes,
            num_steps=num_steps,
            tokens_per_s=spec.recipe.batch_tokens / step_s,
        )
        return TrialResult(
            spec=spec,
            status=Status.OK,
            measured=measured,
            curve=tuple(curve),
            started_s=self.now,
            ended_s=self.now + num_steps * step_s + START_S,
        )

    def _failed(self, spec: TrialSpec, kind: FailureKind, evidence: str) -> TrialResult:
        return TrialResult(
            spec=spec,
            status=Status.FAILED,
            failure=Failure(kind=kind, evidence=evidence, rank=0),
            started_s=self.now,
            ended_s=self.now + START_S,
        )


def play(study: Study, world: World, *, stop_after: int | None = None) -> StudyStatus | None:
    """Pump ``study`` through ``world``; None where it was cut off after ``stop_after`` finished trials."""
    ends: dict[int, TrialResult] = {}
    for finished in range(10_000):
        for action in study.next(world.now):
            match action:
                case Launch(spec=spec):
                    world.launched.append(spec)
                    ends[spec.id] = world.result(spec)
                case Stop(trial_id=trial_id, status=status):
                    ends[trial_id] = replace(ends[trial_id], status=status, ended_s=world.now)
                case Finish(status=status):
                    return status
        if stop_after is not None and finished >= stop_after:
            return None
        first = min(ends.values(), key=lambda r: r.ended_s)
        world.now = max(world.now, first.ended_s)
        del ends[first.spec.id]
        study.on(TrialFinished(result=first))
    raise AssertionError("the study does not end")


def of(world: World, purpose: Purpose) -> list[TrialSpec]:
    return [s for s in world.launched if s.purpose is purpose]
