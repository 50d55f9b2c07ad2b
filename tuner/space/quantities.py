"""Quantities as people write them, to SI: sizes, rates, durations and counts of tokens.

Binary and decimal prefixes differ: ``6 GiB`` is 6 x 2^30 bytes and ``6 GB`` is 6 x 10^9 (IEC 80000-13). In counts,
``K`` and ``k`` are 1000, ``B`` is a billion as in "a 7B model", and ``Ki``, ``Mi``, ``Gi`` are powers of 1024. Network
speeds in bits are refused, because "400G" is written for both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\d\s].*?)?\s*", re.DOTALL)

_COUNT: Mapping[str, float] = {
    "": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12,
    "ki": 2**10, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
_BYTES: Mapping[str, float] = {
    "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40
}  # fmt: skip
_SECONDS: Mapping[str, float] = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3,
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0), **dict.fromkeys(("min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0), **dict.fromkeys(("d", "day", "days"), 86400.0),
}  # fmt: skip

SIZE_SPELLING = "write a size with its unit, such as 6 GiB, 512 MiB or 80 GB"
RATE_SPELLING = "write bytes per second, such as 50 GB/s or 900 MB/s (divide bits by 8: 400 Gbit/s is 50 GB/s)"
DURATION_SPELLING = "write a time with its unit, such as 90 s, 10 min or 6 h"
COUNT_SPELLING = "write a whole number, such as 524288, 512Ki, 200M or 100B (B is a billion, Ki is 1024)"


class QuantityError(ValueError):
    """A quantity that cannot be read. ``next_step`` says which spellings are."""

    def __init__(self, message: str, next_step: str) -> None:
        self.next_step = next_step
        super().__init__(f"{message}; {next_step}")
        self.message = message


def size_bytes(value: object) -> float:
    """``6 GiB`` in bytes."""
    number, unit = _split(value, "a size", SIZE_SPELLING)
    return _positive(value, number * _factor(value, unit.casefold(), _BYTES, "a size", SIZE_SPELLING), SIZE_SPELLING)


def rate_bytes_per_s(value: object) -> float:
    """``50 GB/s`` in bytes per second."""
    number, unit = _split(value, "a bandwidth", RATE_SPELLING)
    bare = re.sub(r"\s*(/\s*s|/\s*sec|ps)$", "", unit)
    if bare == unit or re.search(r"bit|^[KMGT]?i?b$", bare):  # a small b, or a size without "per second"
        raise QuantityError(f"{shown(value)} is not in bytes per second", RATE_SPELLING)
    factor = _factor(value, bare.casefold(), _BYTES, "a bandwidth", RATE_SPELLING)
    return _positive(value, number * factor, RATE_SPELLING)


def duration_s(value: object) -> float:
    """``10 min`` in seconds; ``1 h 30 min`` adds up."""
    parts = re.findall(r"[\d.]+\s*[^\d\s.]+", value) if isinstance(value, str) else []
    if len(parts) > 1 and "".join("".join(parts).split()) == "".join(str(value).split()):
        return math.fsum(duration_s(part) for part in parts)
    number, unit = _split(value, "a time", DURATION_SPELLING)
    return _positive(value, number * _factor(value, unit, _SECONDS, "a time", DURATION_SPELLING), DURATION_SPELLING)


def whole_number(value: object, *, limit: int = 10**18) -> int:
    """``512Ki`` as 524288: for tokens and other large counts. ``1.0e+6`` and ``1.5B`` are whole, ``2.5`` is not."""
    number, unit = _split(value, "a whole number", COUNT_SPELLING)
    count = _positive(value, number * _factor(value, unit, _COUNT, "a whole number", COUNT_SPELLING), COUNT_SPELLING)
    if abs(count - round(count)) > 1e-9 * count:
        raise QuantityError(f"{shown(value)} is not a whole number", COUNT_SPELLING)
    if count > limit:
        raise QuantityError(f"{shown(value)} is more than {limit}", COUNT_SPELLING)
    return round(count)


def _split(value: object, kind: str, spelling: str) -> tuple[float, str]:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise QuantityError(f"expected {kind}, got {shown(value)}", spelling)
    if not isinstance(value, str):
        return float(value), ""
    match = _NUMBER.fullmatch(value)
    if match is None:
        raise QuantityError(f"{shown(value)} is not {kind}", spelling)
    return float(match[1].replace("_", "")), match[2] or ""


def _factor(value: object, unit: str, known: Mapping[str, float], kind: str, spelling: str) -> float:
    if unit in known:
        return known[unit]
    if not unit:
        raise QuantityError(f"{shown(value)} has no unit", spelling)
    raise QuantityError(f'{shown(value)} is not {kind}: the unit "{unit}" is not known', spelling)


def _positive(value: object, amount: float, spelling: str) -> float:
    if not math.isfinite(amount) or amount <= 0:
        raise QuantityError(f"{shown(value)} must be finite and above 0", spelling)
    return amount


def shown(value: object) -> str:
    """``"12 parsecs"``, ``true``, ``a list``: a value as its author would recognise it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    text = str(value) if isinstance(value, int | float) else f'"{value}"'
    return text if len(text) <= 60 else f"{text[:57]}..."
