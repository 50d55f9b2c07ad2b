"""Recipes: the study's dealings with the sampler: what to train next, what came of it, and the target it is told by."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from tuner.records import FailureKind, Purpose, Recipe, Status, TrialResult
from tuner.search.objective import choose_target
from tuner.search.outcome import Outcome as RecipeOutcome
from tuner.study.verdict import Judge

LAW = "law"


class Proposal(Protocol):
    @property
    def number(self) -> int: ...
    @property
    def recipe(self) -> Recipe: ...


class Proposer(Protocol):
    """The sampler behind the converge round; ``tuner.search.proposer`` has the real one."""

    @property
    def law_recipe(self) -> Recipe: ...
    @property
    def exhausted(self) -> str | None: ...
    def set_prices(self, prices: Mapping[int, float]) -> None: ...
    def ask(self) -> Proposal | None: ...
    def known(self, number: int) -> bool: ...
    def tell(
        self, number: int, *, log_time_s: float | None, final_loss: float | None, status: RecipeOutcome
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A recipe that waits for a seat."""

    recipe: Recipe
    proposal: int | None
    label: str


class Recipes:
    """Asks and tells. Results wait untold until there is a target to time them by."""

    def __init__(self, proposer: Proposer, judge: Judge, target_loss: float | None, says: deque[str]) -> None:
        self.law = proposer.law_recipe
        self.target_loss = target_loss
        self.target_source = "" if target_loss is None else choose_target([], given=target_loss)[1]
        self._proposer = proposer
        self._judge = judge
        self._says = says
        self._wanted: deque[Wanted] = deque()
        self._untold: list[TrialResult] = []
        self._is_exhausted = False

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing waits and the sampler has nothing more."""
        return self._is_exhausted and not self._wanted

    def price(self, sequence_length: int) -> None:
        """Tell the sampler what a token costs at each batch, as measured."""
        prices = self._judge.prices()
        self._proposer.set_prices({b * sequence_length: p.seconds_per_token for b, p in prices.items()})

    def next(self) -> Wanted | None:
        if self._wanted:
            return self._wanted.popleft()
        proposal = self._proposer.ask()
        if proposal is None:
            self._is_exhausted = True
            self._says.append(self._proposer.exhausted or "the sampler has no further recipe")
            return None
        label = LAW if proposal.recipe == self.law else ""
        return Wanted(recipe=proposal.recipe, proposal=proposal.number, label=label)

    def take(self, result: TrialResult) -> None:
        """A converge trial ended. Out of memory says nothing of its recipe, which waits for a smaller seat."""
        spec = result.spec
        if _ran_out_of_memory(result):
            self._wanted.append(Wanted(recipe=spec.recipe, proposal=spec.proposal, label=spec.label))
            return
        self._untold.append(result)
        self.settle_target(final=False)
        self._tell_what_can_be_told()

    def forget(self, launched: Collection[Recipe]) -> None:
        """After a replay of the record: drop waiting recipes that have run since, or are being launched again."""
        converged = self._judge.ledger.of(Purpose.CONVERGE)
        settled = {r.spec.recipe for r in converged if not _ran_out_of_memory(r)} | set(launched)
        self._wanted = deque(w for w in self._wanted if w.recipe not in settled)

    def give_up(self, wanted: Wanted) -> None:
        """No layout can run this recipe."""
        self._tell(wanted.proposal, None, None, RecipeOutcome.CRASHED)

    def settle_target(self, *, final: bool) -> None:
        """Choose an automatic target once the law's recipe has run; in the end, from whatever has."""
        if self.target_loss is not None:
            return
        converged = self._judge.ledger.of(Purpose.CONVERGE)
        ok = [r for r in converged if r.status is Status.OK and r.final_loss is not None]
        ok = [r for r in ok if r.final_loss is not None and math.isfinite(r.final_loss)]
        law = [r for r in ok if r.spec.label == LAW]
        is_law_over = any(r.spec.label == LAW and not _ran_out_of_memory(r) for r in converged)
        if not ok or not (is_law_over or final):
            return
        self.target_loss, self.target_source = choose_target([r.curve for r in law or [ok[0]]])
        if not law:
            self.target_source = self.target_source.replace("the scaling law's recipe", f"trial {ok[0].spec.id}")
        self._says.append(self.target_source)
        self._tell_what_can_be_told()

    def _tell_what_can_be_told(self) -> None:
        """Failures teach at once; a loss waits for the target that turns it into a time."""
        waiting = []
        for result in self._untold:
            if self.target_loss is None and result.status is Status.OK:
                waiting.append(result)
                continue
            log_time = self._judge.log_time_s(result, self.target_loss)
            self._tell(result.spec.proposal, log_time, result.final_loss, RecipeOutcome.of(result))
        self._untold = waiting

    def _tell(
        self, number: int | None, log_time_s: float | None, final_loss: float | None, status: RecipeOutcome
    ) -> None:
        if number is not None and not self._proposer.known(number):
            self._proposer.tell(number, log_time_s=log_time_s, final_loss=final_loss, status=status)


def _ran_out_of_memory(result: TrialResult) -> bool:
    return result.failure is not None and result.failure.kind is FailureKind.OOM
