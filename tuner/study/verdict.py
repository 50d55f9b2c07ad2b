"""Judge: what finished trials are worth: times to the target, finalists, and the outcome with its intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models.layout import Layout
from tuner.outcome import Contender, Outcome
from tuner.plan.plan import Plan
from tuner.plan.shortlist import is_pure_data_parallel
from tuner.records import CurvePoint, FailureKind, Purpose, Recipe, Status, TrialResult
from tuner.search.objective import NotReached, Reached, time_to_loss
from tuner.space.search_space import Minimize
from tuner.study.bounds import at_bound
from tuner.study.confirming import Entry, line_up, pooled_log_sd, t_90
from tuner.study.ledger import Ledger, Price

DEFAULT = "default"
START_S = 1.5
"""Seconds a warm trial spends outside its training steps, evaluations aside."""
EVALUATION_SHARE = 0.05
"""Validation's share on top of a whole trial's training time."""
SEPARABLE_TOLERANCE = 0.04
"""Relative difference in loss between confirm runs and their converge twin that is never held against a layout: ..."""
SEPARABLE_SPREADS = 3.0
"""... nor is one of up to so many times the spread between the confirm runs' own seeds."""


@dataclass(slots=True, kw_only=True)
class Judge:
    """Reads the ledger; keeps nothing of its own."""

    plan: Plan
    ledger: Ledger
    law: Recipe

    # -- times -----------------------------------------------------------------------------------
    def prices(self) -> dict[int, Price]:
        """The fastest probed layout of each batch (in sequences)."""
        found = {b: self.ledger.best_price(b) for b in self.plan.space.batch_sizes}
        return {b: p for b, p in found.items() if p is not None}

    def time(self, result: TrialResult, target: float | None) -> Reached | NotReached | None:
        """Training time to ``target``: a converge trial is priced, a confirm trial was measured."""
        if target is None or result.spec.purpose is Purpose.PROBE or not result.curve:
            return None
        if result.spec.purpose is Purpose.CONFIRM:
            return time_to_loss(result.curve, target)
        price = self.ledger.best_price(result.spec.batch_sequences)
        return None if price is None else time_to_loss(result.curve, target, price.seconds_per_token)

    def settled(self, result: TrialResult, target: float | None) -> TrialResult:
        time = self.time(result, target)
        return replace(result, time_to_loss_s=time.time_s) if isinstance(time, Reached) else result

    def log_time_s(self, result: TrialResult, target: float | None) -> float | None:
        time = self.time(result, target)
        return None if time is None or result.status is not Status.OK else time.log_time_s

    def converge_trial_s(self) -> float:
        """How long one more recipe trial takes, start included."""
        done = [r for r in self.ledger.of(Purpose.CONVERGE) if r.status is Status.OK]
        if done:
            return sum(r.ended_s - r.started_s for r in done) / len(done)
        return self.horizon_run_s()

    def horizon_run_s(self) -> float:
        """How long a confirm trial at the law's batch takes when it does not end at the target."""
        prices = self.prices()
        price = prices.get(self.law.batch_tokens // self.plan.space.data.sequence_length)
        known = [price] if price is not None else list(prices.values())
        slowest = max((p.seconds_per_token for p in known), default=0.0)
        space = self.plan.space
        tokens = space.budget.confirm.tokens or space.budget.trial.tokens
        return tokens * slowest * (1 + EVALUATION_SHARE) + START_S

    def confirm_round_s(self, target: float | None) -> float:
        """How long the confirm round would take if it began now: every contender once a seed."""
        confirm = self.plan.space.budget.confirm
        if target is None:
            return self.horizon_run_s() * (confirm.best + 1) * confirm.seeds
        entries = line_up(self.finalists(target), self.default_entry(target), confirm.best)
        longest = self.horizon_run_s()
        runs = [min(longest, e.expected_s * (1 + EVALUATION_SHARE) + START_S) for e in entries]
        return sum(runs) * confirm.seeds

    # -- finalists -------------------------------------------------------------------------------
    def finalists(self, target: float | None) -> list[Entry]:
        """Each converged recipe on the fastest layout of its batch; the best expected time first."""
        entries = []
        for result in self.ledger.of(Purpose.CONVERGE):
            price = self.ledger.best_price(result.spec.batch_sequences)
            expected_s = None if price is None else self._expected_s(result, target, price)
            if price is not None and expected_s is not None:
                entries.append(
                    Entry(
                        layout=price.layout,
                        recipe=result.spec.recipe,
                        label="finalist",
                        expected_s=expected_s,
                        seconds_per_token=price.seconds_per_token,
                    )
                )
        return sorted(entries, key=lambda e: e.expected_s)

    def _expected_s(self, result: TrialResult, target: float | None, price: Price) -> float | None:
        """Estimated seconds to the target; where no estimate can be given, a whole run and more the higher it ended."""
        log_time = self.log_time_s(result, target)
        if log_time is not None:
            return math.exp(log_time)
        if result.status is not Status.OK or result.final_loss is None or not math.isfinite(result.final_loss):
            return None
        return self.plan.space.budget.trial.tokens * price.seconds_per_token * (1 + result.final_loss)

    def default_entry(self, target: float | None) -> Entry | None:
        """The strong default: the fastest pure data-parallel layout that fits, with the law's recipe."""
        batch = self.law.batch_tokens // self.plan.space.data.sequence_length
        pure = [p for p in self.plan.feasible if is_pure_data_parallel(p.layout)]
        price = self.ledger.best_price(batch, among=pure)
        if price is None:
            return None
        budget = self.plan.space.budget
        horizon = (budget.confirm.tokens or budget.trial.tokens) * price.seconds_per_token
        twins = [r for r in self.ledger.of(Purpose.CONVERGE) if r.spec.recipe == self.law]
        known = [t for t in (self.log_time_s(r, target) for r in twins) if t is not None]
        return Entry(
            layout=price.layout,
            recipe=self.law,
            label=DEFAULT,
            expected_s=math.exp(known[0]) if known else horizon,
            seconds_per_token=price.seconds_per_token,
        )

    # -- outcome ---------------------------------------------------------------------------------
    def outcome(self, target: float | None, target_source: str) -> Outcome:
        if self.plan.space.objective.minimize in (Minimize.STEP_TIME, Minimize.TOKENS_PER_S):
            return self._fastest_probe()
        contenders = self._contenders(target)
        default_ids = {r.spec.id for r in self.ledger.of(Purpose.CONFIRM) if r.spec.label == DEFAULT}
        default = next((c for c in contenders if default_ids & set(c.trial_ids)), None)
        winner = min((c for c in contenders if c.time_to_loss_s is not None), key=_rank, default=None)
        return Outcome(
            winner=winner,
            default=default,
            separable=self._separable(),
            target_loss=target,
            target_source=target_source,
            gain=_gain(winner, default),
            notes=tuple(self._notes(winner, contenders)),
        )

    def _fastest_probe(self) -> Outcome:
        """For an objective of speed: least seconds a step, or most tokens a second."""
        by_step = self.plan.space.objective.minimize is Minimize.STEP_TIME

        def seconds(result: TrialResult) -> float:
            assert result.measured is not None
            return result.measured.step_time_s if by_step else 1 / result.measured.tokens_per_s

        ok = self.ledger.probes_ok()
        fastest = min(ok, key=seconds, default=None)
        pure = [r for r in ok if is_pure_data_parallel(r.spec.layout)]
        default = min(pure, key=seconds, default=None)
        return Outcome(
            winner=_as_contender(fastest),
            default=_as_contender(default),
            separable=None,
            target_loss=None,
            target_source="",
            gain=None if fastest is None or default is None else seconds(default) / seconds(fastest),
            notes=("the objective is speed: layouts were probed, recipes were not searched",),
        )

    def _contenders(self, target: float | None) -> list[Contender]:
        groups: dict[tuple[Layout, Recipe], list[TrialResult]] = {}
        for r in self.ledger.of(Purpose.CONFIRM):
            groups.setdefault((r.spec.layout, r.spec.recipe), []).append(r)
        times = {key: [self._confirmed_s(r, target) for r in rows] for key, rows in groups.items()}
        finite = {key: [t for t, _ in values if t is not None] for key, values in times.items()}
        sd, degrees = pooled_log_sd([v for v in finite.values() if v])
        found = []
        for key, rows in groups.items():
            values = finite[key]
            mean = math.exp(sum(map(math.log, values)) / len(values)) if len(values) == len(rows) else None
            half = math.exp(t_90(degrees) * sd / math.sqrt(len(rows)))
            found.append(
                Contender(
                    trial_ids=tuple(r.spec.id for r in rows),
                    layout=key[0],
                    recipe=key[1],
                    time_to_loss_s=mean,
                    interval_s=None if mean is None else (mean / half, mean * half),
                    extrapolated=any(is_guess for _, is_guess in times[key]),
                    num_seeds=len(rows),
                )
            )
        return found

    def _confirmed_s(self, result: TrialResult, target: float | None) -> tuple[float | None, bool]:
        """(seconds, whether the target was not reached): then the whole run counts, a lower bound of its time.

        None where the trial failed otherwise than by running out of its time.
        """
        is_cut_off = result.failure is not None and result.failure.kind is FailureKind.TIMEOUT
        time = self.time(result, target) if result.status is not Status.FAILED or is_cut_off else None
        if isinstance(time, Reached):
            return time.time_s, False
        if isinstance(time, NotReached) and time.lower_bound_s > 0:
            return max(time.lower_bound_s, self._whole_run_s(result)), True
        return None, True

    def _whole_run_s(self, result: TrialResult) -> float:
        """Training seconds of the run to its last step, whether or not it got there."""
        last = result.curve[-1]
        return last.train_s * result.spec.num_steps / last.step

    def _separable(self) -> bool | None:
        """Whether confirm runs followed their converge twins' curves at equal tokens, within what seeds explain.

        Confirm seeds are fresh, so the seeds' own spread is what a difference is held against: the largest between two
        seeds of any contender. None with one seed, where nothing tells a layout's doing from a seed's.
        """
        confirms = self.ledger.of(Purpose.CONFIRM)
        spreads = [
            gap
            for a, b in itertools.combinations(confirms, 2)
            if (a.spec.layout, a.spec.recipe) == (b.spec.layout, b.spec.recipe)
            and (gap := curve_gap(a.curve, b.curve)) is not None
        ]
        gaps = [
            gap
            for twin in self.ledger.of(Purpose.CONVERGE)
            for r in confirms
            if r.spec.recipe == twin.spec.recipe
            and r.spec.horizon_steps == twin.spec.horizon_steps
            and (gap := curve_gap(r.curve, twin.curve)) is not None
        ]
        if not spreads or not gaps:
            return None
        return max(gaps) <= max(SEPARABLE_TOLERANCE, SEPARABLE_SPREADS * max(spreads))

    def _notes(self, winner: Contender | None, contenders: Sequence[Contender]) -> list[str]:
        notes = []
        if winner is None:
            return ["no confirm trial finished, so there is no winner to stand behind"]
        others = [c for c in contenders if c is not winner and c.time_to_loss_s is not None]
        ties = [c for c in others if _overlap(c, winner)]
        if ties:
            notes.append(f"a tie within the seeds' spread with {', '.join(f'{c.layout}' for c in ties)}")
        if winner.extrapolated:
            notes.append("the target was not reached in every seed: the time is a lower bound")
        price = self.plan.space.cluster.price_per_device_hour
        if price is not None and winner.time_to_loss_s is not None:
            cost = winner.time_to_loss_s / 3600 * self.plan.space.cluster.num_devices * price
            notes.append(f"the winner's run to the target costs {cost:.4g} at {price:g} per device-hour")
        notes += at_bound(self.plan, winner)
        return notes


def curve_gap(left: Sequence[CurvePoint], right: Sequence[CurvePoint]) -> float | None:
    """Largest relative difference of two curves' losses at equal tokens, over their second halves; None: no overlap."""
    at = {p.tokens: p.loss for p in right}
    both = [(p.loss, at[p.tokens]) for p in left if p.tokens in at]
    late = both[len(both) // 2 :]
    return max((abs(a / b - 1) for a, b in late), default=None)


def _rank(contender: Contender) -> tuple[bool, float]:
    time = contender.time_to_loss_s
    return contender.extrapolated or time is None, math.inf if time is None else time


def _gain(winner: Contender | None, default: Contender | None) -> float | None:
    """The default's time over the winner's: above 1 the winner is faster."""
    if winner is None or default is None or winner.time_to_loss_s is None or default.time_to_loss_s is None:
        return None
    return default.time_to_loss_s / winner.time_to_loss_s


def _overlap(one: Contender, other: Contender) -> bool:
    if one.interval_s is None or other.interval_s is None:
        return False
    return one.interval_s[0] <= other.interval_s[1] and other.interval_s[0] <= one.interval_s[1]


def _as_contender(result: TrialResult | None) -> Contender | None:
    if result is None:
        return None
    return Contender(
        trial_ids=(result.spec.id,),
        layout=result.spec.layout,
        recipe=result.spec.recipe,
        time_to_loss_s=None,
        interval_s=None,
        extrapolated=False,
        num_seeds=1,
    )
