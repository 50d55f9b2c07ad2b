"""SpecMaker: from a decision to the TrialSpec that a runner can start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tuner.records import Predicted, Purpose, Recipe, TrialSpec
from tuner.search.recipe_space import horizon_steps
from tuner.space.search_space import SearchSpace
from tuner.study.confirming import Heat
from tuner.study.converging import NUM_EVALUATIONS, Converging, Seat
from tuner.study.ledger import Ledger
from tuner.study.probing import ProbeWish
from tuner.study.recipes import Wanted


@dataclass(slots=True, kw_only=True)
class SpecMaker:
    """Numbers the trials, and lets none outlast ``hard_end_s`` on the study's clock."""

    space: SearchSpace
    converging: Converging
    hard_end_s: float
    next_id: int = 1

    def probe(self, now: float, wish: ProbeWish, law: Recipe) -> TrialSpec:
        """A few steps at the start of the law's schedule: what is learned does not matter, what it costs does."""
        tokens = wish.batch * self.space.data.sequence_length
        return self._spec(
            now,
            purpose=Purpose.PROBE,
            layout=wish.planned.layout,
            recipe=replace(law, batch_tokens=tokens),
            seed=self.space.search.seed,
            num_steps=wish.num_steps,
            horizon_steps=max(wish.num_steps, self.converging.num_steps(tokens)),
            eval_every=0,
            predicted=wish.planned.predictions[wish.batch],
            label=wish.label,
        )

    def converge(self, now: float, wanted: Wanted, seat: Seat) -> TrialSpec:
        tokens = wanted.recipe.batch_tokens
        return self._spec(
            now,
            purpose=Purpose.CONVERGE,
            layout=seat.layout,
            recipe=wanted.recipe,
            seed=self.space.search.seed,
            num_steps=self.converging.num_steps(tokens),
            horizon_steps=self.converging.num_steps(tokens),
            eval_every=self.converging.eval_every(tokens),
            predicted=seat.predicted,
            proposal=wanted.proposal,
            label=wanted.label,
            exclusive=False,
        )

    def confirm(self, now: float, heat: Heat, ledger: Ledger, target_loss: float | None) -> TrialSpec:
        tokens = heat.entry.recipe.batch_tokens
        batch = tokens // self.space.data.sequence_length
        planned = ledger.planned.get(heat.entry.layout)
        predicted = planned.predictions[batch] if planned else Predicted(step_time_s=0.0, memory_bytes=0.0)
        steps = horizon_steps(self.space.budget.confirm.tokens or self.converging.horizon_tokens, tokens)
        return self._spec(
            now,
            purpose=Purpose.CONFIRM,
            layout=heat.entry.layout,
            recipe=heat.entry.recipe,
            seed=heat.seed,
            num_steps=steps,
            horizon_steps=steps,
            eval_every=max(1, steps // NUM_EVALUATIONS),
            predicted=predicted,
            target_loss=target_loss,
            label=heat.entry.label,
        )

    def limited(self, spec: TrialSpec, now: float) -> TrialSpec:
        """``spec`` with the time that is left."""
        left_s = max(1.0, self.hard_end_s - now)
        return replace(spec, wall_clock_s=min(self.space.budget.trial.wall_clock_s, left_s))

    def _spec(self, now: float, **fields: Any) -> TrialSpec:
        spec = TrialSpec(
            id=self.next_id,
            sequence_length=self.space.data.sequence_length,
            wall_clock_s=self.space.budget.trial.wall_clock_s,
            **fields,
        )
        self.next_id += 1
        return self.limited(spec, now)
