"""FittedTable: a table that leaves whole columns out, the least needed first, rather than cut a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

PADDING = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """``rank`` 0 is always shown; of the others the highest is left out first."""

    name: str
    cells: Sequence[str]
    rank: int = 0
    justify: Literal["left", "right"] = "right"

    @property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.name, *self.cells)) + PADDING


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTable:
    columns: Sequence[Column]

    def shown(self, max_width: int) -> list[Column]:
        """The columns that stand side by side in ``max_width`` characters."""
        kept = list(self.columns)
        while sum(c.width for c in kept) > max_width and any(c.rank for c in kept):
            kept.remove(max(kept, key=lambda c: c.rank))
        return kept

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, PADDING, 0, 0))
        columns = self.shown(options.max_width)
        for column in columns:
            table.add_column(column.name, justify=column.justify, no_wrap=True)
        for row in zip(*(c.cells for c in columns), strict=True):
            table.add_row(*(Text(cell) for cell in row))
        yield table
