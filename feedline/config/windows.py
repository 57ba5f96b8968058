"""Define the sections `windows` and `hold_out`: epochs that are stretches of time, and keys that are left out to
evaluate on.

Pure. Epoch k reads the rows of [from + k * every, from + (k + 1) * every): its plan has the filter of its window.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from feedline.config.histories import LAG_UNITS
from feedline.config.sections import MAX_INT, NonEmptyString, Section, rule_error, value_error
from feedline.config.source_section import Names, SampleSpec

_EVERY = re.compile(r"([1-9][0-9]*)\s*(us|ms|s|m|h|d)")
_DAY = timedelta(days=1)
Bound = datetime | date | int


def _every(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise value_error("a time such as 1d (us, ms, s, m, h, d), or a positive integer")
    if isinstance(value, int) and not 1 <= value <= MAX_INT:
        raise value_error("a positive integer, or a time such as 1d")
    if isinstance(value, str) and not _EVERY.fullmatch(value):
        raise value_error("a time such as 1d (us, ms, s, m, h, d), or a positive integer")
    return value


def _bound(value: object) -> object:
    if isinstance(value, str):
        try:
            _parse(value)
        except ValueError:
            raise value_error('an ISO date or time, such as "2026-01-31", or an integer') from None
    elif isinstance(value, bool) or not isinstance(value, int):
        raise value_error('an ISO date or time, such as "2026-01-31", or an integer', "Quote a date")
    return value


_BOUND_SCHEMA = WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}"}]})
_EVERY_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^[1-9][0-9]*\s*(us|ms|s|m|h|d)$"}]}
)


def _parse(value: str | int) -> Bound:
    if isinstance(value, int):
        return value
    return date.fromisoformat(value) if len(value) == len("2026-01-31") else datetime.fromisoformat(value)


class WindowsSpec(Section):
    """Epochs that are windows of time, in order: epoch k reads the rows of the k-th one."""

    by: NonEmptyString = Field(
        description="The column whose values are cut into windows: a time, a date or an integer."
    )
    every: Annotated[int | str, BeforeValidator(_every), _EVERY_SCHEMA] = Field(
        description="The length of a window: a time such as 1d, or an integer for a column of integers."
    )
    since: Annotated[int | str, BeforeValidator(_bound), _BOUND_SCHEMA] = Field(
        alias="from", description="Where the first window begins."
    )
    until: Annotated[int | str, BeforeValidator(_bound), _BOUND_SCHEMA] = Field(
        description="Where the last window ends, before which all rows lie."
    )
    ahead: Annotated[int, Field(ge=0, le=MAX_INT)] = Field(
        default=0, description="Read the window so many after an epoch's: 1 to evaluate on the next one."
    )

    @model_validator(mode="after")
    def _consistent(self) -> WindowsSpec:
        first, last = _parse(self.since), _parse(self.until)
        if type(first) is not type(last):
            raise rule_error("until", f"must be written like from: got {self.until!r}, expected as {self.since!r}")
        if isinstance(first, int) is not isinstance(self.every, int):
            kind = "an integer" if isinstance(first, int) else "a time such as 1d"
            raise rule_error("every", f"must be of the kind of from: got {self.every!r}, expected {kind}")
        if not isinstance(first, datetime | int) and self._length % _DAY:
            raise rule_error("every", f"cuts dates: got {self.every!r}, expected whole days such as 1d")
        if (
            isinstance(first, datetime)
            and isinstance(last, datetime)
            and (first.tzinfo is None) != (last.tzinfo is None)
        ):
            raise rule_error("until", "must have a time zone where from has one: got one of both")
        if not first < last:  # type: ignore[operator]
            raise rule_error("until", f"must be after from: got {self.until!r}, expected more than {self.since!r}")
        return self

    @property
    def _length(self) -> Any:
        if isinstance(self.every, int):
            return self.every
        match = _EVERY.fullmatch(self.every)
        assert match is not None
        return timedelta(microseconds=int(match[1]) * LAG_UNITS[match[2]] // 1000)

    @property
    def count(self) -> int:
        """The windows that epochs read; the last may be shorter."""
        first: Any = _parse(self.since)
        last: Any = _parse(self.until)
        windows: int = -(-(last - first) // self._length)
        return max(0, windows - self.ahead)

    def where(self, epoch: int, also: str | None) -> str:
        """The filter of an epoch's window, and another one."""
        first: Any = _parse(self.since)
        start = first + (epoch + self.ahead) * self._length
        stop = min(start + self._length, _parse(self.until))
        name = self.by if self.by.isidentifier() else f"col({self.by!r})"
        window = f"{name} >= {_literal(start)} and {name} < {_literal(stop)}"
        return window if also is None else f"({also}) and {window}"


def _literal(bound: Bound) -> str:
    return str(bound) if isinstance(bound, int) else f'"{bound.isoformat()}"'


class HoldOutSpec(Section):
    """Keys whose rows are left out, by a hash, to evaluate on."""

    by: Names = Field(description="The column, or columns, whose values decide: equal ones stay together.")
    share: Annotated[float, Field(gt=0, lt=1)] = Field(description="The share of the keys that is left out.")
    salt: Annotated[int, Field(ge=0, le=MAX_INT)] = Field(default=0, description="Another one leaves out other keys.")
    rest: bool = Field(default=False, description="Read what is left out instead, to evaluate on.")

    @property
    def sample(self) -> SampleSpec:
        return SampleSpec(fraction=1 - self.share, key=self.by, seed=self.salt, rest=self.rest)


def evaluation_overrides(windows: WindowsSpec | None, hold_out: HoldOutSpec | None) -> Mapping[str, object]:
    """The overrides that make a pipeline read what its training is evaluated on: the next window, held-out keys."""
    overrides: dict[str, object] = {}
    if windows is not None:
        overrides["windows.ahead"] = windows.ahead + 1
    if hold_out is not None:
        overrides["hold_out.rest"] = True
    return overrides
