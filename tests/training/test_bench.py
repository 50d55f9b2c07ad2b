from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tuner.launchers.forkserver import ForkServer
from tuner.launchers.machine import MeasurementFailed, cached_figures, full_figures, machine_cluster

pytestmark = pytest.mark.needs("torch")


@dataclass
class Spawned:
    """Fresh processes with the interface of a rank group: a fork server of this test run may have other preloads."""

    processes: list[Any]

    def wait(self, timeout_s: float) -> bool:
        for process in self.processes:
            process.join(timeout_s)
        return all(p.exitcode is not None for p in self.processes)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(10)

    def exit_codes(self) -> tuple[int | None, ...]:
        return tuple(p.exitcode for p in self.processes)


@pytest.fixture(scope="module")
def server() -> ForkServer:
    server = ForkServer(("torch", "torch.distributed"), {"OMP_NUM_THREADS": "1"})
    server.start()
    assert server.wait_ready(90)
    return server


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_a_real_measurement_gives_a_machine_of_this_world(server: ForkServer, num_ranks: int) -> None:
    seen = full_figures(num_ranks, launch=server.launch)
    assert seen.num_ranks == num_ranks
    assert set(seen.matmul_flops_per_s) == {"fp32", "bf16", "fp16"}
    assert all(1e7 < rate < 1e14 for rate in seen.matmul_flops_per_s.values())
    assert 1e8 < seen.memory_bandwidth_bytes_per_s < 1e13
    assert 1e-7 < seen.operator_s < 1e-2
    assert 50e6 < seen.framework_base_bytes < 2e9
    assert 1.0 <= seen.compute_slots <= max(1, len(os.sched_getaffinity(0)))
    if num_ranks > 1:
        assert {row[0] for row in seen.all_reduce_s} == {2, num_ranks}
        assert all(1e-6 < seconds < 5 for _, _, seconds in seen.all_reduce_s)
        assert seen.point_to_point_s is not None
        by_size = {size: s for ranks, size, s in seen.all_reduce_s if ranks == 2}
        assert by_size[4 * 1024**2] > by_size[4]
    assert cached_figures(num_ranks) == seen
    assert machine_cluster(seen, num_ranks).num_devices == num_ranks


def test_a_rank_that_is_missing_is_told_within_the_limit() -> None:
    def launch(entry: str, num_ranks: int, arguments: Sequence[Any], log: Path) -> Spawned:
        log.write_text("only one of two came\n", encoding="utf-8")
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_first_rank_alone, args=(tuple(arguments),))
        process.start()
        return Spawned([process])

    with pytest.raises(MeasurementFailed, match="only one of two came"):
        full_figures(2, launch=launch, timeout_s=6)


def _first_rank_alone(arguments: tuple[Any, ...]) -> None:
    from tuner.training.bench import measure

    measure(*arguments, 0)
