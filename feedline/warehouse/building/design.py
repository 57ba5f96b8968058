"""Bind a samples.yaml to the columns of its logs: what is read of each, and the columns of the table to write.

Pure. Raises TableArgumentError, naming section and column, for columns that are missing or cannot be compared, and for
names that two columns of the table would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from feedline.config.build_spec import BuildSpec, Label, OutcomeSpec, OutSpec
from feedline.config.column_ranges import expand_range
from feedline.config.histories import lag_ns
from feedline.dataclass import dataclass
from feedline.errors import DataError, TableArgumentError
from feedline.expressions import bind_where
from feedline.warehouse.building.attribution import label_type
from feedline.warehouse.building.periods import Timeline, Window, features_window, impressions_window, outcomes_window
from feedline.warehouse.histories.join import key_kind
from feedline.warehouse.optimize.clustering import refuse_keys
from feedline.warehouse.optimize.repeated_columns import DedupGroups
from feedline.warehouse.parquet.dedup_columns import FLAG_PREFIX, is_group_name
from feedline.warehouse.parquet.request_rows import RequestColumns
from feedline.warehouse.parquet.schemas import child_fields, is_bytes, is_list, is_text
from feedline.warehouse.reading.fragment import nearest_hint
from feedline.warehouse.snapshot.column_facts import contiguous

Int64s = NDArray[np.int64]
Keys = tuple[tuple[str, pa.DataType], ...]  # columns, with the type in which they are compared

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MOST = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A log as it is read: its columns, its time in the timeline's unit, and the filter of its rows.

    name: in messages and in counts. factor: units of the timeline in one of the column's.
    """

    name: str
    schema: pa.Schema
    time: str
    factor: int
    where: str | None
    timeline: Timeline

    def times(self, table: pa.Table) -> Int64s:
        """int64 [rows]: the times of rows, none of which is null. Raises DataError beyond the timeline's unit."""
        values = contiguous(table[self.time]).view(pa.int64()).to_numpy(zero_copy_only=False)
        return self.in_units(values)

    def in_units(self, values: Int64s) -> Int64s:
        """Times of the column in the timeline's unit."""
        if self.factor > 1 and len(values) and int(abs(values).max()) > _MOST // self.factor:
            raise DataError(
                f"time {self.time!r} of {self.name} is out of range: got one that does not fit 64 bits in "
                f"{self.timeline.unit}. Leave such rows out, by `where` of the impressions or in the log"
            )
        return values * self.factor

    def filter(self, window: Window) -> str:
        """The expression that keeps its rows in a window, in whole seconds, which may be more."""
        per_second = self.timeline.per_second
        name, parts = f"col({self.time!r})", [f"({self.where})"] if self.where else []
        if window.start is not None:
            parts.append(f'{name} >= "{self._moment(window.start // per_second * per_second)}"')
        parts.append(f'{name} < "{self._moment(-(-window.stop // per_second) * per_second)}"')
        return " and ".join(parts)

    def _moment(self, time: int) -> str:
        text = self.timeline.text(time)
        return text if self.schema.field(self.time).type.tz is not None else text.removesuffix("+00:00")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcomes of one log: how they are attributed, and their labels. within: in the timeline's unit."""

    name: str
    log: Log
    keys: Keys
    within: int
    rule: str
    labels: tuple[Label, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that labels are made of."""
        return tuple(dict.fromkeys(label.column for label in self.labels if label.column is not None))

    def label_fields(self) -> list[pa.Field]:
        """The columns of labels; those of functions that always have a value are not nullable."""
        columns = [None if each.column is None else self.log.schema.field(each.column).type for each in self.labels]
        kinds = [label_type(label, column) for label, column in zip(self.labels, columns, strict=True)]
        never_null = ("exists", "count")
        return [
            pa.field(label.name, _plain_type(kind), nullable=label.function not in never_null)
            for label, kind in zip(self.labels, kinds, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureTable:
    """The rows of one table of features, and the columns that are added. within: None without a limit."""

    name: str
    log: Log
    keys: Keys
    within: int | None
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """All that decides the rows of a partition from the rows of its logs.

    identity: the columns that say which impression a row is. required: those of them without which there is none.
    dedup: groups of columns to store once per run. requests: the columns of a request table; None for rows that are
    impressions.
    """

    timeline: Timeline
    impressions: Log
    identity: Keys
    required: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    features: tuple[FeatureTable, ...]
    schema: pa.Schema
    cluster_by: tuple[str, ...]
    sort_by: tuple[str, ...]
    dedup: DedupGroups
    requests: RequestColumns | None
    negatives: str | None
    keep: float
    weight: str
    salt: int

    @property
    def longest(self) -> int:
        """The longest time after which an outcome counts."""
        return max((outcome.within for outcome in self.outcomes), default=0)

    def windows(self, period: int) -> dict[str, Window]:
        """The times that a partition reads of each log, by its name."""
        bounds = self.timeline.bounds(period)
        return {
            self.impressions.name: impressions_window(bounds, self.longest),
            **{each.log.name: outcomes_window(bounds, each.within) for each in self.outcomes},
            **{each.log.name: features_window(bounds, each.within) for each in self.features},
        }

    @property
    def logs(self) -> tuple[Log, ...]:
        """All logs: impressions, outcomes, features."""
        return (self.impressions, *(each.log for each in self.outcomes), *(each.log for each in self.features))


def design(spec: BuildSpec, schemas: Mapping[str, pa.Schema]) -> Design:
    """Bind a spec. schemas: of the files of each log, by its name as of `log_tables`."""
    sections = _sections(spec)
    for name, time in sections.items():
        _check_time(name, time, schemas[name])
    _check_zones({name: schemas[name].field(time).type for name, time in sections.items()})
    unit = "ns" if any(schemas[name].field(time).type.unit == "ns" for name, time in sections.items()) else "us"
    timeline = Timeline(unit=unit, hourly=spec.out.is_hourly)
    logs = {
        name: Log(
            name=name,
            schema=schemas[name],
            time=time,
            factor=timeline.per_second // _PER_SECOND[schemas[name].field(time).type.unit],
            where=spec.impressions.where if name == "impressions" else None,
            timeline=timeline,
        )
        for name, time in sections.items()
    }
    impressions = logs["impressions"]
    if spec.impressions.where is not None:
        bind_where(spec.impressions.where, impressions.schema)
    of_outcomes = [name for each in spec.outcomes.values() for name in each.key]
    identity = tuple(dict.fromkeys([*spec.impressions.key, *of_outcomes]))
    outcomes = tuple(
        _outcome(each, logs[f"outcome {name}"], impressions, name, timeline) for name, each in spec.outcomes.items()
    )
    features = tuple(
        FeatureTable(
            name=name,
            log=logs[f"feature {name}"],
            keys=_shared_keys(each.key, impressions, logs[f"feature {name}"]),
            within=None if each.within is None else timeline.of_ns(lag_ns(each.within) or 0),
            columns=_feature_columns(each.columns, logs[f"feature {name}"], (*each.key, each.time)),
        )
        for name, each in spec.features.items()
    )
    schema = _schema(spec, impressions, outcomes, features, timeline)
    requests = _requests(spec.out, schema)
    cluster_by = (spec.out.cluster_by or spec.impressions.key) if requests is None else requests.by
    ordering = {"out.cluster_by" if requests is None else "out.request": cluster_by, "out.sort_by": spec.out.sort_by}
    for option, names in ordering.items():
        _require(names or (), schema, option, "the table's columns")
        refuse_keys(schema, names or (), option)
    if spec.negatives is not None:
        unweighted = pa.schema([field for field in schema if field.name != spec.negatives.weight])
        bind_where(spec.negatives.where, unweighted)
    return Design(
        timeline=timeline,
        impressions=impressions,
        identity=_shared_keys(identity, impressions, impressions),
        required=spec.impressions.key,
        outcomes=outcomes,
        features=features,
        schema=schema,
        cluster_by=cluster_by,
        sort_by=tuple(dict.fromkeys([*(spec.out.sort_by or ()), impressions.time, *identity])),
        dedup=_groups(spec.out.dedup, schema),
        requests=requests,
        negatives=None if spec.negatives is None else spec.negatives.where,
        keep=1.0 if spec.negatives is None else spec.negatives.keep,
        weight="" if spec.negatives is None else spec.negatives.weight,
        salt=0 if spec.negatives is None else spec.negatives.salt,
    )


def log_tables(spec: BuildSpec) -> dict[str, str | tuple[str, ...]]:
    """The tables of a spec by the names of their logs: impressions, `outcome click`, `feature user`."""
    return {
        "impressions": spec.impressions.table,
        **{f"outcome {name}": each.table for name, each in spec.outcomes.items()},
        **{f"feature {name}": each.table for name, each in spec.features.items()},
    }


def _sections(spec: BuildSpec) -> dict[str, str]:
    """The time column of each log."""
    return {
        "impressions": spec.impressions.time,
        **{f"outcome {name}": each.time for name, each in spec.outcomes.items()},
        **{f"feature {name}": each.time for name, each in spec.features.items()},
    }


def _outcome(spec: OutcomeSpec, log: Log, impressions: Log, name: str, timeline: Timeline) -> Outcome:
    columns = [label.column for label in spec.labels if label.column is not None]
    _require(columns, log.schema, f"label of {log.name}", "its log")
    for label in spec.labels:
        if label.column is None:
            continue
        kind = log.schema.field(label.column).type
        is_number = pat.is_integer(kind) or pat.is_floating(kind) or pat.is_boolean(kind)
        is_value = is_number or is_text(kind) or pat.is_date32(kind) or pat.is_timestamp(kind)
        if not (is_number if label.function == "sum" else is_value) or pat.is_float16(kind) or kind == pa.uint64():
            expected = "numbers" if label.function == "sum" else "numbers, strings, dates or timestamps"
            raise TableArgumentError(
                f"label {label.name!r} is made of column {label.column!r} of {log.name}: got {kind}, expected "
                f"{expected}. Convert the column"
            )
    return Outcome(
        name=name,
        log=log,
        keys=_shared_keys(spec.key, impressions, log),
        within=timeline.of_ns(lag_ns(spec.within) or 0),
        rule=spec.attribution,
        labels=spec.labels,
    )


def _check_time(name: str, time: str, schema: pa.Schema) -> None:
    _require([time], schema, f"time of {name}", "its files")
    kind = schema.field(time).type
    if not pat.is_timestamp(kind):
        raise TableArgumentError(
            f"time {time!r} of {name} is no timestamp: got {kind}. Convert the column, or name another one"
        )


def _check_zones(kinds: Mapping[str, pa.DataType]) -> None:
    """Raise TableArgumentError where some times are instants (with a time zone), and others are not."""
    first = kinds["impressions"]
    for name, kind in kinds.items():
        if (kind.tz is None) != (first.tz is None):
            raise TableArgumentError(
                f"times of impressions and of {name} cannot be compared: got {first} and {kind}, expected both with a "
                "time zone or neither. Convert one of the columns"
            )


def _shared_keys(names: Sequence[str], impressions: Log, log: Log) -> Keys:
    """The columns of a key in the type in which both logs are compared."""
    keys = []
    for name in dict.fromkeys(names):
        _require([name], impressions.schema, f"key of {log.name}", "the impressions' files")
        _require([name], log.schema, f"key of {log.name}", "its files")
        own, other = impressions.schema.field(name).type, log.schema.field(name).type
        wide = pa.uint64()
        if key_kind(own) is None or key_kind(own) != key_kind(other) or (own == wide) != (other == wide):
            raise TableArgumentError(
                f"key {name!r} of {log.name} cannot be compared: got {own} in the impressions and {other} in "
                f"{log.name}, expected integers, strings, dates or times of both. Convert one of the columns"
            )
        keys.append((name, _compared(own)))
    return tuple(keys)


def _compared(kind: pa.DataType) -> pa.DataType:
    if pat.is_integer(kind):
        return kind if kind == pa.uint64() else pa.int64()
    return pa.large_string() if is_text(kind) or pat.is_string_view(kind) else kind


def _feature_columns(names: tuple[str, ...] | None, log: Log, taken: Sequence[str]) -> tuple[str, ...]:
    if names is not None:
        _require(names, log.schema, f"columns of {log.name}", "its files")
        return names
    return tuple(name for name in log.schema.names if name not in taken)


def _schema(
    spec: BuildSpec,
    impressions: Log,
    outcomes: Sequence[Outcome],
    features: Sequence[FeatureTable],
    timeline: Timeline,
) -> pa.Schema:
    """The table's columns: the impressions', labels, features, the weight."""
    owners: list[tuple[str, pa.Field]] = [("impressions", _plain(field)) for field in impressions.schema]
    owners += [(each.log.name, field) for each in outcomes for field in each.label_fields()]
    owners += [(each.log.name, _plain(each.log.schema.field(name))) for each in features for name in each.columns]
    if spec.negatives is not None:
        owners.append(("negatives", pa.field(spec.negatives.weight, pa.float32(), nullable=False)))
    first: dict[str, str] = {}
    for owner, field in owners:
        if field.name in first:
            raise TableArgumentError(
                f"column {field.name!r} is in the table twice: got it from {first[field.name]} and {owner}. Rename the "
                "label, or name the `columns` of features"
            )
        if field.name in timeline.keys or field.name.startswith(FLAG_PREFIX):
            raise TableArgumentError(
                f"column {field.name!r} of {owner} has a name of the table's own: expected none of "
                f"{', '.join(timeline.keys)}, nor one that begins with {FLAG_PREFIX}. Rename the column"
            )
        first[field.name] = owner
    return pa.schema([field for _, field in owners])


def _plain(field: pa.Field) -> pa.Field:
    """A nullable field without metadata: logs of later days may lack the column."""
    return pa.field(field.name, _plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type as all writers of a log's files have it: they differ in the names of elements and widths of offsets."""
    if pat.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if is_text(kind) or pat.is_string_view(kind):
        return pa.string()
    if is_bytes(kind) or pat.is_binary_view(kind):
        return pa.binary()
    if pat.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pat.is_struct(kind):
        return pa.struct([_plain(field) for field in child_fields(kind)])
    if is_list(kind) or pat.is_fixed_size_list(kind):
        element = pa.field("element", _plain_type(kind.value_type))
        return pa.list_(element, kind.list_size if pat.is_fixed_size_list(kind) else -1)
    return kind


def _requests(out: OutSpec, schema: pa.Schema) -> RequestColumns | None:
    """The columns of a table of requests; None for one of impressions."""
    if out.request is None:
        return None
    candidates = tuple(dict.fromkeys(_matching(out.candidates or (), schema, "out.candidates")))
    for name in candidates:
        kind = schema.field(name).type
        if name in out.request:
            raise TableArgumentError(
                f"out.candidates names {name!r}, which identifies the request (out.request). Leave it out of one of "
                "the two"
            )
        if child_fields(kind) and not is_list(kind):
            raise TableArgumentError(
                f"out.candidates names column {name!r} of type {kind}: expected scalars or lists. Store each field as "
                "a column of its own"
            )
    return RequestColumns(by=out.request, candidates=candidates)


def _groups(dedup: Mapping[str, Sequence[str]], schema: pa.Schema) -> DedupGroups:
    groups, of = [], dict[str, str]()
    for group, patterns in dedup.items():
        columns = list(dict.fromkeys(_matching(patterns, schema, f"out.dedup.{group}")))
        for column in columns:
            if of.setdefault(column, group) != group:
                raise TableArgumentError(
                    f"out.dedup names column {column!r} in two groups: got {of[column]} and {group}. Remove it from one"
                )
        if not is_group_name(group):
            raise TableArgumentError(
                f"out.dedup has a bad group name: got {group!r}, expected letters, digits, `_`, `.` or `-`. Rename it"
            )
        groups.append((group, tuple(columns)))
    return tuple(groups)


def _matching(patterns: Iterable[str], schema: pa.Schema, option: str) -> Iterable[str]:
    for pattern in patterns:
        for name in expand_range(pattern):
            found = [each for each in schema.names if fnmatchcase(each, name)] if "*" in name else [name]
            if not found:
                raise TableArgumentError(
                    f"{option} matches no column: got {name!r}. {nearest_hint(name, schema.names)}"
                )
            _require(found, schema, option, "the table's columns")
            yield from found


def _require(names: Iterable[str], schema: pa.Schema, option: str, what: str) -> None:
    for name in names:
        if schema.get_field_index(name) < 0:
            hint = nearest_hint(name, schema.names)
            raise TableArgumentError(f"{option} names column {name!r}, which is not in {what}. {hint}")
