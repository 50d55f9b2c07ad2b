"""MlflowTracker: the study's word to MLflow, through a queue to a thread, so that the study never waits or fails."""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tuner.outcome import StudyStatus
from tuner.records import TrialResult, TrialSpec
from tuner.tracking.errors import MissingExtra
from tuner.tracking.mlflow_session import STUDY_STATES, MlflowSession
from tuner.tracking.mlflow_uri import absolute_uri

POINT_INTERVAL_S = 1.0
"""Step metrics are written about this often, many to a call."""
GIVE_UP_AFTER = 3
"""After so many failures in a row only the closing is still tried."""
RUN_ID_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 60.0

_POPPED = (
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_ID",
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_ACTIVE_MODEL_ID",
    "_MLFLOW_ACTIVE_MODEL_ID",
)
"""Inherited by trials, these would reopen or redirect runs."""
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""Set where the user has not: nothing on standard output, and a dead server is given up in seconds, not minutes."""

logger = logging.getLogger(__name__)

_Act = Callable[[MlflowSession], None]


class MlflowTracker:
    """Begin one with ``start``; end it with ``close``, in a ``finally``, after which no run is left RUNNING.

    Every method returns at once but ``run_id``, ``flush`` and ``close``, which wait up to a time-out. A server that
    is broken or slow never raises here: ``problem`` holds what happened, and it is logged once.
    """

    def __init__(self, uri: str, open_session: Callable[[], MlflowSession]) -> None:
        self.uri = uri
        self.problem: str | None = None
        self.experiment_id: str | None = None
        self._run_id: str | None = None
        self._failures = 0
        self._ended_as: StudyStatus | None = None
        self._closing = threading.Event()
        self._state = "KILLED"
        self._opened = threading.Event()
        self._queue: queue.SimpleQueue[_Act | threading.Event | None] = queue.SimpleQueue()
        self._open_session = open_session
        self._thread = threading.Thread(target=self._work, name="mlflow-tracker", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @classmethod
    def start(
        cls,
        uri: str,
        experiment: str,
        study_name: str,
        run_dir: Path,
        *,
        parent_run_id: str | None = None,
        adapter: str = "native",
    ) -> MlflowTracker:
        """Begin a study's parent run in the background, or go on with ``parent_run_id`` after a resume.

        MissingExtra without mlflow, ValueError for a URI that cannot be a store: both before anything is started.
        """
        if importlib.util.find_spec("mlflow") is None:
            raise MissingExtra("mlflow", "train", "tracking")
        where = absolute_uri(uri)
        for name in _POPPED:
            os.environ.pop(name, None)
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        path = Path(run_dir).absolute()
        return cls(
            where,
            lambda: MlflowSession.open(
                where, experiment, study_name, path, parent_run_id=parent_run_id, adapter=adapter
            ),
        )

    # -- what the study says ---------------------------------------------------------------------
    def trial_started(self, spec: TrialSpec) -> None:
        self._queue.put(lambda session: session.trial_started(spec))

    def trial_point(self, trial_id: int, line: Mapping[str, Any]) -> None:
        """A line of the trial's ``metrics.jsonl``."""
        unix_s = time.time()
        self._queue.put(lambda session: session.trial_point(trial_id, line, unix_s))

    def trial_finished(
        self,
        result: TrialResult,
        *,
        time_to_loss_estimate_s: float | None = None,
        time_to_loss_lower_bound_s: float | None = None,
    ) -> None:
        self._queue.put(
            lambda session: session.trial_finished(result, time_to_loss_estimate_s, time_to_loss_lower_bound_s)
        )

    def study_finished(self, summary: Mapping[str, Any], status: StudyStatus | str) -> None:
        """The result and the files, on the parent; ``report.html`` must be written by now to be among them."""
        ended_as = StudyStatus(status)
        self._ended_as = ended_as
        self._queue.put(lambda session: session.study_finished(summary, ended_as))

    # -- waiting ---------------------------------------------------------------------------------
    @property
    def run_id(self) -> str | None:
        """The parent's, once it exists; None where MLflow failed, or took longer than a minute."""
        self._opened.wait(RUN_ID_TIMEOUT_S)
        return self._run_id

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Whether everything said so far was dealt with in time."""
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout_s)

    def close(self, status: StudyStatus | str | None = None, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """End every run that is open; the parent as ``status`` says, or as ``study_finished`` did, or as killed.

        Whether that was done in time. A second call does nothing.
        """
        if not self._closing.is_set():
            self._closing.set()
            chosen = StudyStatus(status) if status is not None else self._ended_as or StudyStatus.INTERRUPTED
            self._state = STUDY_STATES[chosen]
            self._queue.put(None)
        self._thread.join(timeout_s)
        atexit.unregister(self.close)
        if self._thread.is_alive():
            self._say(
                f"did not answer within {timeout_s:.0f} s of closing; runs may be left RUNNING until `tune resume`"
            )
        return not self._thread.is_alive() and self.problem is None

    # -- the thread ------------------------------------------------------------------------------
    def _work(self) -> None:
        session = self._opened_session()
        written_s = time.monotonic()
        while True:
            try:
                item = self._queue.get(timeout=POINT_INTERVAL_S)
            except queue.Empty:
                item = _no_act
            if item is None:
                break
            if isinstance(item, threading.Event):
                self._try(session, MlflowSession.write_points)
                item.set()
                continue
            self._try(session, item)
            if time.monotonic() - written_s > POINT_INTERVAL_S:
                self._try(session, MlflowSession.write_points)
                written_s = time.monotonic()
        self._failures = 0
        self._try(session, lambda one: one.close(self._state))

    def _opened_session(self) -> MlflowSession | None:
        try:
            session = self._open_session()
            self._run_id = session.parent_run_id
            self.experiment_id = session.experiment_id
            return session
        except Exception as error:
            self._say(f"could not be opened, so nothing is tracked there: {type(error).__name__}: {error}")
            return None
        finally:
            self._opened.set()

    def _try(self, session: MlflowSession | None, act: _Act) -> None:
        if session is None or self._failures >= GIVE_UP_AFTER:
            return
        try:
            act(session)
            self._failures = 0
        except Exception as error:
            self._failures += 1
            self._say(f"failed, and the study goes on without: {type(error).__name__}: {error}")

    def _say(self, what: str) -> None:
        if self.problem is None:
            self.problem = f"MLflow at {self.uri} {what}"
            logger.warning(self.problem)


def _no_act(session: MlflowSession) -> None:
    """Nothing was said for a while; the thread looks after the points it holds."""
