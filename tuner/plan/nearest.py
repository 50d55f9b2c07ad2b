"""The nearest single change of a space that would leave a layout, found by pruning the changed space again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cost_models.calibrate import Calibration
from cost_models.layout import Layout, Recompute
from cost_models.units import GIB, MIB
from tuner.plan.enumerate import REST, listed, uses_all_devices
from tuner.plan.prune import Pruned, prune, size_text
from tuner.plan.shortlist import LIKELY_FIT
from tuner.space.dimensions import Fixed
from tuner.space.search_space import SearchSpace

MAX_TRIES = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One key of the space file from ``before`` to ``after``; ``layout`` is what then is likely to run."""

    key: str
    before: str
    after: str
    layout: Layout
    fit_probability: float
    space: SearchSpace
    """The changed space."""

    def __str__(self) -> str:
        said = f"{self.key}: {self.before} -> {self.after}" if self.after else f"remove {self.key}: {self.before}"
        return f"nearest change: {said}; then {self.layout} fits with probability {self.fit_probability:.0%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    distance: float
    key: str
    before: str
    after: str
    space: SearchSpace


def nearest_change(pruned: Pruned, *, calibration: Calibration | None = None) -> Change | None:
    """The change of least distance (in doublings; a stage of ZeRO or of recompute is half of one) that leaves a layout.

    It must be likely to fit (P >= 50 %), more than the 2 % that pruning asks for. None where no single change does.
    """
    candidates = sorted(_candidates(pruned), key=lambda c: c.distance)
    for candidate in candidates[:MAX_TRIES]:
        changed = prune(candidate.space, calibration=calibration)
        fit = np.where(changed.runnable, changed.prices.fit_probability, 0.0)
        if fit.size and fit.max() >= LIKELY_FIT:
            row, _ = np.unravel_index(int(np.argmax(fit)), fit.shape)
            return Change(
                key=candidate.key,
                before=candidate.before,
                after=candidate.after,
                layout=changed.legal_layouts[int(row)],
                fit_probability=float(fit.max()),
                space=candidate.space,
            )
    return None


def _candidates(pruned: Pruned) -> Iterator[_Candidate]:
    space = pruned.space
    yield from _memory(pruned)
    yield from _degrees(space)
    yield from _stages(space)
    yield from _batches(pruned)
    yield from _nodes(space)
    for text in space.require:
        rest = tuple(t for t in space.require if t != text)
        yield _Candidate(distance=1.0, key="layout.require", before=text, after="", space=replace(space, require=rest))


def _memory(pruned: Pruned) -> Iterator[_Candidate]:
    """The limit at which the smallest legal layout is likely to fit, rounded up to what people write."""
    cluster = pruned.space.cluster
    if not len(pruned.legal):
        return
    needed = float(pruned.prices.memory_bytes.min()) + cluster.memory_reserve_bytes
    grain = GIB if needed >= 16 * GIB else GIB / 10 if needed >= GIB else MIB
    limit = math.ceil(needed * (1 + 1e-6) / grain) * grain
    if cluster.memory_limit_bytes < limit <= cluster.device.memory_bytes:
        yield _Candidate(
            distance=math.log2(limit / cluster.memory_limit_bytes),
            key="cluster.memory",
            before=size_text(cluster.memory_limit_bytes),
            after=size_text(limit),
            space=replace(pruned.space, cluster=replace(cluster, memory_limit_bytes=limit)),
        )


def _degrees(space: SearchSpace) -> Iterator[_Candidate]:
    """Other tp, pp, cp and micro_batch, and dp: rest; only values that can divide what they split."""
    num_devices, largest = space.cluster.num_devices, max(space.batch_sizes)
    splits = {"tp": space.model.num_heads, "pp": space.model.num_layers, "cp": num_devices, "micro_batch": largest}
    for name, total in splits.items():
        present = [int(value) for value in listed(space.layout[name])]
        limit = largest if name == "micro_batch" else num_devices
        for value in (v for v in range(1, min(limit, 4096) + 1) if total % v == 0 and v not in present):
            distance = min(abs(math.log2(value / other)) for other in present)
            yield _layout_candidate(space, name, value, distance)
    if listed(space.layout["dp"]) != (REST,):
        yield _layout_candidate(space, "dp", REST, 0.5)


def _stages(space: SearchSpace) -> Iterator[_Candidate]:
    stages = [int(value) for value in listed(space.layout["zero"])]
    for stage in (s for s in range(4) if s not in stages):
        yield _layout_candidate(space, "zero", stage, 0.5 * min(abs(stage - other) for other in stages))
    levels = [Recompute(str(value)) for value in listed(space.layout["recompute"])]
    for level in (r for r in Recompute if r not in levels):
        distance = 0.5 * min(abs(level.level - other.level) for other in levels)
        yield _layout_candidate(space, "recompute", level.value, distance)


def _batches(pruned: Pruned) -> Iterator[_Candidate]:
    """The nearest multiples of what a layout takes in one pass, and a few doublings."""
    space, layouts = pruned.space, pruned.layouts.where(uses_all_devices(pruned.space, pruned.layouts))
    passes = {int(p) for p in np.unique(layouts.micro_batch * layouts.dp)}
    sequence_length, before = space.data.sequence_length, space.batch_sizes
    near = {b // p * p + up for b in before for p in passes for up in (0, p)}
    near |= {b << doublings for b in before for doublings in (1, 2, 3)}
    for batch in sorted(near - {0, *before}):
        tokens = Fixed(value=batch * sequence_length, role=space.hyperparameters["batch_tokens"].role)
        yield _Candidate(
            distance=min(abs(math.log2(batch / other)) for other in before),
            key="hyperparameters.batch_tokens",
            before=", ".join(str(b * sequence_length) for b in before),
            after=f"{batch * sequence_length} ({batch} sequences)",
            space=replace(space, hyperparameters={**space.hyperparameters, "batch_tokens": tokens}),
        )


def _nodes(space: SearchSpace) -> Iterator[_Candidate]:
    cluster = space.cluster
    if cluster.device.kind == "cpu":
        return
    for doublings in (1, 2, 3):
        nodes = cluster.num_nodes << doublings
        yield _Candidate(
            distance=1.0 + doublings,
            key="cluster.nodes",
            before=str(cluster.num_nodes),
            after=str(nodes),
            space=replace(space, cluster=replace(cluster, num_nodes=nodes)),
        )


def _layout_candidate(space: SearchSpace, name: str, value: int | str, distance: float) -> _Candidate:
    before = space.layout[name]
    return _Candidate(
        distance=distance,
        key=f"layout.{name}",
        before=", ".join(str(v) for v in listed(before)),
        after=str(value),
        space=replace(space, layout={**space.layout, name: Fixed(value=value, role=before.role)}),
    )
