"""Mistakes that only the text shows, and YAML's scalars."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.space.errors import SpaceError
from tuner.space.source import Source, parse, scalar


def plain(text: str) -> object:
    source = Source("<text>", text)
    parse(source)
    source.stop_if_wrong()
    assert source.root is not None
    return source.root.plain()


def error(text: str) -> SpaceError:
    with pytest.raises(SpaceError) as caught:
        plain(text)
    return caught.value


@pytest.mark.parametrize(
    "text, value",
    [("1e-4", 1e-4), ("5E-5", 5e-5), ("1.0e4", 1e4), ("1.e-4", 1e-4), ("12e03", 12000.0), ("1e+4", 1e4),
     ("1.0e+6", 1e6),
     (".5", 0.5), ("-3", -3), ("0x1F", 31), ("0o17", 15), ("1_000", 1000), ("on", "on"), ("off", "off"), ("yes", "yes"),
     ("true", True), ("False", False), ("null", None), ("~", None), ("12:30:00", "12:30:00"), ("1e", "1e")],
)  # fmt: skip
def test_scalars_are_yaml_1_2(text: str, value: object) -> None:
    read = scalar(text)
    assert read == value
    assert type(read) is type(value)


def test_a_yaml_1_1_declaration_changes_nothing() -> None:
    assert plain("%YAML 1.1\n---\na: 1e-4\nb: off\n") == {"a": 1e-4, "b": "off"}


def test_quoted_values_stay_text() -> None:
    assert plain("a: '1e-4'\nb: \"5\"\n") == {"a": "1e-4", "b": "5"}


def test_merge_overrides_are_no_duplicates() -> None:
    assert plain("base: &b {x: 1, y: 2}\nuse: {<<: *b, y: 3}\n") == {"base": {"x": 1, "y": 2}, "use": {"x": 1, "y": 3}}
    assert plain("a: &a {x: 1}\nb: &b {x: 2, z: 4}\nuse: {<<: [*a, *b]}\n")["use"] == {"x": 1, "z": 4}  # type: ignore[index]


def test_duplicates_inside_a_merged_mapping_are_named_once() -> None:
    (problem,) = error("a: &a {x: 1, x: 2}\nb: {<<: *a}\n").problems
    assert "lines 1 and 1" in problem.message


@pytest.mark.parametrize(
    "text, line, column, said",
    [
        ("a:\n\tb: 1\n", 2, 1, "tab"),
        ("a: [1, 2\n", 2, 1, "bracket"),
        ("a: 1\n b: 2\n", 2, 3, "key where none may stand"),
        ("a: \x07\n", 1, 4, "U+0007"),
        ("a: 1\n---\nb: 2\n", 2, 1, "second YAML document"),
        ("a: *nope\n", 1, 4, "no anchor"),
        ("a: &x [*x]\n", 1, 8, "inside its own anchor"),
        ("a: !!python/object:os.system x\n", 1, 4, "tag"),
        ("- 1\n", 1, 1, "list"),
        ("hello\n", 1, 1, "single value"),
        ("? [1]\n: 2\n", 1, 3, "key that is itself"),
        ("a: {<<: 3}\n", 1, 5, "<<"),
        ("", 0, 0, "empty"),
        ("# only a comment\n", 0, 0, "empty"),
        ("~\n", 0, 0, "empty"),
    ],
)
def test_syntax_is_one_problem_at_its_place(text: str, line: int, column: int, said: str) -> None:
    (problem,) = error(text).problems
    assert (problem.line, problem.column) == (line, column)
    assert said in problem.message
    assert problem.next_step


def test_nesting_has_a_limit() -> None:
    (problem,) = error("a: " + "[" * 100_000).problems
    assert "nested deeper than 24" in problem.message


def test_an_alias_bomb_is_counted_and_never_expanded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 20)]
    (problem,) = error("\n".join(lines)).problems
    assert "once aliases are expanded" in problem.message


def test_the_caret_stands_under_the_place() -> None:
    place, line, caret, step = error("first: 1\nsecond: *nope\n").render().splitlines()
    assert place.startswith("<text>:2:9: ")
    assert line[caret.index("^") :] == "*nope"
    assert step.startswith("  -> ")


@given(st.text(max_size=200))
def test_no_text_gives_anything_but_a_space_error(text: str) -> None:
    with contextlib.suppress(SpaceError):
        assert isinstance(plain(text), dict)
