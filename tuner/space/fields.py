"""The kinds of values in a space file as pydantic types: quantities, words, and the three forms of a dimension.

Validators raise with a ``next_step``; notices go to the list that validation gets as its context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from cost_models.layout import Recompute
from cost_models.workload import Precision
from tuner.space.errors import did_you_mean
from tuner.space.quantities import QuantityError, duration_s, rate_bytes_per_s, shown, size_bytes, whole_number

_TRUE, _FALSE = ("true", "on", "yes"), ("false", "off", "no")


def mistake(message: str, next_step: str) -> PydanticCustomError:
    return PydanticCustomError("space", "{message}", {"message": message, "next_step": next_step})


def _quantity(read: Callable[[object], Any]) -> BeforeValidator:
    def validate(value: object) -> Any:
        try:
            return read(value)
        except QuantityError as error:
            raise mistake(error.message, error.next_step) from None

    return BeforeValidator(validate)


def real(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        hint = "write a number, such as 0.1 or 3e-4"
        if isinstance(value, str) and _is_number(value):
            hint = "remove the quotes"
        raise mistake(f"expected a number, got {shown(value)}", hint)
    if not math.isfinite(value):
        raise mistake(f"{value} is not finite", "write a finite number")
    return value


def whole(low: int, high: int | None = None) -> Callable[[object], int]:
    """A whole number from ``low``; ``1.0e+1`` is whole."""
    limits = f"{low} or more" if high is None else f"from {low} to {high}"

    def read(value: object) -> int:
        number = real(value)
        if number != int(number):
            raise mistake(f"{shown(value)} is not a whole number", f"write a whole number, {limits}")
        if number < low or (high is not None and number > high):
            raise mistake(f"{shown(value)} is out of range", f"write a whole number, {limits}")
        return int(number)

    return read


def _boolean(value: object) -> bool:
    word = str(value).lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise mistake(f"expected true or false, got {shown(value)}", "write true or false")


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise mistake(f"expected text, got {shown(value)}", "write a word, in quotes if it looks like a number")
    return value


def word(kind: str, *known: str, later: Mapping[str, str] | None = None) -> BeforeValidator:
    """One of ``known``; what is planned is refused by name with ``later``'s reason."""

    def validate(value: object) -> str:
        if isinstance(value, str) and value in known:
            return value
        if isinstance(value, str) and value in (later or {}):
            raise mistake(f"{kind} {value} is not available in this version", (later or {})[value])
        raise mistake(f"unknown {kind} {shown(value)}", did_you_mean(str(value), known, what="available"))

    return BeforeValidator(validate)


def _recompute(value: object, info: ValidationInfo) -> str:
    known = [level.value for level in Recompute]
    if value is False or (isinstance(value, str) and value.lower() in _FALSE):
        if info.context is not None:
            info.context.append(f"layout.recompute: {shown(value)} is read as none")
        return Recompute.NONE.value
    if value is True or (isinstance(value, str) and value.lower() in _TRUE):
        raise mistake(f"recompute {shown(value)} does not say how much", "write selective or full")
    if value in known:
        return str(value)
    raise mistake(f"unknown recompute {shown(value)}", did_you_mean(str(value), known, what="available"))


Bytes = Annotated[float, _quantity(size_bytes)]
BytesPerS = Annotated[float, _quantity(rate_bytes_per_s)]
Seconds = Annotated[float, _quantity(duration_s)]
Tokens = Annotated[int, _quantity(whole_number)]
SequenceLength = Annotated[int, _quantity(partial(whole_number, limit=2**24))]
BatchTokens = Annotated[int, _quantity(partial(whole_number, limit=2**36))]
Real = Annotated[float, BeforeValidator(real)]
Count = Annotated[int, BeforeValidator(whole(1, 10**9))]
Degree = Annotated[int, BeforeValidator(whole(1, 2**15))]
"""Of an axis, nodes or a micro-batch. As with sizes, limits keep products inside 64 bits."""
Size = Annotated[int, BeforeValidator(whole(1, 2**20))]
Seed = Annotated[int, BeforeValidator(whole(0, 2**32 - 1))]
ZeroStage = Annotated[int, BeforeValidator(whole(0, 3))]
Boolean = Annotated[bool, BeforeValidator(_boolean)]
Text = Annotated[str, BeforeValidator(_text)]
RecomputeWord = Annotated[str, BeforeValidator(_recompute)]
Schedule = Annotated[str, word("schedule", "cosine", "wsd", "linear", "constant")]
PrecisionWord = Annotated[str, word("precision", *Precision)]
Optimizer = Annotated[str, word("optimizer", "adamw")]
T = TypeVar("T")


def _float(value: object) -> float:
    """A bound as a number: whatever ``T`` is, its validators leave one."""
    return float(value)  # type: ignore[arg-type]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RangeSpec(Section, Generic[T]):
    """``low <= x <= high``; with ``log`` in equal ratios, with ``step`` on a grid from ``low``."""

    low: T
    high: T
    log: Boolean = False
    step: T | None = None

    @model_validator(mode="after")
    def _is_a_range(self) -> RangeSpec[T]:
        low, high, step = _float(self.low), _float(self.high), None if self.step is None else _float(self.step)
        wrong: list[tuple[str, str]] = []
        if low >= high:
            relation = "equals" if low == high else "is above"
            next_step = "swap them" if low > high else f"write the value alone: {low:g}"
            wrong.append((f"low {low:g} {relation} high {high:g}", next_step))
        if self.log and low <= 0:
            wrong.append((f"a log range cannot start at {low:g}", "write a low above 0, or log: false"))
        if self.log and step is not None:
            wrong.append(("log and step exclude each other", "remove one of them, or write a list of values"))
        if step is not None and step <= 0:
            wrong.append((f"step {step:g} is not above 0", "write a step above 0"))
        elif step is not None and low < high and step > high - low:
            message = f"step {step:g} is wider than the range {low:g} to {high:g}"
            wrong.append((message, "write a smaller step, or a list of values"))
        if wrong:
            raise mistake("; ".join(m for m, _ in wrong), "; ".join(n for _, n in wrong))
        return self

    @property
    def top(self) -> float:
        """The largest value that ``step`` reaches; ``high`` where there is no step."""
        low, high = _float(self.low), _float(self.high)
        if self.step is None:
            return high
        step = _float(self.step)
        return float(f"{low + math.floor((high - low) / step + 1e-9) * step:.12g}")


def form_of(value: object) -> str:
    if isinstance(value, Mapping | RangeSpec):
        return "range"
    return "choice" if isinstance(value, list) else "fixed"


def _forms(kind: Any, *, ranges: bool) -> Any:
    """``kind`` alone, a list of it or, where ``ranges``, a range of it; one of them is tried, by what is written."""
    choice = Annotated[list[kind], Field(min_length=1), Tag("choice")]
    forms = Annotated[kind, Tag("fixed")] | choice
    if ranges:
        forms |= Annotated[RangeSpec[kind], Tag("range")]
    return Annotated[forms, Discriminator(form_of)]


if TYPE_CHECKING:
    Number: TypeAlias = T | list[T] | RangeSpec[T]
    Words: TypeAlias = T | list[T]
else:

    class Number:
        """``Number[Count]``: a scalar, a list, or a range. By hand, as aliases do not reach into generic models."""

        def __class_getitem__(cls, kind: Any) -> Any:
            return _forms(kind, ranges=True)

    class Words:
        """``Words[Schedule]``: a scalar or a list; words have no range."""

        def __class_getitem__(cls, kind: Any) -> Any:
            return _forms(kind, ranges=False)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
