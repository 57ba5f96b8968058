"""The features of a pipeline.yaml: the columns or expressions they come from, and the ops they pass.

Pure. The short forms of the `features` section become FeatureSpecs here. Other layers check ops, columns and
expressions; they report through `PipelineSpec.error` with the paths kept here.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal, get_args

from feedline.config.column_ranges import expand_range, has_range
from feedline.config.histories import HISTORY_KEYS, HistoryRead, read_count, read_history
from feedline.config.yaml_document import Document, Path, Problems, describe_value, path_text, unknown_message
from feedline.dataclass import dataclass

# --------------------------------------------------------------------------------------------------------------------
# Expectations on features' values: how pipeline.yaml writes them, and whether measured values meet them. An
# expectation is a bound on one measure of one feature: `null_rate: <= 0.05`. `MEASURES` lists the measures, which
# `loader/encoding/quality.py` computes. A measure without a value (the minimum of no values) meets every bound.

OnExpect = Literal["warn", "error"]

_NUMBERS = ("dense", "categorical", "sparse", "label")
FLOATS = ("dense", "sparse", "label")  # the groups whose values may be NaN or infinite
_LISTS = ("sparse",)

# The groups that have each measure, and its description.
MEASURES: dict[str, tuple[tuple[str, ...], str]] = {
    "null_rate": ((*_NUMBERS, "extra"), "Share of rows in which a column of the feature is null."),
    "oov_rate": (_NUMBERS, "Share of lookups that found no entry."),
    "nonfinite": (FLOATS, "Values that are NaN or infinite."),
    "nonfinite_rate": (FLOATS, "Share of values that are NaN or infinite."),
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


# --------------------------------------------------------------------------------------------------------------------

Group = Literal["dense", "categorical", "sparse", "label", "extra"]
GROUPS: tuple[Group, ...] = get_args(Group)
AnyGroup = Group | Literal["observed"]  # inputs of a statistic: not a group of pipeline.yaml
SOURCES = ("column", "expr", "op")
FEATURE_KEYS = (*SOURCES, "inputs", "ops", "on_nonfinite", "expect")
EXTRA_KEYS = (*SOURCES[:2], "expect")
# Keys of an entry for several features; see `_FeatureReader.template`.
TEMPLATE_KEYS = ("columns", "ops", "on_nonfinite", "expect")
EXTRA_TEMPLATE_KEYS = ("columns", "expect")
OnNonfinite = Literal["error", "zero", "keep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """An op's name and its parameters as written in the YAML, not yet checked against the op.

    `arguments` is canonical JSON (sorted keys; NaN and Infinity as Python writes them): `{}` for a bare word, the
    mapping for `{op: {...}}`, `{"": value}` for `{op: value}`. code: the folder of a pipeline.yaml that allows user
    functions as ops, None where it does not.
    """

    op: str
    arguments: str = "{}"
    path: Path = field(default=(), compare=False)
    code: str | None = field(default=None, compare=False)

    @property
    def value(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.arguments)
        return parsed

    def to_yaml(self) -> object:
        value = self.value
        return {self.op: value.get("", value)} if value else self.op


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureInput:
    """One input of an op over several columns: a column or an expression, and the ops applied to it first."""

    column: str | None = None
    expr: str | None = None
    ops: tuple[OpCall, ...] = ()
    known_as: tuple[str, str] | None = None  # as of `FeatureSpec`
    path: Path = field(default=(), compare=False)

    def __str__(self) -> str:
        source = self.column if self.column is not None else self.expr
        return " → ".join([str(source), *(call.op for call in self.ops)])

    def to_yaml(self) -> object:
        if self.column is not None and not self.ops:
            return self.column
        source = {"column": self.column} if self.column is not None else {"expr": self.expr}
        return source | ({"ops": [call.to_yaml() for call in self.ops]} if self.ops else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSpec:
    """One feature: exactly one of column, expr and op (with its inputs) is its source; ops follow in order. history:
    the events that it reads, as lists in the column of that name; rows that see fewer than `min_history` are left out.
    dedup: the deduplicated group that it belongs to; None until its columns have been compared with the groups'.
    known_as: of a source that redefines a feature, the column or expression ("column" or "expr", and its text) of the
    pipeline's, by which fits know it, as they learn from all sources."""

    name: str
    group: AnyGroup
    column: str | None = None
    expr: str | None = None
    op: OpCall | None = None
    inputs: tuple[FeatureInput, ...] = ()
    ops: tuple[OpCall, ...] = ()
    on_nonfinite: OnNonfinite = "keep"
    expect: tuple[Expectation, ...] = ()
    dedup: str | None = None
    known_as: tuple[str, str] | None = None
    history: HistoryRead | None = None
    min_history: int = 0
    path: Path = field(default=(), compare=False)

    def long_form(self) -> dict[str, Any]:
        """The feature as written under its group and name, in the form that all others abbreviate."""
        content: dict[str, Any] = {key: value for key in SOURCES[:2] if (value := getattr(self, key)) is not None}
        if self.history is not None:
            content = self.history.to_yaml() | ({"min_history": self.min_history} if self.min_history else {})
        if self.op is not None:
            content |= {"op": self.op.to_yaml(), "inputs": [item.to_yaml() for item in self.inputs]}
        content |= {"ops": [call.to_yaml() for call in self.ops]} if self.ops else {}
        content |= {"on_nonfinite": self.on_nonfinite} if self.group in FLOATS else {}
        return content | ({"expect": bounds_to_yaml(self.expect)} if self.expect else {})

    def of_table(self, tables: Mapping[str, tuple[str, str]]) -> FeatureSpec:
        """The feature, whose history is of the table of that digest, by name; and of that time, if it names none."""
        if self.history is None:
            return self
        table, time = tables[self.history.history]
        history = replace(self.history, table=table, at=self.history.at or time)
        return replace(self, history=history, column=history.name)


