"""Read the selectors of a PromQL expression: enough to hold dashboards and alerts against a scrape."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Aggregations, functions and operators: all other names are metrics.
_WORDS = {"sum", "min", "max", "avg", "count", "rate", "increase", "clamp_min", "time", "and", "or", "unless"}
# Labels that Prometheus adds to each series that it scrapes.
_OF_TARGETS = {"instance", "job", "pod"}
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left)\b\s*(?:\(([^)]*)\))?")
_SELECTOR = re.compile(r"([A-Za-z_:][\w:]*)\s*(\{[^}]*\})?\s*(\[[^\]]*\])?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


@dataclass(frozen=True)
class Selector:
    """A metric, its matchers (label, operator, value), and the range, or "" if it has none."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]
    range: str


@dataclass(frozen=True)
class Expression:
    """The selectors of an expression, and the labels that it groups by."""

    selectors: tuple[Selector, ...]
    grouped: frozenset[str]


def parse(text: str) -> Expression:
    """Parse an expression. Raises ValueError where parentheses do not match."""
    if text.count("(") != text.count(")"):
        raise ValueError(f"parentheses do not match in {text!r}")
    grouped = frozenset(name for labels in _GROUPING.findall(text) for name in re.findall(r"\w+", labels))
    found = _SELECTOR.findall(_GROUPING.sub(" ", text))
    selectors = (Selector(name, tuple(_MATCHER.findall(braces)), span) for name, braces, span in found)
    return Expression(tuple(each for each in selectors if each.metric not in _WORDS), grouped)


def problems(text: str, scraped: Mapping[str, Sequence[Mapping[str, str]]], types: Mapping[str, str]) -> list[str]:
    """What of an expression a scrape has not. scraped: labels of each series, by metric. types: counter or gauge."""
    expression, found = parse(text), list[str]()
    labels = set(_OF_TARGETS)
    for selector in expression.selectors:
        series = scraped.get(selector.metric)
        if series is None:
            found.append(f"no metric {selector.metric}")
            continue
        names = set().union(*series)
        labels |= names
        unknown = [name for name, _, _ in selector.matchers if name not in names | _OF_TARGETS]
        found += [f"{selector.metric} has no label {name}" for name in unknown]
        own = [matcher for matcher in selector.matchers if matcher[0] in names]
        if own and not any(_fits(each, own) for each in series):
            found.append(f"no series of {selector.metric} fits {own}")
        if selector.range and types[selector.metric] != "counter":
            found.append(f"{selector.metric} is no counter")
        if selector.range and f"({selector.metric}" not in text.replace(" ", ""):
            found.append(f"{selector.metric} has a range outside a function")
    return found + [f"no label {name} to group by" for name in sorted(expression.grouped - labels)]


def _fits(labels: Mapping[str, str], matchers: Sequence[tuple[str, str, str]]) -> bool:
    for name, operator, value in matchers:
        text = labels.get(name, "")
        is_equal = bool(re.fullmatch(value, text)) if "~" in operator else text == value
        if is_equal == operator.startswith("!"):
            return False
    return True
