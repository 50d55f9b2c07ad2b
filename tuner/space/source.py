"""Text of a space file to a tree of plain values that remembers where each stood.

YAML 1.2's core schema is applied here, to the events of ruamel.yaml's parser: ``1e-4``, ``5E-5`` and ``12e03`` are
numbers whatever the file declares, and ``on``, ``off``, ``yes``, ``no`` are words. Mistakes that only text can show (a
key set twice, an alias bomb, nesting without end) are found while the tree is built, and nothing is expanded before it
is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

from tuner.space.errors import Problem, SpaceError

MAX_DEPTH = 24
MAX_VALUES = 20_000
PathKey = str | int

_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_INTEGER = re.compile(r"[-+]?\d[\d_]*")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.\d+|\d[\d_]*(?:\.\d*)?)(?:[eE][-+]?\d+)?")
_SPECIAL = {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "true": True, "false": False}


@dataclass(slots=True, eq=False)
class Node:
    """One value: ``content`` is a scalar, a list of Nodes, or a list of (key Node, value Node)."""

    kind: str
    """``scalar``, ``list`` or ``mapping``."""
    content: Any
    line: int
    column: int
    size: int = 1
    raw: str = ""

    def entries(self) -> Iterator[tuple[str, Node, Node]]:
        """Key text, key and value of a mapping, merges (``<<``) included and overridden by what stands beside them."""
        own = {key.raw for key, _ in self.content}
        for key, value in self.content:
            if key.raw != "<<":
                yield key.raw, key, value
                continue
            for base in value.content if value.kind == "list" else [value]:
                for name, inner_key, inner in base.entries():
                    if name not in own:
                        own.add(name)
                        yield name, inner_key, inner

    def plain(self) -> Any:
        """The tree as dicts, lists and scalars."""
        if self.kind == "mapping":
            return {name: value.plain() for name, _, value in self.entries()}
        return [item.plain() for item in self.content] if self.kind == "list" else self.content


@dataclass(slots=True)
class Source:
    """A space file's text and, once parsed, its tree; collects the problems found in it."""

    path: str
    text: str
    root: Node | None = None
    problems: list[Problem] = field(default_factory=list)

    def problem(self, where: Node | tuple[int, int], key: str, message: str, next_step: str) -> None:
        line, column = (where.line, where.column) if isinstance(where, Node) else where
        lines = _LINE_BREAK.split(self.text)
        shown = lines[line - 1] if 0 < line <= len(lines) else ""
        said = Problem(path=self.path, line=line, column=column, key=key, message=message, next_step=next_step)
        self.problems.append(replace(said, source_line=shown))

    def problem_at(self, keys: tuple[PathKey, ...], message: str, next_step: str, *, at_key: bool = False) -> None:
        """A problem with the value (or, ``at_key``, the key) at a path; parts that are not there are passed over."""
        where, named = self._find(keys, at_key)
        self.problem(where, named, message, next_step)

    def stop_if_wrong(self) -> None:
        if self.problems:
            raise SpaceError(self.problems)

    def _find(self, keys: tuple[PathKey, ...], at_key: bool) -> tuple[Node, str]:
        node = self.root or Node("scalar", None, 0, 0)
        where, named = node, ""
        for key in keys:
            if node.kind == "mapping":
                hit = next(((k, v) for name, k, v in node.entries() if name == key), None)
                if hit is None:
                    continue
                named = f"{named}.{key}" if named else str(key)
                where, node = hit
            elif node.kind == "list" and isinstance(key, int) and key < len(node.content):
                where = node = node.content[key]
                named = f"{named}[{key}]"
        return (where if at_key else node), named


def parse(source: Source) -> None:
    """Build ``source.root``. Raises SpaceError where the text is no single YAML mapping; only notes keys set twice."""
    builder = _Builder(source)
    if (mistake := _build(builder, source.text)) is not None:
        source.problem(*mistake)
        raise SpaceError(source.problems)
    root = source.root = builder.root
    if root is None or (root.kind == "scalar" and root.content is None):
        source.problem((0, 0), "", "the file is empty", "copy an example, such as search_spaces/quickstart.yaml")
    elif root.kind != "mapping":
        kind = "a list" if root.kind == "list" else "a single value"
        message = f"the file holds {kind} where its sections should be"
        source.problem(root, "", message, "start with `version: 1` and `model: ...`")
    if root is None or root.kind != "mapping":
        raise SpaceError(source.problems)


def _build(builder: _Builder, text: str) -> tuple[tuple[int, int], str, str, str] | None:
    """Feed the parser's events; a mistake that ends parsing is returned as place, key, message and next step."""
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            builder.take(event)
    except ReaderError as error:
        start = text.rfind("\n", 0, error.position) + 1
        where = (text.count("\n", 0, error.position) + 1, error.position - start + 1)
        return where, "", f"the character U+{ord(text[error.position]):04X} is not allowed in YAML", "remove it"
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        message, next_step = _syntax(str(error.problem or error.context or error))
        return where, "", message, next_step
    except YAMLError as error:
        return (1, 1), "", f"not YAML: {error}", "check the brackets, quotes and indentation"
    return None