def canonical_json(value: object) -> str:
    """The same string for equal values, whatever the order of their keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def read_features(
    document: Document, problems: Problems, code: str | None = None, *, at: Path = ("features",)
) -> tuple[FeatureSpec, ...]:
    """The features of the document's section at a path, group by group; adds errors to `problems`. code: the folder of
    the pipeline.yaml, if it allows code. A feature without `on_nonfinite` has the document's."""
    groups, path = document.value, at
    for part in at:
        groups = groups[part]
    if not isinstance(groups, dict):
        problems.add(path, f"must be a mapping: got {describe_value(groups)}, expected the groups {', '.join(GROUPS)}")
        return ()
    for group in groups:
        if group not in GROUPS:
            problems.add((*path, group), unknown_message("group of features", group, GROUPS), key=True)
    default = document.value.get("on_nonfinite")
    reader = _FeatureReader(problems, code, default if default in get_args(OnNonfinite) else "keep", path)
    features = [feature for group in GROUPS if group in groups for feature in reader.group(group, groups[group])]
    if not any(groups.values()):
        problems.add(path, "no feature: got none, expected at least one. Write for example `dense: {price: []}`")
    first: dict[str, FeatureSpec] = {}
    for feature in features:
        earlier = first.setdefault(feature.name, feature)
        if earlier is not feature:
            message = f"feature name used twice: got {feature.name!r} here and at {path_text(earlier.path)}"
            problems.add(feature.path, f"{message}. Names are unique over all groups: rename one, with `column:`")
    return tuple(features)


_NOT_IN_A_LIST = "expected it beside the list. Write `NAME: {column: …, ops: […]}`"


def _as_yaml(value: object) -> str:
    """The value as a remedy repeats it, if it is short and on one line."""
    return value if isinstance(value, str) and len(value) <= 40 and value.isprintable() else "…"


