"""Compare columns of lists that a table has with those that features rebuild from histories, row by row.

Runs in: the process that audits: `Pipeline.audit`, `feedline audit`. Tasks run on workers (`reduction`), a few row
groups each. The lists are those of the table and of the history, before any op; a null list is an empty one. Nothing is
written.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, field, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from feedline.blocks.environment import Environment, check_environment
from feedline.config import PipelineSpec
from feedline.config.histories import HistoryRead
from feedline.dataclass import dataclass
from feedline.errors import SpecError, TableArgumentError
from feedline.expressions import bind_where
from feedline.expressions.types import nearest
from feedline.fitting.fit_tasks import fit_tasks
from feedline.fitting.list_differences import list_differences, list_elements, list_lengths
from feedline.fitting.reduction import Workers, run_tasks
from feedline.planning.kept_rows import read_kept_rows
from feedline.planning.make_plan import FrozenSource, plan_source
from feedline.planning.resolve import current_snapshot
from feedline.planning.source_plan import SourcePlan
from feedline.planning.table_features import planned_schema
from feedline.progress import report_progress
from feedline.warehouse.histories.joined_rows import read_rows
from feedline.warehouse.histories.moments import NO_TIME, Clock, clock, integers
from feedline.warehouse.parquet.schemas import KindChangedError, is_list, unify
from feedline.warehouse.reading.fragment import Fragment, nearest_hint
from feedline.warehouse.reading.read import ReadRequest
from feedline.warehouse.reading.sample import Sample, bind_sample
from feedline.warehouse.selection.select import Selection
from feedline.warehouse.storage.locations import redact
from feedline.warehouse.storage.parallel import Map

Int64s = NDArray[np.int64]

# --------------------------------------------------------------------------------------------------------------------
# Compare the rows of some row groups.

_SHOWN_ELEMENTS = 3  # at the end of a list
_DETAIL_ROWS = 1_024  # of a row group, at least, of a part of the rows: a row group costs a read


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPair:
    """A feature that reads a history, and the column of the table that it should rebuild. rebuilt: the name of the
    column of lists that it reads. kind: as which elements are compared. clock: of the lists of times, if there are."""

    feature: str
    column: str
    rebuilt: str
    kind: pa.DataType
    at: str
    clock: Clock | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTask:
    """What all tasks of an audit share. most: rows of each row group (0: all)."""

    pairs: tuple[ListPair, ...]
    schema: bytes
    where: str | None
    sample: Sample | None
    by: str | None
    times: str | None
    most: int
    environment: Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class ListEnd:
    """The length of a list and its last elements."""

    length: int
    last: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A row whose lists differ: the row group's index among the task's, and the row among those that it delivers."""

    index: int
    row: int
    stored: ListEnd
    rebuilt: ListEnd


