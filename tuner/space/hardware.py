"""``cluster:`` of a space file as a Cluster: a device preset or this machine, with what the file overrides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cost_models import presets
from cost_models.cluster import Cluster, Link
from cost_models.units import GIB
from tuner.space.errors import did_you_mean
from tuner.space.schema import ClusterSpec, LinkSpec
from tuner.space.source import Source

THIS_MACHINE = "this-machine"


def build_cluster(source: Source, form: ClusterSpec, this_machine: Callable[[int], Cluster] | None) -> Cluster | None:
    """None where it is wrong, with the problem noted."""
    base = _measured(source, form, this_machine) if form.device == THIS_MACHINE else _preset(source, form)
    if base is None:
        return None
    cluster = replace(
        base,
        num_nodes=form.nodes,
        devices_per_node=form.devices_per_node or base.devices_per_node,
        intra_node=_link(base.intra_node, form.intra_node),
        inter_node=_link(base.inter_node, form.inter_node),
        memory_limit_bytes=base.memory_limit_bytes if form.memory is None else form.memory,
        memory_reserve_bytes=base.memory_reserve_bytes if form.memory_reserve is None else form.memory_reserve,
        framework_base_bytes=base.framework_base_bytes if form.framework_base is None else form.framework_base,
        price_per_device_hour=form.price_per_device_hour,
    )
    return cluster if _memory_makes_sense(source, form, cluster) else None


def _preset(source: Source, form: ClusterSpec) -> Cluster | None:
    try:
        return presets.cluster(form.device, num_nodes=form.nodes, devices_per_node=form.devices_per_node)
    except ValueError:
        hint = did_you_mean(form.device, [*presets.device_names(), THIS_MACHINE], what="devices")
        source.problem_at(("cluster", "device"), f'unknown device "{form.device}"', hint)
        return None


def _measured(source: Source, form: ClusterSpec, this_machine: Callable[[int], Cluster] | None) -> Cluster | None:
    devices_per_node = form.devices_per_node or 1
    if form.nodes != 1:
        message = f"this-machine is one node, not {form.nodes}"
        next_step = f"write nodes: 1, devices_per_node: {form.nodes * devices_per_node}"
        source.problem_at(("cluster", "nodes"), message, next_step)
        return None
    if this_machine is None:
        source.problem_at(("cluster", "device"), "this-machine cannot be measured here", "name a device preset")
        return None
    return this_machine(devices_per_node)


def _link(base: Link, form: float | LinkSpec | None) -> Link:
    if form is None:
        return base
    if isinstance(form, LinkSpec):
        latency_s = base.latency_s if form.latency is None else form.latency
        return Link(bandwidth_bytes_per_s=form.bandwidth, latency_s=latency_s, source="space file")
    return replace(base, bandwidth_bytes_per_s=form, source="space file")


def _memory_makes_sense(source: Source, form: ClusterSpec, cluster: Cluster) -> bool:
    limit, device = cluster.memory_limit_bytes, cluster.device
    held = cluster.memory_reserve_bytes + cluster.framework_base_bytes
    if form.memory is not None and device.kind != "cpu" and limit > device.memory_bytes:
        message = f"{limit / GIB:.1f} GiB is more than the {device.memory_bytes / GIB:.1f} GiB of {device.name}"
        source.problem_at(("cluster", "memory"), message, "write less, or remove it for the device's own")
        return False
    if held >= limit:
        message = (
            f"nothing is left of {limit / GIB:.2f} GiB after memory_reserve {cluster.memory_reserve_bytes / GIB:.2f} "
            f"GiB and framework_base {cluster.framework_base_bytes / GIB:.2f} GiB"
        )
        key = next(
            (k for k in ("memory", "memory_reserve", "framework_base") if getattr(form, k) is not None), "device"
        )
        source.problem_at(("cluster", key), message, "raise memory, or lower what is kept free")
        return False
    return True
