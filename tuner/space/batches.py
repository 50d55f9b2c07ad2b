"""Batch sizes: ``batch_tokens`` of a space as sequences per optimizer step."""

from __future__ import annotations

from tuner.space.dimensions import Dimension, Range
from tuner.space.search_space import SearchSpace

MAX_FROM_RANGE = 8


def batch_sizes(space: SearchSpace) -> tuple[int, ...]:
    """Batches to price and try, in sequences per optimizer step, ascending.

    A range gives its grid where it has a step, doublings from its low where it is logarithmic, and otherwise up to
    eight evenly spaced multiples of the sequence. ValueError where a batch is no whole number of sequences.
    """
    return sequences(space.hyperparameters["batch_tokens"], space.data.sequence_length)


def sequences(batch_tokens: Dimension, sequence_length: int) -> tuple[int, ...]:
    if isinstance(batch_tokens, Range):
        return _from_range(batch_tokens, sequence_length)
    return tuple(sorted({whole_sequences(int(value), sequence_length) for value in batch_tokens.values}))


def whole_sequences(tokens: int, sequence_length: int) -> int:
    """``tokens`` in sequences; ValueError with the nearest batches where it is no whole number of them."""
    if tokens % sequence_length == 0:
        return tokens // sequence_length
    below = tokens // sequence_length * sequence_length
    nearest = f"{below} and {below + sequence_length}" if below else f"{sequence_length}"
    raise ValueError(
        f"batch of {tokens} tokens is not a whole number of sequences of {sequence_length} "
        f"({tokens} % {sequence_length} = {tokens % sequence_length}); nearest: {nearest}"
    )


def _from_range(batch_tokens: Range, sequence_length: int) -> tuple[int, ...]:
    low, top = whole_sequences(round(batch_tokens.low), sequence_length), int(batch_tokens.high) // sequence_length
    if batch_tokens.step is not None:
        return tuple(range(low, top + 1, whole_sequences(round(batch_tokens.step), sequence_length)))
    if batch_tokens.log:
        return tuple(low << doubling for doubling in range((top // low).bit_length()))
    stride = max(1, -(-(top - low) // (MAX_FROM_RANGE - 1)))
    return tuple(range(low, top + 1, stride))
