"""What each layout costs at each batch: one columnar estimate per batch, kept as (n, batches) arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.calibrate import Calibration
from cost_models.estimate import Estimate, estimate
from cost_models.layout import Layouts
from cost_models.units import Column
from tuner.plan.plan import PlannedLayout
from tuner.plan.workload import workload_of
from tuner.records import Predicted
from tuner.space.search_space import Minimize, SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """``estimates[j]`` holds (n,) columns for batch j; the arrays are (n, batches) and infinite or 0 where illegal."""

    batches: tuple[int, ...]
    estimates: tuple[Estimate, ...]
    legal: Column
    step_time_s: Column
    memory_bytes: Column
    fit_probability: Column

    @property
    def best_fit_batch(self) -> Column:
        """Index (n,) of the legal batch at which a layout is likeliest to fit."""
        column: Column = np.argmax(np.where(self.legal, self.fit_probability, -1.0), axis=1)
        return column

    def at(self, values: Column, batch_index: Column) -> Column:
        """``values[i, batch_index[i]]`` as a column (n,)."""
        column: Column = np.take_along_axis(values, batch_index[:, None], axis=1)[:, 0]
        return column


def price(space: SearchSpace, layouts: Layouts, legal: Column, *, calibration: Calibration | None = None) -> Prices:
    """Price ``layouts`` at every batch of the space. ``legal`` (n, batches) says where a price means anything."""
    batches = space.batch_sizes
    with np.errstate(invalid="ignore", divide="ignore"):
        made = tuple(
            estimate(space.model, space.cluster, workload_of(space, batch), layouts, calibration=calibration)
            for batch in batches
        )
    return Prices(
        batches=batches,
        estimates=made,
        legal=legal,
        step_time_s=np.where(legal, np.stack([e.step_time_s for e in made], axis=1), np.inf),
        memory_bytes=np.where(legal, np.stack([e.memory_bytes for e in made], axis=1), np.inf),
        fit_probability=np.where(legal, np.stack([e.fit_probability for e in made], axis=1), 0.0),
    )


def planned(space: SearchSpace, layouts: Layouts, prices: Prices, runnable: Column) -> tuple[PlannedLayout, ...]:
    """The rows with a ``runnable`` batch, fastest first.

    ``runnable`` (n, batches) is where a layout is legal and not sure to run out of memory. Fastest is most tokens per
    second at the layout's best batch, or the shortest step where the objective says so; equal speeds go to the likelier
    fit, then to the order of the space file.
    """
    sizes = np.array(prices.batches, dtype=float)
    step_s = np.where(runnable, prices.step_time_s, np.inf)
    seconds = step_s if space.objective.minimize is Minimize.STEP_TIME else step_s / sizes
    best = np.argmin(seconds, axis=1)
    rows = np.flatnonzero(runnable.any(axis=1))
    order = np.lexsort((rows, -prices.at(prices.fit_probability, best)[rows], prices.at(seconds, best)[rows]))
    return tuple(_planned_layout(layouts, prices, runnable, int(row), int(best[row])) for row in rows[order])


def _planned_layout(layouts: Layouts, prices: Prices, runnable: Column, row: int, best: int) -> PlannedLayout:
    columns = prices.estimates[best]
    return PlannedLayout(
        layout=layouts[row],
        predictions={
            batch: _predicted(prices.estimates[j], row) for j, batch in enumerate(prices.batches) if runnable[row, j]
        },
        fit_probability=float(columns.fit_probability[row]),  # type: ignore[index]
        limited_by=str(columns.limited_by[row]),
        mfu=float(columns.mfu[row]),  # type: ignore[index]
        memory_parts_bytes={name: float(part[row]) for name, part in columns.memory.to_dict().items()},  # type: ignore[index]
        time_parts_s={name: float(part[row]) for name, part in columns.time.to_dict().items()},  # type: ignore[index]
        best_batch=prices.batches[best],
    )


def _predicted(columns: Estimate, row: int) -> Predicted:
    def at(values: object) -> float:
        return float(values[row])  # type: ignore[index]

    return Predicted(
        step_time_s=at(columns.step_time_s),
        memory_bytes=at(columns.memory_bytes),
        step_time_interval_s=(at(columns.step_time_low_s), at(columns.step_time_high_s)),
        memory_interval_bytes=(at(columns.memory_low_bytes), at(columns.memory_high_bytes)),
    )
