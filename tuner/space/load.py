"""``load_space``: a space.yaml (a file, or its text) to a SearchSpace, or all that is wrong with it at once."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from cost_models.cluster import Cluster
from tuner.space.build import build_space
from tuner.space.errors import Problem, SpaceError, did_you_mean
from tuner.space.fields import RangeSpec, Section
from tuner.space.quantities import shown
from tuner.space.schema import REQUIRED, SECTIONS, ConfirmBudget, Head, InlineModel, LinkSpec, TrialBudget
from tuner.space.search_space import SearchSpace
from tuner.space.source import Node, PathKey, Source, parse

MAX_BYTES = 2**20
INDEPENDENT = ("layout", "hyperparameters")
"""Sections whose keys are checked further one by one, so that one wrong key does not hide another."""
EXAMPLES = "copy an example, such as search_spaces/quickstart.yaml"

_NESTED: dict[str, type[Section]] = {
    "model": InlineModel, "budget.trial": TrialBudget, "budget.confirm": ConfirmBudget,
    "cluster.intra_node": LinkSpec, "cluster.inter_node": LinkSpec,
}  # fmt: skip
_SECTION_HINTS = {
    "version": "add `version: 1`",
    "model": "add a preset's name, a path to a config.json, or a mapping of its sizes",
    "cluster": "add `cluster: {device: ..., nodes: ..., devices_per_node: ...}`",
    "data": "add `data: {sequence_length: ...}`",
    "hyperparameters": "add `hyperparameters: {batch_tokens: ..., learning_rate: ...}`",
}
_TYPE_WORDS = {"string_type": "text", "model_type": "a mapping", "list_type": "a list", "dict_type": "a mapping"}


def load_space(
    path_or_text: str | os.PathLike[str],
    *,
    this_machine: Callable[[int], Cluster] | None = None,
    origin: Path | None = None,
) -> SearchSpace:
    """Read, check and build. A text of several lines is YAML; anything else is a path.

    ``origin`` is the path that a copied file was first read from: its relative paths and its name are meant there.

    ``this_machine`` measures ``device: this-machine`` for a number of devices, once nothing else is wrong. Raises
    SpaceError with every problem. Left out, a section takes the defaults that its model in ``schema`` states.
    """
    if isinstance(path_or_text, str) and ("\n" in path_or_text or not path_or_text):
        path, source = None, Source("<text>", path_or_text)
    else:
        path = Path(path_or_text)
        source = Source(str(path), _read(path))
    parse(source)
    assert source.root is not None
    notices: list[str] = []
    forms = _validate(source, source.root, notices)
    return build_space(source, origin or path, forms, notices, this_machine)


def _read(path: Path) -> str:
    def refuse(message: str, next_step: str, line: int = 0, column: int = 0) -> SpaceError:
        return SpaceError(
            [Problem(path=str(path), line=line, column=column, key="", message=message, next_step=next_step)]
        )

    if path.is_dir():
        inside = ", ".join(sorted(p.name for p in path.glob("*.y*ml"))[:8])
        raise refuse("a directory, not a space file", f"name a file in it: {inside}" if inside else EXAMPLES)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        near = sorted(p.name for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        raise refuse("no such file", did_you_mean(path.name, near, what="there are") if near else EXAMPLES) from None
    except (OSError, ValueError) as error:
        raise refuse(
            f"cannot be read: {getattr(error, 'strerror', None) or error}", "check the path and its permissions"
        ) from None
    if len(raw) > MAX_BYTES:
        raise refuse("larger than 1 MiB", "a space file is a page of text; is this the right file?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        raise refuse(
            f"the byte 0x{raw[error.start]:02X} is not UTF-8", "save the file as UTF-8", line, column
        ) from None


def _validate(source: Source, root: Node, notices: list[str]) -> dict[str, Any]:
    """Every section by its model; those with problems are missing from the result, or lack their wrong keys."""
    _note_empty_values(source, root, ())
    data = root.plain()
    known = [*Head.model_fields, *SECTIONS]
    for name in data:
        if name not in known:
            source.problem_at((name,), "unknown key", did_you_mean(name, known), at_key=True)
    for name in REQUIRED:
        if name not in data:
            source.problem((0, 0), name, "missing", _SECTION_HINTS[name])
    forms: dict[str, Any] = {}
    head = {name: data[name] for name in Head.model_fields if data.get(name) is not None}
    _check(source, "", Head, head, forms, notices)
    for name, model in SECTIONS.items():
        if name in data and data[name] is None:
            continue
        if name in data and not isinstance(data[name], dict):
            source.problem_at(
                (name,), f"expected a mapping, got {shown(data[name])}", f"keys: {', '.join(model.model_fields)}"
            )
        elif name in data or name not in REQUIRED:
            _check(source, name, model, data.get(name, {}), forms, notices)
    return forms


def _check(
    source: Source, name: str, model: type[BaseModel], data: dict[str, Any], forms: dict[str, Any], notices: list[str]
) -> None:
    prefix: tuple[PathKey, ...] = (name,) if name else ()
    try:
        forms[name or "head"] = model.model_validate(data, context=notices)
    except ValidationError as error:
        items = error.errors(include_url=False)
        for item in items:
            _explain(source, prefix + item["loc"], model, item)
        if name in INDEPENDENT:
            wrong = {item["loc"][0] for item in items if item["loc"]}
            with contextlib.suppress(ValidationError):
                rest = {key: value for key, value in data.items() if key not in wrong}
                forms[name] = model.model_validate(rest, context=notices)


def _explain(source: Source, keys: tuple[PathKey, ...], model: type[BaseModel], item: Any) -> None:
    """One of pydantic's errors in our words, at its place."""
    kind, value = item["type"], item.get("input")
    if value is None and kind != "missing":
        return  # said already: the key has no value
    last = str(keys[-1])
    fields = list(_model_of(keys[:-1], model).model_fields)
    if kind == "space":
        source.problem_at(keys, item["ctx"]["message"], item["ctx"]["next_step"])
    elif kind == "extra_forbidden":
        source.problem_at(keys, "unknown key", did_you_mean(last, fields), at_key=True)
    elif kind == "missing":
        if keys != (last,):
            source.problem_at(keys[:-1], f'"{last}" is missing', f"add `{last}: ...`", at_key=True)
    elif kind == "too_short":
        source.problem_at(
            keys, "an empty list leaves nothing to choose from", "list at least one value, or remove the key"
        )
    elif kind == "string_pattern_mismatch":
        source.problem_at(
            keys,
            f"{shown(value)} cannot name a folder",
            "use letters, digits, dots, dashes; start with a letter or digit",
        )
    elif kind == "union_tag_invalid":
        source.problem_at(
            keys, f"expected a word or a number, got {shown(value)}", "a range is for numbers; write a value or a list"
        )
    else:
        wanted = _TYPE_WORDS.get(kind)
        message = f"expected {wanted}, got {shown(value)}" if wanted else f"{shown(value)}: {item['msg'].lower()}"
        source.problem_at(keys, message, "write " + (wanted or "a value that satisfies this"))


def _model_of(keys: tuple[PathKey, ...], model: type[BaseModel]) -> type[BaseModel]:
    """The model whose keys stand at a path: a section, one of the nested mappings, or a range."""
    words = [str(k) for k in keys if k not in ("fixed", "choice", "range", "number", "rest") and not isinstance(k, int)]
    nested = _NESTED.get(".".join(words))
    if nested is not None:
        return nested
    return RangeSpec if len(words) == 2 and words[0] in ("layout", "hyperparameters") else model


def _note_empty_values(source: Source, node: Node, keys: tuple[PathKey, ...]) -> None:
    if node.kind == "mapping":
        for name, key, value in node.entries():
            if value.kind == "scalar" and value.content is None:
                dotted = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", ".".join(str(k) for k in (*keys, name)))
                source.problem(key, dotted, "has no value", "write one after the colon, or remove the key")
            _note_empty_values(source, value, (*keys, name))
    elif node.kind == "list":
        for index, item in enumerate(node.content):
            if item.kind == "scalar" and item.content is None:
                source.problem_at((*keys, index), "an empty item", "write a value, or remove the item")
            _note_empty_values(source, item, (*keys, index))
