"""The state machine against a simulated world: rounds, budgets, failures, resume. No process, no real clock."""

from __future__ import annotations

import pytest

from tests.study.conftest import StudyMaker
from tests.study.world import World, of, play
from tuner.outcome import StudyStatus
from tuner.records import FailureKind, Purpose, Status, TrialResult, TrialSpec
from tuner.study.probing import NUM_DEFAULT_CANDIDATES


def test_rounds_come_in_order_and_end_with_a_winner(make_study: StudyMaker) -> None:
    study, world = make_study(), World()
    assert play(study, world) is StudyStatus.FINISHED
    order = [s.purpose for s in world.launched]
    assert order == sorted(order, key=list(Purpose).index)
    assert {Purpose.PROBE, Purpose.CONVERGE, Purpose.CONFIRM} == set(order)
    outcome = study.outcome()
    assert outcome.winner is not None
    assert outcome.default is not None
    assert outcome.winner.num_seeds == outcome.default.num_seeds == 2
    assert outcome.winner.time_to_loss_s is not None
    assert outcome.default.time_to_loss_s is not None
    assert outcome.winner.time_to_loss_s <= outcome.default.time_to_loss_s


def test_budget_is_kept(make_study: StudyMaker) -> None:
    study, world = make_study(wall_clock_s=240), World()
    play(study, world)
    assert 0.8 * 240 <= world.now <= 1.2 * 240


def test_no_recipe_converges_twice(make_study: StudyMaker) -> None:
    study, world = make_study(), World()
    play(study, world)
    recipes = [s.recipe for s in of(world, Purpose.CONVERGE)]
    assert len(recipes) == len(set(recipes))
    assert len(recipes) >= 4


def test_auto_target_is_what_the_law_reached_and_is_said(make_study: StudyMaker) -> None:
    study, world = make_study(), World()
    play(study, world)
    law = next(r for r in study.results if r.spec.label == "law")
    assert law.final_loss is not None
    assert study.target_loss == pytest.approx(law.final_loss, rel=0.01)
    assert "law" in study.target_source


def test_a_given_target_is_kept(make_study: StudyMaker) -> None:
    study = make_study(target="2.5")
    play(study, World())
    assert study.outcome().target_loss == 2.5


def test_out_of_memory_drops_what_needs_at_least_as_much(make_study: StudyMaker) -> None:
    study = make_study()
    first = study.plan.shortlist[0].layout
    world = World(out_of_memory=frozenset({first}))
    assert play(study, world) is StudyStatus.FINISHED
    bigger = [
        s.layout
        for s in world.launched
        if s.layout.micro_batch > first.micro_batch
        and (s.layout.dp, s.layout.tp, s.layout.pp) == (first.dp, first.tp, first.pp)
        and s.layout.zero <= first.zero
        and s.layout.recompute_level <= first.recompute_level
    ]
    assert bigger == []
    outcome = study.outcome()
    assert outcome.winner is not None
    assert outcome.winner.layout != first


def test_default_is_the_fastest_of_three_pure_data_parallel_probes(make_study: StudyMaker) -> None:
    study = make_study()
    pure = [p.layout for p in study.plan.feasible if p.layout.tp == p.layout.pp == 1]
    world = World(s_per_token={pure[1]: 2e-5})
    play(study, world)
    probed = {s.layout for s in of(world, Purpose.PROBE) if s.layout.tp == s.layout.pp == 1}
    assert len(probed) >= NUM_DEFAULT_CANDIDATES
    default = study.outcome().default
    assert default is not None
    assert default.layout == pure[1]


def test_every_trial_failing_alike_ends_early_and_has_no_winner(make_study: StudyMaker) -> None:
    study, world = make_study(), World(crash=True)
    assert play(study, world) is StudyStatus.FAILED
    assert len(world.launched) <= 3
    assert study.outcome().winner is None


