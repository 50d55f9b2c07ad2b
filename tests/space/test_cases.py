"""Mistakes that were reported against other tools, by the number of the case."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tuner.space.dimensions import Choice, Range, Role
from tuner.space.errors import SpaceError
from tuner.space.load import load_space

Text = Callable[..., str]
ErrorOf = Callable[..., SpaceError]


def recipe(form: str) -> str:
    return f"hyperparameters:\n  batch_tokens: 1Ki\n{form}"


def test_case_60_exponents_without_a_dot_are_numbers(text: Text) -> None:
    """1e-4 is text to a YAML 1.1 reader [EducationalTestingService/skll#318]."""
    form = "  learning_rate: {low: 1e-5, high: 3e-4, log: true}\n  weight_decay: [0, 1e-2, 0.1]"
    space = load_space(text(hyperparameters=recipe(form)))
    assert space.hyperparameters["learning_rate"] == Range(low=1e-5, high=3e-4, log=True, role=Role.CONVERGENCE)
    assert space.hyperparameters["weight_decay"] == Choice(values=(0.0, 0.01, 0.1), role=Role.CONVERGENCE)


@pytest.mark.parametrize("spelling", ["1.0e4", "1e4", "1e+4", "10000", "1.0E+4", "10e03"])
def test_case_61_exponents_without_a_sign_are_numbers(text: Text, spelling: str) -> None:
    """1.0e4 is text to a YAML 1.1 reader as well [rbgirshick/yacs#46]."""
    form = f"  warmup: {{low: 1.0e2, high: {spelling}, log: true}}"
    space = load_space(text(hyperparameters=recipe(form), data="data: {sequence_length: 128, tokens: 1e9}"))
    expected = Range(low=100, high=10000, log=True, role=Role.CONVERGENCE, integer=True)
    assert space.hyperparameters["warmup"] == expected
    assert space.data.tokens == 1e9


def test_case_61_whole_numbers_are_integers(text: Text) -> None:
    data, budget = "data: {sequence_length: 1.0e+3, tokens: 1e9}", "budget: {trial: {tokens: 2e6}}"
    model = "model: {layers: 4, hidden: 96, heads: 4, vocab: 256}"
    space = load_space(
        text(hyperparameters="hyperparameters: {batch_tokens: 1.0e+6}", data=data, budget=budget, model=model)
    )
    assert space.batch_sizes == (1000,)
    assert type(space.hyperparameters["batch_tokens"].values[0]) is int  # type: ignore[union-attr]
    assert type(space.budget.trial.tokens) is int


def test_case_63_a_key_set_twice_names_both_lines(error_of: ErrorOf) -> None:
    """The last of two equal keys wins silently elsewhere [snowflakedb/ArcticTraining#85]."""
    (problem,) = error_of(
        version="version: 1\nlayout:\n  zero: [0]\n  tp: [1, 2]\n  zero: [2]",
        hyperparameters="hyperparameters: {batch_tokens: 1Ki}",
    ).problems
    assert problem.key == "layout.zero"
    assert "lines 3 and 5" in problem.message
    assert problem.line == 5


def test_case_63_a_merge_override_is_no_duplicate(text: Text) -> None:
    form = "  learning_rate: &rates {low: 1e-4, high: 1e-2, log: true}\n  weight_decay: {<<: *rates, high: 1e-1}"
    space = load_space(text(hyperparameters=recipe(form)))
    assert space.hyperparameters["weight_decay"] == Range(low=1e-4, high=0.1, log=True, role=Role.CONVERGENCE)


@pytest.mark.parametrize("spelling", ["off", "no", "false", "'off'", "OFF"])
def test_case_64_off_is_no_recomputation_and_said(text: Text, spelling: str) -> None:
    """off becomes False, then the text "False", elsewhere [Cog-Creators/Red-DiscordBot#2177]."""
    space = load_space(text(layout=f"layout: {{recompute: [{spelling}, selective, full]}}"))
    assert space.layout["recompute"] == Choice(values=("none", "selective", "full"), role=Role.SPEED)
    assert any("layout.recompute" in notice and "read as none" in notice for notice in space.notices)


def test_case_64_on_does_not_say_how_much(error_of: ErrorOf) -> None:
    (problem,) = error_of(layout="layout: {recompute: [true, 'off']}").problems
    assert problem.key == "layout.recompute[0]"
    assert problem.next_step == "write selective or full"


def test_case_64_a_boolean_may_be_a_word(text: Text) -> None:
    space = load_space(text(hyperparameters=recipe("  learning_rate: {low: 1e-4, high: 1e-3, log: on}")))
    assert space.hyperparameters["learning_rate"].log is True  # type: ignore[union-attr]


def test_case_67_every_impossible_range_is_listed_at_once(error_of: ErrorOf) -> None:
    """What Optuna's distributions refuse one at a time, after the study has begun."""
    error = error_of(
        hyperparameters=recipe(
            "  warmup: {low: 0, high: 0.1, log: true}\n"
            "  learning_rate: {low: 1.0e-2, high: 1.0e-4, log: true}\n"
            "  weight_decay: {low: 1.0e-4, high: 1.0e-1, log: true, step: 1.0e-4}"
        )
    )
    said = {p.key.removeprefix("hyperparameters."): p.message for p in error.problems}
    assert set(said) == {"warmup", "learning_rate", "weight_decay"}
    assert "cannot start at 0" in said["warmup"]
    assert "low 0.01 is above high 0.0001" in said["learning_rate"]
    assert "log and step exclude each other" in said["weight_decay"]


def test_case_67_a_step_that_does_not_divide_moves_the_top_and_says_so(text: Text) -> None:
    space = load_space(text(hyperparameters=recipe("  clip_norm: {low: 0.1, high: 1.0, step: 0.25}")))
    assert space.hyperparameters["clip_norm"] == Range(low=0.1, high=0.85, step=0.25, role=Role.CONVERGENCE)
    assert any("hyperparameters.clip_norm" in notice and "0.85" in notice for notice in space.notices)


def test_case_67_low_equal_to_high_is_no_range(error_of: ErrorOf) -> None:
    (problem,) = error_of(hyperparameters=recipe("  clip_norm: {low: 1, high: 1}")).problems
    assert problem.next_step == "write the value alone: 1"
