"""Whether a winner sits at the edge of its search space."""

from __future__ import annotations

import math

from tuner.outcome import Contender
from tuner.plan.plan import Plan
from tuner.space.dimensions import Range


def at_bound(plan: Plan, winner: Contender) -> list[str]:
    """Warn where the winner sits at the edge of what the space allowed."""
    notes = []
    for name in ("learning_rate", "weight_decay"):
        dimension = plan.space.hyperparameters.get(name)
        value = getattr(winner.recipe, name)
        if isinstance(dimension, Range):
            for side, bound in (("low", dimension.low), ("high", dimension.high)):
                if math.isclose(value, bound, rel_tol=0.02):
                    notes.append(f"the best {name} sits at the space's {side} bound {bound:g}: widen it")
    sizes = plan.space.batch_sizes
    tokens = plan.space.data.sequence_length
    if len(sizes) > 1 and winner.recipe.batch_tokens in (sizes[0] * tokens, sizes[-1] * tokens):
        side = "smallest" if winner.recipe.batch_tokens == sizes[0] * tokens else "largest"
        notes.append(f"the best batch is the space's {side}: widen hyperparameters.batch_tokens")
    return notes
