"""Checks of tune doctor on the system around the libraries: shared memory, PATH, folders, locks left behind."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import humanize

import tuner
from tuner.cli.finding import Finding, Level, fine

SHARED_MEMORY_FLOOR_BYTES = 64 * 1024**2
"""A container's usual default; NCCL and data loaders of several ranks end with a bus error below it."""
STALE_LOCK_S = 15 * 60
"""The longest build of a DeepSpeed operator seen took four minutes."""
SHARED_MEMORY = Path("/dev/shm")


def shared_memory() -> Sequence[Finding]:
    if sys.platform != "linux":
        return []
    floor = humanize.naturalsize(SHARED_MEMORY_FLOOR_BYTES, binary=True)
    how = "mount it, in a container with --shm-size=1g or --ipc=host"
    if not SHARED_MEMORY.is_dir():
        return [Finding(level=Level.FAULT, what="shared memory", evidence=f"no {SHARED_MEMORY}", next_step=how)]
    usage = shutil.disk_usage(SHARED_MEMORY)
    told = f"{SHARED_MEMORY}: {humanize.naturalsize(usage.free, binary=True)} free of "
    told += humanize.naturalsize(usage.total, binary=True)
    if usage.total < SHARED_MEMORY_FLOOR_BYTES:
        return [Finding(level=Level.FAULT, what="shared memory", evidence=f"{told}; {floor} needed", next_step=how)]
    if usage.free < SHARED_MEMORY_FLOOR_BYTES:
        left = f"delete what ended programs left in {SHARED_MEMORY}"
        return [Finding(level=Level.WARN, what="shared memory", evidence=f"{told}; {floor} needed", next_step=left)]
    return [fine("shared memory", told)]


def first_tune_on_path() -> Sequence[Finding]:
    """Torchtune and others install a ``tune`` too."""
    own = Path(sysconfig.get_path("scripts")) / "tune"
    found = shutil.which("tune")
    if found is None:
        call = str(own) if own.exists() else f"{sys.executable} -m tuner"
        return [fine("tune on PATH", f"none; this one is called as {call}")]
    if own.exists() and os.path.samefile(found, own):
        return [fine("tune on PATH", found)]
    is_ours = "tuner.cli" in _head(Path(found))
    whose = "another installation of this program" if is_ours else "another program"
    return [
        Finding(
            level=Level.WARN if is_ours else Level.FAULT,
            what="tune on PATH",
            evidence=f"{found} comes first and is {whose}, not {own}",
            next_step=f"call {sys.executable} -m tuner, or put {own.parent} first on PATH",
        )
    ]


def _head(path: Path) -> str:
    try:
        return path.read_bytes()[:4096].decode("utf-8", errors="replace")
    except OSError:
        return ""


def working_directory() -> Sequence[Finding]:
    """Studies are written below it."""
    folder = Path.cwd()
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return [
            Finding(
                level=Level.FAULT,
                what="working directory",
                evidence=f"{folder} cannot be written: {error.strerror}",
                next_step="change to a folder of your own, or name one with --out",
            )
        ]
    free = humanize.naturalsize(shutil.disk_usage(folder).free, binary=True)
    return [fine("working directory", f"{folder} can be written, {free} free")]


def extension_locks() -> Sequence[Finding]:
    """A build of a DeepSpeed operator killed half way leaves a lock on which every later start waits for ever."""
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions")
    findings = []
    for lock in sorted(root.glob("**/lock")):
        age_s = time.time() - lock.stat().st_mtime
        is_stale = age_s > STALE_LOCK_S
        findings.append(
            Finding(
                level=Level.FAULT if is_stale else Level.WARN,
                what="torch extension lock",
                evidence=f"{lock}, {humanize.naturaldelta(age_s)} old: a start that needs it waits without a word",
                next_step=f"rm {lock}" if is_stale else "wait until the build that holds it is done",
            )
        )
    return findings or [fine("torch extension locks", f"none under {root}")]


def search_spaces() -> Sequence[Finding]:
    files = sorted(tuner.SEARCH_SPACES.glob("*.yaml"))
    return [fine("search spaces to copy", f"{len(files)} in {tuner.SEARCH_SPACES}")]
