"""The tasks that join a partition's impressions with outcomes and features, in buckets of their keys.

Runs wherever the `map` of the build runs them. Tasks pass rows on in spill files below the hidden folder of the table:

1. `scatter_impressions`, `scatter_outcomes`, `scatter_features` read some row groups and spread their rows over buckets
   of a hash: impressions by identity, the others by the key that they share with impressions;
2. `find_rows` decides in each bucket which impressions are rows of the table: of those that are one impression the
   first by (time, digest of all columns). It passes all of them on as touches, and rows on to features;
3. `join_outcomes`, `join_features` join in each bucket of a shared key, and pass labels and features on to the tasks of
   `rows` by the numbers of these.

A row's number is (task that reads it << 32) + its place among the rows that this task reads. A task holds one run of
row groups, decoded, or one bucket.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import field

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.warehouse.building.as_of import latest_before
from feedline.warehouse.building.attribution import (
    DIGEST,
    KEY,
    ROW,
    TIME,
    VALUE,
    attribute,
    distinct_outcomes,
    labels_of,
)
from feedline.warehouse.building.design import Design, Keys, Log
from feedline.warehouse.building.periods import Window
from feedline.warehouse.building.row_digests import row_digests
from feedline.warehouse.optimize.clustering import buckets_of
from feedline.warehouse.optimize.landing import Target, room_for
from feedline.warehouse.optimize.rewrite import read_buckets, write_buckets
from feedline.warehouse.parquet.key_hashes import key_hashes
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.read import ReadRequest, read_arrow
from feedline.warehouse.selection.select import bind_once
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.storage.claim import Claim

Int64s = NDArray[np.int64]

TASK_BITS = 32
_AGAIN = "again"  # whether a row may be one impression with another one
ELSEWHERE = -1  # the row of a touch of another partition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionJob:
    """A partition that is built: where its tasks write, and what it is. tasks: those that read its impressions."""

    claim: Claim
    slug: str
    design: Design
    period: int
    tasks: int = 0

    @property
    def bounds(self) -> tuple[int, int]:
        return self.design.timeline.bounds(self.period)

    def spill(self, target: Target, name: str) -> str:
        """The path of an attempt's own spill file."""
        return f"{target.spill(self.slug)}/{name}.{secrets.token_hex(4)}.arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """Row groups of a log to spread over buckets, of which rows in a window are read.

    index: of the outcome or table of features. is_own: impressions of the partition, not of those around it.
    """

    job: PartitionJob
    fragments: tuple[Fragment, ...]
    window: Window
    number: int
    buckets: int
    index: int = 0
    is_own: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Spilled:
    """A spill file and its rows; the rows that were read, and those of the partition's own time; of these, those that
    were left out without a key."""

    path: str
    rows: int
    read: int
    own: int = 0
    keyless: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTask:
    """A bucket of impressions. outcome_buckets, feature_buckets: how many to pass rows on to, of each."""

    job: PartitionJob
    bucket: int
    spills: tuple[str, ...]
    outcome_buckets: tuple[int, ...]
    feature_buckets: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRows:
    """Spill files with the numbers of a bucket's rows, touches for each outcome, and rows for each table of features.

    duplicates: impressions that equal another one; conflicting: others of an impression that has a row.
    """

    rows: str
    touches: tuple[str, ...]
    seekers: tuple[str, ...]
    count: int
    duplicates: int
    conflicting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTask:
    """A bucket of the key that impressions share with an outcome or a table of features (`index`)."""

    job: PartitionJob
    index: int
    bucket: int
    impressions: tuple[str, ...]
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A spill file with the labels or features of rows; counts of outcomes (see `record.OutcomeCounts`)."""

    path: str
    counts: dict[str, int] = field(default_factory=dict)


def read_log(log: Log, fragments: Sequence[Fragment], window: Window, columns: Sequence[str]) -> pa.Table:
    """The rows of row groups in a window (whole seconds), in the table's order."""
    schema = log.schema
    where, _ = bind_once(log.filter(window), None, schema)
    request = ReadRequest(tuple(columns), schema, where)
    empty = pa.schema([schema.field(name) for name in columns]).empty_table()
    return pa.concat_tables([empty, *(read_arrow(fragment, request) for fragment in fragments)])


