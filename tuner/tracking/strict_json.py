"""JSON that any reader takes: NaN and the infinities, which JSON has no word for, are written as strings.

They come back as numbers, except under the keys that hold free text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TEXT_KEYS = frozenset({"evidence", "hint", "label", "name", "note", "notes", "target_source"})


def dumps(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(_encoded(value), allow_nan=False, ensure_ascii=False, indent=indent)


def loads(text: str | bytes) -> Any:
    return _decoded(json.loads(text))


def _encoded(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(k): _encoded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(v) for v in value]
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: v if k in _TEXT_KEYS else _decoded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_decoded(v) for v in value]
    return _WORDS.get(value, value) if isinstance(value, str) else value
