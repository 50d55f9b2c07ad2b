"""Spaces to plan, from a few keys."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tuner.space.load import load_space
from tuner.space.search_space import SearchSpace

MODEL = "{layers: 8, hidden: 512, heads: 8, vocab: 4096}"


@pytest.fixture
def space() -> Callable[..., SearchSpace]:
    """A space of one node: ``layout`` and the rest as YAML flow mappings; batches in sequences of 1024 tokens."""

    def load(
        layout: str = "{}",
        *,
        model: str = MODEL,
        devices: int = 8,
        cluster: str = "",
        batches: tuple[int, ...] = (64,),
        search: str = "{}",
        objective: str = "{}",
    ) -> SearchSpace:
        tokens = [1024 * b for b in batches]
        return load_space(
            f"version: 1\nmodel: {model}\n"
            f"cluster: {{device: h100-sxm-80gb, nodes: 1, devices_per_node: {devices}{cluster}}}\n"
            f"data: {{sequence_length: 1024, tokens: 1B}}\nlayout: {layout}\n"
            f"hyperparameters: {{batch_tokens: {tokens}, learning_rate: 1e-3}}\n"
            f"objective: {objective}\nsearch: {search}\n"
        )

    return load