def scatter_impressions(task: ReadTask) -> Spilled:
    """Spread impressions over buckets of their identity. Those of other partitions are touches only, without rows."""
    design, log = task.job.design, task.job.design.impressions
    keys = dict(design.identity)
    for table in design.features:
        keys |= dict(table.keys)
    columns = log.schema.names if task.is_own else list(dict.fromkeys([*dict(design.identity), log.time]))
    table = read_log(log, task.fragments, task.window, columns)
    rows = table.num_rows
    place = np.arange(rows) + (task.number << TASK_BITS)
    parts = _key_columns(table, tuple((name, kind) for name, kind in keys.items() if name in columns))
    parts |= {name: pa.nulls(rows, kind) for name, kind in _prefixed(keys) if name not in parts}
    parts |= {
        TIME: pa.array(log.times(table)),
        ROW: pa.array(place if task.is_own else np.full(rows, ELSEWHERE)),
        DIGEST: pa.array(row_digests(table) if task.is_own else np.zeros(rows, np.uint64)),
    }
    spread = pa.table(parts)
    has_key = _without_null(spread, design.required)
    spread = spread if has_key.all() else spread.filter(pa.array(has_key))
    path = _spread(task, spread, tuple(dict(design.identity)), f"impressions-{int(task.is_own)}-{task.number:05d}")
    own = rows if task.is_own else 0
    keyless = rows - spread.num_rows if task.is_own else 0
    return Spilled(path=path, rows=spread.num_rows, read=rows, own=own, keyless=keyless)


def scatter_outcomes(task: ReadTask) -> Spilled:
    """Spread outcomes over buckets of the key that they share with impressions."""
    outcome = task.job.design.outcomes[task.index]
    table = read_log(outcome.log, task.fragments, task.window, outcome.log.schema.names)
    times = outcome.log.times(table)
    start, stop = task.job.bounds
    parts = _key_columns(table, outcome.keys) | {TIME: pa.array(times), DIGEST: pa.array(row_digests(table))}
    parts |= {VALUE + name: contiguous(table[name]) for name in outcome.columns}
    spread = pa.table(parts)
    has_key = _without_null(spread, [name for name, _ in outcome.keys])
    is_own = (times >= start) & (times < stop)
    spread = spread if has_key.all() else spread.filter(pa.array(has_key))
    path = _spread(task, spread, [name for name, _ in outcome.keys], f"outcome-{task.index}-{task.number:05d}")
    own, keyless = int(np.count_nonzero(is_own)), int(np.count_nonzero(is_own & ~has_key))
    return Spilled(path=path, rows=spread.num_rows, read=table.num_rows, own=own, keyless=keyless)


def scatter_features(task: ReadTask) -> Spilled:
    """Spread rows of a table of features over buckets of the key that they share with impressions."""
    table_of = task.job.design.features[task.index]
    table = read_log(table_of.log, task.fragments, task.window, table_of.log.schema.names)
    parts = _key_columns(table, table_of.keys)
    parts |= {TIME: pa.array(table_of.log.times(table)), DIGEST: pa.array(row_digests(table))}
    parts |= {VALUE + name: contiguous(table[name]) for name in table_of.columns}
    spread = pa.table(parts)
    has_key = _without_null(spread, [name for name, _ in table_of.keys])
    spread = spread if has_key.all() else spread.filter(pa.array(has_key))
    path = _spread(task, spread, [name for name, _ in table_of.keys], f"feature-{task.index}-{task.number:05d}")
    return Spilled(path=path, rows=spread.num_rows, read=table.num_rows)


