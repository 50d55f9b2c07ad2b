"""Study: the state machine that turns a Plan and what was measured into the next trial, and in the end a winner."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from tuner.outcome import Outcome, StudyStatus
from tuner.plan.plan import Plan
from tuner.records import FailureKind, Purpose, Status, TrialResult, TrialSpec
from tuner.search.budget import PROBE_SHARE, RoundBudget
from tuner.space.search_space import Minimize
from tuner.study.actions import Action, Finish, Launch, Progress, Say, Stop
from tuner.study.confirming import Heat, has_run, heats, line_up
from tuner.study.converging import Converging, Seat
from tuner.study.ledger import Ledger, nearest_in_log
from tuner.study.probing import Probing
from tuner.study.progress import progress
from tuner.study.recipes import Proposer, Recipes
from tuner.study.specs import SpecMaker
from tuner.study.verdict import START_S, Judge
from tuner.trials.events import Event, TrialFinished

T = TypeVar("T")

OVERRUN = 0.1
"""A running trial may pass the budget's end by this share before it is ended."""
STRETCH = 0.05
"""A recipe may be tried though it takes this share of the budget from what the confirm round is expected to need."""
SAME_FAILURES = 3
"""So many trials that all failed to start for one reason end the study."""
PROBE_STEPS_SHARE = 0.5
"""The share of the probe round that goes to steps; the rest to starts, and to layouts slower than predicted."""
NUM_SPARE_PROBES = 3
"""Probes beyond the shortlist that are reckoned with: default candidates, and other batches."""
SPEED_ONLY = (Minimize.STEP_TIME, Minimize.TOKENS_PER_S)


