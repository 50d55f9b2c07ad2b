"""The native adapter: a TrialSpec as the Job that ``tuner.training`` reads, and its files read back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tuner.adapters.protocol import Launch, RankReport
from tuner.records import TrialSpec
from tuner.space.search_space import SearchSpace
from tuner.training.job import Job

ENTRY = "tuner.training.worker:main"


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeAdapter:
    space: SearchSpace
    threads_per_rank: int = 1

    def prepare(self, spec: TrialSpec, directory: Path) -> Launch:
        cluster = self.space.cluster
        recipe = spec.recipe
        job = Job(
            model=asdict(self.space.model),
            dp=spec.layout.dp,
            tp=spec.layout.tp,
            pp=spec.layout.pp,
            zero=spec.layout.zero,
            micro_batch=spec.layout.micro_batch,
            recompute=spec.layout.recompute.value,
            sequence_length=spec.sequence_length,
            batch_sequences=spec.batch_sequences,
            learning_rate=recipe.learning_rate,
            warmup=recipe.warmup,
            weight_decay=recipe.weight_decay,
            schedule=recipe.schedule,
            clip_norm=recipe.clip_norm,
            precision=recipe.precision,
            optimizer=recipe.optimizer,
            seed=spec.seed,
            num_steps=spec.num_steps,
            horizon_steps=spec.horizon_steps,
            eval_every=spec.eval_every,
            target_loss=spec.target_loss,
            data_source=str(self.space.data.source) if self.space.data.source else None,
            memory_headroom_bytes=cluster.usable_memory_bytes - cluster.framework_base_bytes,
            threads_per_rank=self.threads_per_rank,
            device="cpu" if cluster.device.kind == "cpu" else "cuda",
            directory=str(directory.resolve()),
        )
        path = directory / "job.json"
        job.write(path)
        return Launch(entry=ENTRY, arguments=(str(path.resolve()),), num_ranks=job.world_size)

    def metrics_file(self, directory: Path) -> Path:
        return directory / "metrics.jsonl"

    def rank_reports(self, directory: Path, num_ranks: int) -> tuple[RankReport, ...]:
        return tuple(self._report(directory / f"rank-{rank}.json", rank) for rank in range(num_ranks))

    def _report(self, path: Path, rank: int) -> RankReport:
        try:
            said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return RankReport(rank=rank, phase="silent")
        exception = said.get("exception") or {}
        growth = said.get("memory_growth_bytes")
        return RankReport(
            rank=rank,
            phase=said["phase"],
            first_forward_unix_s=said.get("first_forward_unix_s"),
            step_times_s=tuple(said.get("step_times_s") or ()),
            breakdown_s=said.get("breakdown_s"),
            memory_bytes=None if growth is None else self.space.cluster.framework_base_bytes + growth,
            exception_type=exception.get("type"),
            exception_message=exception.get("message"),
            exception_unix_s=exception.get("unix_s"),
            is_secondary=bool(exception.get("secondary")),
        )
