"""Times of collectives on a two-level network: ``n`` ranks, ``stride`` devices apart, with ring bandwidth terms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.cluster import Cluster
from cost_models.coefficients import Costs
from cost_models.units import Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A communicator's size, its ring bandwidth per rank, and the latency of one pass around it."""

    size: Number
    bandwidth_bytes_per_s: Number
    pass_latency_s: Number
    """``(k - 1)`` hops inside a node and ``2 log2(n / k)`` between nodes (NCCL's trees), k members per node."""


def group(cluster: Cluster, costs: Costs, *, size: Number, stride: Number) -> Group:
    """The communicator of ``size`` ranks ``stride`` devices apart.

    k = members inside one node. A ring that leaves the node has k network interfaces, one per member:
    ``B = min(B_intra, k B_inter)``. Source: NCCL's multi-ring construction. Leaves out: congestion between groups
    that is not already in ``Link.bandwidth_bytes_per_s`` (one device's share).
    """
    inside = np.minimum(size, np.maximum(1, cluster.devices_per_node // stride))
    spans = size > inside
    across = np.minimum(cluster.intra_node.bandwidth_bytes_per_s, inside * cluster.inter_node.bandwidth_bytes_per_s)
    across = np.where(inside > 1, across, cluster.inter_node.bandwidth_bytes_per_s)
    bandwidth = costs.link_efficiency * np.where(spans, across, cluster.intra_node.bandwidth_bytes_per_s)
    hops_between = 2.0 * np.log2(np.maximum(size / inside, 1.0))
    latency = (inside - 1) * cluster.intra_node.latency_s + hops_between * cluster.inter_node.latency_s
    return Group(size=size, bandwidth_bytes_per_s=bandwidth, pass_latency_s=latency)


def all_gather_s(ranks: Group, payload_bytes: Number, costs: Costs, *, num_calls: Number = 1) -> Number:
    """Ring all-gather of ``payload_bytes`` in total, in ``num_calls`` calls: ``(n - 1)/n S/B`` and the latencies.

    A reduce-scatter takes the same time. Zero for a group of one.
    """
    share = (ranks.size - 1) / ranks.size
    seconds = share * payload_bytes / ranks.bandwidth_bytes_per_s
    fixed = num_calls * (ranks.pass_latency_s + costs.collective_launch_s)
    return np.where(np.greater(ranks.size, 1), seconds + fixed, 0.0)


reduce_scatter_s = all_gather_s


def all_reduce_s(ranks: Group, payload_bytes: Number, costs: Costs, *, num_calls: Number = 1) -> Number:
    """Ring all-reduce: a reduce-scatter and an all-gather, launched once."""
    share = 2.0 * (ranks.size - 1) / ranks.size
    seconds = share * payload_bytes / ranks.bandwidth_bytes_per_s
    fixed = num_calls * (2.0 * ranks.pass_latency_s + costs.collective_launch_s)
    return np.where(np.greater(ranks.size, 1), seconds + fixed, 0.0)


def point_to_point_s(cluster: Cluster, costs: Costs, payload_bytes: Number, *, leaves_node: Number) -> Number:
    """One message: ``alpha + S / B`` on the link it crosses."""
    inside, between = cluster.intra_node, cluster.inter_node
    fast = inside.latency_s + payload_bytes / (costs.link_efficiency * inside.bandwidth_bytes_per_s)
    slow = between.latency_s + payload_bytes / (costs.link_efficiency * between.bandwidth_bytes_per_s)
    return np.where(leaves_node, slow, fast)
