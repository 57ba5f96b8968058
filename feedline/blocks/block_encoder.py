"""Transform and encode the chunks of a block, as they are read.

Runs in: Dask workers: threads of the feeder, processes on this machine, or anywhere in a cluster.
"""

from __future__ import annotations

import functools
import itertools
import operator
import resource
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.blocks.coded_chunks import DictionaryFrame, first_coded_rows, join_coded
from feedline.blocks.jobs import CompiledJob, CompiledPart
from feedline.dataclass import dataclass
from feedline.errors import DataError, note_place
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.shuffled_rows import Rows, shuffle
from feedline.native.coded_values import CodedValues
from feedline.native.rows import TURN
from feedline.native.unique_rows import UniqueRows, first_uses, join_inverses
from feedline.resources.thread_clocks import POOL, contended_s
from feedline.transforms.compile.coded_features import Evaluated
from feedline.transforms.compile.compiled import Output
from feedline.transforms.values.lookup_counts import RowLookups
from feedline.warehouse.histories.joined_rows import ListColumns
from feedline.warehouse.reading.columns import CHUNK_ROWS
from feedline.warehouse.reading.fragment import Chunk
from feedline.warehouse.reading.row_position import with_row_position
from feedline.warehouse.reading.stored_groups import expand_group, group_part
from feedline.warehouse.storage.fetch_clock import FETCH_CLOCK

# --------------------------------------------------------------------------------------------------------------------
# Keep, of each row, what quality sums over rows but values do not show: whether it is null, and what it looks up.

Counts = NDArray[np.int64]


class RowCounts:
    """Those of rows that are encoded chunk by chunk; of a deduplicated group, of its unique rows."""

    def __init__(self) -> None:
        self._nulls: dict[str, list[tuple[int, NDArray[np.bool_] | None]]] = {}
        self._lookups: dict[str, list[Sequence[RowLookups]]] = {}

    def add_nulls(self, outputs: Sequence[Output], frame: pl.DataFrame) -> None:
        """The next rows of some features: a feature's row is null if one of its columns is."""
        holed = [series.name for series in frame if series.null_count()]
        masks = {series.name: series.to_numpy() for series in frame[holed].select(pl.all().is_null())} if holed else {}
        of_reads: dict[tuple[str, ...], NDArray[np.bool_] | None] = {}
        for output in outputs:
            if output.reads not in of_reads:
                own = [masks[name] for name in output.reads if name in masks]
                of_reads[output.reads] = functools.reduce(operator.or_, own) if own else None
            self._nulls.setdefault(output.name, []).append((frame.height, of_reads[output.reads]))

    def add_lookups(self, lookups: Mapping[str, Sequence[RowLookups]]) -> None:
        """The next rows of features with lookups: of each lookup of a chain, in order."""
        for name, found in lookups.items():
            self._lookups.setdefault(name, []).append(found)

    def nulls(self, name: str) -> NDArray[np.bool_] | None:
        """bool [rows]: which are null; None if none is."""
        parts = self._nulls.get(name, [])
        if all(mask is None for _, mask in parts):
            return None
        return np.concatenate([np.zeros(rows, np.bool_) if mask is None else mask for rows, mask in parts])

    def lookups(self, name: str) -> list[RowLookups]:
        """Of each lookup of the feature's chain: the values that each row looks up, and how many were unknown."""
        return [
            (np.concatenate([asked for asked, _ in parts]), np.concatenate([missed for _, missed in parts]))
            for parts in zip(*self._lookups.get(name, []), strict=True)
        ]


# --------------------------------------------------------------------------------------------------------------------
# Where runs of a deduplicated group's equal rows end, besides where its columns change. A row group is divided into
# stretches of RUN_ROWS of the rows that it delivers; a run ends with its stretch, and with what a block takes of it.
# So runs follow from the rows alone, and not from how these are read, encoded or kept. Where few rows of a stretch
# repeat, as far as a block takes it, all are taken for unique ones: a gather costs more.

Bools = NDArray[np.bool_]

RUN_ROWS = CHUNK_ROWS  # so that a chunk of a row group that is taken whole is a stretch
_WORTH_GATHERING = 0.9  # the share of unique rows from which on all rows are taken for such


def stretches(start: int, rows: int) -> range:
    """Which of some rows of a row group begin a stretch. start: how many the row group delivers before them."""
    # stretches of 10 rows: of 20 rows after the first 7, rows 3 and 13
    return range(-start % RUN_ROWS, rows, RUN_ROWS)


