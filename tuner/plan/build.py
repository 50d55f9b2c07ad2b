"""``build_plan``: a space to what is worth trying in it, or to the nearest change that would leave something."""

from __future__ import annotations

from cost_models.calibrate import Calibration
from tuner.plan.nearest import Change, nearest_change
from tuner.plan.plan import Funnel, Plan, Rejected
from tuner.plan.prune import Pruned, prune
from tuner.plan.rank import planned
from tuner.plan.shortlist import shortlist
from tuner.space.search_space import SearchSpace


class NothingFeasible(Exception):
    """No layout of the space can run. ``rule`` killed most; ``example`` is one layout that fell to it."""

    def __init__(self, funnel: Funnel, rule: str, example: Rejected, change: Change | None) -> None:
        self.funnel, self.rule, self.example, self.change = funnel, rule, example, change
        reasons = ", ".join(f"{count} by {name}" for name, count in funnel.reasons.items())
        step = str(change) if change else "no single change leaves one; relax several at once"
        super().__init__(
            f"none of {funnel.enumerated} layouts is feasible: {reasons}\n"
            f"  most fell to {rule}, such as {example.layout}: {example.reason}\n  -> {step}"
        )


def build_plan(space: SearchSpace, *, calibration: Calibration | None = None) -> Plan:
    """Enumerate, prune, rank, shortlist. Raises NothingFeasible where no layout is left.

    With a ``calibration`` from measured runs the prices and intervals are corrected by it.
    """
    pruned = prune(space, calibration=calibration)
    feasible = planned(space, pruned.legal_layouts, pruned.prices, pruned.runnable)
    if not feasible:
        raise _nothing(pruned, calibration)
    chosen = shortlist(feasible, space.search.shortlist)
    return Plan(
        space=space,
        funnel=pruned.funnel(len(chosen)),
        feasible=feasible,
        shortlist=chosen,
        rejected=pruned.rejected(),
        assumptions=pruned.prices.estimates[0].assumptions,
    )


def _nothing(pruned: Pruned, calibration: Calibration | None) -> NothingFeasible:
    funnel = pruned.funnel()
    rule = next(iter(funnel.reasons))
    example = next(r for r in pruned.rejected() if r.rule == rule)
    return NothingFeasible(funnel, rule, example, nearest_change(pruned, calibration=calibration))
