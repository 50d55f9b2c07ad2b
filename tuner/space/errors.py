"""SpaceError: everything that is wrong with a space file, each with its place and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

MOST_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake. ``line`` and ``column`` count from 1; 0 means that the whole file is meant."""

    path: str
    line: int
    column: int
    key: str
    """Dotted path of the key, such as ``layout.tp`` or ``hyperparameters.learning_rate.low``."""
    message: str
    next_step: str
    source_line: str = ""

    def render(self) -> str:
        """``file:line:column: message``, the line with a caret under the place, and what to do."""
        place = f"{self.path}:{self.line}:{self.column}: " if self.line else f"{self.path}: "
        named = f"{self.key}: " if self.key else ""
        lines = [f"{place}{named}{self.message}"]
        if self.line and self.source_line.strip():
            gutter = f"{self.line:>5} | "
            shown, caret = _clipped(self.source_line, self.column - 1)
            lines += [gutter + shown, " " * (len(gutter) + caret) + "^"]
        return "\n".join([*lines, f"  -> {self.next_step}"])


class SpaceError(ValueError):
    """All problems of one space file, in the order in which they stand there."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(sorted(problems, key=lambda p: (p.line, p.column)))
        super().__init__(self.render())

    def render(self) -> str:
        """Every problem, and a count where there is more than one."""
        shown = "\n\n".join(problem.render() for problem in self.problems[:MOST_SHOWN])
        more = len(self.problems) - MOST_SHOWN
        rest = f", of which {more} are not shown: put these right first" if more > 0 else ""
        return shown if len(self.problems) < 2 else f"{shown}\n\n{len(self.problems)} problems{rest}"


def did_you_mean(word: str, known: Iterable[str], *, what: str = "known") -> str:
    """``did you mean "tp"?`` where a known word is near, and the list of known words."""
    names = list(known)
    folded = {name.casefold(): name for name in names}
    near = difflib.get_close_matches(word.casefold(), list(folded), n=1, cutoff=0.6)
    guess = f'did you mean "{folded[near[0]]}"? ' if near else ""
    return f"{guess}{what}: {', '.join(names)}"


def _clipped(line: str, column: int, width: int = 110) -> tuple[str, int]:
    """A long line cut around ``column``; control characters and tabs become one space, so that the caret is right."""
    clean = "".join(c if c.isprintable() else " " for c in line)
    if len(clean) <= width:
        return clean, min(column, len(clean))
    start = max(0, min(column - width // 2, len(clean) - width))
    return clean[start : start + width], column - start
