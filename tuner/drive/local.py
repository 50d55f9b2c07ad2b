"""The local pump: does what the study asks, tells it what happened, and records before anything next starts."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from tuner.outcome import StudyStatus
from tuner.records import Status, TrialResult, TrialSpec
from tuner.study.actions import Finish, Launch, Say, Stop
from tuner.study.study import Study
from tuner.trials.events import TrialFinished, TrialPoint
from tuner.trials.runner import TrialRunner

POLL_S = 0.03
"""Between two looks at the running trials: far below a step, and a hundredth of a core."""


class Record(Protocol):
    """Where finished trials are kept; ``tuner.tracking.run_directory`` has the real one."""

    def trial_dir(self, trial_id: int) -> Path: ...
    def write_spec(self, spec: TrialSpec) -> None: ...
    def append_result(self, result: TrialResult) -> None: ...


class Tracker(Protocol):
    """What follows the study outside; it never blocks and never raises into it."""

    def trial_started(self, spec: TrialSpec) -> None: ...
    def trial_point(self, trial_id: int, line: dict[str, Any]) -> None: ...
    def trial_finished(self, result: TrialResult) -> None: ...


class View(Protocol):
    """What a person watches."""

    def say(self, text: str) -> None: ...
    def finished(self, result: TrialResult) -> None: ...
    def refresh(self, study: Study, now: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDrive:
    study: Study
    runner: TrialRunner
    record: Record
    tracker: Tracker
    view: View
    clock: Callable[[], float]

    def run(self) -> StudyStatus:
        """Until the study finishes, or SIGINT or SIGTERM ends it; either way no process of a trial is left."""
        try:
            with terminate_as_interrupt():
                return self._pump()
        except KeyboardInterrupt:
            self._abandon()
            return StudyStatus.INTERRUPTED
        except BaseException:
            self._abandon()
            raise

    def _pump(self) -> StudyStatus:
        while True:
            for action in self.study.next(self.clock()):
                match action:
                    case Say(text=text):
                        self.view.say(text)
                    case Launch(spec=spec):
                        self._launch(spec)
                    case Stop(trial_id=trial_id, status=status, reason=reason):
                        self.view.say(f"trial {trial_id:02d} stopped: {reason}")
                        self.runner.stop(trial_id, status)
                    case Finish(status=status):
                        return status
            self._listen()
            self.view.refresh(self.study, self.clock())
            time.sleep(POLL_S)

    def _launch(self, spec: TrialSpec) -> None:
        self.record.write_spec(spec)
        self.runner.start(spec, self.record.trial_dir(spec.id))
        self.tracker.trial_started(spec)

    def _listen(self) -> None:
        for event in self.runner.poll():
            match event:
                case TrialPoint(trial_id=trial_id, line=line):
                    self.tracker.trial_point(trial_id, line)
                    self.study.on(event)
                case TrialFinished(result=result):
                    self.study.on(event)
                    settled = next(r for r in self.study.results if r.spec.id == result.spec.id)
                    self.record.append_result(settled)
                    self.tracker.trial_finished(settled)
                    self.view.finished(settled)

    def _abandon(self) -> None:
        """End what runs; it is not recorded as finished, so that a resume runs it again."""
        for result in self.runner.stop_all(Status.INTERRUPTED):
            self.tracker.trial_finished(result)


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP become KeyboardInterrupt, so that one path ends everything."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
