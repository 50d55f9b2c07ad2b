"""The probe round: a few steps of each layout that could still be the fastest at some batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.plan.plan import Plan, PlannedLayout
from tuner.plan.shortlist import is_pure_data_parallel
from tuner.records import Purpose
from tuner.study.ledger import OPTIMISM, Ledger, nearest_in_log

MIN_STEPS = 8
MAX_STEPS = 20
NUM_DEFAULT_CANDIDATES = 3
"""The strong default is the fastest of this many pure data-parallel layouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeWish:
    planned: PlannedLayout
    batch: int
    num_steps: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probing:
    """Pure decisions over the ledger; ``law_batch`` (sequences) is where layouts are compared first."""

    plan: Plan
    law_batch: int
    seconds_per_probe: float

    def next_wish(self, ledger: Ledger) -> ProbeWish | None:
        """The next probe, or None when no remaining layout's bound beats what was measured."""
        for planned in self._default_candidates(ledger):
            return self._wish(ledger, planned, "default candidate")
        for planned in self.remaining(ledger):
            return self._wish(ledger, planned, "")
        for planned, batch in self._batch_checks(ledger):
            return self._wish(ledger, planned, "other batch", batch)
        return None

    def remaining(self, ledger: Ledger) -> list[PlannedLayout]:
        """Shortlisted, not probed, not dominated, and fast enough at some batch to matter; best bound first."""
        probed = {r.spec.layout for r in ledger.of(Purpose.PROBE)}
        fresh = [p for p in self.plan.shortlist if p.layout not in probed and not ledger.is_dominated(p.layout)]
        worth = [p for p in fresh if self._could_win(ledger, p)]
        return sorted(worth, key=lambda p: ledger.expected_s_per_token(p, self._batch_of(p)))

    def default_candidates(self) -> list[PlannedLayout]:
        """Every feasible pure data-parallel layout without sharding beyond what it needs, fastest first."""
        return [p for p in self.plan.feasible if is_pure_data_parallel(p.layout)]

    # -- parts -----------------------------------------------------------------------------------
    def _default_candidates(self, ledger: Ledger) -> Iterator[PlannedLayout]:
        probed = {r.spec.layout for r in ledger.of(Purpose.PROBE)}
        ran = {r.spec.layout for r in ledger.probes_ok()}
        pure = self.default_candidates()
        tried = [p for p in pure if p.layout in probed]
        if len(tried) >= NUM_DEFAULT_CANDIDATES and any(p.layout in ran for p in tried):
            return
        yield from (p for p in pure if p.layout not in probed and not ledger.is_dominated(p.layout))

    def _could_win(self, ledger: Ledger, planned: PlannedLayout) -> bool:
        for batch in planned.predictions:
            best = ledger.best_price(batch)
            if best is None or ledger.bound_s_per_token(planned, batch) < OPTIMISM * best.seconds_per_token:
                return True
        return False

    def _batch_checks(self, ledger: Ledger) -> Iterator[tuple[PlannedLayout, int]]:
        """Batches whose best layout was only measured at another batch."""
        tried = {(r.spec.layout, r.spec.batch_sequences) for r in ledger.of(Purpose.PROBE)}
        for batch in self.plan.space.batch_sizes:
            best = ledger.best_price(batch)
            if best is not None and not best.is_measured and (best.layout, batch) not in tried:
                yield ledger.planned[best.layout], batch

    def _batch_of(self, planned: PlannedLayout) -> int:
        return nearest_in_log(self.law_batch, planned.predictions)

    def _wish(self, ledger: Ledger, planned: PlannedLayout, label: str, batch: int | None = None) -> ProbeWish:
        at = self._batch_of(planned) if batch is None else batch
        step_s = ledger.expected_s_per_token(planned, at) * at * self.plan.space.data.sequence_length
        steps = int(max(MIN_STEPS, min(MAX_STEPS, self.seconds_per_probe / step_s)))
        return ProbeWish(planned=planned, batch=at, num_steps=steps, label=label)
