"""The converge round: where recipe trials run, and for how long the round may go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models.estimate import estimate
from cost_models.layout import Layout, Recompute
from cost_models.workload import Framework, Precision, Workload
from tuner.records import Predicted
from tuner.search.recipe_space import horizon_steps
from tuner.space.dimensions import Range
from tuner.space.search_space import SearchSpace
from tuner.study.ledger import Ledger

SURE_TO_FIT = 0.9
NUM_EVALUATIONS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A layout to run recipe trials on, and how many such trials the devices hold side by side."""

    layout: Layout
    predicted: Predicted
    num_side_by_side: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Converging:
    """A layout does not change the curve, so recipe trials run where tokens per device-second are best.

    That is one device each, side by side, where the model fits on one; else the fastest measured layout.
    """

    space: SearchSpace

    @property
    def horizon_tokens(self) -> int:
        return self.space.budget.trial.tokens

    def num_steps(self, batch_tokens: int) -> int:
        return horizon_steps(self.horizon_tokens, batch_tokens)

    def eval_every(self, batch_tokens: int) -> int:
        return max(1, self.num_steps(batch_tokens) // NUM_EVALUATIONS)

    def seat(self, ledger: Ledger, batch: int, precision: str) -> Seat | None:
        """Where a trial of ``batch`` sequences runs; None where nothing fits."""
        single = [
            (layout, predicted)
            for layout in self._single_device_layouts(batch)
            if not ledger.is_dominated(layout)
            and (predicted := self._predict_alone(ledger, layout, batch, precision)) is not None
        ]
        if single:
            layout, predicted = min(single, key=lambda pair: pair[1].step_time_s)
            return Seat(layout=layout, predicted=predicted, num_side_by_side=self._num_at_once())
        best = ledger.best_price(batch)
        if best is None:
            return None
        return Seat(layout=best.layout, predicted=ledger.planned[best.layout].predictions[batch], num_side_by_side=1)

    def _single_device_layouts(self, batch: int) -> Sequence[Layout]:
        dimension = self.space.layout["micro_batch"]
        assert not isinstance(dimension, Range), "layout dimensions are listed"
        sizes = sorted({int(v) for v in dimension.values if batch % int(v) == 0} | {1})
        return [Layout(micro_batch=size, recompute=r) for size in sizes for r in (Recompute.NONE, Recompute.FULL)]

    def _predict_alone(self, ledger: Ledger, layout: Layout, batch: int, precision: str) -> Predicted | None:
        cluster = replace(self.space.cluster, num_nodes=1, devices_per_node=1)
        workload = Workload(
            sequence_length=self.space.data.sequence_length,
            batch_sequences=batch,
            precision=Precision(precision),
            framework=Framework.NATIVE,
        )
        cost = estimate(self.space.model, cluster, workload, layout, calibration=ledger.calibration)
        if float(cost.fit_probability) < SURE_TO_FIT:
            return None
        return Predicted(step_time_s=float(cost.step_time_s), memory_bytes=float(cost.memory_bytes))

    def _num_at_once(self) -> int:
        cluster = self.space.cluster
        if cluster.device.kind != "cpu":
            return 1  # ranks of two trials would land on the same first device
        slots = cluster.compute_slots_per_node
        per_node = cluster.devices_per_node if slots is None else min(cluster.devices_per_node, round(slots))
        return max(1, per_node * cluster.num_nodes)
