"""The local pump with a runner that only pretends: order of recording, interruption, and what is passed on."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.study.conftest import StudyMaker, make_study  # noqa: F401
from tests.study.world import World
from tuner.drive import local
from tuner.drive.local import LocalDrive
from tuner.outcome import StudyStatus
from tuner.records import CurvePoint, Status, TrialResult, TrialSpec
from tuner.study.study import Study
from tuner.trials.events import Event, TrialFinished, TrialPoint


@dataclass(slots=True)
class PretendRunner:
    """Each trial ends at the next poll; ``diary`` is shared with the record, to see what came first."""

    world: World
    diary: list[str]
    running: list[TrialSpec] = field(default_factory=list)
    interrupt_after: int | None = None

    def start(self, spec: TrialSpec, directory: Path) -> None:
        self.diary.append(f"start {spec.id}")
        self.running.append(spec)

    def stop(self, trial_id: int, status: Status) -> None:
        self.diary.append(f"stop {trial_id}")

    def stop_all(self, status: Status) -> tuple[TrialResult, ...]:
        ended = tuple(TrialResult(spec=s, status=status) for s in self.running)
        self.running.clear()
        return ended

    def poll(self) -> tuple[Event, ...]:
        if self.interrupt_after is not None and len(self.diary) >= self.interrupt_after:
            os.kill(os.getpid(), signal.SIGTERM)
        if not self.running:
            return ()
        spec = self.running.pop(0)
        result = self.world.result(spec)
        self.world.now = result.ended_s
        point = CurvePoint(step=1, tokens=1, train_s=1.0, loss=1.0)
        return (
            TrialPoint(trial_id=spec.id, line={"kind": "eval"}, point=point),
            TrialFinished(result=result),
        )


@dataclass(slots=True)
class PretendRecord:
    folder: Path
    diary: list[str]
    results: list[TrialResult] = field(default_factory=list)

    def trial_dir(self, trial_id: int) -> Path:
        return self.folder

    def write_spec(self, spec: TrialSpec) -> None:
        self.diary.append(f"spec {spec.id}")

    def append_result(self, result: TrialResult) -> None:
        self.diary.append(f"record {result.spec.id}")
        self.results.append(result)


@dataclass(slots=True)
class Witness:
    """Tracker and view in one."""

    finished_ids: list[int] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)
    points: int = 0
    said: list[str] = field(default_factory=list)

    def trial_started(self, spec: TrialSpec) -> None: ...

    def trial_point(self, trial_id: int, line: dict[str, Any]) -> None:
        self.points += 1

    def trial_finished(self, result: TrialResult) -> None:
        self.statuses.append(result.status)

    def say(self, text: str) -> None:
        self.said.append(text)

    def finished(self, result: TrialResult) -> None:
        self.finished_ids.append(result.spec.id)

    def refresh(self, study: Study, now: float) -> None: ...


def drive_of(study: Study, folder: Path, **runner: Any) -> tuple[LocalDrive, PretendRecord, Witness]:
    world, diary = World(), []
    record, witness = PretendRecord(folder, diary), Witness()
    drive = LocalDrive(
        study=study,
        runner=PretendRunner(world, diary, **runner),  # type: ignore[arg-type]
        record=record,
        tracker=witness,
        view=witness,
        clock=lambda: world.now,
    )
    return drive, record, witness


def test_a_trial_is_on_record_before_the_next_starts(make_study: StudyMaker, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    monkeypatch.setattr(local, "POLL_S", 0.0)
    drive, record, witness = drive_of(make_study(), tmp_path)
    assert drive.run() is StudyStatus.FINISHED
    diary = record.diary
    for entry in (e for e in diary if e.startswith("start")):
        number = entry.split()[1]
        assert diary.index(f"spec {number}") < diary.index(entry) < diary.index(f"record {number}")
    probes = [r.spec.id for r in record.results if r.spec.purpose == "probe"]
    assert [e for e in diary if e.split()[1] in map(str, probes[:2])] == [
        f"{what} {n}" for n in probes[:2] for what in ("spec", "start", "record")
    ]
    assert witness.finished_ids == [r.spec.id for r in record.results]
    assert witness.points == len(record.results)
    assert any("target loss" in text for text in witness.said)


def test_sigterm_stops_everything_and_records_nothing_unfinished(make_study: StudyMaker, tmp_path: Path) -> None:  # noqa: F811
    drive, record, witness = drive_of(make_study(), tmp_path, interrupt_after=8)
    assert drive.run() is StudyStatus.INTERRUPTED
    started = {e.split()[1] for e in record.diary if e.startswith("start")}
    recorded = {e.split()[1] for e in record.diary if e.startswith("record")}
    assert len(started - recorded) == 1
    assert witness.statuses[-1] is Status.INTERRUPTED
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
