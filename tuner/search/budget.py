"""RoundBudget: how a wall-clock budget is split over probe, converge and confirm. Arithmetic only; no clock in it."""

from __future__ import annotations

import math
from dataclasses import dataclass

PROBE_SHARE = 0.25
CONFIRM_SHARE = 0.35
MOST_CONFIRM_SHARE = 0.5
CLOSING_SHARE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundBudget:
    """Seconds per round; ``probe_s + converge_s + confirm_s + closing_s == total_s``.

    ``closing_s`` is for ending: stopping the last trial, the report, tracking.
    """

    total_s: float
    probe_s: float
    converge_s: float
    confirm_s: float
    closing_s: float

    @classmethod
    def of(
        cls,
        total_s: float,
        *,
        confirm_run_s: float | None = None,
        num_confirm_runs: int = 1,
        probe_share: float = PROBE_SHARE,
        closing_share: float = CLOSING_SHARE,
        probes_spent_s: float | None = None,
    ) -> RoundBudget:
        """Split ``total_s``.

        Probes get ``probe_share``, or what they really took once that is known (``probes_spent_s``). Confirm gets
        ``confirm_run_s x num_confirm_runs`` (finalists and default, times seeds, one after another), but at most
        half of the total; before a run's length can be estimated, 35 %. Converge has the rest.
        """
        if not (math.isfinite(total_s) and total_s > 0):
            raise ValueError(f"budget of {total_s} s: give budget.wall_clock above 0")
        if num_confirm_runs < 0 or (confirm_run_s is not None and not confirm_run_s >= 0):
            raise ValueError(f"{num_confirm_runs} confirm runs of {confirm_run_s} s each: both must be 0 or more")
        if not 0 <= probe_share + closing_share < 1:
            raise ValueError(f"probe share {probe_share} and closing share {closing_share} must leave time to search")
        closing_s = closing_share * total_s
        probe_s = probe_share * total_s
        if probes_spent_s is not None:
            probe_s = min(max(probes_spent_s, 0.0), total_s - closing_s)
        wanted_s = CONFIRM_SHARE * total_s if confirm_run_s is None else confirm_run_s * num_confirm_runs
        confirm_s = min(wanted_s, MOST_CONFIRM_SHARE * total_s, total_s - closing_s - probe_s)
        converge_s = total_s - closing_s - probe_s - confirm_s
        return cls(total_s=total_s, probe_s=probe_s, converge_s=converge_s, confirm_s=confirm_s, closing_s=closing_s)

    @property
    def reserved_in_probe_s(self) -> float:
        """What probes must leave untouched."""
        return self.converge_s + self.confirm_s + self.closing_s

    @property
    def reserved_in_converge_s(self) -> float:
        """What converge trials must leave untouched."""
        return self.confirm_s + self.closing_s

    @property
    def reserved_in_confirm_s(self) -> float:
        return self.closing_s

    def affords(self, now_s: float, needed_s: float, reserved_s: float) -> bool:
        """Whether ``needed_s`` more, begun at ``now_s`` on the study's clock, still leaves ``reserved_s``."""
        return now_s + needed_s + reserved_s <= self.total_s

    def left_s(self, now_s: float, reserved_s: float) -> float:
        """Seconds that may be spent from ``now_s`` on, at least 0."""
        return max(0.0, self.total_s - reserved_s - now_s)

    def confirm_runs(self, now_s: float, confirm_run_s: float) -> int:
        """How many confirm runs of ``confirm_run_s``, one after another, still fit before closing."""
        if not confirm_run_s > 0:
            raise ValueError(f"a confirm run of {confirm_run_s} s: estimate its length first")
        return int(self.left_s(now_s, self.closing_s) / confirm_run_s)
