"""When a difference between a confirm run and its converge twin is held against the layout."""

from __future__ import annotations

from tests.study.conftest import StudyMaker
from tests.study.world import World, play
from tuner.records import Purpose, TrialSpec


class LayoutMatters(World):
    """Confirm runs end a fifth higher than recipe trials of the same recipe."""

    def loss(self, spec: TrialSpec, step: int) -> float:
        return World.loss(self, spec, step) * (1.2 if spec.purpose is Purpose.CONFIRM else 1.0)


def test_curves_that_agree_are_separable(make_study: StudyMaker) -> None:
    study = make_study()
    play(study, World())
    assert study.outcome().separable is True


def test_a_layout_that_changes_the_curve_is_told(make_study: StudyMaker) -> None:
    study = make_study()
    play(study, LayoutMatters())
    assert study.outcome().separable is False


def test_one_seed_tells_nothing(make_study: StudyMaker) -> None:
    study = make_study(**{"seeds: 2": "seeds: 1"})
    play(study, LayoutMatters())
    assert study.outcome().separable is None