def ends_stretch(chunk: Chunk) -> bool:
    """Whether the row after a chunk begins a stretch."""
    return (chunk.start + chunk.frame.height) % RUN_ROWS == 0


def at_last_stretch(chunk: Chunk) -> tuple[Chunk, ...]:
    """A chunk in two, if its last stretch goes on after it: the one before, and what it has of that one."""
    inner = stretches(chunk.start, chunk.frame.height)
    if ends_stretch(chunk) or not inner or inner[-1] == 0:
        return (chunk,)
    return chunk.part(0, inner[-1]), chunk.part(inner[-1], chunk.frame.height)


def unique_starts(starts: Bools, borders: Sequence[int]) -> Bools:
    """bool [rows]: which rows are unique rows of a block. starts: where runs begin. borders: where stretches do."""
    # runs start at rows 0, 3, 4, 5, 6, 7 of 8, a stretch at 4: its rows hardly repeat, and row 3 stays a run's start
    first = np.unique([0, *(border for border in borders if border < len(starts))])
    heights = np.diff(first, append=len(starts))
    found = starts.copy()
    found[first] = True
    is_many = np.add.reduceat(found, first, dtype=np.int64) > _WORTH_GATHERING * heights
    return found | np.repeat(is_many, heights)


# --------------------------------------------------------------------------------------------------------------------

_Stored: TypeAlias = UniqueRows[DictionaryFrame]

# Parts of rows that see many events that are joined as one, if that is all of a shuffled block: its lists stay codes,
# where values of several parts are gathered twice (58 and 7 us for a row of 2,700 events in three columns).
_PARTS_IN_ORDER = 4
_WHOLE_BYTES = 96 * 2**20  # of a block that is encoded in its final order: columns as they are decoded, or codes


@dataclass(frozen=True, slots=True)
class HandOver:
    """How a block's first rows are handed over while the rest is computed. rows: of the first part, about; later ones
    grow. take: called in this thread with each part, in the block's order, except the last."""

    rows: int
    take: Callable[[Rows], None]


class StageClock:
    """Seconds per stage, and CPU seconds of the thread that made it. `fetch_s`: waiting for the store or the disk."""

    def __init__(self) -> None:
        self.seconds = {"read": 0.0, "transform": 0.0, "encode": 0.0}
        self.cpu = dict(self.seconds)
        self._fetch_s, self._contended_s, self._disk_reads = FETCH_CLOCK.seconds, contended_s(), _disk_reads()
        self._last, self._last_cpu = time.perf_counter(), time.thread_time()

    def lap(self, stage: str) -> None:
        now, cpu = time.perf_counter(), time.thread_time()
        self.seconds[stage] += now - self._last
        self.cpu[stage] += cpu - self._last_cpu
        self._last, self._last_cpu = now, cpu

    def lap_repeats(self) -> None:
        """The repeated rows of a deduplicated group were found: a part of `transform`."""

    def times(self) -> BlockTimes:
        """The times so far, in the thread that made the clock."""
        contended = contended_s() - self._contended_s
        fetch_s = FETCH_CLOCK.seconds - self._fetch_s
        if _disk_reads() > self._disk_reads:  # a local file that was not in memory
            fetch_s = max(fetch_s, self.seconds["read"] - self.cpu["read"] - contended)
        return BlockTimes(
            read_s=self.seconds["read"],
            transform_s=self.seconds["transform"],
            encode_s=self.seconds["encode"],
            read_cpu_s=self.cpu["read"],
            transform_cpu_s=self.cpu["transform"] + POOL.take(self._last),
            encode_cpu_s=self.cpu["encode"],
            fetch_s=min(max(fetch_s, 0.0), self.seconds["read"]),
            contended_s=max(contended, 0.0),
        )


