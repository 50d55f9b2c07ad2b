"""One driver to a study: an advisory lock that the kernel lets go of when its holder ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.tracking.errors import StudyLocked


@contextmanager
def sole_driver(path: Path, study: str) -> Iterator[None]:
    """Hold ``path`` locked; StudyLocked, naming the process, where another has it.

    Advisory (flock): it keeps out other drivers, not other programs; network file systems without locks are refused
    by the system itself, with its own message.
    """
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise StudyLocked(
                f"study {study!r} is driven by process {holder} already (lock {path}); "
                f"wait for it, stop it with Ctrl-C or `kill -INT {holder}`, or start another study with another name"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
            fcntl.flock(file, fcntl.LOCK_UN)
