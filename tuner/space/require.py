"""Conditions of ``layout.require``, such as ``tp <= devices_per_node`` or ``zero == 1 or pp == 1``.

An expression is parsed by Python's own grammar and walked once; only names, numbers, words, comparisons, ``and or not``
and ``+ - * // %`` are let through, so nothing in a space file is ever executed. Evaluation is column-wise.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cost_models.cluster import Cluster
from cost_models.layout import Layouts, Recompute
from cost_models.units import Column
from tuner.space.errors import did_you_mean

NAMES = ("dp", "tp", "pp", "cp", "ep", "zero", "micro_batch", "recompute", "devices_per_node", "nodes", "num_devices")
MAX_LENGTH = 300

_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip
_COMPARISONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


class RequireError(ValueError):
    """A condition that cannot be read. ``next_step`` says what can."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(f"{message}; {next_step}")
        self.message, self.next_step = message, next_step


@dataclass(frozen=True, slots=True)
class Condition:
    text: str
    _tree: ast.expr

    def holds(self, layouts: Layouts, cluster: Cluster) -> Column:
        """A boolean column (n,): where the condition is true."""
        names: dict[str, Any] = {name: getattr(layouts, name) for name in NAMES[:7]}
        names |= {"recompute": layouts.recompute_level, "nodes": cluster.num_nodes, "num_devices": cluster.num_devices}
        names |= {"devices_per_node": cluster.devices_per_node} | {level.value: level.level for level in Recompute}
        with np.errstate(all="ignore"):
            value = _value(self._tree, names)
        return np.broadcast_to(np.asarray(value, dtype=bool), (len(layouts),))


def condition(text: str) -> Condition:
    """Parse and check one condition. RequireError says what is wrong with it."""
    if len(text) > MAX_LENGTH:
        raise RequireError(f"a condition of {len(text)} characters", f"split it into several, each under {MAX_LENGTH}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        hint = (
            "write == to compare"
            if "=" in text.replace("==", "").replace("<=", "").replace(">=", "").replace("!=", "")
            else ""
        )
        raise RequireError(f'"{text}" is not a condition', hint or "write it like tp <= devices_per_node") from None
    if not _check(tree):
        raise RequireError(f'"{text}" is a number, not a condition', "compare it: write it like tp <= devices_per_node")
    return Condition(text, tree)


def _check(node: ast.expr) -> bool:
    """Whether ``node`` is a condition (True) or a number (False); RequireError for anything else."""
    match node:
        case ast.BoolOp(values=parts):
            _all_conditions(parts)
            return True
        case ast.UnaryOp(op=ast.Not(), operand=part):
            _all_conditions([part])
            return True
        case ast.UnaryOp(op=ast.USub(), operand=part) if not _check(part):
            return False
        case ast.BinOp(op=op, left=left, right=right) if (
            type(op) in _ARITHMETIC and not _check(left) and not _check(right)
        ):
            if isinstance(op, ast.Mod | ast.FloorDiv) and isinstance(right, ast.Constant) and right.value == 0:
                raise RequireError("a division by 0", "divide by a name or by a number above 0")
            return False
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return _check_comparison([left, *comparators], ops)
        case ast.Name(id=name):
            if name not in NAMES and name not in list(Recompute):
                raise RequireError(f'unknown name "{name}"', did_you_mean(name, NAMES, what="names"))
            return False
        case ast.Constant(value=bool()):
            return True
        case ast.Constant(value=int() | float() as number) if abs(number) < 1e15:
            return False
        case ast.Constant(value=str() as text) if text in list(Recompute):
            return False
    raise RequireError(
        f'"{ast.unparse(node)}" is not allowed in a condition',
        "use names, numbers, comparisons, and/or/not, + - * // % and in [..]",
    )


def _check_comparison(parts: list[ast.expr], ops: list[ast.cmpop]) -> bool:
    for op, right in zip(ops, parts[1:], strict=True):
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, ast.List | ast.Tuple) or len(ops) > 1:
                raise RequireError(f'"{ast.unparse(right)}" is not a list', "write it like tp in [1, 2, 4]")
            parts = [p for p in parts if p is not right] + right.elts
        elif type(op) not in _COMPARISONS:
            raise RequireError(f'"{type(op).__name__}" is not a comparison here', "use == != < <= > >= in")
    if any(_check(part) for part in parts):
        raise RequireError("a condition compared with a number", "join conditions with and/or")
    return True


def _all_conditions(parts: list[ast.expr]) -> None:
    for part in parts:
        if not _check(part):
            message = f'"{ast.unparse(part)}" is a number, not a condition'
            raise RequireError(message, "compare it, as in pp == 1 or zero == 1")


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.BoolOp(op=op, values=parts):
            join = np.logical_and if isinstance(op, ast.And) else np.logical_or
            result = _value(parts[0], names)
            for part in parts[1:]:
                result = join(result, _value(part, names))
            return result
        case ast.UnaryOp(op=op, operand=part):
            return np.logical_not(_value(part, names)) if isinstance(op, ast.Not) else -_value(part, names)
        case ast.BinOp(op=op, left=left, right=right):
            return _ARITHMETIC[type(op)](_value(left, names), _value(right, names))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return _compared(left, ops, comparators, names)
        case ast.Name(id=name):
            return names[name]
        case ast.Constant(value=str() as text):
            return Recompute(text).level
        case ast.Constant(value=value):
            return value
    raise AssertionError(f"{ast.dump(node)} passed the check")


def _compared(left: ast.expr, ops: list[ast.cmpop], comparators: list[ast.expr], names: Mapping[str, Any]) -> Any:
    result: Any = True
    for op, right in zip(ops, comparators, strict=True):
        if isinstance(op, ast.In | ast.NotIn):
            assert isinstance(right, ast.List | ast.Tuple)
            found: Any = False
            for item in right.elts:
                found = np.logical_or(found, np.equal(_value(left, names), _value(item, names)))
            holds = np.logical_not(found) if isinstance(op, ast.NotIn) else found
        else:
            holds = _COMPARISONS[type(op)](_value(left, names), _value(right, names))
        result = np.logical_and(result, holds)
        left = right
    return result
