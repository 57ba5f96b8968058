"""Rows of a block from a job's cache: found, or computed and kept, row group by row group.

Runs in: every process that computes blocks. What a cache changes is where features come from: a file that is not the
snapshot's, a filter that keeps other rows, a value that breaks a rule are the errors that they are without it. Features
are computed for whole segments of row groups, also where a block needs a part of one; if that fails, for the part
alone, so that rows that nobody asked for raise nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.blocks.block_encoder import BlockEncoder, HandOver, RowCounts, StageClock, stretches
from feedline.blocks.cache.auto_choice import AutoChoice, AutoFilling
from feedline.blocks.cache.cached_features import (
    CachedFeatures,
    arrow_array,
    arrow_bytes,
    part_of_features,
    quality_of,
    rows_of_features,
    runs_column,
    runs_of_column,
    split_features,
)
from feedline.blocks.cache.entry_names import EntryNames, Segment, segments
from feedline.blocks.cache.feature_costs import feature_classes, thread_clock
from feedline.blocks.jobs import CompiledJob, compile_like
from feedline.blocks.piece_chunks import piece_chunks
from feedline.blocks.request import BlockRequest, Job, PieceRequest, Runs
from feedline.blocks.row_order import chunk_order
from feedline.blocks.single_flight import SingleFlight
from feedline.dataclass import dataclass
from feedline.errors import DataError, FeedlineError
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.encoding.encoded_rows import EncodedRows, take
from feedline.loader.encoding.quality import Quality, merge
from feedline.loader.encoding.shuffled_rows import Rows, shuffle
from feedline.warehouse.cache.cache_folder import CacheFolder, open_folder
from feedline.warehouse.cache.entry_file import CachedColumn, EntryGroup
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment
from feedline.warehouse.rebase.recorded_rows import recorded, recorder_of, remaining_rows, spans_of

Columns = Mapping[str, CachedColumn]

_MOST_SETS = 16  # of features that are compiled


@dataclass(frozen=True, slots=True)
class CachedPart:
    """Rows of one segment, in the table's order. order: their `order_values`, None where no column decides."""

    rows: EncodedRows
    quality: Quality
    order: pl.Series | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What was computed of a segment, all of its rows if a batch has them so, the bytes written of it, seconds of
    writing, the columns written, and how many were not."""

    columns: Columns = field(default_factory=dict)
    rows: EncodedRows | None = None
    nbytes: int = 0
    written_s: float = 0.0
    written: Collection[str] = ()
    skipped: int = 0


class CachedRows:
    """The rows of a job's blocks, of which features are found in its cache, or put there."""

    def __init__(self, job: Job, compiled: CompiledJob, folder: CacheFolder) -> None:
        self._job, self._compiled, self._folder = job, compiled, folder
        self._schema = compiled.layout.schema
        self._names = EntryNames(job, compiled)
        self._choice = AutoChoice(job.auto, folder, feature_classes(compiled.features, self._names.columns))
        self._own = {digest: name for name, digest in self._names.columns.items()}
        groups = {column.name: column.dedup for column in self._schema if column.dedup is not None}
        self._group_of = {
            self._names.columns[name]: group for name, group in groups.items() if name in self._names.columns
        }
        is_changed = any(feature.on_nonfinite == "zero" for feature in job.features)  # on delivery
        self._delivered = set[str]() if is_changed else {column.name for column in self._schema}
        self._sets: set[frozenset[str]] = set()  # of features that were computed together
        self._wanted = [*self._own, *self._names.runs.values()]
        if self._names.order is not None:
            self._wanted.append(self._names.order)

    def block(self, request: BlockRequest, clock: StageClock, hand_over: HandOver | None) -> CachedBlock:
        """Begin a block. hand_over: takes its rows as they come, if they are delivered in that order."""
        self._choice.begin(request.epoch)
        return CachedBlock(self, request, clock, hand_over if request.permutation is None else None)

    def parts(
        self, piece: PieceRequest, clock: StageClock, count: Callable[[CacheCounts], None]
    ) -> Iterator[CachedPart]:
        """The piece's rows, part by part. count: takes what was found and computed of each.

        Raises TableChangedError if the file is not the snapshot's, and as the reading and computing of rows does.
        """
        fragment = piece.fragment
        if self._choice.filling.source:
            fragment = replace(fragment, source_cache=self._folder.ref)
        fragment.check()
        for position, (start, stop) in enumerate(spans_of(fragment, piece.skip, piece.rows)):
            if stop == start:
                continue
            alone = fragment.alone(position)
            if alone.expected[0] == UNCOUNTED or fragment.stamp.content_name is None:
                yield self._computed(PieceRequest(fragment=alone, skip=start, rows=stop - start), clock)
                continue
            for segment in segments(remaining_rows(alone), start, stop):
                yield self._segment(alone, segment, clock, count)

    def record(self, piece: PieceRequest) -> None:
        """Record the identities of a piece's rows, if the job does; only the columns that name them are read."""
        recorder = recorder_of(self._job.record, piece.fragment, piece.skip, piece.rows)
        if recorder is not None:
            for _ in recorded(piece_chunks(self._compiled, piece, self._job.kept_columns), recorder):
                pass

    def _segment(
        self, fragment: Fragment, segment: Segment, clock: StageClock, count: Callable[[CacheCounts], None]
    ) -> CachedPart:
        began_s, waited_s, filled, filling = thread_clock()[1], 0.0, Filled(), self._choice.filling
        group = self._names.group(fragment, segment)
        found = self._find(group, segment) if filling.reads else {}
        found_s = thread_clock()[1] - began_s
        lacks = self._lacking(found, filling)
        writes = filling.budget.allows()
        if lacks and (writes or self._choice.is_undecided):
            before_s = time.monotonic()
            with self._folder.flight(group) as waited:
                if waited:
                    waited_s = time.monotonic() - before_s
                    found = self._find(group, segment)
                filled = self._fill(fragment, segment, group, found, writes, clock)
        elif lacks:
            filled = Filled(skipped=len(lacks))
        count(
            CacheCounts(
                found=len(found),
                computed=len(self._wanted) - len(found),
                skipped=filled.skipped,
                nbytes_read=_nbytes(found),
                nbytes_written=filled.nbytes,
                damaged=self._folder.take_damaged(),
                waited_s=waited_s,
            )
        )
        part = self._part(fragment, segment, {**found, **filled.columns}, filled.rows, clock)
        if lacks:
            made_s = thread_clock()[1] - began_s - waited_s - filled.written_s
            filling.budget.spend(made_s=made_s, written_s=filled.written_s)
        if filling.reads:
            self._choice.count(self._names_of(found), self._names_of(filled.written), segment.rows, found_s)
        clock.lap("read")
        return part

    def _kept(self, filling: AutoFilling) -> list[str]:
        """The columns that are to be kept; with features, what orders rows."""
        if filling.names is None:
            return self._wanted
        kept = self._digests_of(filling.names)
        return kept if not kept or self._names.order is None else [*kept, self._names.order]

    def _lacking(self, found: Columns, filling: AutoFilling) -> list[str]:
        return [digest for digest in self._kept(filling) if digest not in found]

    def _find(self, group: EntryGroup, segment: Segment) -> dict[str, CachedColumn]:
        """The entries of a segment; none of a deduplicated group of which it is not known where runs begin."""
        found = self._folder.find(group, self._wanted)
        found = {digest: column for digest, column in found.items() if column.facts.get("rows") == segment.rows}
        lost = {name for name, digest in self._names.runs.items() if digest not in found}
        return {digest: each for digest, each in found.items() if self._group_of.get(digest) not in lost}

    def _fill(
        self, fragment: Fragment, segment: Segment, group: EntryGroup, found: Columns, writes: bool, clock: StageClock
    ) -> Filled:
        """Compute what was not found, and write what is to be kept, if at all. Nothing, if rows that the block does not
        need cannot be computed."""
        lacks = self._lacking(found, self._choice.filling)
        if not lacks:
            return Filled()
        names = {name for digest, name in self._own.items() if digest not in found}
        piece = PieceRequest(fragment=fragment, skip=segment.first, rows=segment.rows)
        before_s, computed, rows = time.thread_time(), dict[str, CachedColumn](), None
        try:
            if names:
                features = self._measured_features(piece, names, clock)
                rows = features.rows if segment.is_whole and names == self._delivered else None
                computed |= {self._names.columns[name]: features.columns[name] for name in names}
                computed |= {
                    self._names.runs[name]: runs_column(runs)
                    for name, runs in features.runs.items()
                    if self._names.runs[name] not in found
                }
            if self._names.order is not None and self._names.order not in found:
                order = arrow_bytes(self._read_order(piece).rechunk().to_arrow())
                computed[self._names.order] = CachedColumn({"arrow": order}, {"rows": piece.rows})
        except FeedlineError:
            if segment.is_whole:
                raise
            return Filled()
        cpu_s, made_s = time.thread_time() - before_s, thread_clock()[1]
        kept = {digest: computed[digest] for digest in lacks if digest in computed}
        if not (writes and self._names.is_current()):
            return Filled(columns=computed, rows=rows, skipped=len(kept))
        is_written = self._folder.put(group, kept, cpu_s=cpu_s)
        filled = Filled(
            columns=computed,
            rows=rows,
            nbytes=_nbytes(kept) if is_written else 0,
            written_s=thread_clock()[1] - made_s,
            written=kept if is_written else (),
            skipped=0 if is_written else len(kept),
        )
        self._measure_hits(piece, group, names, filled)
        return filled

    def _measured_features(self, piece: PieceRequest, names: Collection[str], clock: StageClock) -> CachedFeatures:
        """`_features`; if the cache decides for itself, measured."""
        features = self._choice.measurements.compute(
            names,
            piece.rows,
            lambda some: self._features(piece, some, clock),
            self._compile,
        )
        self._choice.measured()
        return features

    def _measure_hits(self, piece: PieceRequest, group: EntryGroup, names: Collection[str], filled: Filled) -> None:
        """Read what was written first, or note that nothing can be."""
        if not filled.written:
            self._choice.refuse()
        elif self._choice.measurements.needs_hits(names):
            borders = stretches(piece.skip, piece.rows)

            def find(some: Collection[str]) -> CachedFeatures:
                return self._found_features(self._folder.find(group, self._digests_of(some)))

            def lay(found: CachedFeatures) -> None:
                rows_of_features(found, self._compile(found.columns).layout.schema, piece.rows, borders)

            self._choice.measurements.read_back(piece.rows, filled.nbytes, filled.written_s, find, lay)

    def _names_of(self, digests: Collection[str]) -> list[str]:
        return [self._own[digest] for digest in digests if digest in self._own]

    def _digests_of(self, names: Collection[str]) -> list[str]:
        """The entries of some features, with those of where runs begin."""
        own = [digest for digest, name in self._own.items() if name in names]
        groups = dict.fromkeys(self._group_of[digest] for digest in own if digest in self._group_of)
        return [*own, *(self._names.runs[name] for name in groups)]

    def _found_features(self, found: Columns) -> CachedFeatures:
        return CachedFeatures(
            {name: found[digest] for digest, name in self._own.items() if digest in found},
            {name: runs_of_column(found[digest]) for name, digest in self._names.runs.items() if digest in found},
        )

    def _part(
        self, fragment: Fragment, segment: Segment, found: Columns, rows: EncodedRows | None, clock: StageClock
    ) -> CachedPart:
        """The rows that are needed of a segment: of the features that were found, and of others, which are computed.
        rows: if all were computed."""
        start, stop = segment.start, segment.stop
        needed = PieceRequest(fragment=fragment, skip=segment.first + start, rows=stop - start)
        if not found:
            return self._computed(needed, clock)
        kept = self._found_features(found)
        if not segment.is_whole:
            kept = part_of_features(kept, self._schema, start, stop)
        rest = {column.name for column in self._schema if column.name not in kept.columns}
        if rest:
            kept = kept.merge(self._features(needed, rest, clock))
        order = None
        if self._names.order is not None:
            known = found.get(self._names.order)
            order = self._read_order(needed) if known is None else _series(known, segment)
        if rows is None:
            rows = rows_of_features(kept, self._schema, needed.rows, stretches(needed.skip, needed.rows))
        return CachedPart(rows, quality_of(kept.columns, self._schema, needed.rows), order)

    def _features(self, piece: PieceRequest, names: Collection[str], clock: StageClock) -> CachedFeatures:
        """Some features of a piece's rows, or all where pieces lack ever others: each set is compiled once."""
        wanted = frozenset(names)
        if wanted not in self._sets and len(self._sets) >= _MOST_SETS:
            wanted = frozenset(column.name for column in self._schema)
        self._sets.add(wanted)
        compiled, row_counts = self._compile(wanted), RowCounts()
        rows, quality = _encode(compiled, piece, clock, row_counts)
        return split_features(rows, compiled.layout.schema, quality, row_counts)

    def _compile(self, names: Collection[str] | None) -> CompiledJob:
        """The job of some features alone, as they are kept: with numbers that are not finite, as any part of them is
        counted; None: of all, as they are delivered."""
        features = self._job.features
        if names is not None:
            kept = (feature for feature in features if feature.name in names)
            features = tuple(
                replace(each, on_nonfinite="keep") if each.on_nonfinite == "zero" else each for each in kept
            )
        ends_runs = isinstance(self._job.order, Runs) and any(feature.dedup is not None for feature in features)
        order = self._job.order if ends_runs else None
        alone = replace(self._job, features=features, order=order, record=None, cache=None, auto=None)
        return compile_like(alone, self._compiled)

    def _computed(self, piece: PieceRequest, clock: StageClock) -> CachedPart:
        """Rows as they are computed without a cache."""
        rows, quality = _encode(self._compile(None), piece, clock)
        return CachedPart(rows, quality, None if self._job.order is None else self._read_order(piece))

    def _read_order(self, piece: PieceRequest) -> pl.Series:
        order = self._job.order
        assert order is not None
        chunks = piece_chunks(self._compiled, piece, [order.column])
        return pl.concat([chunk_order(order, chunk) for chunk in chunks])


