"""Numbers as people read them: the one place where a figure becomes text. ``None`` and the non-finite read "–"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import humanize

from cost_models.layout import Layout
from tuner.records import Recipe

ABSENT = "–"


def _absent(value: float | None) -> bool:
    return value is None or not math.isfinite(value)


def number(value: float | None, digits: int = 3) -> str:
    """``digits`` significant digits, without an exponent between 1e-3 and 1e6."""
    if value is None or not math.isfinite(value):
        return ABSENT
    value = float(f"{value:.{digits - 1}e}")
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        decimals = 0 if value == 0 else max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:,.{decimals}f}"
    return f"{value:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e")


def learning_rate(value: float) -> str:
    """``1.25e-3``, the way recipes are written: up to three digits."""
    if value >= 0.1 or not value > 0:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def duration(value_s: float | None) -> str:
    """``84 ms``, ``5.84 s``, ``4 min 20 s``, ``4 h 51 min``, ``3 d 2 h``."""
    if value_s is None or not math.isfinite(value_s):
        return ABSENT
    if value_s < 0:
        return "-" + duration(-value_s)
    if value_s == 0:
        return "0 s"
    if value_s < 1e-3:
        return f"{number(value_s * 1e6)} µs"
    if value_s < 1:
        return f"{number(value_s * 1e3)} ms"
    if value_s < 59.95:
        return f"{number(value_s)} s"
    for unit_s, unit, part_s, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        whole, rest = divmod(round(value_s / part_s), unit_s // part_s)
        if whole:
            return f"{whole} {unit} {rest} {part}" if rest else f"{whole} {unit}"
    raise AssertionError(f"unreachable: {value_s}")


def size(value_bytes: float | None) -> str:
    """``65.3 GiB``, ``420 MiB``."""
    if value_bytes is None or not math.isfinite(value_bytes):
        return ABSENT
    text = humanize.naturalsize(value_bytes, binary=True, format="%.1f")
    if abs(float(text.split()[0])) >= 100:
        text = humanize.naturalsize(value_bytes, binary=True, format="%.0f")
    return text.replace("Bytes", "B").replace("Byte", "B")


def count(value: float | None) -> str:
    """``180k``, ``8.03B``: three digits and a letter."""
    if value is None or not math.isfinite(value):
        return ABSENT
    for power, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= power * 0.9995:
            return number(value / power) + letter
    return number(value)


def tokens(value: int) -> str:
    """A batch in tokens: ``512Ki`` where it is a whole number of them, else ``1,536``."""
    for power, letter in ((1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")):
        if value >= power and value % power == 0:
            return f"{value // power}{letter}"
    return f"{value:,}"


def percent(ratio: float | None, *, digits: int = 0) -> str:
    """``69 %`` from 0.69."""
    return ABSENT if ratio is None or not math.isfinite(ratio) else f"{ratio * 100:.{digits}f} %"


def signed_percent(ratio: float | None) -> str:
    """``-4 %``, ``+12 %``: how far off."""
    return ABSENT if ratio is None or not math.isfinite(ratio) else f"{ratio * 100:+.0f} %"


def duration_interval(interval_s: tuple[float | None, float | None] | None) -> str:
    """``4 min 3 s to 4 min 40 s``."""
    if interval_s is None or _absent(interval_s[0]) or _absent(interval_s[1]):
        return ABSENT
    return f"{duration(interval_s[0])} to {duration(interval_s[1])}"


def half_width_ratio(value: float, interval: tuple[float, float] | None) -> float | None:
    """Half the interval over the value, None without one."""
    if interval is None or _absent(value) or not value or _absent(interval[1] - interval[0]):
        return None
    return (interval[1] - interval[0]) / 2 / value


def times(ratio: float | None) -> str:
    """``1.32 x``."""
    return ABSENT if ratio is None or not math.isfinite(ratio) else f"{number(ratio)} x"


def recipe_words(recipe: Recipe) -> str:
    """``lr 1.25e-3 · warmup 40 · batch 8Ki tokens``."""
    rate, batch = learning_rate(recipe.learning_rate), tokens(recipe.batch_tokens)
    return f"lr {rate} · warmup {recipe.warmup} · batch {batch} tokens"


def contender_words(contender: Mapping[str, Any]) -> tuple[str, str]:
    """Layout and recipe of a contender as the summary holds it."""
    return str(Layout.from_dict(contender["layout"])), recipe_words(Recipe.from_dict(contender["recipe"]))
