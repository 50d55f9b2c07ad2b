"""What the live view shows of a study, derived from its state alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.records import Purpose, Status
from tuner.study.actions import Progress, RoundProgress

if TYPE_CHECKING:
    from tuner.study.study import Study


def progress(study: Study, now: float) -> Progress:
    return Progress(
        rounds=tuple(_round(study, purpose, now) for purpose in Purpose),
        elapsed_s=now,
        budget_s=study.space.budget.wall_clock_s,
        running=tuple(f"{s.purpose} {s.id:02d} · {s.layout}" for s in study.running.values()),
    )


def _round(study: Study, purpose: Purpose, now: float) -> RoundProgress:
    done = study.ledger.of(purpose)
    running = sum(s.purpose is purpose for s in study.running.values())
    is_over = list(Purpose).index(purpose) < list(Purpose).index(study.round)
    ahead = 0 if is_over else study.num_ahead(purpose, now)
    return RoundProgress(name=purpose, done=len(done), total=len(done) + running + ahead, note=_note(study, purpose))


def _note(study: Study, purpose: Purpose) -> str:
    results = [r for r in study.results if r.spec.purpose is purpose]
    failed = [r.failure.kind for r in results if r.failure is not None]
    parts = []
    if purpose is Purpose.PROBE:
        rates = [(r.measured.tokens_per_s, r) for r in results if r.measured and r.status is Status.OK]
        if rates:
            rate, best = max(rates, key=lambda pair: pair[0])
            assert best.measured is not None
            step_s, predicted_s = best.measured.step_time_s, best.spec.predicted.step_time_s
            off = step_s / predicted_s - 1
            parts.append(f"best {step_s:.3g} s, {rate:,.0f} tokens/s (predicted {predicted_s:.3g} s, {off:+.0%})")
    else:
        times = [r.time_to_loss_s for r in results if r.time_to_loss_s is not None]
        losses = [r.final_loss for r in results if r.final_loss is not None]
        if times:
            parts.append(f"best {min(times):.1f} s to loss {study.target_loss:.3f}")
        elif losses:
            parts.append(f"best loss {min(losses):.3f}")
    parts += [f"{failed.count(kind)} {kind}" for kind in sorted(set(failed))]
    return "  ".join(parts)
