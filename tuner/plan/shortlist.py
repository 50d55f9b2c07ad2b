"""Which feasible layouts to probe: the fastest by prediction, with room for what a prediction cannot know."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from cost_models.layout import Layout
from tuner.plan.plan import PlannedLayout

NUM_DEFAULTS = 3
"""Pure data-parallel layouts that are always probed: the fastest measured one is the strong default."""
LIKELY_FIT = 0.5
SURE_FIT = 0.9
FAMILY_SHARE = 0.5
"""Of the list, that may differ in micro_batch and zero only."""
MARGINAL_SHARE = 1 / 3
"""Of the list, that may be in doubt to fit: a probe that runs out of memory is a probe spent."""


def is_pure_data_parallel(layout: Layout) -> bool:
    return layout.tp == layout.pp == layout.cp == layout.ep == 1


def is_marginal(planned: PlannedLayout) -> bool:
    """In doubt to fit; what is under 2 % was pruned."""
    return planned.fit_probability < SURE_FIT


def shortlist(feasible: Sequence[PlannedLayout], size: int) -> tuple[PlannedLayout, ...]:
    """At most ``size`` of ``feasible`` (fastest first), fastest first.

    In it are the up to three fastest pure data-parallel layouts that are likely to fit, and one layout in doubt if one
    is among the ``2 size`` fastest. No more than half differ only in micro-batch and ZeRO stage, and no more than a
    third are in doubt, while others are left to take their place.
    """
    if size < 1:
        raise ValueError(f"a shortlist of {size} probes nothing; write search.shortlist: 1 or more")
    chosen = list(range(len(feasible))) if len(feasible) <= size else _chosen(feasible, size)
    return tuple(feasible[index] for index in sorted(chosen))


def _chosen(feasible: Sequence[PlannedLayout], size: int) -> list[int]:
    chosen = _defaults(feasible)[:size]
    if len(chosen) < size and not any(is_marginal(feasible[i]) for i in chosen):
        chosen += [i for i in range(min(len(feasible), 2 * size)) if is_marginal(feasible[i])][:1]
    per_family, doubts = math.ceil(FAMILY_SHARE * size), max(1, int(MARGINAL_SHARE * size))
    families = Counter(_family(feasible[i].layout) for i in chosen)
    in_doubt = sum(is_marginal(feasible[i]) for i in chosen)
    passed_over: list[int] = []
    for index in (i for i in range(len(feasible)) if i not in set(chosen)):
        if len(chosen) == size:
            break
        family, marginal = _family(feasible[index].layout), is_marginal(feasible[index])
        if families[family] >= per_family or (marginal and in_doubt >= doubts):
            passed_over.append(index)
            continue
        chosen.append(index)
        families[family] += 1
        in_doubt += marginal
    return chosen + passed_over[: size - len(chosen)]


def _defaults(feasible: Sequence[PlannedLayout]) -> list[int]:
    """The pure data-parallel layouts to probe, those likely to fit first."""
    pure = [i for i, planned in enumerate(feasible) if is_pure_data_parallel(planned.layout)]
    return sorted(pure, key=lambda i: (feasible[i].fit_probability < LIKELY_FIT, i))[:NUM_DEFAULTS]


def _family(layout: Layout) -> tuple[object, ...]:
    return layout.tp, layout.pp, layout.cp, layout.ep, layout.dp, layout.recompute
