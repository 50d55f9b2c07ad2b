"""Presets: every alias leads to one device, every figure has a source, unknown names get a hint."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cost_models import Precision, presets
from cost_models.units import GB, GIB


@pytest.mark.parametrize(
    "name", ["h100-sxm-80gb", "H100 SXM", "H100-SXM-80GB", "NVIDIA H100 80GB HBM3", "h100_sxm_80gb"]
)
def test_spellings_of_one_device(name: str) -> None:
    assert presets.device(name).name == "h100-sxm-80gb"


@pytest.mark.parametrize("name", presets.device_names())
def test_every_device_is_complete(name: str) -> None:
    device = presets.device(name)
    assert 0.85 * device.nominal_memory_bytes < device.memory_bytes < 1.08 * device.nominal_memory_bytes
    assert device.peak_flops_per_s[Precision.FP32] > 1e12
    assert {"memory", "nominal_memory", "memory_bandwidth", "peak_tflops"} <= set(device.sources)
    assert all(device.sources.values())
    inside, between = presets.device_links(name)
    assert inside.source
    assert between.source
    assert inside.bandwidth_bytes_per_s >= between.bandwidth_bytes_per_s


def test_usable_memory_is_below_nominal() -> None:
    small = presets.device("A100 40GB")
    assert small.memory_bytes == pytest.approx(39.5 * GIB, rel=0.005)
    assert small.nominal_memory_bytes == 40 * GB


def test_peaks_match_the_published_table(reference_data: Path) -> None:
    names = {r["gpu"]: r for r in csv.DictReader((reference_data / "data" / "gpus.csv").read_text().splitlines())}
    checked = 0
    for alias in (
        "H100 SXM",
        "A100 SXM 80GB",
        "A100 SXM 40GB",
        "H200 SXM",
        "B200 SXM",
        "MI300X",
        "L40S",
        "RTX 4090",
        "A10G",
    ):
        device, row = presets.device(alias), names[alias]
        assert device.peak_flops_per_s[Precision.BF16] == pytest.approx(float(row["bf16_tflops"]) * 1e12)
        assert device.memory_bandwidth_bytes_per_s == pytest.approx(float(row["mem_bw_gbps"]) * 1e9)
        assert device.nominal_memory_bytes == pytest.approx(float(row["mem_gb"]) * GB)
        checked += 1
    assert checked == 9


def test_unknown_names_get_a_hint_and_the_list() -> None:
    with pytest.raises(presets.UnknownPresetError, match=r"did you mean .*h100-sxm.*known devices: a100") as caught:
        presets.device("h100-smx-80gb")
    assert isinstance(caught.value, ValueError)
    with pytest.raises(ValueError, match=r"did you mean llama-3-8b.*config\.json"):
        presets.model("lama-3-8b")
    with pytest.raises(ValueError, match="known devices"):
        presets.device("")


def test_figures_can_be_overridden() -> None:
    cluster = presets.cluster("h100-sxm-80gb", num_nodes=2, devices_per_node=4, memory_limit_bytes=70 * GIB,
                              memory_reserve_bytes=6 * GIB)  # fmt: skip
    assert cluster.num_devices == 8
    assert cluster.usable_memory_bytes == 64 * GIB
