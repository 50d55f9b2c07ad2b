"""Which layouts are out, by which rule: a mask and a reason, never a silent drop.

A layout is invalid only if it is illegal at every batch size; it does not fit only if the probability of fitting is
under 2 % at its best legal batch. What lies between 2 % and certainty is for a probe to decide.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from cost_models.calibrate import Calibration
from cost_models.layout import Layout, Layouts
from cost_models.legality import batch_violations, explain_violation, violations
from cost_models.units import GIB, MIB, Column
from tuner.plan.enumerate import enumerate_layouts, uses_all_devices
from tuner.plan.plan import Funnel, Rejected
from tuner.plan.rank import Prices, price
from tuner.plan.workload import framework_of, workload_of
from tuner.space.require import condition
from tuner.space.search_space import SearchSpace

WORLD_SIZE = "world_size"
REQUIRE = "require"
MEMORY = "memory"
MIN_FIT_PROBABILITY = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """All layouts, the rule that each fell to ("" where it stands), and the prices of the legal ones.

    ``legal`` indexes the rows that were priced; ``prices`` and ``runnable`` (legal rows, batches) are in their order.
    """

    space: SearchSpace
    layouts: Layouts
    rule: Column
    legal: Column
    prices: Prices
    runnable: Column

    @property
    def legal_layouts(self) -> Layouts:
        return self.layouts.where(self.legal)

    def funnel(self, shortlisted: int = 0) -> Funnel:
        counts = Counter(str(rule) for rule in self.rule if rule)
        unfit = counts.get(MEMORY, 0)
        out = sum(counts.values())
        return Funnel(
            enumerated=len(self.layouts),
            invalid=out - unfit,
            does_not_fit=unfit,
            feasible=len(self.layouts) - out,
            shortlisted=shortlisted,
            reasons=dict(counts.most_common()),
        )

    def rejected(self) -> tuple[Rejected, ...]:
        position = {int(row): i for i, row in enumerate(self.legal)}
        return tuple(self._rejected(int(row), position) for row in np.flatnonzero(self.rule != ""))

    def _rejected(self, row: int, position: dict[int, int]) -> Rejected:
        layout, rule = self.layouts[row], str(self.rule[row])
        if rule == MEMORY:
            reason = _memory_reason(self, position[row])
        elif rule == WORLD_SIZE:
            reason = _world_size_reason(layout, self.space)
        elif rule.startswith(REQUIRE):
            reason = f"require: {rule.removeprefix(REQUIRE + ': ')} does not hold"
        else:
            workload = workload_of(self.space, self.space.batch_sizes[-1])
            reason = explain_violation(rule, self.space.model, self.space.cluster, layout, workload)
        return Rejected(layout=layout, rule=rule, reason=reason)


def prune(space: SearchSpace, *, calibration: Calibration | None = None) -> Pruned:
    """Enumerate, drop what is illegal, price the rest, drop what cannot fit."""
    layouts = enumerate_layouts(space)
    rule = np.full(len(layouts), "", dtype=object)
    _mark(rule, ~uses_all_devices(space, layouts), WORLD_SIZE)
    for name, broken in violations(space.model, space.cluster, framework_of(space), layouts).items():
        _mark(rule, broken, name)
    for text in space.require:
        _mark(rule, ~condition(text).holds(layouts, space.cluster), f"{REQUIRE}: {text}")
    legal_batches = _legal_batches(space, layouts, rule)
    legal = np.flatnonzero(rule == "")
    prices = price(space, layouts.where(legal), legal_batches[legal], calibration=calibration)
    runnable = prices.legal & (prices.fit_probability >= MIN_FIT_PROBABILITY)
    rule[legal[~runnable.any(axis=1)]] = MEMORY
    return Pruned(space=space, layouts=layouts, rule=rule, legal=legal, prices=prices, runnable=runnable)


def _legal_batches(space: SearchSpace, layouts: Layouts, rule: Column) -> Column:
    """Where (n, batches) a batch is legal; marks the layouts that have none with their rule at the largest batch."""
    sizes = space.batch_sizes
    broken_by = [batch_violations(workload_of(space, size), layouts) for size in sizes]
    broken = np.stack([_any(by, len(layouts)) for by in broken_by], axis=1)
    none = broken.all(axis=1)
    for name, column in broken_by[-1].items():
        _mark(rule, none & column, name)
    return np.asarray(~broken)


def _mark(rule: Column, broken: Column, name: str) -> None:
    """The first rule that a layout breaks is the one it is counted under."""
    rule[np.asarray(broken, dtype=bool) & (rule == "")] = name


def _any(columns: dict[str, Column], count: int) -> Column:
    return np.asarray(np.logical_or.reduce([np.zeros(count, dtype=bool), *columns.values()]))


def _world_size_reason(layout: Layout, space: SearchSpace) -> str:
    model_parallel, num_devices = layout.tp * layout.pp * layout.cp, space.cluster.num_devices
    product = f"tp {layout.tp} x pp {layout.pp} x cp {layout.cp}"
    if num_devices % model_parallel:
        remainder = f"{num_devices} % {model_parallel} = {num_devices % model_parallel}"
        return f"{product} = {model_parallel} does not divide {num_devices} devices ({remainder})"
    return f"dp {layout.dp} x {product} = {layout.num_devices}, not {num_devices} devices"


def _memory_reason(pruned: Pruned, index: int) -> str:
    prices, cluster = pruned.prices, pruned.space.cluster
    best = int(prices.best_fit_batch[index])
    columns = prices.estimates[best]
    parts = sorted(((float(part[index]), name) for name, part in columns.memory.to_dict().items()), reverse=True)  # type: ignore[index]
    largest = ", ".join(f"{name.replace('_', ' ')} {size_text(size)}" for size, name in parts[:2])
    low, high = float(columns.memory_low_bytes[index]), float(columns.memory_high_bytes[index])  # type: ignore[index]
    return (
        f"needs {size_text(float(prices.memory_bytes[index, best]))} ({size_text(low)} to {size_text(high)}) of "
        f"{size_text(cluster.usable_memory_bytes)} usable at a batch of {prices.batches[best]}; largest: {largest}"
    )


def size_text(num_bytes: float) -> str:
    """``74.0 GiB``, or MiB below 1 GiB."""
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / MIB:.0f} MiB"