class _FeatureReader:
    """Each method reads one form, and returns None, or fewer values, after an error."""

    def __init__(self, problems: Problems, code: str | None, on_nonfinite: OnNonfinite, path: Path) -> None:
        self.problems = problems
        self.path = path
        self.code = code
        self.default = on_nonfinite

    def group(self, group: Group, value: Any) -> Iterator[FeatureSpec]:
        path = (*self.path, group)
        if group == "extra" and isinstance(value, list):
            for index, name in enumerate(value):
                for column in self.names(name, (*path, index)):
                    yield self.build(name=column, group=group, column=column, path=(*path, index))
        elif isinstance(value, dict):
            for name, body in value.items():
                if isinstance(body, dict) and "history" in body:
                    yield from self.of_history(group, name, body, (*path, name))
                elif has_range(name) or (isinstance(body, dict) and "columns" in body):
                    yield from self.template(group, name, body, (*path, name))
                elif (feature := self.feature(group, name, body, (*path, name))) is not None:
                    yield feature
        else:
            form = "a list of columns, or a mapping" if group == "extra" else "a mapping from names to lists of ops"
            name = _as_yaml(value[0]) if isinstance(value, list) and value else None
            example = f"Write {group}: {{{name}: []}}" if name else "Or leave it out"
            self.problems.add(path, f"must be {form}: got {describe_value(value)}. {example}")

    def feature(self, group: Group, name: str, body: Any, path: Path) -> FeatureSpec | None:
        if not name.strip():
            self.problems.add(path, f"feature name must not be empty: got {name!r}", key=True)
            return None
        if isinstance(body, list):
            ops = self.ops(body, path)
            if group == "extra" and body:
                self.problems.add(path, "extra takes no ops: it is passed through unchanged. Write `[]`, or use `expr`")
                return None
            return self.build(name=name, group=group, column=name, ops=ops, path=path)
        if isinstance(body, dict):
            return self.long_form(group, name, body, path)
        forms = "a list of ops, or a mapping with column, expr or op"
        shown = _as_yaml(name)
        remedy = f"Write `{shown}: [{_as_yaml(body)}]`" if body else f"Write `{shown}: []` for the column as it is"
        self.problems.add(path, f"must be {forms}: got {describe_value(body)}. {remedy}")
        return None

    def template(self, group: Group, name: str, body: Any, path: Path) -> Iterator[FeatureSpec]:
        """One entry for several features: its name contains a range, or it lists its columns. A name with a range names
        the features; under any other name they have their columns' names."""
        names = self.names(name, path) if has_range(name) else []
        if not isinstance(body, dict):
            names = names if isinstance(body, list) else [name]  # report any other body only once
            features = [self.feature(group, feature, body, path) for feature in names]
            yield from (feature for feature in features if feature is not None)
            return
        allowed = TEMPLATE_KEYS if group != "extra" else EXTRA_TEMPLATE_KEYS
        wrong = [key for key in body if key not in allowed]
        for key in wrong:
            self.problems.add(
                (*path, key), unknown_message("key of an entry for several features", key, allowed), key=True
            )
        columns = self.columns(body["columns"], (*path, "columns")) if "columns" in body else names
        if wrong or not columns:
            return
        if len(columns) != len(names or columns):
            message = f"must be one per feature: got {len(columns)}, expected {len(names)} for {name}"
            self.problems.add((*path, "columns"), message)
            return
        rest = {key: value for key, value in body.items() if key != "columns"}
        features = [
            self.long_form(group, feature, {"column": column, **rest}, path)
            for feature, column in zip(names or columns, columns, strict=True)
        ]
        yield from (feature for feature in features if feature is not None)

    def of_history(self, group: Group, name: str, body: dict[str, Any], path: Path) -> Iterator[FeatureSpec]:
        """The features of an entry that reads a history: one for each of its columns, NAME.COLUMN, and for the tag."""
        allowed = (*HISTORY_KEYS, *(EXTRA_KEYS[2:] if group == "extra" else TEMPLATE_KEYS[1:]))
        before = len(self.problems)
        for key in body:
            if key not in allowed:
                message = unknown_message("key of a feature of a history", key, allowed)
                self.problems.add((*path, key), message, key=True)
        read = read_history(body, path, self.problems)
        parts = self.parts_of_history(name, body, path)
        if read is None or len(self.problems) > before:
            return
        ops = self.ops_of_history(body, [each or body["tag"] for each in parts.values()], (*path, "ops"))
        expect = read_bounds(group, body["expect"], (*path, "expect"), self.problems) if "expect" in body else ()
        on_nonfinite = self.on_nonfinite(group, body, path)
        least = read_count(body, "min_history", path, self.problems) if "min_history" in body else 0
        for feature, column in parts.items():
            own = replace(read, column=column)
            chain = ops.get(column or body.get("tag", ""), ())
            built = self.build(name=feature, group=group, column=own.name, ops=chain, history=own, path=path)
            yield replace(built, on_nonfinite=on_nonfinite, expect=expect, min_history=least)

    def parts_of_history(self, name: str, body: dict[str, Any], path: Path) -> dict[str, str | None]:
        """The features of an entry, each with its column of the events; None of the tag."""
        column = self.name(body["column"], (*path, "column"), "a column") if "column" in body else None
        columns = self.columns(body["columns"], (*path, "columns")) if "columns" in body else []
        tag = self.name(body["tag"], (*path, "tag"), "a name") if "tag" in body else None
        if ("column" in body and "columns" in body) or not {"column", "columns", "tag"}.intersection(body):
            got = "column and columns" if "column" in body else "none"
            self.problems.add(path, f"must have one of column, columns, tag: got {got}. Write `column:` of the events")
        if tag is not None and "pools" not in body and (column or columns):
            self.problems.add((*path, "tag"), "tag says which pools an event is in: got it without pools. Remove it")
        twice = next((each for index, each in enumerate(columns) if each in (*columns[:index], tag)), None)
        if twice is not None:
            self.problems.add((*path, "columns"), f"must have each name once, the tag's too: got {twice!r} twice")
        parts: dict[str, str | None] = {f"{name}.{each}": each for each in columns}
        parts |= {} if column is None else {name: column}
        return parts | ({} if tag is None else {name if not parts else f"{name}.{tag}": None})

    def ops_of_history(self, body: dict[str, Any], names: Sequence[str], path: Path) -> dict[str, tuple[OpCall, ...]]:
        """The ops of each column, and of the tag, by its name: of one list for all columns, or for a tag alone; or of a
        mapping."""
        value, tag = body.get("ops", []), body.get("tag")
        if isinstance(value, list):
            return dict.fromkeys([name for name in names if name != tag] or names, self.ops(value, path))
        if not isinstance(value, dict):
            message = f"must be a list of ops, or one for each column: got {describe_value(value)}, expected [op, …]"
            self.problems.add(path, message)
            return {}
        ops: dict[str, tuple[OpCall, ...]] = {}
        for name, chain in value.items():
            if name not in names:
                self.problems.add((*path, name), unknown_message("column", name, names), key=True)
            elif not isinstance(chain, list):
                message = f"must be a list of ops: got {describe_value(chain)}, expected [op, …]"
                self.problems.add((*path, name), message)
            else:
                ops[name] = self.ops(chain, (*path, name))
        return ops

    def columns(self, values: Any, path: Path) -> list[str]:
        """A list of columns, ranges expanded; empty where one of them is wrong."""
        if not isinstance(values, list) or not values:
            got = "an empty list" if values == [] else describe_value(values)
            self.problems.add(path, f"must be a list of columns: got {got}, expected for example [C1, C2]")
            return []
        lists = [self.names(value, (*path, index)) for index, value in enumerate(values)]
        return [name for names in lists for name in names] if all(lists) else []

    def names(self, value: Any, path: Path) -> list[str]:
        """The names that a column's or feature's name stands for: itself, or those of its range."""
        name = self.name(value, path, "a column")
        try:
            return [] if name is None else expand_range(name)
        except ValueError as error:
            self.problems.add(path, str(error))
            return []

    def long_form(self, group: Group, name: str, body: dict[str, Any], path: Path) -> FeatureSpec | None:
        allowed = FEATURE_KEYS if group != "extra" else EXTRA_KEYS
        unknown_keys = [key for key in body if key not in allowed]
        for key in unknown_keys:
            self.problems.add((*path, key), self.unknown_key(group, name, key, allowed), key=True)
        sources = [key for key in SOURCES if key in body]
        if unknown_keys and not sources:
            return None
        if len(sources) != 1:
            got = " and ".join(sources) or "none"
            remedy = "" if sources else f". Write `column: {_as_yaml(name)}` for the column of that name"
            self.problems.add(path, f"must have exactly one of column, expr, op: got {got}{remedy}")
            return None
        column = self.name(body["column"], (*path, "column"), "a column") if "column" in body else None
        expr = self.name(body["expr"], (*path, "expr"), "an expression") if "expr" in body else None
        op = self.op(body["op"], (*path, "op")) if "op" in body else None
        inputs = self.inputs(body, path)
        ops: tuple[OpCall, ...] = ()
        if isinstance(body.get("ops", []), list):
            ops = self.ops(body.get("ops", []), (*path, "ops"))
        else:
            self.problems.add(
                (*path, "ops"), f"must be a list of ops: got {describe_value(body['ops'])}, expected [op, …]"
            )
        feature = self.build(name=name, group=group, column=column, expr=expr, op=op, inputs=inputs, ops=ops, path=path)
        expect = read_bounds(group, body["expect"], (*path, "expect"), self.problems) if "expect" in body else ()
        return replace(feature, on_nonfinite=self.on_nonfinite(group, body, path), expect=expect)

    def build(self, **parts: Any) -> FeatureSpec:
        return FeatureSpec(**parts, on_nonfinite=self.default if parts["group"] in FLOATS else "keep")

    def on_nonfinite(self, group: Group, body: dict[str, Any], path: Path) -> OnNonfinite:
        choices = get_args(OnNonfinite)
        if group not in FLOATS:
            if "on_nonfinite" in body and group != "extra":
                message = f"{group} features hold integers, which are always finite: remove it"
                self.problems.add((*path, "on_nonfinite"), message, key=True)
            return "keep"
        value = body.get("on_nonfinite", self.default)
        if value not in choices:
            message = f"must be one of {', '.join(choices)}: got {describe_value(value)}"
            self.problems.add((*path, "on_nonfinite"), message)
            return self.default
        choice: OnNonfinite = value
        return choice

    def unknown_key(self, group: Group, name: str, key: str, allowed: tuple[str, ...]) -> str:
        message = unknown_message("key of a feature", key, allowed)
        if group == "extra" and key in FEATURE_KEYS:
            return f"{message}. extra is passed through unchanged"
        return (
            message
            if "Did you mean" in message
            else f"{message}. Ops are written as a list: `{_as_yaml(name)}: [{{{_as_yaml(key)}: …}}]`"
        )

    def inputs(self, body: dict[str, Any], path: Path) -> tuple[FeatureInput, ...]:
        if ("inputs" in body) != ("op" in body):
            wrong, missing = ("inputs", "op") if "inputs" in body else ("op", "inputs")
            self.problems.add(path, f"{wrong} without {missing}: expected `{{op: …, inputs: [column, …]}}`")
            return ()
        values = body.get("inputs", ())
        if "inputs" in body and not (isinstance(values, list) and values):
            got = "an empty list" if values == [] else describe_value(values)
            self.problems.add((*path, "inputs"), f"must be a list of columns: got {got}, expected at least one")
            return ()
        inputs = [self.input(value, (*path, "inputs", index)) for index, value in enumerate(values)]
        return tuple(item for item in inputs if item is not None)

    def input(self, value: Any, path: Path) -> FeatureInput | None:
        if not isinstance(value, dict):
            column = self.name(value, path, "a column")
            return None if column is None else FeatureInput(column=column, path=path)
        allowed = (*SOURCES[:2], "ops")
        for key in value:
            if key not in allowed:
                self.problems.add((*path, key), unknown_message("key of an input", key, allowed), key=True)
        sources = [key for key in SOURCES[:2] if key in value]
        if len(sources) != 1 or not isinstance(value.get("ops", []), list):
            self.problems.add(path, "must be a column, or {column: …, ops: […]}, or {expr: …, ops: […]}")
            return None
        what = "a column" if sources == ["column"] else "an expression"
        source = self.name(value[sources[0]], (*path, sources[0]), what)
        ops = self.ops(value.get("ops", []), (*path, "ops"))
        if source is None:
            return None
        column, expr = (source, None) if sources == ["column"] else (None, source)
        return FeatureInput(column=column, expr=expr, ops=ops, path=path)

    def ops(self, values: list[Any], path: Path) -> tuple[OpCall, ...]:
        calls = [self.op(value, (*path, index)) for index, value in enumerate(values)]
        return tuple(call for call in calls if call is not None)

    def op(self, value: Any, path: Path) -> OpCall | None:
        if isinstance(value, str) and value.strip():
            return OpCall(op=value, path=path, code=self.code)
        if isinstance(value, dict) and len(value) == 1:
            [(op, parameters)] = value.items()
            if op in FEATURE_KEYS and op != "expr":
                message = f"{op} is not an op: got {{{op}: {_as_yaml(parameters)}}} in a list of ops, {_NOT_IN_A_LIST}"
                self.problems.add((*path, op), message, key=True)
                return None
            if parameters is None:
                message = f"no value after the colon: expected `{_as_yaml(op)}`, or `{{{_as_yaml(op)}: parameters}}`"
                self.problems.add((*path, op), message)
                return None
            arguments = parameters if isinstance(parameters, dict) else {"": parameters}
            return OpCall(op=op, arguments=canonical_json(arguments), path=path, code=self.code)
        if isinstance(value, dict) and value:
            forms = ", ".join(
                f"{{{_as_yaml(op)}: …}}" if body is not None else _as_yaml(op) for op, body in value.items()
            )
            self.problems.add(path, f"must be one op: got {len(value)} keys, expected one. Write [{forms}]")
        else:
            got = describe_value(value) if value != {} else "an empty mapping"
            self.problems.add(path, f"must be an op: got {got}, expected a word or a map of one key {{op: parameters}}")
        return None

    def name(self, value: Any, path: Path, what: str) -> str | None:
        if isinstance(value, str) and value.strip():
            return value
        remedy = ". Quote it" if isinstance(value, (int, float)) else ""
        self.problems.add(path, f"must be {what}: got {describe_value(value)}, expected a non-empty string{remedy}")
        return None
