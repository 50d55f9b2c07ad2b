"""A small valid space whose sections a test replaces one at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cost_models.cluster import Cluster, Device, Link
from cost_models.workload import Precision
from tuner.space.errors import SpaceError
from tuner.space.load import load_space

SECTIONS = {
    "version": "version: 1",
    "model": "model: {layers: 4, hidden: 96, heads: 4, vocab: 256, positions: 128}",
    "cluster": "cluster: {device: h100-sxm-80gb, nodes: 1, devices_per_node: 4}",
    "data": "data: {sequence_length: 128, tokens: 400k}",
    "hyperparameters": "hyperparameters: {batch_tokens: [1024, 2048], learning_rate: 1e-3}",
}


@pytest.fixture
def text() -> Callable[..., str]:
    """The space with the sections given by keyword replaced or added; None leaves one out."""

    def build(**sections: str | None) -> str:
        parts = {**SECTIONS, **sections}
        return "\n".join(part for part in parts.values() if part is not None) + "\n"

    return build


@pytest.fixture
def error_of(text: Callable[..., str]) -> Callable[..., SpaceError]:
    """The SpaceError of a space with some sections replaced."""

    def load(**sections: str | None) -> SpaceError:
        with pytest.raises(SpaceError) as caught:
            load_space(text(**sections))
        return caught.value

    return load


@pytest.fixture
def machine() -> Callable[[int], Cluster]:
    """A measured CPU cluster of so many processes."""

    def measure(num_devices: int) -> Cluster:
        link = Link(bandwidth_bytes_per_s=1e9, latency_s=5e-5)
        device = Device(
            name="cpu",
            kind="cpu",
            peak_flops_per_s={Precision.FP32: 5e10},
            memory_bytes=16 * 2**30,
            memory_bandwidth_bytes_per_s=1e10,
        )
        return Cluster(
            device=device,
            num_nodes=1,
            devices_per_node=num_devices,
            intra_node=link,
            inter_node=link,
            memory_limit_bytes=16 * 2**30,
            compute_slots_per_node=2,
        )

    return measure
