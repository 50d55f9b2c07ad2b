"""Warm local processes: a server that has imported the heavy libraries forks each rank in milliseconds.

The server itself runs no torch operation and opens no device, so every rank is as fresh as a new process.
It is the standard library's fork server (``multiprocessing.get_context("forkserver")``); what is added here
is the ranks' own session, their log file, and their end when the driver ends.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver as _forkserver
from pathlib import Path
from typing import Any

import psutil

_PR_SET_PDEATHSIG = 1


@dataclass(slots=True, kw_only=True)
class RankGroup:
    """The processes of one trial, rank by rank."""

    processes: tuple[Any, ...]
    started_unix_s: float

    def exit_codes(self) -> tuple[int | None, ...]:
        """None while a rank runs; negative: the signal that ended it."""
        return tuple(p.exitcode for p in self.processes)

    @property
    def is_running(self) -> bool:
        return any(code is None for code in self.exit_codes())

    def wait(self, timeout_s: float) -> bool:
        """True when every rank has ended within ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return not self.is_running

    def stop(self, grace_s: float = 1.0) -> None:
        """End every rank and all their descendants: SIGTERM, ``grace_s``, then SIGKILL for who is left."""
        family = _families(p.pid for p in self.processes if p.exitcode is None)
        for process in family:
            _signal(process, signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=grace_s)
        for process in alive:
            _signal(process, signal.SIGKILL)
        psutil.wait_procs(alive, timeout=5.0)
        for rank in self.processes:
            rank.join(5.0)

    def close(self) -> None:
        """Let go of the process handles; only after every rank has ended."""
        for process in self.processes:
            process.close()


class ForkServer:
    """Starts groups of ranks from one preloaded server.

    ``environment`` is set for the server, hence for each rank, and not for the driver.
    """

    def __init__(self, preload: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        self._environment = dict(environment or {})
        self._ready = threading.Event()

    def start(self) -> None:
        """Begin to load; returns at once. ``ready`` tells when it is over."""
        with _environment(self._environment):
            _forkserver.ensure_running()
        threading.Thread(target=self._first_fork, name="fork-server-warm-up", daemon=True).start()

    def _first_fork(self) -> None:
        process = self._context.Process(target=_nothing, daemon=True)
        process.start()
        process.join()
        self._ready.set()

    def wait_ready(self, timeout_s: float) -> bool:
        return self._ready.wait(timeout_s)

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    def launch(self, entry: str, num_ranks: int, arguments: Sequence[Any], log: Path) -> RankGroup:
        """Start ``num_ranks`` processes that call ``entry`` ("module:function") with ``(*arguments, rank)``."""
        started = time.time()
        processes = tuple(
            self._context.Process(
                target=_enter,
                args=(entry, tuple(arguments), rank, str(log), os.getpid()),
                name=f"rank-{rank}",
            )
            for rank in range(num_ranks)
        )
        group = RankGroup(processes=processes, started_unix_s=started)
        try:
            for process in processes:
                process.start()
        except BaseException:
            RankGroup(processes=tuple(p for p in processes if p.pid is not None), started_unix_s=started).stop()
            raise
        return group


def _nothing() -> None:
    """The first fork's work: to show that the server has loaded."""


def _enter(entry: str, arguments: tuple[Any, ...], rank: int, log: str, driver_pid: int) -> None:
    """First code of a rank: own session, log file, and SIGKILL when its parent (the server) ends."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if not psutil.pid_exists(driver_pid):
        os._exit(1)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    module, _, function = entry.partition(":")
    getattr(importlib.import_module(module), function)(*arguments, rank)


def _families(pids: Iterator[int]) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for pid in pids:
        try:
            process = psutil.Process(pid)
            found += [*process.children(recursive=True), process]
        except psutil.NoSuchProcess:
            continue
    return found


def _signal(process: psutil.Process, number: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
