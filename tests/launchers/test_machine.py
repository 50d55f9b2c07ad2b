from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_models.coefficients import DEFAULT_COEFFICIENTS
from cost_models.collectives import all_reduce_s, group
from cost_models.workload import Precision
from tuner.launchers import machine, system
from tuner.launchers.machine import (
    MachineFigures,
    MeasurementFailed,
    cache_path,
    cached_figures,
    full_figures,
    machine_cluster,
    quick_figures,
)
from tuner.launchers.numpy_rates import rates

CPU = DEFAULT_COEFFICIENTS.cpu
MIB = 1024**2


def told_all_reduce_s(ranks: int, size: int, latency_s: float, bandwidth: float) -> float:
    ring = 2 * (ranks - 1) / ranks * size / (CPU.link_efficiency * bandwidth)
    return 2 * (ranks - 1) * latency_s + CPU.collective_launch_s + ring


SAID = {
    "matmul_flops_per_s": {"fp32": 5e10, "bf16": 2e11, "fp16": 4e10},
    "small_matmul_flops_per_s": 2e10,
    "memory_bandwidth_bytes_per_s": 1e10,
    "operator_s": 5e-6,
    "compute_slots": 1.9,
    "all_reduce_s": [
        [n, size, told_all_reduce_s(n, size, 2e-4, 8e8)] for n in (2, 4) for size in (65536, 524288, 4 * MIB)
    ],
    "point_to_point_s": 3e-5,
    "framework_base_bytes": 2e8,
}


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Ranks:
    """Ended, or never ending, processes."""

    def __init__(self, codes: tuple[int | None, ...] = (0,)) -> None:
        self.codes = codes
        self.was_stopped = False

    def wait(self, timeout_s: float) -> bool:
        return None not in self.codes

    def stop(self) -> None:
        self.was_stopped = True
        self.codes = tuple(-15 if code is None else code for code in self.codes)

    def exit_codes(self) -> tuple[int | None, ...]:
        return self.codes


class Bench:
    """A launch that writes ``said`` as the measuring ranks would."""

    def __init__(self, said: dict[str, Any] | None = None, ranks: Ranks | None = None, log: str = "") -> None:
        self.said, self.ranks, self.log = said, ranks or Ranks(), log
        self.calls: list[tuple[str, int]] = []

    def __call__(self, entry: str, num_ranks: int, arguments: Sequence[Any], log: Path) -> Ranks:
        self.calls.append((entry, num_ranks))
        log.write_text(self.log, encoding="utf-8")
        if self.said is not None:
            (Path(arguments[0]) / "machine.json").write_text(json.dumps(self.said), encoding="utf-8")
        return self.ranks


def figures(num_ranks: int = 4) -> MachineFigures:
    return full_figures(num_ranks, launch=Bench(dict(SAID)))


# -- measuring -----------------------------------------------------------------------------------
def test_numpy_rates_are_of_this_world() -> None:
    seen = rates()
    assert 1e8 < seen["matmul_flops_per_s"] < 1e13
    assert 1e8 < seen["small_matmul_flops_per_s"] < 1e13
    assert 1e8 < seen["memory_bandwidth_bytes_per_s"] < 1e13


def test_quick_figures_are_quick_kept_and_say_what_they_assume() -> None:
    first = quick_figures()
    began = time.perf_counter()
    assert quick_figures() == replace(first, memory_bytes=system.total_memory_bytes())
    assert time.perf_counter() - began < 0.5
    assert {"operator_s", "all_reduce_s", "compute_slots", "framework_base_bytes"} <= set(first.assumed)
    sources = machine_cluster(first, 4).device.sources
    assert sources["peak_flops_per_s.fp32"].startswith("measured with numpy")
    assert sources["kernel_launch_s"] == "assumed"
    assert cached_figures(4) is None, "quick figures must not pass for measured ones"


def test_full_figures_are_kept_by_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "installed_version", lambda _: "2.13.0")
    bench = Bench(dict(SAID))
    seen = full_figures(4, launch=bench)
    assert bench.calls == [("tuner.training.bench:measure", 4)]
    assert cached_figures(4) == seen
    assert cached_figures(2) is None
    monkeypatch.setattr(machine, "installed_version", lambda _: "2.14.0")
    assert cached_figures(4) is None, "another torch is another machine"
    monkeypatch.setattr(machine, "installed_version", lambda _: None)
    assert cached_figures(4) is None


def test_a_broken_cache_is_told_and_measured_again(caplog: pytest.LogCaptureFixture) -> None:
    figures()
    path = cache_path(4)
    values = json.loads(path.read_text(encoding="utf-8"))
    for text in ("{", json.dumps({**values, "extra": 1}), json.dumps([1])):
        path.write_text(text, encoding="utf-8")
        with caplog.at_level(logging.WARNING):
            assert machine._read(4) is None
        assert str(path) in caplog.text
        caplog.clear()


def test_a_cache_that_cannot_be_written_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert figures().num_ranks == 4
    assert "cannot be written" in caplog.text


