"""A light fork server (nothing heavy preloaded), and a runner over made-up ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cost_models.layout import Layout
from tuner.adapters.native import NativeAdapter
from tuner.adapters.protocol import Launch, RankReport
from tuner.launchers.forkserver import ForkServer
from tuner.records import Predicted, Purpose, Recipe, Status, TrialResult, TrialSpec
from tuner.trials.events import TrialFinished
from tuner.trials.runner import TrialRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryAdapter:
    """Starts ``tests.trials.entries:NAME``; its files are read as the native adapter's."""

    name: str
    reader: NativeAdapter

    def prepare(self, spec: TrialSpec, directory: Path) -> Launch:
        entry = f"tests.trials.entries:{self.name}"
        return Launch(entry=entry, arguments=(str(directory),), num_ranks=spec.layout.num_devices)

    def metrics_file(self, directory: Path) -> Path:
        return directory / "metrics.jsonl"

    def rank_reports(self, directory: Path, num_ranks: int) -> tuple[RankReport, ...]:
        return self.reader.rank_reports(directory, num_ranks)


@pytest.fixture(scope="session")
def server() -> ForkServer:
    server = ForkServer((), {"OMP_NUM_THREADS": "7"})
    server.start()
    assert server.wait_ready(30)
    return server


def spec_of(layout: Layout, *, wall_clock_s: float = 30.0) -> TrialSpec:
    return TrialSpec(
        id=1,
        purpose=Purpose.PROBE,
        layout=layout,
        recipe=Recipe(batch_tokens=512, learning_rate=1e-3, warmup=1),
        seed=0,
        num_steps=10,
        horizon_steps=10,
        eval_every=0,
        sequence_length=128,
        wall_clock_s=wall_clock_s,
        predicted=Predicted(step_time_s=0.01, memory_bytes=1.0),
    )


Once = Callable[..., TrialResult]


@pytest.fixture
def run_once(server: ForkServer, tmp_path: Path, quickstart_like_adapter: NativeAdapter) -> Once:
    """``run_once("entry", wall_clock_s=...)``: the result of one trial on two ranks."""

    def once(name: str, *, wall_clock_s: float = 30.0, limit_s: float = 40.0) -> TrialResult:
        adapter = EntryAdapter(name=name, reader=quickstart_like_adapter)
        runner = TrialRunner(server, adapter, time.monotonic)
        runner.start(spec_of(Layout(dp=2), wall_clock_s=wall_clock_s), tmp_path)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            for event in runner.poll():
                if isinstance(event, TrialFinished):
                    return event.result
            time.sleep(0.02)
        runner.stop_all(Status.INTERRUPTED)
        raise AssertionError(f"the trial did not end within {limit_s} s")

    return once


@pytest.fixture
def quickstart_like_adapter() -> NativeAdapter:
    from tests.study.conftest import SPACE, machine
    from tuner.space.load import load_space

    text = SPACE.replace("OBJECTIVE", "time_to_loss").replace("TARGET", "auto").replace("WALL", "240")
    return NativeAdapter(space=load_space(text, this_machine=machine))
