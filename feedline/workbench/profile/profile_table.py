"""Profile a table: its footers, and a bounded sample of its rows.

Runs in: the process of `feedline profile` and of `feedline init`. Columns are measured by a few threads, then compared
with the label, with time, and within sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from feedline.warehouse.selection.select import screen_rows
from feedline.warehouse.storage.locations import redact
from feedline.warehouse.storage.parallel import in_threads
from feedline.workbench.profile.candidates import find_labels, find_times
from feedline.workbench.profile.column_measures import SampledColumn, frame_column, measure_any
from feedline.workbench.profile.disguises import LabelValues
from feedline.workbench.profile.distinct_values import count_distinct, frequent_values
from feedline.workbench.profile.footer_measures import (
    FooterRanges,
    StoredColumn,
    partition_keys,
    row_group_sizes,
    stored_columns_of,
)
from feedline.workbench.profile.sessions import candidate_columns, drop_coarser, measure_session, slot_bytes
from feedline.workbench.profile.table_facts import ColumnProfile, SampledPart, SessionCandidate, TableFacts
from feedline.workbench.profile.table_sample import (
    ProfileOptions,
    TableSample,
    report_phase,
    sample_table,
    unlike_files,
)
from feedline.workbench.profile.time_order import TimeOrder

__all__ = ["ProfileOptions", "profile_table"]

_MOST_CLASSES = 100  # of a label, whose values are all kept
_CERTAIN = 0.5  # the score from which on the best candidate of a label or a time is taken
_COMPARED_ROLES = ("numeric", "category", "string", "list")  # of columns that are compared with the label
_LEAST_SESSION = 0.15  # the score of the weakest session candidate that is listed
_LISTED = 20  # candidates of a kind, at most


def profile_table(table: str | Sequence[str], options: ProfileOptions | None = None) -> TableFacts:
    """Profile a table: a folder, file, glob or list, or a Delta or Iceberg table.

    Corrupt files are left out and listed; a table without rows, or without files but with a schema, has facts, too.
    Raises as `sample_table`.
    """
    options = options or ProfileOptions()
    return table_facts_of(sample_table(table, options), options)


def table_facts_of(taken: TableSample, options: ProfileOptions) -> TableFacts:
    """The facts of a sampled table."""
    snapshot, sample = taken.snapshot, taken.sample
    selection = screen_rows(snapshot, taken.where)
    may_keep = selection.rows != 0
    is_whole = (selection.rows == snapshot.rows_per_row_group) | ~may_keep
    selected_rows = int(snapshot.rows_per_row_group[may_keep].sum())
    columns = _measure_columns(taken, options, selected_rows)
    ranges = FooterRanges(snapshot, np.flatnonzero(may_keep) if is_whole.all() else None)
    stored = stored_columns_of(snapshot, snapshot.schema.names, sample.row_groups)
    columns = [ranges.apply(_with_storage(column, stored)) for column in columns]
    labels, times = find_labels(columns)[:_LISTED], find_times(columns)[:_LISTED]
    label = options.label or (labels[0].column if labels and labels[0].score >= _CERTAIN else None)
    time = options.time or (times[0].column if times and times[0].score >= _CERTAIN else None)
    columns = _compare(columns, taken, label, time)
    columns = [_with_classes(each, sample.rows, options) if each.name == label else each for each in columns]
    sessions = _sessions(columns, taken, options.session, label)
    reasons = {each.column: each.reason for each in labels}, {each.column: each.reason for each in times}
    columns = [
        replace(column, label_like=reasons[0].get(column.name), time_like=reasons[1].get(column.name))
        if column.time_like or column.name in reasons[0] or column.name in reasons[1]
        else column
        for column in columns
    ]
    return TableFacts(
        uri=redact(snapshot.uri),
        format=taken.format,
        partitions=partition_keys(snapshot),
        files=len(snapshot.files),
        rows=snapshot.rows,
        bytes=int(pc.sum(snapshot.files["bytes"], min_count=0).as_py()),
        row_groups=len(snapshot.row_groups),
        row_group_rows=row_group_sizes(snapshot),
        selected_rows=selected_rows,
        where=options.where,
        sampled=SampledPart(
            rows=sample.rows.num_rows,
            row_groups=len(sample.row_groups),
            bytes=sample.bytes,
            columns=sample.rows.num_columns,
        ),
        columns=tuple(columns),
        labels=labels,
        times=times,
        sessions=sessions,
        label=label,
        time=time,
        session=options.session or (sessions[0].column if sessions and sessions[0].score >= _CERTAIN else None),
        skipped=taken.skipped,
        warnings=(*taken.warnings, *_warnings(columns, taken, label)),
    )


def _measure_columns(taken: TableSample, options: ProfileOptions, selected_rows: int) -> list[ColumnProfile]:
    """Every column of the table in its order; those without sampled rows by their type alone."""
    snapshot, sample = taken.snapshot, taken.sample
    borders = sample.borders
    sampled = set(sample.rows.column_names)

    def measure(name: str) -> ColumnProfile:
        field = snapshot.schema.field(name)
        here = name in sampled
        column = SampledColumn(
            field=field,
            values=sample.rows[name] if here else pa.chunked_array([], field.type),
            runs=sample.places if here else sample.places[:0],
            borders=borders if here else borders[:0],
            whole=sample.whole,
            table_rows=selected_rows,
            shown=options.values or name in snapshot.partition_columns,
        )
        profile, why = measure_any(column), sample.unreadable.get(name)
        is_index = name in taken.index_columns and profile.role != "time" and profile.time_like is None
        profile = replace(profile, is_index=is_index)
        if name in snapshot.partition_columns:
            return replace(profile, partition=True)
        return profile if why is None else replace(profile, role="unsupported", reason=why)

    names = snapshot.schema.names
    found: list[ColumnProfile] = []
    for profile in in_threads(measure, names):
        found.append(profile)
        report_phase("columns", len(found), len(names))
    return found


def _with_storage(column: ColumnProfile, stored: dict[str, StoredColumn]) -> ColumnProfile:
    how = stored.get(column.name)
    if how is None:
        return column
    return replace(column, bytes_per_row=how.bytes_per_row, encodings=how.encodings, codecs=how.codecs)


def _with_classes(label: ColumnProfile, rows: pa.Table, options: ProfileOptions) -> ColumnProfile:
    """The label with the shares of all its values, if they are few."""
    if label.vocabulary is None or label.role == "list" or label.vocabulary.sample > _MOST_CLASSES:
        return label
    _, counts = count_distinct(frame_column(rows[label.name]), None, 0)
    shown = options.values or label.role != "string"
    return replace(label, frequent=frequent_values(counts, shown=shown, most=_MOST_CLASSES))


def _compare(
    columns: list[ColumnProfile], taken: TableSample, label: str | None, time: str | None
) -> list[ColumnProfile]:
    """The columns with their correlation with the label, and their order in time."""
    rows = taken.sample.rows
    read = set(rows.column_names)
    by_name = {column.name: column for column in columns}
    against = None
    if label is not None and label in read and by_name[label].role in ("numeric", "category", "string"):
        values = LabelValues(frame_column(rows[label]))
        against = values if values.is_usable else None
    times = None
    if (
        time is not None
        and time in read
        and rows.num_rows
        and by_name[time].role in ("time", "numeric", "category", "string")
    ):
        times = TimeOrder(frame_column(rows[time]))

    def compare_any(column: ColumnProfile) -> ColumnProfile:
        try:
            return compare(column)
        except (Exception, pl.exceptions.PanicException):  # as in `measure_any`: it is shown without a comparison
            return column

    def compare(column: ColumnProfile) -> ColumnProfile:
        if column.name not in read or column.role not in (*_COMPARED_ROLES, "time") or column.all_null:
            return column
        series = frame_column(rows[column.name])
        if against is not None and column.name != label and column.role in _COMPARED_ROLES:
            distinct = rows.num_rows if column.vocabulary is None else column.vocabulary.sample
            disguise, correlation = against.compare(series, distinct)
            shared = against.shared_nulls(series)
            column = replace(column, disguise=disguise, correlation=correlation, shared_nulls=shared)
        ordered = column.role in ("numeric", "category", "time", "string") and series.dtype != pl.Boolean
        if times is not None and column.name != time and ordered:
            column = replace(column, time_order=times.direction(series))
        return column

    found: list[ColumnProfile] = []
    for column in in_threads(compare_any, columns):
        found.append(column)
        report_phase("comparisons", len(found), len(columns))
    return found


def _sessions(
    columns: Sequence[ColumnProfile],
    taken: TableSample,
    chosen: str | None,
    label: str | None,
) -> tuple[SessionCandidate, ...]:
    sample = taken.sample
    sampled = set(sample.rows.column_names)
    read = [column for column in columns if column.name in sampled]
    names = candidate_columns(read, sample.rows.num_rows)
    if chosen is not None and chosen in sampled and sample.rows.num_rows:
        names = [chosen, *(name for name in names if name != chosen)]
    row_bytes = {
        column.name: size
        for column in read
        if not (column.constant or column.all_null or column.partition or column.name == label or column.disguise)
        and (size := slot_bytes(column)) > 0
    }
    by_name = {column.name: column for column in read}
    needed = dict.fromkeys([*names, *row_bytes])
    if not names:
        return ()
    frame = pl.DataFrame([frame_column(sample.rows[name]).alias(name) for name in needed])
    found = []
    for index, name in enumerate(names):
        found.append(measure_session(by_name[name], frame, sample.row_group, row_bytes))
        report_phase("sessions", index + 1, len(names))
    first = [candidate for candidate in found if candidate.column == chosen]
    kept = drop_coarser(found)
    others = [candidate for candidate in kept if candidate.column != chosen and candidate.score >= _LEAST_SESSION]
    return (*first, *sorted(others, key=lambda candidate: -candidate.score))


def _is_compared(label: ColumnProfile) -> bool:
    values = label.vocabulary
    return label.role in ("numeric", "category") or (
        label.role == "string" and values is not None and values.sample <= _MOST_CLASSES
    )


def _warnings(columns: Sequence[ColumnProfile], taken: TableSample, label: str | None) -> list[str]:
    """Sentences on what deserves a look."""
    found = []
    if not taken.snapshot.rows:
        found.append("the table has no rows: its columns are described by their types alone")
    elif not taken.sample.rows.num_rows:
        kept = "no row of the sample could be read" if taken.skipped else "the sample has no row that `where` keeps"
        found.append(f"{kept}: columns are described by their types and footers alone")
    if (unlike := unlike_files(taken.snapshot)) is not None:
        found.append(f"the folder may hold several tables: {unlike}. Name the files of one of them")
    found += [f"column {name!r} is left out: {reason}" for name, reason in taken.sample.unreadable.items()]
    found += [f"column {each.name!r}: {each.reason}" for each in columns if each.role == "time" and each.reason]
    found += [
        f"column {column.name!r} may be the label {label!r} in disguise: {column.disguise}"
        for column in columns
        if column.disguise is not None
    ]
    if label is not None and label in {each.name for each in columns if not _is_compared(each)}:
        found.append(f"column {label!r} was not compared with others: labels are numbers, Booleans or a few strings")
    if (ignored := taken.snapshot.ignored) > 0:
        found.append(f"{ignored:,} files with other suffixes than Parquet's are no part of the table")
    return found
