"""Presets: devices (TOML, a source per figure) and models (Hugging Face config files), by any name people use."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from cost_models.cluster import Cluster, Device, Link
from cost_models.hf_config import read_hf_config
from cost_models.shape import ModelShape
from cost_models.units import GB, GIB
from cost_models.workload import Precision


class UnknownPresetError(ValueError):
    """No preset is meant by this name; the message has the nearest and all that exist."""


def device_names() -> tuple[str, ...]:
    """Canonical names, sorted."""
    return tuple(sorted(_device_tables()))


def model_names() -> tuple[str, ...]:
    """Canonical names, sorted."""
    folder = files("cost_models") / "presets" / "models"
    return tuple(sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json")))


def canonical_device_name(name: str) -> str:
    """The preset that ``name`` means; case, spaces, dashes and underscores do not matter.

    UnknownPresetError with the nearest names where none is meant.
    """
    aliases = _device_aliases()
    found = aliases.get(_key(name))
    if found is None:
        raise UnknownPresetError(_unknown("device", name, device_names(), [*aliases]))
    return found


def device(name: str) -> Device:
    """A device preset by canonical name or alias (``H100 SXM``, ``NVIDIA H100 80GB HBM3``)."""
    table = _device_tables()[canonical_device_name(name)]
    return Device(
        name=table["name"],
        kind=table["kind"],
        peak_flops_per_s={Precision(k): float(v) * 1e12 for k, v in table["peak_tflops"].items()},
        memory_bytes=table["memory_gib"] * GIB,
        nominal_memory_bytes=table["nominal_memory_gb"] * GB,
        memory_bandwidth_bytes_per_s=table["memory_bandwidth_gb_per_s"] * 1e9,
        kernel_launch_s=table["kernel_launch_us"] * 1e-6,
        sources=table["sources"],
    )


def cluster(
    name: str,
    *,
    num_nodes: int,
    devices_per_node: int | None = None,
    intra_node: Link | None = None,
    inter_node: Link | None = None,
    memory_limit_bytes: float | None = None,
    memory_reserve_bytes: float = 0.0,
    framework_base_bytes: float = 0.0,
) -> Cluster:
    """Nodes of a device preset with its usual links; every figure may be overridden."""
    table = _device_tables()[canonical_device_name(name)]
    chip = device(name)
    return Cluster(
        device=chip,
        num_nodes=num_nodes,
        devices_per_node=devices_per_node or table["devices_per_node"],
        intra_node=intra_node or _link(table["intra_node"]),
        inter_node=inter_node or _link(table["inter_node"]),
        memory_limit_bytes=chip.memory_bytes if memory_limit_bytes is None else memory_limit_bytes,
        memory_reserve_bytes=memory_reserve_bytes,
        framework_base_bytes=framework_base_bytes,
    )


def device_links(name: str) -> tuple[Link, Link]:
    """(inside a node, between nodes): the links such devices usually have."""
    table = _device_tables()[canonical_device_name(name)]
    return _link(table["intra_node"]), _link(table["inter_node"])


def devices_per_node(name: str) -> int:
    """How many such devices a node usually has."""
    return int(_device_tables()[canonical_device_name(name)]["devices_per_node"])


def model(name: str) -> ModelShape:
    """A model preset. UnknownPresetError with the nearest names where there is none."""
    names = {_key(n): n for n in model_names()}
    found = names.get(_key(name))
    if found is None:
        message = _unknown("model", name, model_names(), [*names])
        raise UnknownPresetError(f"{message}; or give the path of a config.json")
    text = (files("cost_models") / "presets" / "models" / f"{found}.json").read_text(encoding="utf-8")
    return read_hf_config({"name": found, **json.loads(text)})


def _key(name: str) -> str:
    """Lower case, every run of other characters one dash: ``H100 SXM 80GB`` -> ``h100-sxm-80gb``."""
    return re.sub(r"[^a-z0-9.]+", "-", name.strip().lower()).strip("-")


def _link(table: Mapping[str, Any]) -> Link:
    return Link(
        bandwidth_bytes_per_s=table["bandwidth_gb_per_s"] * 1e9,
        latency_s=table["latency_us"] * 1e-6,
        source=table["source"],
    )


@cache
def _device_tables() -> dict[str, dict[str, Any]]:
    folder = files("cost_models") / "presets" / "devices"
    tables = [tomllib.loads(f.read_text(encoding="utf-8")) for f in folder.iterdir() if f.name.endswith(".toml")]
    return {table["name"]: table for table in tables}


@cache
def _device_aliases() -> dict[str, str]:
    """The one alias table: every spelling's key -> canonical name. A spelling that means two devices is our bug."""
    aliases: dict[str, str] = {}
    for name, table in _device_tables().items():
        for spelling in (name, *table["aliases"]):
            known = aliases.setdefault(_key(spelling), name)
            assert known == name, f"device alias {spelling!r} means both {known} and {name}"
    return aliases


def _unknown(what: str, name: str, names: Iterable[str], keys: list[str]) -> str:
    """ "unknown device 'x'; did you mean ...? known: ..."."""
    known = list(names)
    near = difflib.get_close_matches(_key(name), dict.fromkeys([*known, *keys]), n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(near)}?" if near else ";"
    return f"unknown {what} {name!r}{hint} known {what}s: {', '.join(known)}"
