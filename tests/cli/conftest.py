"""A desk: a folder with a space file, and the command line in it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SPACE = """
version: 1
name: tiny
model: {layers: 2, hidden: 32, heads: 2, ffn: 64, vocab: 256, positions: 32}
cluster: {device: this-machine, nodes: 1, devices_per_node: 2, framework_base: 400 MiB, memory: 700 MiB}
data: {sequence_length: 32, tokens: 20k}
layout:
  tp: [1, 2]
  pp: [1, 2]
  zero: [0, 2]
  micro_batch: [1, 2, 4]
hyperparameters:
  batch_tokens: [256, 512]
  learning_rate: {low: 1e-3, high: 3e-2, log: true}
  warmup: 0.1
  precision: fp32
objective: {minimize: time_to_loss, target_loss: auto}
budget:
  wall_clock: WALL s
  trial: {tokens: 20k, wall_clock: 30 s}
  confirm: {best: 1, seeds: 1}
search: {sampler: factorised, shortlist: 4, seed: 0}
tracking: {mlflow: "sqlite:///mlflow.db", experiment: tiny}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """A folder with a space file, and the command line in it."""

    folder: Path
    environment: dict[str, str]

    def write(self, *, wall_clock_s: int, **changes: str) -> Path:
        text = SPACE.replace("WALL", str(wall_clock_s))
        for old, new in changes.items():
            text = text.replace(old, new)
        path = self.folder / "space.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tuner", *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def tune(self, *words: str, limit_s: float = 150.0) -> tuple[int, str, str]:
        process = self.start(*words)
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return process.returncode, out, err

    @property
    def run_dir(self) -> Path:
        return self.folder / "tune-runs" / "tiny"

    def record(self) -> list[dict[str, Any]]:
        path = self.run_dir / "trials.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def mlflow_states(self) -> list[str]:
        with sqlite3.connect(self.folder / "mlflow.db") as store:
            return [row[0] for row in store.execute("select status from runs")]


@pytest.fixture
def desk(tmp_path: Path, migrated_store: Path) -> Desk:
    (tmp_path / "mlflow.db").write_bytes(migrated_store.read_bytes())
    return Desk(folder=tmp_path, environment={**os.environ, "NO_COLOR": "1"})
