"""Find the columns whose equal values are sessions: rows that repeat the content of others.

Runs in: the process that profiles. Pure. Of the few best candidates by name and by runs, the sampled rows of each row
group are sorted by the candidate, as `shuffle.by` or a clustered table would have them; columns that then repeat the
row above are joined to groups as `feedline plan --dedup` proposes them (`planning.dedup`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from feedline.planning.dedup.column_changes import INVERSE_BYTES, ColumnChanges, find_changes, propose_groups
from feedline.planning.dedup.group_measure import WORTHWHILE
from feedline.workbench.profile.distinct_values import Runs
from feedline.workbench.profile.roles import name_words
from feedline.workbench.profile.table_facts import ColumnProfile, RepeatedColumns, SessionCandidate

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
    repeated = {name: changes.repeated(name) for name in names}
    whole = sum(row_bytes.values())
    groups = tuple(
        RepeatedColumns(
            columns=columns,
            factor=changes.factor(columns),
            saved_share=(sum(row_bytes[name] for name in columns) * (1 - 1 / changes.factor(columns)) - INVERSE_BYTES)
            / whole,
        )
        for columns in propose_groups(changes, {name: row_bytes[name] for name in names})
        if _is_worth_it(changes, columns, row_bytes)
    )
    return _candidate(column, changes, stored, repeated, groups)


def _is_worth_it(changes: ColumnChanges, columns: Sequence[str], row_bytes: Mapping[str, float]) -> bool:
    plain = sum(row_bytes[name] for name in columns)
    return plain * (1 - 1 / changes.factor(columns)) - INVERSE_BYTES >= WORTHWHILE * plain


def drop_coarser(candidates: Sequence[SessionCandidate]) -> list[SessionCandidate]:
    """The candidates without those that are named like no session and save little more than one that is: rows that are
    sorted by a coarser column keep the order of the sessions within it."""
    named = {each.column: any(word in _SESSION_WORDS for word in name_words(each.column)) for each in candidates}
    most = max((each.saved_share for each in candidates if named[each.column]), default=0.0)
    return [each for each in candidates if named[each.column] or each.saved_share > most + _NOTABLE]


def _candidate(
    column: ColumnProfile,
    changes: ColumnChanges,
    stored: ColumnChanges,
    repeated: Mapping[str, float],
    groups: tuple[RepeatedColumns, ...],
) -> SessionCandidate:
    often = {name: share for name, share in repeated.items() if share >= _REPEATED}
    often = dict(sorted(often.items(), key=lambda item: -item[1]))
    named = {word: _SESSION_WORDS[word] for word in name_words(column.name) if word in _SESSION_WORDS}
    saved = sum(group.saved_share for group in groups)
    reasons = [f"named {max(named, key=named.__getitem__)}"] if named else []
    reasons.append(f"{changes.session_rows:.1f} rows per value")
    reasons.append(f"{len(often)} of {len(repeated)} columns repeat within it")
    return SessionCandidate(
        column=column.name,
        score=round(0.5 * min(saved, 1.0) + max(named.values(), default=0.0), 3),
        reason="; ".join(reasons),
        rows_per_key=changes.session_rows,
        run_rows=stored.session_rows,
        repeated=often,
        groups=groups,
    )
