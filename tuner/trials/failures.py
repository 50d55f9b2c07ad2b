"""Name a failure: its first cause, the line that shows it, and what to do next."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

from tuner.adapters.protocol import RankReport
from tuner.records import Failure, FailureKind

_OOM = re.compile(
    r"can't allocate memory|cannot allocate memory|out of memory|OutOfMemoryError|MemoryError|bad_alloc"
    r"|could not create a (primitive|memory)",  # oneDNN's words for an allocation that failed inside it
    re.IGNORECASE,
)
_HANG = re.compile(r"timed out waiting|timeout.*(allreduce|collective|barrier)|watchdog.*timeout", re.IGNORECASE)
_LOST = re.compile(r"connection (closed|reset) by peer|broken pipe", re.IGNORECASE)
_OWN_SIGNALS = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
_LAUNCH_PHASES = frozenset({"silent", "starting", "init"})

HINTS = {
    FailureKind.OOM: "a smaller micro_batch, more recompute or more sharding needs less memory",
    FailureKind.NAN: "a lower learning rate or a longer warmup",
    FailureKind.DIVERGED: "a lower learning rate or a longer warmup",
    FailureKind.HANG: "a rank waited for the others: look at the ranks' last lines in the log",
    FailureKind.TIMEOUT: "raise budget.trial.wall_clock, or lower budget.trial.tokens",
    FailureKind.CRASH: "see the trial's log for the traceback",
    FailureKind.LOST_RANK: "a process was ended from outside: look for the kernel's out-of-memory killer",
    FailureKind.LAUNCH: "the job did not get as far as training: see the trial's log",
    FailureKind.NO_METRICS: "the job ended without reporting a step",
}


def classify(reports: Sequence[RankReport], exit_codes: Sequence[int | None], log: Path) -> Failure | None:
    """The first cause among the ranks, or None where every rank ended well.

    Ranks' own words come first (the earliest exception that is not a symptom of another's), then exit codes, then
    the log's tail.
    """
    raised = [r for r in reports if r.exception_type is not None]
    primary = [r for r in raised if not r.is_secondary]
    if primary:
        return _from_exception(min(primary, key=lambda r: r.exception_unix_s or 0.0))
    killed = [(rank, code) for rank, code in enumerate(exit_codes) if code is not None and code < 0]
    if killed:
        rank, code = killed[0]
        return _from_signal(rank, -code, last_line(log))
    if raised:
        return _from_exception(min(raised, key=lambda r: r.exception_unix_s or 0.0))
    failed = [rank for rank, code in enumerate(exit_codes) if code]
    if not failed:
        return None
    evidence = last_line(log) or f"exit code {exit_codes[failed[0]]}"
    early = reports[failed[0]].phase in _LAUNCH_PHASES
    return failure(_kind_of_text(evidence) or (FailureKind.LAUNCH if early else FailureKind.CRASH), evidence, failed[0])


def failure(kind: FailureKind, evidence: str, rank: int | None = None) -> Failure:
    return Failure(kind=kind, evidence=evidence[:500], rank=rank, hint=HINTS[kind])


def last_line(log: Path) -> str:
    """The log's last line with words in it."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _from_exception(report: RankReport) -> Failure:
    kind_name, message = report.exception_type or "", report.exception_message or ""
    text = f"{kind_name}: {message}".splitlines()[0] if message else kind_name
    if kind_name == "NonFiniteLoss":
        return failure(FailureKind.NAN, text, report.rank)
    kind = _kind_of_text(f"{kind_name}: {message}")
    if kind is None:
        kind = FailureKind.LAUNCH if report.phase in _LAUNCH_PHASES else FailureKind.CRASH
    return failure(kind, text, report.rank)


def _kind_of_text(text: str) -> FailureKind | None:
    for pattern, kind in ((_OOM, FailureKind.OOM), (_HANG, FailureKind.HANG), (_LOST, FailureKind.LOST_RANK)):
        if pattern.search(text):
            return kind
    return None


def _from_signal(rank: int, number: int, last_words: str) -> Failure:
    """A signal that the process raised itself is a crash (or an allocation's failure); else it came from outside."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    evidence = f"rank {rank} was ended by {name}"
    if number not in _OWN_SIGNALS:
        return failure(FailureKind.LOST_RANK, evidence, rank)
    kind = _kind_of_text(last_words) or FailureKind.CRASH
    return failure(kind, f"{evidence}: {last_words}" if last_words else evidence, rank)
