"""PRELOAD: what a fork server imports, so that a rank starts in milliseconds; no torch operation is run by it."""

from __future__ import annotations

PRELOAD: tuple[str, ...] = (
    "numpy",
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "torch.utils.checkpoint",
    "tuner.training.worker",
)
"""torch._dynamo is there because the first optimizer step and the first checkpoint would import it, in each rank."""
