"""Search spaces for the tests of the search: only what the search reads of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from tuner.space.dimensions import Choice, Dimension, Fixed, Range, Role
from tuner.space.search_space import (
    Budget,
    ConfirmLimits,
    DataSpec,
    Objective,
    SearchOptions,
    SearchSpace,
    TrackingOptions,
    TrialLimits,
    TrialOptions,
)

MakeSpace = Callable[..., SearchSpace]


def dimension(value: Any, role: Role = Role.CONVERGENCE) -> Dimension:
    """A scalar, a list or a range as YAML would say it."""
    if isinstance(value, Mapping):
        return Range(role=role, **cast(Any, value))
    return Choice(values=tuple(value), role=role) if isinstance(value, list) else Fixed(value=value, role=role)


@pytest.fixture
def make_space() -> MakeSpace:
    def make(*, sampler: str = "factorised", seed: int = 0, **hyperparameters: Any) -> SearchSpace:
        given = {"batch_tokens": 2048, "learning_rate": 1e-3, "warmup": 10, "weight_decay": 0.1, **hyperparameters}
        return SearchSpace(
            name="toy",
            model=cast(Any, None),
            cluster=cast(Any, None),
            data=DataSpec(sequence_length=64, tokens=1e6),
            layout={},
            require=(),
            hyperparameters={
                n: dimension(v, Role.BOTH if n == "batch_tokens" else Role.CONVERGENCE) for n, v in given.items()
            },
            objective=Objective(),
            budget=Budget(
                wall_clock_s=60.0,
                trials=20,
                trial=TrialLimits(tokens=200_000, wall_clock_s=10.0),
                confirm=ConfirmLimits(),
            ),
            search=SearchOptions(sampler=sampler, seed=seed),
            trials=TrialOptions(),
            tracking=TrackingOptions(mlflow="sqlite:///mlflow.db", experiment="toy"),
            text="",
        )

    return make
