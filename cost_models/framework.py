"""Traits: what each framework does differently, as facts that the formulas read. No formula names a framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.workload import Framework


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """One framework's habits. Each is a fact with a place to check it, not a tuned number."""

    sequence_parallel: bool
    """Norms and residuals are split over tp too (Megatron --sequence-parallel; assumed wherever tp > 1)."""
    vocab_multiple: int
    """The vocabulary is padded to this multiple times tp; 1: never padded."""
    dropout_masks: bool
    """GPT-2 style models (LayerNorm, learned positions) train with dropout and keep its masks."""
    fully_sharded: bool
    """ZeRO 2 and 3 are torch FSDP2: a sharded master beside the gathered weights, reduced every micro-batch."""
    reduces_every_micro_batch: bool
    """ZeRO 2 reduces gradients after every micro-batch, not once per step."""
    flat_gradient_copy: bool
    """Under tp or pp the gradients are copied into one flat buffer for their all-reduce."""
    rebuilds_buckets: bool
    """Pure data parallel ZeRO 0 is torch DDP, which rebuilds its gradient buckets: two sets for a moment."""
    preallocated_receives: bool
    """One receive buffer per micro-batch and direction (torch.distributed.pipelining)."""
    dtensor: bool
    """Tensor parallelism dispatches every operator through DTensor on the host."""
    split_copies: float
    """Hidden-sized tensors that a layer saves besides where tp > 1 (DTensor's reduced outputs; seen in its memory)."""
    overlaps_gradients: bool
    """The gradient exchange runs under the last backward pass also when tp or pp > 1."""
    gathered_logits: bool
    """Logits are whole on every tensor rank, beside its own part; otherwise they stay split over tp."""
    keeps_stage_outputs: bool
    """A pipeline stage keeps its output of every micro-batch in flight (torch.distributed.pipelining)."""
    bucket_elements: int
    """Elements of a ZeRO reduce bucket; 0: no separate bucket."""


TRAITS: Mapping[Framework, Traits] = {
    Framework.NATIVE: Traits(
        sequence_parallel=False,
        vocab_multiple=1,
        dropout_masks=False,
        fully_sharded=True,
        reduces_every_micro_batch=True,
        flat_gradient_copy=True,
        rebuilds_buckets=True,
        preallocated_receives=True,
        dtensor=True,
        split_copies=2.0,
        overlaps_gradients=False,
        gathered_logits=True,
        keeps_stage_outputs=True,
        bucket_elements=0,
    ),
    # Megatron-LM: --sequence-parallel, make_vocab_size_divisible_by 128, one contiguous gradient buffer.
    Framework.MEGATRON: Traits(
        sequence_parallel=True,
        vocab_multiple=128,
        dropout_masks=True,
        fully_sharded=False,
        reduces_every_micro_batch=False,
        flat_gradient_copy=False,
        rebuilds_buckets=False,
        preallocated_receives=False,
        dtensor=False,
        split_copies=0.0,
        overlaps_gradients=True,
        gathered_logits=False,
        keeps_stage_outputs=False,
        bucket_elements=0,
    ),
    # DeepSpeed: reduce_bucket_size 5e8 elements by default; ZeRO 2 reduces at every micro-batch.
    Framework.DEEPSPEED: Traits(
        sequence_parallel=False,
        vocab_multiple=1,
        dropout_masks=True,
        fully_sharded=False,
        reduces_every_micro_batch=True,
        flat_gradient_copy=False,
        rebuilds_buckets=False,
        preallocated_receives=False,
        dtensor=False,
        split_copies=0.0,
        overlaps_gradients=True,
        gathered_logits=False,
        keeps_stage_outputs=False,
        bucket_elements=500_000_000,
    ),
}