class Study:
    """``next(now)`` says what to do; ``on(event)`` hears what happened. Seconds are on the study's own clock."""

    def __init__(self, plan: Plan, proposer: Proposer) -> None:
        space = plan.space
        self.plan = plan
        self.space = space
        self.ledger = Ledger(
            planned={p.layout: p for p in plan.feasible},
            sequence_length=space.data.sequence_length,
            framework_base_bytes=space.cluster.framework_base_bytes,
        )
        self.round = Purpose.PROBE
        self.running: dict[int, TrialSpec] = {}
        self._says: deque[str] = deque()
        self._budget = RoundBudget.of(space.budget.wall_clock_s)
        self._hard_end_s = self._end_s + OVERRUN * self._budget.total_s
        self._judge = Judge(plan=plan, ledger=self.ledger, law=proposer.law_recipe)
        self._recipes = Recipes(proposer, self._judge, space.objective.target_loss, self._says)
        self._converging = Converging(space=space)
        self._specs = SpecMaker(space=space, converging=self._converging, hard_end_s=self._hard_end_s)
        law_sequences = self._recipes.law.batch_tokens / space.data.sequence_length
        num_probes = len(plan.shortlist) + NUM_SPARE_PROBES
        self._probing = Probing(
            plan=plan,
            law_batch=nearest_in_log(law_sequences, space.batch_sizes),
            seconds_per_probe=PROBE_STEPS_SHARE * PROBE_SHARE * space.budget.wall_clock_s / num_probes,
        )
        self._again: deque[TrialSpec] = deque()
        self._heats: tuple[Heat, ...] = ()
        self._status = StudyStatus.RUNNING
        self._known_at: tuple[int, float | None] | None = None
        self._known: dict[str, Any] = {}

    # -- history ---------------------------------------------------------------------------------
    def restore(self, results: Sequence[TrialResult], interrupted: Sequence[TrialSpec]) -> None:
        """Take up a study that ended early: finished trials stand, interrupted ones are launched again."""
        for result in results:
            self._record(result)
        self._again.extend(interrupted)
        specs = [*(r.spec for r in results), *interrupted]
        self._specs.next_id = max((s.id + 1 for s in specs), default=1)
        self.round = max((s.purpose for s in specs), key=list(Purpose).index, default=Purpose.PROBE)
        if self.round is not Purpose.PROBE:
            self._recipes.price(self.space.data.sequence_length)
        self._recipes.forget([s.recipe for s in interrupted])
        if self.round is Purpose.CONFIRM:
            self._recipes.settle_target(final=True)
            self._draw_heats()

    def on(self, event: Event) -> None:
        """Hear one event; of the running trial's own points nothing is decided here."""
        if isinstance(event, TrialFinished):
            self.running.pop(event.result.spec.id, None)
            self._record(event.result)

    def _record(self, result: TrialResult) -> None:
        if result.status is Status.INTERRUPTED:
            return
        self.ledger.add(result)
        if result.spec.purpose is Purpose.CONVERGE:
            self._recipes.take(result)

    # -- what is known ---------------------------------------------------------------------------
    @property
    def target_loss(self) -> float | None:
        return self._recipes.target_loss

    @property
    def target_source(self) -> str:
        return self._recipes.target_source

    @property
    def results(self) -> tuple[TrialResult, ...]:
        """Finished trials, their time to the target worked out with what is known now."""
        return self._once("results", self._settled)

    def _settled(self) -> tuple[TrialResult, ...]:
        return tuple(self._judge.settled(r, self.target_loss) for r in self.ledger.results)

    def _once(self, name: str, work: Callable[[], T]) -> T:
        """``work()``, done again only when a trial has ended or a target was chosen: ``next`` is called many times."""
        key = (len(self.ledger.results), self.target_loss)
        if key != self._known_at:
            self._known_at, self._known = key, {}
        if name not in self._known:
            self._known[name] = work()
        return cast(T, self._known[name])

    def outcome(self) -> Outcome:
        return self._judge.outcome(self.target_loss, self.target_source)

    def progress(self, now: float) -> Progress:
        return progress(self, now)

    def num_ahead(self, purpose: Purpose, now: float) -> int:
        """How many more trials of a round are in sight, running ones aside."""
        if purpose is Purpose.PROBE:
            return len(self._probing.remaining(self.ledger))
        if purpose is Purpose.CONFIRM:
            running = sum(s.purpose is Purpose.CONFIRM for s in self.running.values())
            return len(self._heats_left()) - running if self._heats else self._num_confirms
        if self.round is Purpose.PROBE or self._recipes.is_exhausted:
            return 0
        left_s = self._converge_end_s - now
        return max(0, int(left_s / self._judge.converge_trial_s() * self._num_side_by_side()))

    # -- decisions -------------------------------------------------------------------------------
    def next(self, now: float) -> tuple[Action, ...]:
        """What to do at ``now``; nothing is launched twice, so it may be called at any rate."""
        actions: list[Action] = []
        if self._status is StudyStatus.RUNNING:
            actions += self._overdue(now)
            while (spec := self._next_spec(now)) is not None:
                self.running[spec.id] = spec
                actions.append(Launch(spec=spec))
            if not self.running:
                self._status = self._final_status()
                actions.append(Finish(status=self._status))
        said = [Say(text=self._says.popleft()) for _ in range(len(self._says))]
        return (*said, *actions)

    def _overdue(self, now: float) -> list[Action]:
        late = self.running.values() if now > self._hard_end_s else ()
        return [Stop(trial_id=s.id, status=Status.STOPPED, reason="the budget has ended") for s in late]

    @property
    def _end_s(self) -> float:
        """The last moment at which a trial may start."""
        return self._budget.total_s - self._budget.closing_s

    def _final_status(self) -> StudyStatus:
        is_any_ok = any(r.status is Status.OK for r in self.ledger.results)
        return StudyStatus.FINISHED if is_any_ok else StudyStatus.FAILED

    def _next_spec(self, now: float) -> TrialSpec | None:
        if now > self._end_s or self._num_trials_left < 1 or self._all_fail_alike():
            return None
        if self._again:
            return None if self.running else self._specs.limited(self._again.popleft(), now)
        if self.round is Purpose.PROBE:
            spec = self._probe(now)
            if spec is not None or self.running or not self._open_converge():
                return spec
        if self.round is Purpose.CONVERGE:
            spec = self._converge(now)
            if spec is not None or self.running:
                return spec
            self._open_confirm()
        return self._confirm(now)

    @property
    def _num_trials_left(self) -> float:
        limit = self.space.budget.trials
        return math.inf if limit is None else limit - len(self.ledger.results) - len(self.running)

    def _all_fail_alike(self) -> bool:
        failures = [r.failure for r in self.ledger.results]
        kinds = {f.kind for f in failures if f is not None}
        alike = len(failures) >= SAME_FAILURES and None not in failures and len(kinds) == 1
        return alike and not kinds & {FailureKind.OOM, FailureKind.NAN, FailureKind.DIVERGED}

    # -- probe -----------------------------------------------------------------------------------
    def _probe(self, now: float) -> TrialSpec | None:
        is_over = now > self._budget.probe_s or self._num_trials_left <= self._num_confirms + 1
        is_over = is_over and bool(self.ledger.probes_ok()) and self.space.objective.minimize not in SPEED_ONLY
        wish = None if self.running or is_over else self._probing.next_wish(self.ledger)
        return None if wish is None else self._specs.probe(now, wish, self._recipes.law)

    # -- converge --------------------------------------------------------------------------------
    def _open_converge(self) -> bool:
        if not self.ledger.probes_ok() or self.space.objective.minimize in SPEED_ONLY:
            return False
        self._recipes.price(self.space.data.sequence_length)
        self.round = Purpose.CONVERGE
        return True

    def _converge(self, now: float) -> TrialSpec | None:
        is_full = bool(self.running) and len(self.running) >= self._num_side_by_side()
        is_last_chance = not self.running and not self.ledger.of(Purpose.CONVERGE)
        is_over = self._recipes.is_exhausted or (self._num_trials_left <= self._num_confirms and not is_last_chance)
        if is_full or is_over or not self._has_time_for_converge(now):
            return None
        wanted = self._recipes.next()
        if wanted is None:
            return None
        batch = wanted.recipe.batch_tokens // self.space.data.sequence_length
        seat = self._seat(batch, wanted.recipe.precision)
        if seat is None:
            self._recipes.give_up(wanted)
            return None
        return self._specs.converge(now, wanted, seat)

    def _num_side_by_side(self) -> int:
        batch = self._recipes.law.batch_tokens // self.space.data.sequence_length
        seat = self._seat(batch, self._recipes.law.precision)
        return seat.num_side_by_side if seat is not None else 1

    def _seat(self, batch: int, precision: str) -> Seat | None:
        return self._once(f"seat {batch} {precision}", lambda: self._converging.seat(self.ledger, batch, precision))

    def _has_time_for_converge(self, now: float) -> bool:
        """Whether one more recipe fits before what the confirm round needs; the first always may run."""
        is_first = not self.running and not self.ledger.of(Purpose.CONVERGE)
        return is_first or now + self._judge.converge_trial_s() <= self._converge_end_s

    @property
    def _num_confirms(self) -> int:
        confirm = self.space.budget.confirm
        return (confirm.best + 1) * confirm.seeds

    @property
    def _converge_end_s(self) -> float:
        needed_s = self._once("confirm", lambda: self._judge.confirm_round_s(self.target_loss))
        rounds = RoundBudget.of(self._budget.total_s, confirm_run_s=needed_s)
        return rounds.total_s * (1 + STRETCH) - rounds.reserved_in_converge_s

    # -- confirm ---------------------------------------------------------------------------------
    def _open_confirm(self) -> None:
        self._recipes.settle_target(final=True)
        self.round = Purpose.CONFIRM
        self._draw_heats()

    def _draw_heats(self) -> None:
        target = self.target_loss
        confirm = self.space.budget.confirm
        entries = line_up(self._judge.finalists(target), self._judge.default_entry(target), confirm.best)
        self._heats = heats(entries, range(self._first_seed, self._first_seed + confirm.seeds))

    @property
    def _first_seed(self) -> int:
        """Confirm seeds are fresh: on the converge round's own seed the finalists were chosen."""
        return self.space.search.seed + 1

    def _heats_left(self) -> list[Heat]:
        return [h for h in self._heats if not has_run(h, self.ledger.of(Purpose.CONFIRM))]

    def _confirm(self, now: float) -> TrialSpec | None:
        left = self._heats_left()
        if self.round is not Purpose.CONFIRM or self.running or not left:
            return None
        heat = left[0]
        is_late = now + heat.entry.expected_s + START_S > self._hard_end_s
        if is_late and heat.seed != self._first_seed:
            return None
        return self._specs.confirm(now, heat, self.ledger, self.target_loss)
