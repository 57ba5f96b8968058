"""Read the selectors of a PromQL expression: enough to hold dashboards and alerts against a scrape."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

AGGREGATIONS = {"sum", "min", "max", "avg", "count"}
FUNCTIONS = {"rate", "increase", "clamp_min", "time"}
GROUPINGS = {"by", "without", "on", "ignoring", "group_left"}
OPERATORS = {"and", "or", "unless"}
# Labels that Prometheus adds to each series that it scrapes.
OF_TARGETS = {"instance", "job", "pod"}
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_:][\w:]*)|(?P<number>\d+(?:\.\d+)?)|(?P<braces>\{[^}]*\})|(?P<range>\[[^\]]*\])"
    r"|(?P<mark>==|!=|>=|<=|[-+*/><(),]))"
)
_MATCHER = re.compile(r'\s*(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"\s*')


@dataclass(frozen=True)
class Selector:
    """A metric, its matchers (label, operator, value), and the range, if it has one."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]
    range: str | None


@dataclass(frozen=True)
class Expression:
    """The selectors of an expression, the labels that it groups by, and the functions of ranges with their metrics."""

    selectors: tuple[Selector, ...]
    grouped: frozenset[str]


def parse(text: str) -> Expression:
    """Parse an expression. Raises ValueError for a word or sign that it does not know."""
    tokens = [*_tokens(text)]
    selectors, grouped = list[Selector](), set[str]()
    place = 0
    while place < len(tokens):
        kind, word = tokens[place]
        after = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        if kind == "name" and word in GROUPINGS:
            place += 1
            if after == "(":
                end = next(index for index in range(place, len(tokens)) if tokens[index][1] == ")")
                grouped |= {each for each_kind, each in tokens[place:end] if each_kind == "name"}
                place = end + 1
        elif kind == "name" and (word in AGGREGATIONS or word in OPERATORS or (word in FUNCTIONS and after == "(")):
            place += 1
        elif kind == "name":
            place += 1
            matchers: tuple[tuple[str, str, str], ...] = ()
            if place < len(tokens) and tokens[place][0] == "braces":
                matchers = tuple(_matchers(tokens[place][1]))
                place += 1
            span = None
            if place < len(tokens) and tokens[place][0] == "range":
                span = tokens[place][1]
                place += 1
            selectors.append(Selector(word, matchers, span))
        else:
            place += 1
    return Expression(tuple(selectors), frozenset(grouped))


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    place, depth = 0, 0
    text = text.strip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"not a token: {text[place:]!r}")
        place = match.end()
        depth += {"(": 1, ")": -1}.get(match["mark"] or "", 0)
        yield str(match.lastgroup), str(match[str(match.lastgroup)])
    if depth:
        raise ValueError(f"parentheses do not match in {text!r}")


def _matchers(braces: str) -> Iterator[tuple[str, str, str]]:
    for part in filter(None, braces[1:-1].split('",')):
        match = _MATCHER.fullmatch(part if part.rstrip().endswith('"') else part + '"')
        if match is None:
            raise ValueError(f"not a matcher: {part!r}")
        yield match[1], match[2], match[3]


def problems(text: str, scraped: Mapping[str, Sequence[Mapping[str, str]]], types: Mapping[str, str]) -> list[str]:
    """What of an expression a scrape has not. scraped: labels of each series, by metric. types: counter or gauge."""
    expression, found = parse(text), list[str]()
    labels = set(OF_TARGETS)
    for selector in expression.selectors:
        series = scraped.get(selector.metric)
        if series is None:
            found.append(f"no metric {selector.metric}")
            continue
        names = set().union(*series)
        labels |= names
        found += [
            f"{selector.metric} has no label {name}"
            for name, _, _ in selector.matchers
            if name not in names | OF_TARGETS
        ]
        own = [matcher for matcher in selector.matchers if matcher[0] in names]
        if own and not any(_fits(each, own) for each in series):
            found.append(f"no series of {selector.metric} fits {own}")
        if selector.range is not None and types[selector.metric] != "counter":
            found.append(f"{selector.metric} is no counter")
        if selector.range is not None and f"({selector.metric}" not in text.replace(" ", ""):
            found.append(f"{selector.metric} has a range outside a function")
    return found + [f"no label {name} to group by" for name in sorted(expression.grouped - labels)]


def _fits(labels: Mapping[str, str], matchers: Sequence[tuple[str, str, str]]) -> bool:
    for name, operator, value in matchers:
        text = labels.get(name, "")
        is_equal = bool(re.fullmatch(value, text)) if "~" in operator else text == value
        if is_equal == operator.startswith("!"):
            return False
    return True
