"""Ledger: every finished trial of a study and what follows from them alone: calibration, prices, failures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cost_models.calibrate import Calibration, Observation
from cost_models.layout import Layout
from tuner.plan.plan import PlannedLayout
from tuner.records import FailureKind, Purpose, Status, TrialResult

OPTIMISM = 0.98
"""Layouts within two percent are ties, so a bound must beat the best by more than that to be worth a probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The fastest known way to run one batch."""

    layout: Layout
    seconds_per_token: float
    is_measured: bool
    """False where the time at this batch follows from the same layout's measured time at another."""


@dataclass(slots=True, kw_only=True)
class Ledger:
    planned: Mapping[Layout, PlannedLayout]
    sequence_length: int
    framework_base_bytes: float
    results: list[TrialResult] = field(default_factory=list)
    calibration: Calibration = field(default_factory=lambda: Calibration.fit([]))

    def add(self, result: TrialResult) -> None:
        self.results.append(result)
        if result.spec.purpose is Purpose.PROBE:
            self.calibration = Calibration.fit(self._observations())

    # -- queries ---------------------------------------------------------------------------------
    def of(self, purpose: Purpose) -> list[TrialResult]:
        return [r for r in self.results if r.spec.purpose is purpose]

    def probes_ok(self) -> list[TrialResult]:
        return [r for r in self.of(Purpose.PROBE) if r.status is Status.OK and r.measured is not None]

    def measured_s_per_token(self) -> dict[tuple[Layout, int], float]:
        """The latest probed seconds per token of each (layout, batch in sequences).

        Confirm trials do not count: their heats were drawn with these prices, and are drawn again on a resume.
        """
        found: dict[tuple[Layout, int], float] = {}
        for r in self.probes_ok():
            if r.measured is not None:
                found[r.spec.layout, r.spec.batch_sequences] = r.measured.step_time_s / r.spec.recipe.batch_tokens
        return found

    def out_of_memory(self) -> list[Layout]:
        return [r.spec.layout for r in self.results if r.failure is not None and r.failure.kind is FailureKind.OOM]

    def is_dominated(self, layout: Layout) -> bool:
        """Whether a layout that ran out of memory needs no more of it than this one does."""
        return any(needs_at_least(layout, than=failed) for failed in self.out_of_memory())

    def bound_s_per_token(self, planned: PlannedLayout, batch: int) -> float:
        """The lower end of the calibrated interval."""
        _, low, _ = self.calibration.step_time_factor(planned.layout)
        return float(low) * planned.predictions[batch].step_time_s / (batch * self.sequence_length)

    def expected_s_per_token(self, planned: PlannedLayout, batch: int) -> float:
        factor, _, _ = self.calibration.step_time_factor(planned.layout)
        return float(factor) * planned.predictions[batch].step_time_s / (batch * self.sequence_length)

    def price(self, planned: PlannedLayout, batch: int) -> Price | None:
        """What a probed layout costs at ``batch``: measured there, or scaled from where it was measured."""
        measured = self.measured_s_per_token()
        here = measured.get((planned.layout, batch))
        if here is not None:
            return Price(layout=planned.layout, seconds_per_token=here, is_measured=True)
        if batch not in planned.predictions:
            return None
        elsewhere = [(b, s) for (layout, b), s in measured.items() if layout == planned.layout]
        if not elsewhere:
            return None
        nearest, seconds = min(elsewhere, key=lambda pair: abs(pair[0] - batch))
        ratio = self.expected_s_per_token(planned, batch) / self.expected_s_per_token(planned, nearest)
        return Price(layout=planned.layout, seconds_per_token=seconds * ratio, is_measured=False)

    def best_price(self, batch: int, among: Sequence[PlannedLayout] | None = None) -> Price | None:
        """The fastest probed layout at ``batch``."""
        prices = [self.price(p, batch) for p in (self.planned.values() if among is None else among)]
        known = [p for p in prices if p is not None and not self.is_dominated(p.layout)]
        return min(known, key=lambda p: p.seconds_per_token, default=None)

    # -- calibration -----------------------------------------------------------------------------
    def _observations(self) -> list[Observation]:
        return [
            Observation(
                layout=r.spec.layout,
                predicted_step_time_s=r.spec.predicted.step_time_s,
                measured_step_time_s=r.measured.step_time_s,
                predicted_memory_bytes=r.spec.predicted.memory_bytes,
                measured_memory_bytes=r.measured.memory_bytes,
                framework_base_bytes=self.framework_base_bytes,
            )
            for r in self.of(Purpose.PROBE)
            if r.measured is not None and r.status is Status.OK
        ]


def needs_at_least(layout: Layout, *, than: Layout) -> bool:
    """The monotone order of memory: same split, micro-batch no smaller, ZeRO no higher, recompute no more."""
    return (
        all(getattr(layout, axis) == getattr(than, axis) for axis in ("dp", "tp", "pp", "cp", "ep"))
        and layout.micro_batch >= than.micro_batch
        and layout.zero <= than.zero
        and layout.recompute_level <= than.recompute_level
    )


def nearest_in_log(value: float, options: Iterable[int]) -> int:
    """The option closest to ``value`` by ratio."""
    return min(options, key=lambda option: abs(math.log(option / value)))
