"""Profile a table: its footers, and a bounded sample of its rows.

Runs in: the process of `feedline profile` and of `feedline init`. Columns are measured by a few threads, then compared
with the label, with time, and within sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from feedline.expressions.moments import moment_text
from feedline.planning.dedup.column_changes import INVERSE_BYTES, find_changes, propose_groups
from feedline.planning.dedup.group_measure import WORTHWHILE
from feedline.warehouse.selection.select import screen_rows
from feedline.warehouse.storage.locations import redact
from feedline.warehouse.storage.parallel import in_threads
from feedline.workbench.profile.column_measures import (
    Runs,
    SampledColumn,
    count_distinct,
    frame_column,
    frequent_values,
    measure_any,
)
from feedline.workbench.profile.disguises import LabelValues
from feedline.workbench.profile.footer_measures import (
    FooterRanges,
    partition_keys,
    row_group_sizes,
    stored_columns_of,
)
from feedline.workbench.profile.roles import EPOCH_UNITS, epoch_unit, name_words
from feedline.workbench.profile.table_facts import (
    ColumnProfile,
    LabelCandidate,
    RepeatedColumns,
    SampledPart,
    SessionCandidate,
    TableFacts,
    TimeCandidate,
)
from feedline.workbench.profile.table_sample import (
    ProfileOptions,
    TableSample,
    report_phase,
    sample_table,
    unlike_files,
)

# --------------------------------------------------------------------------------------------------------------------
# Find the columns that rise, or fall, with time.

_PROBED = 512  # rows that rule most columns out


class TimeOrder:
    """The order of sampled rows in time. Rows of one time may have any order; those without a time are left out."""

    def __init__(self, time: pl.Series) -> None:
        rows = np.flatnonzero(time.is_not_null().to_numpy())
        times = time.drop_nulls()
        order = times.arg_sort().to_numpy()
        self._rows = rows[order]
        ordered = times.gather(order)
        self._moment = (ordered != ordered.shift()).fill_null(True).cum_sum().to_numpy().astype(np.int64)

    def direction(self, column: pl.Series) -> int:
        """1 if a column of numbers, times or strings never falls in the order of time, -1 if it never rises, 0 for all
        else and for constants. Rows without a value are left out."""
        if column.dtype in (pl.String, pl.Binary):
            column = column.rank("dense")
        values = column.cast(pl.Float64) if column.dtype.is_decimal() else column.to_physical()
        values = values.gather(self._rows)
        moments = self._moment
        if values.null_count():
            has_value = values.is_not_null()
            values, moments = values.filter(has_value), moments[has_value.to_numpy()]
        numbers = values.to_numpy()
        step = max(len(numbers) // _PROBED, 1)
        if not _direction(numbers[::step], moments[::step]):
            return 0
        return _direction(numbers, moments)


def _direction(numbers: npt.NDArray[np.generic], moments: npt.NDArray[np.int64]) -> int:
    starts = np.flatnonzero(np.diff(moments, prepend=-1))
    if len(starts) < 2:
        return 0
    # moments [0, 0, 1, 1] of numbers [3, 1, 4, 3]: low [1, 3], high [3, 4] -> 3 <= 3: they rise
    low, high = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
    if low.min() == high.max():
        return 0
    if np.all(high[:-1] <= low[1:]):
        return 1
    return -1 if np.all(low[:-1] >= high[1:]) else 0


# --------------------------------------------------------------------------------------------------------------------
# Find the columns whose equal values are sessions: rows that repeat the content of others. Of the few best candidates
# by name and by runs, the sampled rows of each row group are sorted by the candidate, as `shuffle.by` or a clustered
# table would have them; columns that then repeat the row above are joined to groups as `feedline plan --dedup`
# proposes them (`planning.dedup`).

_SESSION_WORDS = {"session": 0.4, "sess": 0.4, "request": 0.3, "query": 0.3, "search": 0.3, "page": 0.2, "view": 0.2}
_SESSION_WORDS |= {"impression": 0.2, "user": 0.25, "uid": 0.25, "visitor": 0.25, "customer": 0.2, "member": 0.2}
_SESSION_WORDS |= {"account": 0.2, "cookie": 0.2, "device": 0.15}
_LEAST_ROWS_PER_KEY, _MOST_ROWS_PER_KEY = 1.5, 10_000
_LEAST_KEYS = 20  # fewer values are a category
_CANDIDATES = 4  # sorted by, at most
_ROWS, _COLUMNS = 32_768, 256  # compared, at most
_REPEATED = 0.5  # the least share of a column that is listed as repeated
_NOTABLE = 0.1  # of a batch's bytes: what a column of another name has to save beyond one that is named like a session
_LIST_BYTES = 12  # of a sparse feature in a slot, per row, besides its ids of 8 bytes


def candidate_columns(columns: Sequence[ColumnProfile], rows: int) -> list[str]:
    """The columns to measure as sessions, the most promising first. rows: of the sample."""
    scores = {column.name: _promise(column, rows) for column in columns}
    found = sorted((name for name, score in scores.items() if score > 0), key=lambda name: -scores[name])
    return found[:_CANDIDATES]


def _promise(column: ColumnProfile, rows: int) -> float:
    vocabulary = column.vocabulary
    if column.role not in ("category", "string", "numeric") or column.partition or vocabulary is None or not rows:
        return 0.0
    if column.type.startswith(("float", "double", "halffloat", "decimal")) or vocabulary.sample < _LEAST_KEYS:
        return 0.0
    if not _LEAST_ROWS_PER_KEY <= rows / vocabulary.sample <= _MOST_ROWS_PER_KEY:
        return 0.0
    named = max((_SESSION_WORDS.get(word, 0.0) for word in name_words(column.name)), default=0.0)
    return 2 * named + (column.repeated or 0.0)


def slot_bytes(column: ColumnProfile) -> float:
    """The bytes per row of the feature that a column is likely to become; 0 of what becomes none."""
    if column.role == "list" and column.lengths is not None:
        return _LIST_BYTES + 8 * column.lengths.mean
    return {"numeric": 4.0, "category": 8.0, "string": 8.0}.get(column.role, 0.0)


def measure_session(
    column: ColumnProfile, frame: pl.DataFrame, row_group: Runs, row_bytes: Mapping[str, float]
) -> SessionCandidate:
    """Measure one candidate on sampled rows. row_group: int64 [rows]; row_bytes: of the columns to compare, without
    constants, which repeat in any order."""
    by = column.name
    names = [name for name in list(row_bytes)[:_COLUMNS] if name != by and row_bytes[name] > 0]
    starts = np.flatnonzero(np.diff(row_group, prepend=-1)).tolist()
    parts = [frame.slice(start, stop - start) for start, stop in zip(starts, [*starts[1:], frame.height], strict=True)]
    share = min(1.0, _ROWS / max(frame.height, 1))
    parts = [part.head(max(round(part.height * share), 1)).select(by, *names) for part in parts]
    stored = find_changes([(part, []) for part in parts], {}, by)
    sorted_parts: list[tuple[pl.DataFrame, Sequence[int]]] = [
        (part.sort(by, maintain_order=True), []) for part in parts
    ]
    changes = find_changes(sorted_parts, {name: [name] for name in names}, by)
    whole, groups = sum(row_bytes.values()), list[RepeatedColumns]()
    for columns in propose_groups(changes, {name: row_bytes[name] for name in names}):
        plain, factor = sum(row_bytes[name] for name in columns), changes.factor(columns)
        saved = plain * (1 - 1 / factor) - INVERSE_BYTES
        if saved >= WORTHWHILE * plain:
            groups.append(RepeatedColumns(columns=columns, factor=factor, saved_share=saved / whole))
    repeated = {name: changes.repeated(name) for name in names}
    often = sorted(((name, share) for name, share in repeated.items() if share >= _REPEATED), key=lambda each: -each[1])
    named = {word: _SESSION_WORDS[word] for word in name_words(by) if word in _SESSION_WORDS}
    reasons = [f"named {max(named, key=named.__getitem__)}"] if named else []
    reasons.append(f"{changes.session_rows:.1f} rows per value")
    reasons.append(f"{len(often)} of {len(repeated)} columns repeat within it")
    saved_share = min(sum(group.saved_share for group in groups), 1.0)
    return SessionCandidate(
        column=by,
        score=round(0.5 * saved_share + max(named.values(), default=0.0), 3),
        reason="; ".join(reasons),
        rows_per_key=changes.session_rows,
        run_rows=stored.session_rows,
        repeated=dict(often),
        groups=tuple(groups),
    )


def drop_coarser(candidates: Sequence[SessionCandidate]) -> list[SessionCandidate]:
    """The candidates without those that are named like no session and save little more than one that is: rows that are
    sorted by a coarser column keep the order of the sessions within it."""
    named = {each.column: any(word in _SESSION_WORDS for word in name_words(each.column)) for each in candidates}
    most = max((each.saved_share for each in candidates if named[each.column]), default=0.0)
    return [each for each in candidates if named[each.column] or each.saved_share > most + _NOTABLE]


# --------------------------------------------------------------------------------------------------------------------
# Find the columns of a table that may be the label, or the time of a row, with reasons. Scores order candidates; they
# are no probabilities.

_LABEL_WORDS = {"label", "labels", "target", "targets", "y", "outcome", "truth"}
_EVENT_WORDS = {"click", "clicks", "clicked", "clk", "convert", "converted", "conversion", "purchase", "purchased"}
_EVENT_WORDS |= {"bought", "buy", "order", "ordered", "like", "liked", "churn", "churned", "fraud", "default"}
_EVENT_WORDS |= {"survived", "cancelled", "canceled", "late", "delayed", "won", "attributed", "installed"}
_EVENT_WORDS |= {"subscribed", "response"}
_RATING_WORDS = {"rating", "ratings", "stars", "score", "relevance", "grade"}
_TIME_WORDS = {"time", "timestamp", "ts", "date", "datetime", "day", "ds", "dt", "hour", "at", "when"}
_BIRTH_WORDS = {"birth", "born", "birthday", "birthdate", "dob"}  # times of persons, not of rows
_LEAST_LABEL, _LEAST_TIME = 0.25, 0.3  # scores of the weakest candidates that are listed


def find_labels(columns: Sequence[ColumnProfile]) -> tuple[LabelCandidate, ...]:
    """Columns that may be the label, the best first; equal ones in the table's order."""
    found = []
    for index, column in enumerate(columns):
        score, reasons = _label_score(column, last=index == len(columns) - 1)
        if score >= _LEAST_LABEL:
            balance = column.numbers.mean if column.numbers is not None and _is_binary(column) else None
            reason = "; ".join(reasons)
            found.append(LabelCandidate(column=column.name, score=round(score, 3), reason=reason, balance=balance))
    return tuple(sorted(found, key=lambda candidate: -candidate.score))


