"""Job: the one file (``job.json``) that every rank of a native trial reads. Standard library only, no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A whole native trial, flat.

    ``num_steps`` optimizer steps are run of a schedule that anneals over ``horizon_steps``; every
    ``eval_every`` steps (0: never) the validation loss is taken, and at or under ``target_loss`` the trial ends.
    ``memory_headroom_bytes`` is what a rank may grow beyond its start before an allocation really fails.
    """

    model: Mapping[str, Any]
    """The fields of cost_models.ModelShape."""
    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero: int = 0
    micro_batch: int = 1
    recompute: str = "none"
    sequence_length: int
    batch_sequences: int
    learning_rate: float
    warmup: int
    weight_decay: float = 0.1
    schedule: str = "cosine"
    clip_norm: float = 1.0
    precision: str = "fp32"
    optimizer: str = "adamw"
    seed: int = 0
    num_steps: int
    horizon_steps: int
    eval_every: int = 0
    target_loss: float | None = None
    data_source: str | None = None
    memory_headroom_bytes: float | None = None
    threads_per_rank: int = 1
    device: str = "cpu"
    collective_timeout_s: float = 60.0
    directory: str = "."
    """Where ``metrics.jsonl``, ``rank-N.json`` and the rendezvous file are written."""

    @property
    def world_size(self) -> int:
        return self.dp * self.tp * self.pp

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        values = json.loads(path.read_text(encoding="utf-8"))
        unknown = set(values) - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(f"{path}: unknown keys {sorted(unknown)}")
        return cls(**values)