def test_speed_objective_only_probes(make_study: StudyMaker) -> None:
    study, world = make_study(objective="step_time", target="auto"), World()
    assert play(study, world) is StudyStatus.FINISHED
    assert {s.purpose for s in world.launched} == {Purpose.PROBE}
    winner = study.outcome().winner
    assert winner is not None
    assert winner.time_to_loss_s is None


@pytest.mark.parametrize("cut", [1, 4, 9, 12, 15])
def test_resume_repeats_only_what_was_interrupted(make_study: StudyMaker, cut: int) -> None:
    study, world = make_study(), World()
    assert play(study, world, stop_after=cut) is None
    finished, interrupted = study.results, tuple(study.running.values())
    again = make_study()
    again.restore(finished, interrupted)
    launched_before = len(world.launched)
    assert play(again, world) is StudyStatus.FINISHED
    relaunched = world.launched[launched_before:]
    assert not {s.id for s in relaunched} & {r.spec.id for r in finished}
    assert [s.id for s in relaunched][: len(interrupted)] == [s.id for s in interrupted]
    ids = [r.spec.id for r in again.results]
    assert len(ids) == len(set(ids))
    assert again.outcome().winner is not None


@pytest.mark.parametrize("limit", [10, 14])
def test_a_limit_on_trials_leaves_enough_of_them_to_confirm(make_study: StudyMaker, limit: int) -> None:
    study, world = make_study(**{"wall_clock: 240 s": f"wall_clock: 240 s\n  trials: {limit}"}), World()
    play(study, world)
    assert len(world.launched) <= limit
    outcome = study.outcome()
    assert outcome.winner is not None
    assert outcome.default is not None
    assert outcome.winner.num_seeds == outcome.default.num_seeds == 2


def test_the_default_stands_in_the_outcome_though_confirming_made_it_slower(make_study: StudyMaker) -> None:
    class Slower(World):
        def step_time_s(self, spec: TrialSpec) -> float:
            return World.step_time_s(self, spec) * (1.5 if spec.purpose is Purpose.CONFIRM else 1.0)

    study, world = make_study(), Slower()
    play(study, world)
    assert study.outcome().default is not None
    assert len({(s.layout, s.recipe) for s in of(world, Purpose.CONFIRM)}) <= 3


def test_a_law_that_fails_still_leaves_a_target_and_a_winner(make_study: StudyMaker) -> None:
    class LawFails(World):
        def result(self, spec: TrialSpec) -> TrialResult:
            if spec.label == "law":
                return self._failed(spec, FailureKind.NAN, "a loss of nan")
            return World.result(self, spec)

    study, world = make_study(), LawFails()
    assert play(study, world) is StudyStatus.FINISHED
    outcome = study.outcome()
    assert outcome.winner is not None
    assert outcome.target_loss is not None
    assert "trial" in outcome.target_source


def test_a_failing_probe_at_another_batch_is_not_repeated(make_study: StudyMaker) -> None:
    class OtherBatchCrashes(World):
        def result(self, spec: TrialSpec) -> TrialResult:
            if spec.label == "other batch":
                return self._failed(spec, FailureKind.CRASH, "segmentation fault")
            return World.result(self, spec)

    study, world = make_study(), OtherBatchCrashes()
    play(study, world)
    probes = [(s.layout, s.batch_sequences) for s in of(world, Purpose.PROBE)]
    assert len(probes) == len(set(probes))


def test_a_target_out_of_reach_still_compares_finalists_and_says_so(make_study: StudyMaker) -> None:
    study, world = make_study(target="0.5"), World()
    play(study, world)
    outcome = study.outcome()
    assert outcome.winner is not None
    assert outcome.winner.extrapolated
    assert len({s.recipe for s in of(world, Purpose.CONFIRM)}) >= 2


def test_a_larger_learning_rate_than_diverges_is_survived(make_study: StudyMaker) -> None:
    study, world = make_study(), World(curvature=1.0, best_learning_rate=2e-3)
    assert play(study, world) is StudyStatus.FINISHED
    assert all(r.status is Status.OK for r in study.results)
