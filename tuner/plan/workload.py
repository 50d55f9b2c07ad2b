"""A space and a batch as the Workload that the cost model prices."""

from __future__ import annotations

from cost_models.workload import Framework, Precision, Workload
from tuner.plan.enumerate import listed
from tuner.space.search_space import SearchSpace

FRAMEWORKS = {"native": Framework.NATIVE, "megatron": Framework.MEGATRON, "deepspeed": Framework.DEEPSPEED}
"""Whose rules and buffers an adapter's trials have."""
GRAD_BYTES = 4
"""Gradients are accumulated in fp32."""


def framework_of(space: SearchSpace) -> Framework:
    """ValueError where the cost model has no rules for the adapter's framework."""
    adapter = space.trials.adapter
    if adapter not in FRAMEWORKS:
        raise ValueError(f"adapter {adapter} has no cost model; write one of: {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[adapter]


def workload_of(space: SearchSpace, batch_sequences: int) -> Workload:
    """One optimizer step of ``batch_sequences`` sequences in the space's precision."""
    (precision,) = listed(space.hyperparameters["precision"])
    return Workload(
        sequence_length=space.data.sequence_length,
        batch_sequences=batch_sequences,
        precision=Precision(str(precision)),
        grad_bytes=GRAD_BYTES,
        framework=framework_of(space),
    )
