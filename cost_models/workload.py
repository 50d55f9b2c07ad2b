"""Workload: what is computed per optimizer step, whatever the layout."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Precision(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"

    @property
    def num_bytes(self) -> int:
        """Bytes of one weight or activation."""
        return 4 if self is Precision.FP32 else 2

    @property
    def master_bytes(self) -> int:
        """Bytes of the optimizer's fp32 copy of a weight; none where weights are fp32 already."""
        return 0 if self is Precision.FP32 else 4


class Framework(StrEnum):
    """Whose rules and buffers are modelled."""

    NATIVE = "native"
    MEGATRON = "megatron"
    DEEPSPEED = "deepspeed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One optimizer step: ``batch_sequences`` sequences of ``sequence_length`` tokens.

    ``grad_bytes`` is the gradient's accumulation dtype; ``moment_bytes`` AdamW's two moments.
    """

    sequence_length: int
    batch_sequences: int
    precision: Precision = Precision.BF16
    grad_bytes: int = 4
    moment_bytes: int = 8
    flash_attention: bool = True
    framework: Framework = Framework.NATIVE

    @property
    def batch_tokens(self) -> int:
        return self.batch_sequences * self.sequence_length