class CachedBlock:
    """The rows of a block of which features are found in a cache, or put there. rows: of the pieces so far. cached:
    what the cache had of them."""

    def __init__(self, cache: CachedRows, request: BlockRequest, clock: StageClock, hand_over: HandOver | None) -> None:
        self._cache, self._clock, self._hand_over, self._last = cache, clock, hand_over, request.rows
        self._parts, self._qualities = list[EncodedRows](), list[Quality]()
        self.rows, self.cached = 0, CacheCounts()

    def add(self, piece: PieceRequest) -> pl.Series:
        """Compute a piece's rows; returns what orders them, one value per row (empty if no column does)."""
        values = list[pl.Series]()
        self._cache.record(piece)
        for part in self._cache.parts(piece, self._clock, self._count):
            self.rows += part.rows.rows
            self._qualities.append(part.quality)
            self._parts.append(part.rows)
            if part.order is not None:
                values.append(part.order)
            if self._hand_over is not None and self.rows < self._last:
                self._hand_over.take(part.rows)
        return pl.concat(values) if values else pl.Series()

    def _count(self, counts: CacheCounts) -> None:
        self.cached += counts

    def finish(self, index: NDArray[np.int64] | None) -> list[Rows]:
        """The rows, taken in this order (None: as they come)."""
        return [*self._parts] if index is None else [shuffle(self._parts, index)]

    def quality(self) -> Quality:
        return merge(self._qualities)