def _disk_reads() -> int:
    """Reads of a disk that this thread has waited for, or asked for ahead."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock if hasattr(resource, "RUSAGE_THREAD") else 0


class BlockEncoder:
    """Transforms and encodes chunks, small ones together: each call costs milliseconds, even for few rows. whole: all
    of them at the end, in their final order, unless they are large. row_counts: keeps what is counted of each row; then
    each run of a deduplicated group has one unique row."""

    def __init__(
        self, compiled: CompiledJob, clock: StageClock, *, whole: bool, row_counts: RowCounts | None = None
    ) -> None:
        self._row_counts = row_counts
        self._whole = whole
        self._nbytes = 0
        self._order: NDArray[np.int32] | None = None
        self._ordered = False  # whether the last rows are in that order
        self._compiled = compiled
        self._clock = clock
        self._waiting: list[Chunk] = []
        self._rows = 0
        self._borders: list[int] = []  # of pieces, among the waiting rows
        self._parts: list[EncodedRows] = []
        self._enough = CHUNK_ROWS  # rows that are encoded together
        self._take: Callable[[Rows], None] | None = None
        self._missing = 0  # rows of the block that are not encoded yet
        self._evaluated: Evaluated = {}
        self.observer = compiled.observer.again()

    def hand_over(self, hand_over: HandOver, rows: int) -> None:
        """Hand parts over. rows: of the block. Runs of deduplicated groups end with a part, which is as always then."""
        self._take, self._missing = hand_over.take, rows
        if len(self._compiled.parts) == 1:
            self._enough = min(self._enough, hand_over.rows)

    @property
    def first_rows(self) -> int:
        """Rows of the first chunk, about, where parts are handed over that grow; else 0."""
        return self._enough if self._enough < CHUNK_ROWS else 0

    def begin_piece(self) -> None:
        """Runs of repeated rows end here."""
        self._borders.append(self._rows)

    def add(self, chunk: Chunk) -> None:
        if self._whole:
            self._nbytes += int(chunk.frame.estimated_size())
            self._whole = self._nbytes <= _WHOLE_BYTES
        has_groups = len(self._compiled.parts) > 1
        for part in at_last_stretch(chunk) if has_groups else (chunk,):
            self._add(part, has_groups)

    def _add(self, chunk: Chunk, has_groups: bool) -> None:
        """The next rows. Of deduplicated groups, a stretch is encoded as one."""
        height = chunk.frame.height
        borders = [self._rows + border for border in stretches(chunk.start, height)] if has_groups else []
        may_end = not has_groups or self._rows in (*self._borders[-1:], *borders[:1])
        if not self._whole and self._rows and may_end and self._rows + height > CHUNK_ROWS:
            borders = [border - self._rows for border in borders]
            self._flush()
        self._borders += borders
        self._waiting.append(chunk)
        self._rows += height
        if not self._whole and self._rows >= self._enough and (not has_groups or ends_stretch(chunk)):
            self._flush()
            self._enough = min(2 * self._enough, CHUNK_ROWS)

    def finish(self) -> list[EncodedRows]:
        if self._waiting:
            self._flush()
        return self._parts

    def finish_in_order(self, index: NDArray[np.int64]) -> Rows:
        """The rows in the order of `index`."""
        if self._whole:
            self._order = index.astype(np.int32)
        parts = self.finish()
        return parts[0] if self._ordered else shuffle(parts, index)

    def _flush(self) -> None:
        chunks, self._waiting, self._rows = self._waiting, [], 0
        borders, self._borders = self._borders, []
        lists = ListColumns.of(chunks[0].fragment, self._compiled.read)
        try:
            coded, stored = _join_chunks(chunks)
            if lists is None or lists.is_in(coded.frame):
                self._keep(self._encode(coded, stored, borders))
            else:
                self._encode_joined(lists, coded, stored, borders)
        except DataError as error:
            compiled = self._compiled
            raise with_row_position(error, chunks, compiled.read) from error
        except Exception as error:
            note_place(error, f"file {chunks[0].uri}, row group {chunks[0].row_group}")
            raise

    def _keep(self, encoded: EncodedRows) -> None:
        self._parts.append(encoded)
        if self._take is not None:
            self._missing -= encoded.rows
            if self._missing > 0:
                self._take(encoded)

    def _encode_joined(
        self, lists: ListColumns, coded: DictionaryFrame, stored: Sequence[_Stored], borders: Sequence[int]
    ) -> None:
        """Join rows with their lists of events, and encode them, in parts that do not see too many. Of deduplicated
        groups, whose runs would end with it, a part ends where a stretch does.

        One part is put in the block's order first: its rows hold little before they have lists.
        """
        rows = coded.frame.height
        order, self._order = self._order, None
        found = lists.find(coded.frame)
        cuts = lists.cuts(found)
        if len(self._compiled.parts) > 1:
            ends = np.unique([0, *borders])
            inner = np.unique(ends[np.searchsorted(ends, cuts[1:-1], side="right") - 1])
            cuts = [0, *inner[inner > 0].tolist(), rows]
        if order is not None and len(cuts) > 2 and len(cuts := lists.cuts(found, _PARTS_IN_ORDER)) > 2:
            order, cuts = None, lists.cuts(found)
        if order is not None:
            coded = DictionaryFrame(coded.frame[order], coded.dictionaries)
            found = [own[:, order] for own in found]
        for first, stop in itertools.pairwise(cuts):
            frame, values = lists.joined(coded.frame[first:stop], [own[:, first:stop] for own in found])
            part = DictionaryFrame(frame, {**coded.dictionaries, **values})
            self._clock.lap("read")
            own = [border - first for border in borders if first <= border < stop]
            try:
                encoded = self._encode(part, [_rows_of(group, first, stop) for group in stored], own)
            except DataError as error:
                if error.row is not None:
                    error.at(first + error.row if order is None else int(order[error.row]))
                raise
            self._keep(encoded)
        self._ordered = order is not None

    def _encode(self, coded: DictionaryFrame, stored: Sequence[_Stored], borders: Sequence[int]) -> EncodedRows:
        self.observer.count_rows(coded.frame, [(group.rows.frame, group.inverse) for group in stored])
        rows, *groups = self._compiled.parts
        encoded = self._encode_coded(rows, coded)
        return replace(encoded, groups=tuple(self._encode_unique(group, coded, stored, borders) for group in groups))

    def _encode_unique(
        self,
        group: CompiledPart,
        coded: DictionaryFrame,
        stored: Sequence[_Stored],
        borders: Sequence[int],
    ) -> UniqueRows[EncodedRows]:
        """Transform and encode the rows of a deduplicated group that do not repeat the row above them. coded, stored:
        the rows, without the columns that are stored once per run, and those columns."""
        by, height = () if self._compiled.by is None else (self._compiled.by,), coded.frame.height
        columns = _columns_in(coded, group)
        borders = [border for border in borders if border < height]
        starts = first_coded_rows(coded, (*by, *columns), borders)
        parts = [(each, _columns_in(each.rows, group)) for each in stored]
        for each, names in parts:
            firsts = first_uses(each.inverse)
            changes = first_coded_rows(each.rows, names, np.flatnonzero(starts[firsts]).tolist())
            starts[firsts[changes]] = True
        if self._row_counts is None:
            starts = unique_starts(starts, borders)
        index = np.flatnonzero(starts)
        repeats = np.diff(index, append=height) if len(index) < height else None
        series, dictionaries = _rows_at(coded.frame, columns, index), {**coded.dictionaries}
        for each, names in parts:
            series += _rows_at(each.rows.frame, names, each.inverse[index])
            dictionaries |= each.rows.dictionaries
        unique = DictionaryFrame(pl.DataFrame(series), dictionaries).only(group.coded_columns.columns)
        self._clock.lap_repeats()
        try:
            rows = self._encode_coded(group, unique, repeats)
        except DataError as error:
            if error.row is not None:
                error.at(int(index[error.row]))
            raise
        return UniqueRows(rows, np.cumsum(starts, dtype=np.int32) - np.int32(1))

    def _encode_coded(
        self, part: CompiledPart, coded: DictionaryFrame, repeats: NDArray[np.int64] | None = None
    ) -> EncodedRows:
        """Transform and encode rows of which some columns are codes: what reads these, once per distinct value.
        repeats: as of `_encode_part`."""
        coded = coded.only(part.coded_columns.columns)
        if self._row_counts is not None:
            self._row_counts.add_nulls(part.features.outputs, coded.frame)
        split = part.coded_columns.split(coded.dictionaries) if coded.dictionaries else None
        if split is None:
            return self._encode_part(part, coded.expand(), repeats)
        features, columns = split
        values: dict[str, CodedValues] = {}
        lookups: dict[str, list[tuple[int, int]]] = {}
        of_rows: dict[str, list[RowLookups]] | None = None if self._row_counts is None else {}
        try:
            with TURN:
                for column in columns:
                    codes, dictionary = coded.frame.get_column(column.name), coded.dictionaries[column.name]
                    try:
                        found, counts = column.apply(codes, dictionary, self._evaluated, repeats, of_rows)
                    except Exception as error:
                        note_place(error, f"column {column.name!r}")
                        raise
                    values |= found
                    lookups |= counts
            plain, more = features.apply_counting(coded.only(features.columns).expand(), repeats, of_rows)
            self._clock.lap("transform")
            filters, rows, order = self._compiled.filters, coded.frame.height, self._order_of(part, values)
            encoded = encode(plain, part.schema, self.observer, filters, repeats, coded=values, rows=rows, order=order)
        except DataError:  # of which row, its own evaluation tells
            return self._encode_part(part, coded.expand(), repeats)
        self._count_lookups(lookups | more, of_rows)
        self._clock.lap("encode")
        return encoded

    def _order_of(self, part: CompiledPart, coded: Collection[str]) -> NDArray[np.int32] | None:
        """The order in which rows are encoded, unless there are lists that are not coded."""
        in_order = self._order is not None and all(column.name in coded for column in part.schema.sparse)
        self._ordered = in_order
        return self._order if in_order else None

    def _encode_part(
        self, part: CompiledPart, frame: pl.DataFrame, repeats: NDArray[np.int64] | None = None
    ) -> EncodedRows:
        """Transform and encode rows. repeats: how many rows of the table each stands for (None: one)."""
        of_rows: dict[str, list[RowLookups]] | None = None if self._row_counts is None else {}
        features, lookups = part.features.apply_counting(frame, repeats, of_rows)
        self._count_lookups(lookups, of_rows)
        self._clock.lap("transform")
        order = self._order_of(part, ())
        encoded = encode(features, part.schema, self.observer, self._compiled.filters, repeats, order=order)
        if not part.schema.columns:  # Polars forgets the rows of a frame without columns
            none = np.empty((frame.height, 0), np.float32)
            encoded = replace(encoded, rows=frame.height, dense=none, labels=none)
        self._clock.lap("encode")
        return encoded

    def _count_lookups(
        self, lookups: Mapping[str, list[tuple[int, int]]], of_rows: Mapping[str, list[RowLookups]] | None
    ) -> None:
        for name, counts in lookups.items():
            self.observer.count_lookups(name, counts)
        if self._row_counts is not None and of_rows is not None:
            self._row_counts.add_lookups(of_rows)


def _rows_of(group: _Stored, start: int, stop: int) -> _Stored:
    part = group_part(UniqueRows(group.rows.frame, group.inverse), start, stop)
    return UniqueRows(DictionaryFrame(part.rows, group.rows.dictionaries), part.inverse)


def _columns_in(rows: DictionaryFrame, group: CompiledPart) -> list[str]:
    found = set(rows.frame.columns)
    return [name for name in group.columns if name in found]


def _rows_at(frame: pl.DataFrame, columns: Sequence[str], index: NDArray[np.integer[Any]]) -> list[pl.Series]:
    """The rows of some columns at an ascending index; the columns themselves if those are all of them."""
    series = [frame.get_column(name) for name in columns]
    whole = len(index) == frame.height and bool((np.diff(index) > 0).all())
    return series if whole or not series else pl.DataFrame(series)[index].get_columns()


def _join_chunks(chunks: Sequence[Chunk]) -> tuple[DictionaryFrame, tuple[_Stored, ...]]:
    """Chunks as one, with what their files store once per run of equal rows, where all store the same columns so."""
    rows = [_coded(chunk.frame, chunk) for chunk in chunks]
    stored = [[UniqueRows(_coded(group.rows, chunk), group.inverse) for group in chunk.groups] for chunk in chunks]
    if len(chunks) == 1:
        return rows[0], tuple(stored[0])
    if len({tuple(tuple(group.rows.columns) for group in chunk.groups) for chunk in chunks}) > 1:
        whole = [expanded_chunk(chunk) for chunk in chunks]
        joined = pl.concat([frame.select(whole[0].columns) for frame in whole], rechunk=True)
        return DictionaryFrame(joined, {}), ()
    return join_coded(rows), tuple(_join_groups(groups) for groups in zip(*stored, strict=True))


def expanded_chunk(chunk: Chunk) -> pl.DataFrame:
    """A chunk with the values of all columns in every row."""
    groups = [UniqueRows(_coded(group.rows, chunk).expand(), group.inverse) for group in chunk.groups]
    return _coded(chunk.frame, chunk).expand().hstack([series for group in groups for series in expand_group(group)])


def _join_groups(parts: Sequence[_Stored]) -> _Stored:
    inverse = join_inverses([part.inverse for part in parts], [part.rows.frame.height for part in parts])
    return UniqueRows(join_coded([part.rows for part in parts]), inverse)


def _coded(frame: pl.DataFrame, chunk: Chunk) -> DictionaryFrame:
    return (
        DictionaryFrame(frame, chunk.dictionaries).only(frame.columns)
        if chunk.dictionaries
        else DictionaryFrame(frame, {})
    )
