"""Every layout of a space, as columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from cost_models.layout import Layouts, Recompute
from cost_models.units import Column
from tuner.space.dimensions import Dimension, Range, Value
from tuner.space.search_space import SearchSpace

ORDER = ("tp", "pp", "cp", "ep", "dp", "zero", "micro_batch", "recompute")
"""Slowest first; lists keep the order of the space file."""
REST = "rest"


def enumerate_layouts(space: SearchSpace) -> Layouts:
    """The cross product. ``dp: rest`` is what the other degrees leave, at least 1; see ``uses_all_devices``."""
    axes = [_values(name, space.layout[name]) for name in ORDER]
    grid = np.meshgrid(*axes, indexing="ij")
    columns = {name: column.ravel().astype(np.int64) for name, column in zip(ORDER, grid, strict=True)}
    if listed(space.layout["dp"]) == (REST,):
        columns["dp"] = np.maximum(1, space.cluster.num_devices // (columns["tp"] * columns["pp"] * columns["cp"]))
    columns["recompute_level"] = columns.pop("recompute")
    return Layouts(**columns)


def uses_all_devices(space: SearchSpace, layouts: Layouts) -> Column:
    """Boolean (n,): ``dp tp pp cp`` is the number of devices."""
    column: Column = layouts.num_devices == space.cluster.num_devices
    return column


def listed(dimension: Dimension) -> tuple[Value, ...]:
    """The values of a dimension that is no range. ValueError for a range: layouts are enumerated."""
    if isinstance(dimension, Range):
        raise ValueError(
            f"a range {dimension.low:g} to {dimension.high:g} cannot be enumerated; write a list of values"
        )
    return dimension.values


def _values(name: str, dimension: Dimension) -> list[Any]:
    if name == "recompute":
        return [Recompute(str(value)).level for value in listed(dimension)]
    return [1 if value == REST else value for value in listed(dimension)]
