"""Unit names for signatures and the few conversion constants; SI everywhere inside.

A quantity's unit is the last word of its name (``weights_bytes``, ``step_time_s``), so these aliases
are documentation for the type checker, not wrappers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]
Number = float | np.floating[Any] | Column
"""A scalar, or a column of shape (n,) with one entry per layout."""

KIB = 1024
MIB = 1024**2
GIB = 1024**3
GB = 10**9
