"""Whatever stands at whatever key, the answer is a space or a SpaceError, never anything else."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tuner.plan.build import NothingFeasible, build_plan
from tuner.space.errors import SpaceError
from tuner.space.load import load_space

EXAMPLE = Path(__file__).parents[2] / "search_spaces" / "llama3-8b-16xh100.yaml"
JUNK = [
    *(
        None,
        True,
        -1,
        0,
        1.5,
        1e300,
        10**30,
        "",
        "word",
        "6 GiB",
        "\u2028",
        [],
        [[]],
        [1, "x"],
        {},
        {"low": 2, "high": 1},
    ),
    {"low": 1, "high": 10**12, "log": True},
    {"low": 0.5, "high": 8, "step": 3},
]


def paths(tree: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if at:
        yield at
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from paths(value, (*at, key))


def load_example() -> Any:
    return YAML(typ="safe").load(EXAMPLE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def example() -> Any:
    """The example with fewer layouts, so that each is planned in milliseconds."""
    tree = load_example()
    tree["layout"] |= {"tp": [1, 8], "pp": [1, 2], "micro_batch": 1}
    return tree


@pytest.mark.parametrize("path", list(paths(load_example())), ids=".".join)
def test_any_value_at_any_key(path: tuple[str, ...], example: Any) -> None:
    for junk in JUNK:
        tree = copy.deepcopy(example)
        section = tree
        for key in path[:-1]:
            section = section[key]
        section[path[-1]] = junk
        with contextlib.suppress(SpaceError, NothingFeasible):
            build_plan(load_space(json.dumps(tree, indent=1)))


@pytest.mark.parametrize(
    "layout",
    ["{tp: 32768, pp: 32768, cp: 32768, micro_batch: 32768}", "{dp: 32768, tp: 32768, pp: 32768, cp: 32768}"],
)
def test_the_largest_sizes_do_not_overflow(layout: str, text: Callable[..., str]) -> None:
    sections = {
        "model": "model: {layers: 10000, hidden: 1048576, heads: 1048576, ffn: 1048576, vocab: 16777216, gated: true}",
        "cluster": "cluster: {device: h100-sxm-80gb, nodes: 32768, devices_per_node: 32768}",
        "data": "data: {sequence_length: 16777216, tokens: 1e18}",
        "hyperparameters": "hyperparameters: {batch_tokens: 68719476736}",
        "layout": f"layout: {layout}",
    }
    with pytest.raises(NothingFeasible):
        build_plan(load_space(text(**sections)))
