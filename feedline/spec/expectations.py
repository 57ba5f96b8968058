"""Expectations of features' values: how they are written, and whether measured values meet them.

Runs in: every process that reads a pipeline.yaml; the feeder, which holds what it delivered against it. Pure.

An expectation is a bound on one measure of one feature: `null_rate: <= 0.05`. What the measures are is said in
`MEASURES`; they are taken by `loader/quality.py` and given here as plain numbers. A measure that a feature has no value
of (the minimum of no values) keeps to every bound.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from feedline.spec.positions import Path, Problems, met, unknown

OnExpect = Literal["warn", "error"]

_NUMBERS = ("dense", "categorical", "sparse", "label")
_FLOATS = ("dense", "sparse", "label")
_LISTS = ("sparse",)

# The measures that may be bounded: which groups have them, and what they are.
MEASURES: dict[str, tuple[tuple[str, ...], str]] = {
    "null_rate": ((*_NUMBERS, "extra"), "Share of rows in which a column of the feature is null."),
    "oov_rate": (_NUMBERS, "Share of looked up values that the op did not know."),
    "nonfinite": (_FLOATS, "Values that are NaN or infinite."),
    "nonfinite_rate": (_FLOATS, "Share of values that are NaN or infinite."),
    "min": (_NUMBERS, "The least value."),
    "max": (_NUMBERS, "The largest value."),
    "list_length_mean": (_LISTS, "Mean length of the lists."),
    "list_length_p50": (_LISTS, "The length that half of the lists do not exceed."),
    "list_length_p90": (_LISTS, "The length that nine lists in ten do not exceed."),
    "list_length_p99": (_LISTS, "The length that 99 lists in 100 do not exceed."),
    "list_length_max": (_LISTS, "The longest list."),
}
# A bound on one of these that is broken stays broken, whatever comes later.
_ONLY_GROW = ("nonfinite", "max", "list_length_max")
_ONLY_SHRINK = ("min",)

_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}
BOUND = r"(<=|<|>=|>)\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
_BOUND = re.compile(BOUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """`measure` `sign` `value`, such as null_rate <= 0.05."""

    measure: str
    sign: str
    value: int | float

    def __str__(self) -> str:
        return f"{self.sign} {self.value}"

    def holds(self, measured: float) -> bool:
        """Whether a measured value keeps to it."""
        return _SIGNS[self.sign](measured, self.value)

    @property
    def final(self) -> bool:
        """Whether no further row can mend it once it is broken."""
        grows = _ONLY_GROW if self.sign in ("<=", "<") else _ONLY_SHRINK
        return self.measure in grows


def broken(bounds: tuple[Expectation, ...], measures: Mapping[str, Any], *, final: bool = False) -> list[Expectation]:
    """The bounds that a feature's measures break; with `final`, of those that no further row can mend."""
    return [
        bound
        for bound in bounds
        if measures.get(bound.measure) is not None
        and not bound.holds(measures[bound.measure])
        and (bound.final or not final)
    ]


def complaint(feature: str, bounds: list[Expectation], measures: Mapping[str, Any], *, epoch: int) -> str:
    """What is told of a feature that breaks bounds: the measures, their values, the bounds, and in how many rows."""
    words = [f"got {bound.measure} {measures[bound.measure]:.6g}, expected {bound}" for bound in bounds]
    return (
        f"feature {feature!r} is not as expected in epoch {epoch}: {'; '.join(words)} "
        f"({measures['rows']:,} rows delivered)"
    )


def read_bounds(group: str, value: Any, path: Path, problems: Problems) -> tuple[Expectation, ...]:
    """The bounds of a feature's `expect`; what is wrong goes to `problems`."""
    if not isinstance(value, dict):
        problems.add(path, f"must be a mapping from measures to bounds: got {met(value)}. Write {{null_rate: <= 0.05}}")
        return ()
    found: list[Expectation] = []
    for measure, text in value.items():
        place = (*path, measure)
        if measure not in MEASURES:
            problems.add(place, unknown("measure", measure, MEASURES), key=True)
        elif group not in MEASURES[measure][0]:
            known = [name for name, (groups, _) in MEASURES.items() if group in groups]
            problems.add(place, f"{group} features have no {measure}: expected one of {', '.join(known)}", key=True)
        elif isinstance(text, list) and text:
            bounds = [_bind(measure, item, (*place, index), problems) for index, item in enumerate(text)]
            found.extend(bound for bound in bounds if bound is not None)
        elif (bound := _bind(measure, text, place, problems)) is not None:
            found.append(bound)
    return tuple(found)


def written(bounds: tuple[Expectation, ...]) -> dict[str, list[str]]:
    """The bounds as they may stand under `expect`."""
    texts: dict[str, list[str]] = {}
    for bound in bounds:
        texts.setdefault(bound.measure, []).append(str(bound))
    return texts


def _bind(measure: str, value: Any, path: Path, problems: Problems) -> Expectation | None:
    match = _BOUND.fullmatch(value.strip()) if isinstance(value, str) else None
    number = float(match[2]) if match else math.nan
    if match is None or not math.isfinite(number):
        near = f". Write <= {value}" if isinstance(value, (int, float)) and not isinstance(value, bool) else ""
        message = f'must be a bound such as <= 0.05, < 1, ">= 0" or "> 0", or a list of them: got {met(value)}{near}'
        problems.add(path, message)
        return None
    whole = re.fullmatch(r"[+-]?[0-9]+", match[2])
    return Expectation(measure=measure, sign=match[1], value=int(match[2]) if whole else number)
