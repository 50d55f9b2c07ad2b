"""Layout (one) and Layouts (columns): how a model is spread over devices.

Both carry the same field names, so that one formula prices either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import numpy as np

from cost_models.units import Column


class Recompute(StrEnum):
    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"

    @property
    def level(self) -> int:
        """0 none, 1 selective, 2 full: the order in which memory falls."""
        return list(Recompute).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """``num_devices = dp cp tp pp``; ``micro_batch`` is in sequences per data-parallel rank."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 0
    micro_batch: int = 1
    recompute: Recompute = Recompute.NONE

    @property
    def recompute_level(self) -> int:
        return self.recompute.level

    @property
    def num_devices(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    def num_micro_batches(self, batch_sequences: int) -> int:
        """Gradient-accumulation steps per optimizer step, ``B / (micro_batch dp)``. ValueError if not whole."""
        per_pass = self.micro_batch * self.dp
        if batch_sequences % per_pass:
            below = batch_sequences // per_pass * per_pass
            raise ValueError(
                f"batch of {batch_sequences} sequences is not a multiple of micro_batch {self.micro_batch} x dp "
                f"{self.dp} ({batch_sequences} % {per_pass} = {batch_sequences % per_pass}); "
                f"nearest: {f'{below} and ' if below else ''}{below + per_pass}"
            )
        return batch_sequences // per_pass

    def to_dict(self) -> dict[str, int | str]:
        return {f.name: (v.value if isinstance(v := getattr(self, f.name), StrEnum) else v) for f in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Layout:
        known = {f.name for f in fields(cls)}
        unknown = set(values) - known
        if unknown:
            raise ValueError(f"unknown layout fields {sorted(unknown)}; known: {sorted(known)}")
        typed: dict[str, Any] = {k: Recompute(v) if k == "recompute" else int(v) for k, v in values.items()}
        return cls(**typed)

    def __str__(self) -> str:
        parts = [f"tp{self.tp}", f"pp{self.pp}", f"dp{self.dp}"]
        parts += [f"cp{self.cp}"] if self.cp > 1 else []
        parts += [f"ep{self.ep}"] if self.ep > 1 else []
        parts += [f"zero{self.zero}", f"mb{self.micro_batch}"]
        parts += [f"recompute-{self.recompute.value}"] if self.recompute is not Recompute.NONE else []
        return " ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Many layouts as integer columns of shape (n,)."""

    dp: Column
    tp: Column
    pp: Column
    cp: Column
    ep: Column
    zero: Column
    micro_batch: Column
    recompute_level: Column

    @classmethod
    def of(cls, layouts: Iterable[Layout]) -> Layouts:
        rows = list(layouts)
        return cls(**{f.name: np.array([getattr(r, f.name) for r in rows], dtype=np.int64) for f in fields(cls)})

    @property
    def num_devices(self) -> Column:
        return self.dp * self.tp * self.pp * self.cp

    def __len__(self) -> int:
        return len(self.dp)

    def __getitem__(self, index: int) -> Layout:
        values = {f.name: int(getattr(self, f.name)[index]) for f in fields(self)}
        return Layout(recompute=list(Recompute)[values.pop("recompute_level")], **values)

    def __iter__(self) -> Iterator[Layout]:
        return (self[i] for i in range(len(self)))

    def where(self, mask: Column) -> Layouts:
        """The rows where ``mask`` (n,) is true."""
        return Layouts(**{f.name: getattr(self, f.name)[mask] for f in fields(self)})
