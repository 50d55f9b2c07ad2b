"""report(): how a training script tells tune a metric. Standard library only, so any environment can import it.

::

    from tuner.reporter import report
    report(step=step, loss=loss, tokens=tokens)

Each call appends one JSON line to the file that ``TUNE_METRICS`` names, with ``unix_s``, the time of the call.
Call it on one rank. Outside a trial the variable is unset: the first call says so once, and nothing is written.
"""

from __future__ import annotations

import json
import os
import time
import warnings

VARIABLE = "TUNE_METRICS"

_warned = False


def report(**metrics: float | int | str | bool | None) -> None:
    """Append ``metrics`` as one line; a number that is not finite is null there, and named under ``not_finite``.

    The line is one write to a file opened for appending, so that lines of several processes do not mix.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        _warn_once()
        return
    line = json.dumps(_plain(metrics), allow_nan=False) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _plain(metrics: dict[str, float | int | str | bool | None]) -> dict[str, object]:
    if "unix_s" in metrics or "not_finite" in metrics:
        raise ValueError(f"unix_s and not_finite are written by report itself; rename them in {sorted(metrics)}")
    line: dict[str, object] = {"unix_s": time.time()}
    not_finite = {}
    for name, value in metrics.items():
        plain = _scalar(name, value)
        if isinstance(plain, float) and (plain != plain or plain in (float("inf"), float("-inf"))):
            not_finite[name] = str(plain)
            plain = None
        line[name] = plain
    return {**line, "not_finite": not_finite} if not_finite else line


def _scalar(name: str, value: object) -> float | int | str | bool | None:
    """A plain value; a zero-dimensional tensor or array gives its number."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"report({name}={value!r}): a metric is a number, a string or None; pass float({name})")
    return _scalar(name, item())


def _warn_once() -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"{VARIABLE} is not set, so report() writes nothing; tune sets it for its trials, "
            f"or set it to a file to see the lines",
            stacklevel=3,
        )