def test_ranks_that_fail_end_with_their_log() -> None:
    with pytest.raises(MeasurementFailed, match=r"exit codes \[1, 0\](.|\n)*no route to host"):
        full_figures(2, launch=Bench(None, Ranks((1, 0)), "gloo: no route to host\n"))


def test_ranks_that_say_nothing_are_a_failure_too() -> None:
    with pytest.raises(MeasurementFailed, match="tune doctor"):
        full_figures(2, launch=Bench(None))


def test_ranks_that_do_not_end_are_stopped() -> None:
    ranks = Ranks((0, None))
    with pytest.raises(MeasurementFailed, match="not done within 3 s"):
        full_figures(2, launch=Bench(dict(SAID), ranks), timeout_s=3)
    assert ranks.was_stopped


def test_slots_are_never_more_than_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 2.0)
    assert full_figures(4, launch=Bench({**SAID, "compute_slots": 3.7})).compute_slots == 2.0
    assert full_figures(4, launch=Bench({**SAID, "compute_slots": 0.6})).compute_slots == 1.0


def test_one_rank_measures_no_network() -> None:
    alone = full_figures(1, launch=Bench({**SAID, "all_reduce_s": [], "point_to_point_s": None}))
    assert alone.assumed == ("all_reduce_s",)
    assert machine_cluster(alone, 1).intra_node.source.startswith("assumed")


@pytest.mark.parametrize("call", [lambda: full_figures(0, launch=Bench()), lambda: machine_cluster(figures(), 0)])
def test_a_machine_has_one_device_or_more(call: Any) -> None:
    with pytest.raises(ValueError, match="=0: a machine"):
        call()


# -- as a cluster --------------------------------------------------------------------------------
def test_what_the_cost_model_makes_of_the_cluster_is_what_was_measured() -> None:
    cluster = machine_cluster(figures(), 4)
    device = cluster.device
    assert (device.name, device.kind, cluster.num_devices) == ("this-machine", "cpu", 4)
    assert device.peak_flops_per_s[Precision.FP32] * CPU.matmul_efficiency == pytest.approx(5e10)
    assert device.peak_flops_per_s[Precision.BF16] * CPU.matmul_efficiency == pytest.approx(2e11)
    assert device.memory_bandwidth_bytes_per_s * CPU.bandwidth_efficiency == pytest.approx(1e10)
    assert device.kernel_launch_s == 5e-6
    assert cluster.framework_base_bytes == 2e8
    assert cluster.compute_slots_per_node == pytest.approx(min(1.9, system.usable_cores()))
    assert cluster.memory_limit_bytes * 4 == pytest.approx(system.total_memory_bytes())


def test_the_link_is_recovered_from_its_own_timings() -> None:
    link = machine_cluster(figures(), 4).intra_node
    assert link.latency_s == pytest.approx(2e-4, rel=0.05)
    assert link.bandwidth_bytes_per_s == pytest.approx(8e8, rel=0.05)


def test_the_link_predicts_the_timings_through_the_cost_model() -> None:
    cluster = machine_cluster(figures(), 4)
    for ranks, size, seconds in SAID["all_reduce_s"]:  # type: ignore[attr-defined]
        members = group(cluster, CPU, size=np.array(ranks), stride=np.array(1))
        # The model counts the hops of a ring, n - 1 a pass, as the fit does.
        assert float(all_reduce_s(members, size, CPU)) == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_noise_never_gives_an_impossible_link(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = tuple((n, size, s * float(random.lognormal(0, 1.5))) for n, size, s in figures().all_reduce_s)
    link = machine_cluster(replace(figures(), all_reduce_s=rows), 4).intra_node
    assert 1e-6 <= link.latency_s <= 1e-2
    assert 1e7 <= link.bandwidth_bytes_per_s <= 1e11


def test_figures_go_to_json_and_come_back_equal() -> None:
    seen = figures()
    assert MachineFigures.from_dict(json.loads(json.dumps(seen.to_dict()))) == seen
    with pytest.raises(ValueError, match="expected"):
        MachineFigures.from_dict({"cores": 2})


# -- what the system says ------------------------------------------------------------------------
@pytest.mark.parametrize(
    "quota,cores", [("max 100000", 8.0), ("150000 100000", 1.5), ("", 8.0), ("9900000 100000", 8.0)]
)
def test_a_containers_quota_counts(monkeypatch: pytest.MonkeyPatch, quota: str, cores: float) -> None:
    monkeypatch.setattr(system.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(system, "_first_line", lambda _: quota)
    assert system.usable_cores() == cores


@pytest.mark.parametrize("limit,share", [("max", 1.0), ("1073741824", None), ("", 1.0)])
def test_a_containers_memory_limit_counts(monkeypatch: pytest.MonkeyPatch, limit: str, share: float | None) -> None:
    monkeypatch.setattr(system, "_first_line", lambda _: limit)
    total = float(system.psutil.virtual_memory().total)
    assert system.total_memory_bytes() == (2.0**30 if share is None else total)


def test_this_machine_has_a_name() -> None:
    assert system.cpu_model()
    assert system.installed_version("no-such-distribution") is None