def _is_binary(column: ColumnProfile) -> bool:
    numbers, vocabulary = column.numbers, column.vocabulary
    if numbers is None or vocabulary is None or numbers.nan_rate or numbers.inf_rate:
        return False
    return vocabulary.sample == 2 and (numbers.min, numbers.max) == (0, 1)


def _label_score(column: ColumnProfile, *, last: bool) -> tuple[float, list[str]]:
    is_said = column.partition or column.constant or column.id_like or column.is_index
    if column.role not in ("numeric", "category") or is_said or column.numbers is None or column.null_rate is None:
        return 0.0, []
    words, reasons, score = name_words(column.name), [], 0.0
    for vocabulary, weight in ((_LABEL_WORDS, 0.6), (_EVENT_WORDS, 0.45), (_RATING_WORDS, 0.35)):
        if named := [word for word in words if word in vocabulary]:
            reasons.append(f"named {named[0]}")
            score += weight
            break
    if _is_binary(column):
        reasons.append(f"0 and 1, {column.numbers.mean:.2%} ones")
        score += 0.3 + 0.05 * (words[:1] in (["is"], ["has"], ["did"], ["was"]))
    if not score:
        return 0.0, []
    if column.null_rate:
        reasons.append(f"{column.null_rate:.2%} nulls, which no label may be")
    return (score + 0.03 * last) * (1 - column.null_rate), reasons


