"""The formatting of numbers under the name reports know it by; ``tuner.format`` lies lower: tracking needs it too."""

from __future__ import annotations

from tuner.format import (
    ABSENT,
    contender_words,
    count,
    duration,
    duration_interval,
    half_width_ratio,
    learning_rate,
    number,
    percent,
    recipe_words,
    signed_percent,
    size,
    times,
    tokens,
)

__all__ = [
    "ABSENT",
    "contender_words",
    "count",
    "duration",
    "duration_interval",
    "half_width_ratio",
    "learning_rate",
    "number",
    "percent",
    "recipe_words",
    "signed_percent",
    "size",
    "times",
    "tokens",
]
