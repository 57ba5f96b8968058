"""Expectations on features' values: how pipeline.yaml writes them, and whether measured values meet them.

Pure. An expectation is a bound on one measure of one feature: `null_rate: <= 0.05`. `MEASURES` lists the measures,
which `loader/encoding/quality.py` computes. A measure without a value (the minimum of no values) meets every bound.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from feedline.spec.document.positions import Path, Problems, describe_value, unknown_message

OnExpect = Literal["warn", "error"]

_NUMBERS = ("dense", "categorical", "sparse", "label")
_FLOATS = ("dense", "sparse", "label")
_LISTS = ("sparse",)

# The groups that have each measure, and its description.
MEASURES: dict[str, tuple[tuple[str, ...], str]] = {
    "null_rate": ((*_NUMBERS, "extra"), "Share of rows in which a column of the feature is null."),
    "oov_rate": (_NUMBERS, "Share of lookups that found no entry."),
    "nonfinite": (_FLOATS, "Values that are NaN or infinite."),
    "nonfinite_rate": (_FLOATS, "Share of values that are NaN or infinite."),
    "min": (_NUMBERS, "The smallest value."),
    "max": (_NUMBERS, "The largest value."),
    "list_length_mean": (_LISTS, "Mean length of the lists."),
    "list_length_p50": (_LISTS, "Median length of the lists."),
    "list_length_p90": (_LISTS, "90th percentile of the lengths of the lists."),
    "list_length_p99": (_LISTS, "99th percentile of the lengths of the lists."),
    "list_length_max": (_LISTS, "Length of the longest list."),
}
# Measures that never shrink and never grow: a bound that they break stays broken.
_ONLY_GROW = ("nonfinite", "max", "list_length_max")
_ONLY_SHRINK = ("min",)
_RATES = ("null_rate", "oov_rate", "nonfinite_rate")

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
        """Whether a measured value meets it."""
        return _SIGNS[self.sign](measured, self.value)

    @property
    def per_row(self) -> bool:
        """Whether it holds for rows exactly if it holds for each of them alone, so that a row may break it: a bound on
        the values or the lengths of lists, or that a count or a rate is zero."""
        if self.measure in _RATES:
            return self.sign == "<=" and self.value == 0
        if self.measure == "nonfinite":
            return (self.sign == "<=" and 0 <= self.value < 1) or (self.sign == "<" and 0 < self.value <= 1)
        return self.final

    @property
    def final(self) -> bool:
        """Whether it stays broken, whatever rows follow."""
        grows = _ONLY_GROW if self.sign in ("<=", "<") else _ONLY_SHRINK
        return self.measure in grows


def broken_bounds(
    bounds: tuple[Expectation, ...], measures: Mapping[str, Any], *, final: bool = False
) -> list[Expectation]:
    """The bounds that a feature's measures break; with `final`, only those that stay broken."""
    return [
        bound
        for bound in bounds
        if measures.get(bound.measure) is not None
        and not bound.holds(measures[bound.measure])
        and (bound.final or not final)
    ]


def complaint(feature: str, bounds: list[Expectation], measures: Mapping[str, Any], *, epoch: int) -> str:
    """The message for a feature that breaks bounds: measures, values, bounds, and the rows delivered."""
    words = [f"got {bound.measure} {measures[bound.measure]:.6g}, expected {bound}" for bound in bounds]
    return (
        f"feature {feature!r} is not as expected in epoch {epoch}: {'; '.join(words)} "
        f"({measures['rows']:,} rows delivered)"
    )


def read_bounds(group: str, value: Any, path: Path, problems: Problems) -> tuple[Expectation, ...]:
    """The bounds of a feature's `expect`; adds errors to `problems`."""
    if not isinstance(value, dict):
        problems.add(
            path,
            f"must be a mapping from measures to bounds: got {describe_value(value)}. Write {{null_rate: <= 0.05}}",
        )
        return ()
    expectations: list[Expectation] = []
    for measure, text in value.items():
        position = (*path, measure)
        if measure not in MEASURES:
            problems.add(position, unknown_message("measure", measure, MEASURES), key=True)
        elif group not in MEASURES[measure][0]:
            names = [name for name, (groups, _) in MEASURES.items() if group in groups]
            problems.add(position, f"{group} features have no {measure}: expected one of {', '.join(names)}", key=True)
        elif isinstance(text, list) and text:
            bounds = [_read_bound(measure, item, (*position, index), problems) for index, item in enumerate(text)]
            expectations.extend(bound for bound in bounds if bound is not None)
        elif (bound := _read_bound(measure, text, position, problems)) is not None:
            expectations.append(bound)
    return tuple(expectations)


def bounds_to_yaml(bounds: tuple[Expectation, ...]) -> dict[str, list[str]]:
    """The bounds as written under `expect`."""
    bounds_by_measure: dict[str, list[str]] = {}
    for bound in bounds:
        bounds_by_measure.setdefault(bound.measure, []).append(str(bound))
    return bounds_by_measure


def _read_bound(measure: str, value: Any, path: Path, problems: Problems) -> Expectation | None:
    match = _BOUND.fullmatch(value.strip()) if isinstance(value, str) else None
    number = float(match[2]) if match else math.nan
    if match is None or not math.isfinite(number):
        near = f". Write <= {value}" if isinstance(value, (int, float)) and not isinstance(value, bool) else ""
        examples = 'a bound such as <= 0.05, < 1, ">= 0" or "> 0", or a list of them'
        problems.add(path, f"must be {examples}: got {describe_value(value)}{near}")
        return None
    whole = re.fullmatch(r"[+-]?[0-9]+", match[2])
    return Expectation(measure=measure, sign=match[1], value=int(match[2]) if whole else number)