def find_rows(task: FindTask) -> FoundRows:
    """Decide which impressions of a bucket are rows, and pass touches and rows on."""
    job, design = task.job, task.job.design
    target = Target(job.claim)
    identity = [KEY + name for name, _ in design.identity]
    table = _read_tables(target, task.spills, task.bucket)
    hashes = pl.Series(key_hashes(table, identity))
    frame = _framed(table).with_columns((hashes.is_duplicated() & (pl.Series(table[ROW]) >= 0)).alias(_AGAIN))
    del table
    again = frame.filter(pl.col(_AGAIN)).drop(_AGAIN)
    once = frame.filter(~pl.col(_AGAIN)).drop(_AGAIN)  # other partitions' among them
    kept, first, distinct = _representatives(again, identity)
    touches = pl.concat([again.with_columns(pl.Series(ROW, kept)), once])
    rows = pl.concat([again[first], once.filter(pl.col(ROW) >= 0)])
    with room_for(target.uri):
        start, stop = job.bounds
        paths = []
        for index, (outcome, count) in enumerate(zip(design.outcomes, task.outcome_buckets, strict=True)):
            near = touches.filter(pl.col(TIME) >= start - outcome.within, pl.col(TIME) < stop + outcome.within)
            keys = [KEY + name for name, _ in outcome.keys]
            near = near.drop_nulls(keys).select([*identity, TIME, ROW])
            paths.append(_pass_on(job, target, near, keys, count, f"touches-{index}-{task.bucket:05d}"))
        seekers = []
        for index, (features, count) in enumerate(zip(design.features, task.feature_buckets, strict=True)):
            keys = [KEY + name for name, _ in features.keys]
            some = rows.drop_nulls(keys).select([*keys, TIME, ROW])
            seekers.append(_pass_on(job, target, some, keys, count, f"seekers-{index}-{task.bucket:05d}"))
        path = job.spill(target, f"rows-{task.bucket:05d}")
        _to_tasks(job, target, pa.table({ROW: pa.array(rows[ROW].to_numpy())}), path)
    return FoundRows(
        rows=path,
        touches=tuple(paths),
        seekers=tuple(seekers),
        count=rows.height,
        duplicates=again.height - distinct,
        conflicting=distinct - len(first),
    )


def _representatives(again: pl.DataFrame, identity: Sequence[str]) -> tuple[Int64s, Int64s, int]:
    """Of rows of which some are one impression: int64 [rows], the row that each stands for; the indices of these; and
    how many rows there would be without those that equal another one."""
    order = again.select(pl.arg_sort_by([*identity, TIME, DIGEST, ROW])).to_series().to_numpy().astype(np.int64)
    own = again[order]
    number = own.select(pl.struct(identity).rle_id()).to_series().to_numpy().astype(np.int64)
    first = np.flatnonzero(np.diff(number, prepend=-1))
    kept = np.empty(again.height, np.int64)
    kept[order] = own[ROW].to_numpy()[first][number] if again.height else own[ROW].to_numpy()
    return kept, order[first], own.select([*identity, TIME, DIGEST]).n_unique() if again.height else 0


def join_outcomes(task: JoinTask) -> Joined:
    """Attribute a bucket's outcomes to its touches, and pass the labels of rows on."""
    job, outcome = task.job, task.job.design.outcomes[task.index]
    target = Target(job.claim)
    start, stop = job.bounds
    keys = [KEY + name for name, _ in outcome.keys]
    touches = _read_all(target, task.impressions, task.bucket)
    logged = _read_all(target, task.others, task.bucket)
    outcomes = distinct_outcomes(logged, keys)
    order = [KEY + name for name, _ in task.job.design.identity]
    pairs = attribute(touches, outcomes, keys, order, within=outcome.within, rule=outcome.rule)
    rows, labels = labels_of(pairs, outcomes, outcome.labels)
    arrays = [
        contiguous(pa.chunked_array([labels[name.name].to_arrow()]).cast(name.type)) for name in outcome.label_fields()
    ]
    names = [label.name for label in outcome.labels]
    own = _is_own(outcomes, start, stop)
    counts = {
        "joined": len(np.unique(pairs.outcomes)),
        "unmatched": int(np.count_nonzero(own & ~pairs.touched)),
        "duplicates": int(np.count_nonzero(_is_own(logged, start, stop))) - int(np.count_nonzero(own)),
    }
    path = job.spill(target, f"labels-{task.index}-{task.bucket:05d}")
    with room_for(target.uri):
        spread = pa.table([pa.array(rows), *arrays], names=[ROW, *(VALUE + name for name in names)])
        _to_tasks(job, target, spread, path)
    return Joined(path=path, counts=counts)