_caches: SingleFlight[str, CachedRows] = SingleFlight()


def cached_rows(job: Job, compiled: CompiledJob) -> CachedRows | None:
    """The rows of a job with a cache; None for one without."""
    ref = job.cache
    if ref is None:
        return None
    return _caches.get(job.digest, lambda: CachedRows(job, compiled, open_folder(ref)))


def _encode(
    compiled: CompiledJob, piece: PieceRequest, clock: StageClock, row_counts: RowCounts | None = None
) -> tuple[EncodedRows, Quality]:
    """The features of a piece's rows. row_counts: takes what is counted of each row."""
    encoder = BlockEncoder(compiled, clock, whole=True, row_counts=row_counts)
    encoder.begin_piece()
    clock.lap("read")
    for chunk in piece_chunks(compiled, piece, as_stored=True, joined=False):
        clock.lap("read")
        encoder.add(chunk)
        del chunk
    clock.lap("read")
    parts = encoder.finish()
    rows = sum(part.rows for part in parts)
    if rows != piece.rows:
        raise DataError(
            f"a row group of {piece.fragment.uri} has another number of rows than planned: got {rows}, expected "
            f"{piece.rows}"
        )
    whole = parts[0] if len(parts) == 1 else take(parts, np.arange(rows))
    return whole, encoder.observer.quality()


def _nbytes(columns: Columns) -> int:
    return sum(column.nbytes for column in columns.values())


def _series(column: CachedColumn, segment: Segment) -> pl.Series:
    return pl.Series(arrow_array(column.arrays["arrow"]))[segment.start : segment.stop]