@dataclass(slots=True, kw_only=True)
class RowCounts:
    """Rows of one value of `by`, and how the lists of one pair differ in them. first: of the rows that differ."""

    rows: int = 0
    equal: int = 0
    missing: int = 0
    extra: int = 0
    out_of_order: int = 0
    leaks: int = 0
    first: Place | None = None

    def add(self, other: RowCounts) -> None:
        """Add the counts of rows that come after these."""
        for name in ("rows", "equal", "missing", "extra", "out_of_order", "leaks"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.first = self.first or other.first


Counts = dict[tuple[int, Any], RowCounts]  # by the index of the pair and the value of `by`


def audit_rows(task: AuditTask, fragments: Sequence[Fragment]) -> Counts:
    """Compare the rows of some fragments. Raises what reading raises."""
    check_environment(task.environment)
    schema = pa.ipc.read_schema(pa.py_buffer(task.schema))
    names = [name for pair in task.pairs for name in (pair.column, pair.rebuilt, pair.at)]
    request = ReadRequest(
        tuple(dict.fromkeys([*names, *(name for name in (task.by, task.times) if name is not None)])),
        schema,
        None if task.where is None else bind_where(task.where, schema),
        sample=None if task.sample is None else bind_sample(task.sample, schema),
        first_rows=task.most,
    )
    counts: Counts = {}
    alone = (fragment.alone(position) for fragment in fragments for position in range(len(fragment.row_groups)))
    for index, fragment in enumerate(alone):
        for chunk in read_rows(fragment, request):
            left = task.most - chunk.start if task.most else chunk.frame.height
            for number, pair in enumerate(task.pairs):
                for value, own in _compare(task, pair, chunk.frame.head(left), index, chunk.start):
                    counts.setdefault((number, value), RowCounts()).add(own)
            if task.most and left <= chunk.frame.height:
                break
    return counts


def _compare(
    task: AuditTask, pair: ListPair, frame: pl.DataFrame, index: int, start: int
) -> list[tuple[Any, RowCounts]]:
    """The counts of a chunk's rows, by the value of `by`. index, start: of its row group and its first row."""
    stored, rebuilt = frame.get_column(pair.column), frame.get_column(pair.rebuilt)
    found = list_differences(stored, rebuilt, pl.Series(pa.array([], pair.kind)).dtype)
    leaks = np.zeros(frame.height, np.int64)
    if pair.clock is not None and task.times is not None:
        leaks = leaking_events(frame.get_column(task.times), pair.clock.before(integers(frame.get_column(pair.at))))
    sums = pl.DataFrame(
        {
            "value": _values_of(task, frame),
            "row": np.arange(frame.height),
            "equal": found.equal,
            "missing": found.missing,
            "extra": found.extra,
            "out_of_order": found.out_of_order,
            "leaks": leaks,
        }
    )
    first = pl.col("row").filter(~pl.col("equal") | (pl.col("leaks") > 0)).min().alias("first")
    totals = pl.col("equal", "missing", "extra", "out_of_order", "leaks").sum()
    groups = []
    for own in sums.group_by("value", maintain_order=True).agg(pl.len().alias("rows"), totals, first).to_dicts():
        value, row = own.pop("value"), own.pop("first")
        place = None
        if row is not None:
            place = Place(index=index, row=start + row, stored=_end(stored, row), rebuilt=_end(rebuilt, row))
        groups.append((value, RowCounts(**own, first=place)))
    return groups


def leaking_events(times: pl.Series, before: Int64s) -> Int64s:
    """int64 [rows]: the elements of lists of times that are not before a row's time. before: of each row."""
    lengths = list_lengths(times)
    row, values = np.repeat(np.arange(len(lengths)), lengths), integers(list_elements(times, lengths))
    return np.bincount(row[(values != NO_TIME) & (values >= before[row])], minlength=len(lengths))


def _values_of(task: AuditTask, frame: pl.DataFrame) -> pl.Series:
    """The values of `by`: of times their days."""
    if task.by is None:
        return pl.Series([None] * frame.height, dtype=pl.Int8)
    values = frame.get_column(task.by)
    return values.dt.date() if isinstance(values.dtype, pl.Datetime) else values


def _end(lists: pl.Series, row: int) -> ListEnd:
    elements = lists[row]
    if elements is None:
        return ListEnd(length=0, last=())
    return ListEnd(length=len(elements), last=tuple(elements.tail(_SHOWN_ELEMENTS).to_list()))


# --------------------------------------------------------------------------------------------------------------------

_PHASE = "auditing"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """The first row whose lists differ: its file, the index of its row group there and its index in the row group."""

    file: str
    row_group: int
    row: int
    stored: ListEnd
    rebuilt: ListEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAudit:
    """How the lists of a column differ in the rows of one value of `by`.

    equal: rows. missing: events that the rebuilt lists have and the table's lack; extra: the reverse. out_of_order:
    events of both that come in another order. leaks: events of the table at or after the row's time less the lag; None
    where no column has their times.
    """

    value: Any
    rows: int
    equal: int
    missing: int
    extra: int
    out_of_order: int
    leaks: int | None
    first: FirstDifference | None

    @property
    def clean(self) -> bool:
        return self.equal == self.rows and not self.leaks


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnAudit:
    """A column of the table, and the feature that rebuilds it."""

    feature: str
    column: str
    history: str
    groups: tuple[GroupAudit, ...]

    @property
    def total(self) -> GroupAudit:
        """All rows."""
        sums: dict[str, Any] = {
            name: sum(getattr(group, name) for group in self.groups)
            for name in ("rows", "equal", "missing", "extra", "out_of_order")
        }
        leaks = [group.leaks for group in self.groups if group.leaks is not None]
        first = min(
            (group.first for group in self.groups if group.first is not None),
            key=lambda each: (each.file, each.row_group, each.row),
            default=None,
        )
        return GroupAudit(value=None, **sums, leaks=sum(leaks) if leaks else None, first=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of an audit. rows: that were compared, of `selected`."""

    table: str
    snapshot: str
    rows: int
    selected: int
    by: str | None
    times: str | None
    columns: tuple[ColumnAudit, ...]
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether all lists are equal, and none has an event that its row must not see."""
        return all(group.clean for column in self.columns for group in column.groups)

    def facts(self) -> dict[str, Any]:
        """The report as plain values, for `--json`: each column with its `total` and its `groups`."""
        columns = [
            {
                "feature": column.feature,
                "column": column.column,
                "history": column.history,
                "total": _plain(asdict(column.total)),
                "groups": [_plain(asdict(group)) for group in column.groups],
            }
            for column in self.columns
        ]
        return {**asdict(replace(self, columns=())), "clean": self.clean, "columns": columns}


def _plain(value: Any) -> Any:
    """The value as JSON has it: times, bytes and numbers without a finite value as strings."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    is_finite = not isinstance(value, float) or abs(value) < float("inf")
    return value if value is None or (isinstance(value, bool | int | float | str) and is_finite) else str(value)


def audit_histories(
    spec: PipelineSpec,
    workers: Workers,
    compare: Mapping[str, str],
    *,
    by: str | None = None,
    times: str | None = None,
    rows: int | None = None,
    map: Map | None = None,
) -> AuditReport:
    """Compare columns of lists of a pipeline's table with the features that should rebuild them, in its selected rows;
    those of `source.exclude` are among them.

    compare: the column of each feature. by: the column by whose values differences are counted (default: the table's
    first partition key); of times their days. times: the column of lists with the times of the table's events. rows:
    about so many, spread over the table (default: all).

    Raises SpecError for a feature that reads no history and for a column that is not there or cannot be compared, and
    what planning and reading raise.
    """
    began_s = time.perf_counter()
    if rows is not None and rows < 1:
        raise SpecError(f"rows must be at least 1: got {rows}. Leave it out to compare all")
    reads = {feature: _read_of(spec, feature) for feature in compare}
    if not reads:
        raise SpecError("audit has nothing to compare: got no pair, expected FEATURE=COLUMN. Name one with --compare")
    plan = plan_source(spec, FrozenSource(snapshot=current_snapshot(spec, map=map)), lanes=1, map=map, exclude=False)
    snapshot, schema = plan.snapshot, planned_schema(spec, plan.snapshot.schema, plan.snapshot.histories)
    by = next(iter(snapshot.partition_columns), None) if by is None else by
    if by is not None and pat.is_nested(_column(plan, by, "--by").type):
        raise SpecError(
            f"--by needs a column of single values: got {by!r} of type {schema.field(by).type}. Name another"
        )
    task = AuditTask(
        pairs=tuple(_pair(plan, schema, feature, column, reads[feature], times) for feature, column in compare.items()),
        schema=schema.serialize().to_pybytes(),
        where=spec.source.where,
        sample=None if plan.sample is None else plan.sample.sample,
        by=by,
        times=times,
        most=0,
        environment=workers.environment,
    )
    selection, most = _part(plan.selection, rows)
    found = _search(plan, workers, replace(task, most=most), selection)
    columns = tuple(
        ColumnAudit(
            feature=pair.feature,
            column=pair.column,
            history=reads[pair.feature].history,
            groups=found.groups(plan, number, with_leaks=times is not None),
        )
        for number, pair in enumerate(task.pairs)
    )
    return AuditReport(
        table=redact(snapshot.uri),
        snapshot=snapshot.id,
        rows=columns[0].total.rows,
        selected=int(plan.selection.rows.sum()),
        by=by,
        times=times,
        columns=columns,
        seconds=time.perf_counter() - began_s,
    )


def _read_of(spec: PipelineSpec, name: str) -> HistoryRead:
    feature = next((each for each in spec.features if each.name == name), None)
    if feature is None:
        names = [each.name for each in spec.features if each.history is not None]
        raise SpecError(f"unknown feature: got {name!r}, expected one that reads a history{nearest(name, names)}")
    if feature.history is None:
        raise spec.error(feature.path, f"{name!r} reads no history, so it rebuilds no column. Name one that reads one")
    return feature.history


def _column(plan: SourcePlan, name: str, option: str) -> pa.Field:
    schema = plan.snapshot.schema
    if schema.get_field_index(name) < 0:
        raise SpecError(
            f"{option} names column {name!r}, which is not in the table. {nearest_hint(name, schema.names)}"
        )
    return schema.field(name)


def _elements_of(plan: SourcePlan, name: str, option: str) -> pa.DataType:
    """The type of the elements of a column of lists."""
    kind = _column(plan, name, option).type
    if not is_list(kind):
        raise SpecError(f"{option} needs a column of lists: got {name!r} of type {kind}. Name another")
    return kind.value_type


def _pair(
    plan: SourcePlan, schema: pa.Schema, feature: str, column: str, read: HistoryRead, times: str | None
) -> ListPair:
    own, theirs = _elements_of(plan, column, "--compare"), schema.field(read.name).type.value_type
    moments = None
    if times is not None:
        at = schema.field(read.at).type
        try:
            moments = clock(at, _elements_of(plan, times, "--times"), read.lag, (read.at, times))
        except TableArgumentError as error:
            raise SpecError(f"--times {times}: {error}") from error
    kind = _common_kind(own, theirs)
    if kind is None:
        raise SpecError(
            f"feature {feature!r} cannot be compared with column {column!r}: got lists of {theirs} from history "
            f"{read.history!r} and of {own} in the table, expected both of numbers, strings, or the same type"
        )
    return ListPair(feature=feature, column=column, rebuilt=read.name, kind=kind, at=read.at, clock=moments)


def _common_kind(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """As which type elements are compared: of two floats the narrower one, as which one of them was stored."""
    if pat.is_nested(one) or pat.is_nested(other):
        return None
    if pat.is_floating(one) and pat.is_floating(other):
        return min(one, other, key=lambda kind: kind.bit_width)
    numbers = all(pat.is_floating(kind) or pat.is_integer(kind) for kind in (one, other))
    if numbers and (pat.is_floating(one) or pat.is_floating(other)):
        return pa.float64()
    try:
        return unify(one, other)
    except KindChangedError:
        return None


def _part(selection: Selection, rows: int | None) -> tuple[Selection, int]:
    """About so many rows: some row groups, evenly spread, and how many rows of each (0: all)."""
    kept = np.flatnonzero(selection.rows)
    if rows is None or rows >= int(selection.rows.sum()):
        return selection, 0
    count = min(len(kept), max(1, rows // _DETAIL_ROWS))
    chosen = np.zeros(len(selection.rows), np.bool_)
    chosen[kept[np.arange(count) * len(kept) // count]] = True
    return replace(selection, rows=np.where(chosen, selection.rows, 0)), -(-rows // count)


@dataclass(slots=True)
class _Found:
    """The counts of all tasks. places: the row group of each first difference, an index of the table's."""

    counts: Counts = field(default_factory=dict)
    places: dict[tuple[int, Any], int] = field(default_factory=dict)

    def groups(self, plan: SourcePlan, number: int, *, with_leaks: bool) -> tuple[GroupAudit, ...]:
        """The counts of a pair, in the order of the values, a null last."""
        own = {value: counts for (pair, value), counts in self.counts.items() if pair == number}
        values = sorted((value for value in own if value is not None), key=lambda value: value)
        return tuple(
            GroupAudit(
                value=value,
                rows=own[value].rows,
                equal=own[value].equal,
                missing=own[value].missing,
                extra=own[value].extra,
                out_of_order=own[value].out_of_order,
                leaks=own[value].leaks if with_leaks else None,
                first=_first(plan, self.places.get((number, value)), own[value].first),
            )
            for value in [*values, *([None] if None in own else [])]
        )


def _first(plan: SourcePlan, group: int | None, place: Place | None) -> FirstDifference | None:
    if group is None or place is None:
        return None
    snapshot, row = plan.snapshot, place.row
    if plan.selection.rows[group] != snapshot.rows_per_row_group[group]:
        row = int(read_kept_rows(plan, group, plan.columns[:1]).rows[row])
    return FirstDifference(
        file=snapshot.path_of(int(snapshot.file_of_row_group[group])),
        row_group=int(snapshot.row_group_in_file[group]),
        row=row,
        stored=place.stored,
        rebuilt=place.rebuilt,
    )


def _search(plan: SourcePlan, workers: Workers, task: AuditTask, selection: Selection) -> _Found:
    """The counts of all row groups of a selection."""
    tasks = fit_tasks(plan.snapshot, selection, workers.threads)
    sizes = [sum(len(fragment.row_groups) for fragment in each) for each in tasks]
    groups = np.split(np.flatnonzero(selection.rows), np.cumsum(sizes)[:-1])  # tasks are in the table's order
    read = np.minimum(selection.rows, task.most) if task.most else selection.rows
    done, total, found = 0, int(read.sum()), _Found()
    report_progress(_PHASE, done, total, "rows")
    with closing(run_tasks(workers, audit_rows, task, tasks)) as results:
        for row_groups, counts in zip(groups, results, strict=True):
            for key, own in counts.items():
                if own.first is not None:
                    found.places.setdefault(key, int(row_groups[own.first.index]))
                found.counts.setdefault(key, RowCounts()).add(own)
            done += int(read[row_groups].sum())
            report_progress(_PHASE, done, total, "rows")
    return found