def join_features(task: JoinTask) -> Joined:
    """Find the row of features that each impression of a bucket sees, and pass it on: once for all of a task's."""
    job, table = task.job, task.job.design.features[task.index]
    target = Target(job.claim)
    keys = [KEY + name for name, _ in table.keys]
    seekers = _read_all(target, task.impressions, task.bucket)
    stored = _read_tables(target, task.others, task.bucket)
    known = pl.DataFrame({name: pl.Series(pl.from_arrow(stored[name])) for name in [*keys, TIME, DIGEST]})
    index = latest_before(seekers, known, keys, within=table.within)
    found = np.flatnonzero(index >= 0)
    row, index = seekers[ROW].to_numpy()[found], index[found]
    order = np.lexsort([row, index, row >> TASK_BITS])
    row, index = row[order], index[order]
    # tasks [0, 0, 0, 1], features [4, 4, 7, 4] -> lists of rows that start at [0, 2, 3]
    begins = np.flatnonzero((np.diff(row >> TASK_BITS, prepend=-1) != 0) | (np.diff(index, prepend=-1) != 0))
    lists = pa.LargeListArray.from_arrays(pa.array(np.append(begins, len(row))), pa.array(row))
    values = stored.select([VALUE + name for name in table.columns]).take(pa.array(index[begins]))
    spread = pa.table([lists, *values.columns], names=[ROW, *values.schema.names])
    path = job.spill(target, f"features-{task.index}-{task.bucket:05d}")
    with room_for(target.uri):
        write_buckets(target, path, [spread], (row[begins] >> TASK_BITS).astype(np.int64), job.tasks)
    return Joined(path=path)


def _key_columns(table: pa.Table, keys: Keys) -> dict[str, pa.Array]:
    return {KEY + name: contiguous(table[name].cast(kind)) for name, kind in keys}


def _prefixed(keys: dict[str, pa.DataType]) -> list[tuple[str, pa.DataType]]:
    return [(KEY + name, kind) for name, kind in keys.items()]


def _without_null(spread: pa.Table, names: Sequence[str]) -> NDArray[np.bool_]:
    """bool [rows]: whether none of these parts of a key is null."""
    valid = np.ones(spread.num_rows, np.bool_)
    for name in names:
        column = spread[KEY + name]
        if column.null_count:
            valid &= pc.is_valid(contiguous(column)).to_numpy(zero_copy_only=False)
    return valid


def _spread(task: ReadTask, spread: pa.Table, names: Sequence[str], name: str) -> str:
    target = Target(task.job.claim)
    target.claim.check()
    buckets = buckets_of(key_hashes(spread, [KEY + each for each in names]), task.buckets)
    path = task.job.spill(target, name)
    with room_for(target.uri):
        write_buckets(target, path, [spread], buckets, task.buckets)
    return path


def _pass_on(
    job: PartitionJob, target: Target, frame: pl.DataFrame, keys: Sequence[str], buckets: int, name: str
) -> str:
    table = frame.to_arrow()
    path = job.spill(target, name)
    write_buckets(target, path, [table], buckets_of(key_hashes(table, keys), buckets), buckets)
    return path


def _to_tasks(job: PartitionJob, target: Target, table: pa.Table, path: str) -> None:
    """Write rows in a bucket for each task that reads the partition's impressions."""
    row: Int64s = contiguous(table[ROW]).to_numpy(zero_copy_only=False)
    write_buckets(target, path, [table], row >> TASK_BITS, job.tasks)


def _read_tables(target: Target, paths: Sequence[str], bucket: int) -> pa.Table:
    return pa.concat_tables([read_buckets(target, path, bucket, bucket + 1) for path in paths])


def _framed(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _read_all(target: Target, paths: Sequence[str], bucket: int) -> pl.DataFrame:
    return _framed(_read_tables(target, paths, bucket))


def _is_own(frame: pl.DataFrame, start: int, stop: int) -> NDArray[np.bool_]:
    times = frame[TIME].to_numpy()
    own: NDArray[np.bool_] = (times >= start) & (times < stop)
    return own