def scalar(text: str) -> Any:
    """A plain (unquoted) scalar by YAML 1.2's core schema, with every legal spelling of a number."""
    word = text if text not in ("Null", "NULL", "True", "TRUE", "False", "FALSE") else text.lower()
    if word in _WORDS:
        return _WORDS[word]
    if text.lower() in _SPECIAL:
        return _SPECIAL[text.lower()]
    if len(text) > 40:
        return text
    if _INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    if _BASED.fullmatch(text):
        return int(text, 0)
    return float(text.replace("_", "")) if _FLOAT.fullmatch(text) else text


def _syntax(problem: str) -> tuple[str, str]:
    if "\\t" in problem:
        return "a tab where YAML wants spaces", "indent with spaces"
    if "mapping values are not allowed" in problem:
        return "a key where none may stand", "check this line's indentation, and quote text that holds a colon"
    if "stream end" in problem:
        return "the file ends inside a bracket or quote", "close the bracket or quote that is opened here or above"
    return f"not YAML: {problem}", "check the brackets, quotes and indentation of this line and the one above"


class _Builder:
    """Events to Nodes on an explicit stack, so that no input can exhaust Python's own."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.root: Node | None = None
        self._stack: list[tuple[Node, list[Node]]] = []
        self._anchors: dict[str, Node] = {}
        self._documents = 0

    def take(self, event: Any) -> None:
        name = type(event).__name__
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        if name == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                self._stop((line, column), "a second YAML document", "keep one document in a file; remove this `---`")
        elif name in ("MappingStartEvent", "SequenceStartEvent"):
            self._tag(event, (line, column))
            node = Node("mapping" if name.startswith("Mapping") else "list", [], line, column)
            if len(self._stack) >= MAX_DEPTH:
                self._stop((line, column), f"nested deeper than {MAX_DEPTH} levels", "flatten this; four are enough")
            if event.anchor:
                self._anchors[event.anchor] = node
            self._stack.append((node, []))
        elif name in ("MappingEndEvent", "SequenceEndEvent"):
            self._close()
        elif name == "ScalarEvent":
            self._tag(event, (line, column))
            value = event.value if event.style else scalar(event.value)
            node = Node("scalar", value, line, column, raw=event.value)
            if event.anchor:
                self._anchors[event.anchor] = node
            self._add(node)
        elif name == "AliasEvent":
            self._alias(event.anchor, (line, column))

    def _tag(self, event: Any, where: tuple[int, int]) -> None:
        if event.ctag is not None:
            message = f"the YAML tag {event.ctag} is not used in a space file"
            self._stop(where, message, "remove the tag; quote a value that must stay text")

    def _alias(self, anchor: str, where: tuple[int, int]) -> None:
        target = self._anchors.get(anchor)
        if target is None:
            self._stop(where, f"the alias *{anchor} has no anchor", f"define &{anchor} above, or quote the text")
        elif any(node is target for node, _ in self._stack):
            self._stop(where, f"the alias *{anchor} stands inside its own anchor", "remove the alias")
        else:
            self._add(Node(target.kind, target.content, *where, size=target.size, raw=target.raw))

    def _add(self, node: Node) -> None:
        if not self._stack:
            self.root = node
            return
        parent, children = self._stack[-1]
        children.append(node)
        parent.size += node.size
        if parent.size > MAX_VALUES:
            message = f"more than {MAX_VALUES} values once aliases are expanded"
            self._stop((node.line, node.column), message, "remove the aliases")

    def _close(self) -> None:
        node, children = self._stack.pop()
        node.content = children
        if node.kind == "mapping":
            node.content = list(zip(children[::2], children[1::2], strict=True))
            self._check_keys(node)
        self._add(node)

    def _check_keys(self, node: Node) -> None:
        seen: dict[str, Node] = {}
        for key, value in node.content:
            if key.kind != "scalar":
                self._stop((key.line, key.column), "a key that is itself a list or mapping", "keys are single words")
            merged = value.content if value.kind == "list" else [value]
            if key.raw == "<<" and any(base.kind != "mapping" for base in merged):
                self._stop(
                    (key.line, key.column), "<< merges mappings only", "write `<<: *name`, &name being a mapping"
                )
            if key.raw in seen and key.raw != "<<":
                named = ".".join([*self._open_keys(), key.raw])
                message = f"set twice, on lines {seen[key.raw].line} and {key.line}"
                self.source.problem(key, named, message, "keep one of the two lines")
            seen.setdefault(key.raw, key)

    def _open_keys(self) -> list[str]:
        """The keys that lead to the mapping just closed: each open mapping's last key without a value."""
        return [str(children[-1].raw) for node, children in self._stack if node.kind == "mapping" and len(children) % 2]

    def _stop(self, where: tuple[int, int], message: str, next_step: str) -> None:
        self.source.problem(where, "", message, next_step)
        raise SpaceError(self.source.problems)