def find_times(columns: Sequence[ColumnProfile]) -> tuple[TimeCandidate, ...]:
    """Columns that may be the time of a row, the best first; equal ones in the table's order."""
    candidates = filter(None, map(_time, columns))
    return tuple(sorted(candidates, key=lambda candidate: -candidate.score))


def _time(column: ColumnProfile) -> TimeCandidate | None:
    named = [word for word in name_words(column.name) if word in _TIME_WORDS]
    bonus, reasons = (0.15, [f"named {named[0]}"]) if named else (0.0, [])
    if _BIRTH_WORDS.intersection(name_words(column.name)):
        return None
    first, last, unit = column.first, column.last, None
    if column.role == "time":
        is_date = column.type.startswith("date")
        score, reasons = (0.6 if is_date else 0.8), [column.type, *reasons]
    elif column.time_like is not None:
        score, reasons = 0.5, [column.time_like, *reasons]
    elif column.numbers is not None and column.role in ("numeric", "category") and column.type.startswith(("int", "u")):
        low, high = column.numbers.min, column.numbers.max
        if low is None or high is None or (unit := epoch_unit(low, high)) is None:
            return None
        first, last = (moment_text(int(end) // EPOCH_UNITS[unit], "s") for end in (low, high))
        score, bonus, reasons = 0.3, 2 * bonus, [f"{column.type} in the range of {unit} since 1970", *reasons]
    else:
        return None
    if column.null_rate:
        reasons.append(f"{column.null_rate:.2%} nulls")
    if column.constant:
        reasons.append("one value")
    score = (score + bonus) * (1 - (column.null_rate or 0.0)) * (0.5 if column.constant else 1.0)
    if score < _LEAST_TIME or column.all_null:
        return None
    return TimeCandidate(
        column=column.name, score=round(score, 3), reason="; ".join(reasons), first=first, last=last, unit=unit
    )


# --------------------------------------------------------------------------------------------------------------------

__all__ = ["ProfileOptions", "profile_table"]

_MOST_CLASSES = 100  # of a label, whose values are all kept
_CERTAIN = 0.5  # the score from which on the best candidate of a label or a time is taken
_COMPARED_ROLES = ("numeric", "category", "string", "list")  # of columns that are compared with the label
_ORDERED_ROLES = ("time", "numeric", "category", "string")  # of columns that may rise or fall with time
_LEAST_SESSION = 0.15  # the score of the weakest session candidate that is listed
_LISTED = 20  # candidates of a kind, at most
_Result = TypeVar("_Result")


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
    columns = [ranges.apply(replace(column, **stored.get(column.name, {}))) for column in columns]
    labels, times = find_labels(columns)[:_LISTED], find_times(columns)[:_LISTED]
    label = options.label or (labels[0].column if labels and labels[0].score >= _CERTAIN else None)
    time = options.time or (times[0].column if times and times[0].score >= _CERTAIN else None)
    columns = _compare(columns, taken, label, time)
    columns = [_with_classes(each, sample.rows, options) if each.name == label else each for each in columns]
    sessions = _sessions(columns, taken, options.session, label)
    why_label, why_time = ({each.column: each.reason for each in candidates} for candidates in (labels, times))
    columns = [
        replace(each, label_like=why_label.get(each.name), time_like=why_time.get(each.name)) for each in columns
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
    return _reported("columns", in_threads(measure, names), len(names))


def _reported(phase: str, results: Iterable[_Result], total: int) -> list[_Result]:
    found: list[_Result] = []
    for result in results:
        found.append(result)
        report_phase(phase, len(found), total)
    return found


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
    rows = taken.sample.rows
    read = set(rows.column_names)
    by_name = {column.name: column for column in columns}
    against = None
    if label is not None and label in read and by_name[label].role in ("numeric", "category", "string"):
        values = LabelValues(frame_column(rows[label]))
        against = values if values.is_usable else None
    times = None
    if time is not None and time in read and rows.num_rows and by_name[time].role in _ORDERED_ROLES:
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
        ordered = column.role in _ORDERED_ROLES and series.dtype != pl.Boolean
        if times is not None and column.name != time and ordered:
            column = replace(column, time_order=times.direction(series))
        return column

    return _reported("comparisons", in_threads(compare_any, columns), len(columns))


def _sessions(
    columns: Sequence[ColumnProfile], taken: TableSample, chosen: str | None, label: str | None
) -> tuple[SessionCandidate, ...]:
    sample = taken.sample
    read = set(sample.rows.column_names)
    by_name = {column.name: column for column in columns if column.name in read}
    names = candidate_columns([*by_name.values()], sample.rows.num_rows)
    if chosen is not None and chosen in by_name and sample.rows.num_rows:
        names = [chosen, *(name for name in names if name != chosen)]
    if not names:
        return ()
    row_bytes = {
        name: size
        for name, column in by_name.items()
        if not (column.constant or column.all_null or column.partition or name == label or column.disguise)
        and (size := slot_bytes(column)) > 0
    }
    needed = dict.fromkeys([*names, *row_bytes])
    frame = pl.DataFrame([frame_column(sample.rows[name]).alias(name) for name in needed])
    measured = (measure_session(by_name[name], frame, sample.row_group, row_bytes) for name in names)
    sessions = _reported("sessions", measured, len(names))
    first = [each for each in sessions if each.column == chosen]
    others = [each for each in drop_coarser(sessions) if each.column != chosen and each.score >= _LEAST_SESSION]
    return (*first, *sorted(others, key=lambda each: -each.score))


def _is_compared(label: ColumnProfile) -> bool:
    values = label.vocabulary
    return label.role in ("numeric", "category") or (
        label.role == "string" and values is not None and values.sample <= _MOST_CLASSES
    )


def _warnings(columns: Sequence[ColumnProfile], taken: TableSample, label: str | None) -> list[str]:
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
