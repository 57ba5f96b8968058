"""Rows of a block from a job's cache: found, or computed and kept, row group by row group.

Runs in: every process that computes blocks. What a cache changes is where features come from: a file that is not the
snapshot's, a filter that keeps other rows, a value that breaks a rule are the errors that they are without it. Features
are computed for whole segments of row groups, also where a block needs a part of one; if that fails, for the part
alone, so that rows that nobody asked for raise nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from feedline.blocks.block_encoder import BlockEncoder, StageClock
from feedline.blocks.cache.auto_choice import AutoChoice, AutoFilling
from feedline.blocks.cache.cached_columns import (
    arrow_array,
    arrow_bytes,
    can_count_part,
    quality_of,
    quality_of_part,
    rows_of_columns,
    split_columns,
)
from feedline.blocks.cache.entry_names import EntryNames, Segment, segments
from feedline.blocks.cache.feature_costs import FeatureMeasurements, feature_classes
from feedline.blocks.jobs import CompiledJob, compile_job
from feedline.blocks.piece_chunks import column_values, piece_chunks
from feedline.blocks.request import Job, PieceRequest, kept_columns
from feedline.blocks.single_flight import SingleFlight
from feedline.errors import DataError, FeedlineError
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.encoding.encoded_rows import EncodedRows, take
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.quality import Quality
from feedline.warehouse.cache.cache_folder import CachedColumn, CacheFolder, EntryGroup, open_folder
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment
from feedline.warehouse.rebase.recorded_rows import Recorder, spans_of

Columns = Mapping[str, CachedColumn]

_MOST_SETS = 16  # of features that are compiled


@dataclass(frozen=True, slots=True)
class CachedPart:
    """Rows of one segment, in the table's order. by: their `shuffle.by`, None without one."""

    rows: EncodedRows
    quality: Quality
    by: pl.Series | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What was computed of a segment, the bytes written of it, seconds of writing, columns written and not written."""

    columns: Columns = field(default_factory=dict)
    nbytes: int = 0
    written_s: float = 0.0
    written: int = 0
    skipped: int = 0


class CachedRows:
    """The rows of a job's blocks, of which features are found in its cache, or put there."""

    def __init__(self, job: Job, compiled: CompiledJob, folder: CacheFolder) -> None:
        self._job, self._compiled, self._folder = job, compiled, folder
        self._schema = compiled.layout.schema
        self._names = EntryNames(job, compiled)
        measurements = FeatureMeasurements(feature_classes(compiled.features, self._names.columns))
        self._auto = None if job.auto is None else AutoChoice(job.auto, folder, measurements)
        self._keep_all = AutoFilling(names=None, reads=True, source=False, budget=folder.budget)
        self._own = {digest: name for name, digest in self._names.columns.items()}
        self._sets: set[frozenset[str]] = set()  # of features that were computed together
        self._wanted = [*self._own, *(() if self._names.by is None else (self._names.by,))]

    def begin(self, epoch: int) -> None:
        """A block of an epoch begins."""
        if self._auto is not None:
            self._auto.begin(epoch)

    @property
    def _filling(self) -> AutoFilling:
        return self._keep_all if self._auto is None else self._auto.filling

    def parts(
        self, piece: PieceRequest, clock: StageClock, count: Callable[[CacheCounts], None]
    ) -> Iterator[CachedPart]:
        """The piece's rows, part by part. count: takes what was found and computed of each.

        Raises TableChangedError if the file is not the snapshot's, and as the reading and computing of rows does.
        """
        fragment = piece.fragment
        if self._filling.source:
            fragment = replace(fragment, source_cache=self._folder.ref)
        fragment.check()
        for position, (start, stop) in enumerate(spans_of(fragment, piece.skip, piece.rows)):
            if stop == start:
                continue
            alone = _row_group(fragment, position)
            kept = alone.expected[0]
            if kept == UNCOUNTED or alone.excluded:
                yield self._computed(PieceRequest(fragment=alone, skip=start, rows=stop - start), clock)
                continue
            for segment in segments(kept, start, stop):
                yield self._segment(alone, segment, clock, count)

    def record(self, piece: PieceRequest, recorder: Recorder) -> None:
        """Record the identities of a piece's rows, of which the row key and `shuffle.by` are read."""
        for chunk in piece_chunks(self._compiled, piece, kept_columns(self._job)):
            recorder.add(chunk.frame)
        recorder.write()

    def _segment(
        self, fragment: Fragment, segment: Segment, clock: StageClock, count: Callable[[CacheCounts], None]
    ) -> CachedPart:
        began_s, waited_s, filled, filling = time.monotonic(), 0.0, Filled(), self._filling
        group = self._names.group(fragment, segment)
        found = self._find(group, segment) if filling.reads else {}
        found_s = time.monotonic() - began_s
        lacks = self._lacking(found, filling)
        if lacks and filling.budget.allows():
            before_s = time.monotonic()
            with self._folder.flight(group) as waited:
                if waited:
                    waited_s = time.monotonic() - before_s
                    found = self._find(group, segment)
                filled = self._fill(fragment, segment, group, found, clock)
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
        part = self._part(fragment, segment, {**found, **filled.columns}, clock)
        if lacks:
            made_s = time.monotonic() - began_s - waited_s - filled.written_s
            filling.budget.spend(made_s=made_s, written_s=filled.written_s)
        if self._auto is not None and filling.reads:
            names = [name for digest, name in self._own.items() if digest in found]
            self._auto.count(names, len(self._kept(filling)), filled.written, segment.rows, found_s)
        clock.lap("read")
        return part

    def _kept(self, filling: AutoFilling) -> list[str]:
        """The columns that are to be kept; with features, what `shuffle.by` is."""
        if filling.names is None:
            return self._wanted
        kept = [digest for digest, name in self._own.items() if name in filling.names]
        return kept if not kept or self._names.by is None else [*kept, self._names.by]

    def _lacking(self, found: Columns, filling: AutoFilling) -> list[str]:
        """The columns that are to be kept and were not found."""
        return [digest for digest in self._kept(filling) if digest not in found]

    def _find(self, group: EntryGroup, segment: Segment) -> dict[str, CachedColumn]:
        found = self._folder.find(group, self._wanted)
        return {digest: column for digest, column in found.items() if column.facts.get("rows") == segment.rows}

    def _fill(
        self, fragment: Fragment, segment: Segment, group: EntryGroup, found: Columns, clock: StageClock
    ) -> Filled:
        """Compute what was not found, and write what is to be kept. Nothing, if rows that the block does not need cannot
        be computed."""
        lacks = self._lacking(found, self._filling)
        if not lacks:
            return Filled()
        names = {name for digest, name in self._own.items() if digest not in found}
        piece = PieceRequest(fragment=fragment, skip=segment.first, rows=segment.rows)
        before_s, computed = time.thread_time(), dict[str, CachedColumn]()
        try:
            if names:
                columns = self._measured_columns(piece, names, clock)
                computed |= {self._names.columns[name]: columns[name] for name in names}
            if self._names.by is not None and self._names.by not in found:
                by = arrow_bytes(self._read_by(piece).rechunk().to_arrow())
                computed[self._names.by] = CachedColumn({"arrow": by}, {"rows": piece.rows})
        except FeedlineError:
            if segment.is_whole:
                raise
            return Filled()
        cpu_s, made_s = time.thread_time() - before_s, time.monotonic()
        kept = {digest: computed[digest] for digest in lacks}
        is_written = self._folder.put(group, kept, cpu_s=cpu_s)
        filled = Filled(
            columns=computed,
            nbytes=_nbytes(kept) if is_written else 0,
            written_s=time.monotonic() - made_s,
            written=len(kept) if is_written else 0,
            skipped=0 if is_written else len(kept),
        )
        self._measure_hits(piece, group, names, filled)
        return filled

    def _measured_columns(
        self, piece: PieceRequest, names: Collection[str], clock: StageClock
    ) -> Mapping[str, CachedColumn]:
        """`_columns`; if the cache decides for itself, measured."""
        if self._auto is None:
            return self._columns(piece, names, clock)
        columns = self._auto.measurements.compute(
            names,
            piece.rows,
            lambda some: self._columns(piece, some, clock),
            lambda some: compile_job(self._job_of(some)),
        )
        self._auto.measured()
        return columns

    def _measure_hits(self, piece: PieceRequest, group: EntryGroup, names: Collection[str], filled: Filled) -> None:
        """Read what was written first, or note that nothing can be."""
        if self._auto is None:
            return
        if not filled.written:
            self._auto.refuse()
        elif self._auto.measurements.needs_hits(names):
            by_digest = self._names.columns

            def find(some: Collection[str]) -> dict[str, CachedColumn]:
                found = self._folder.find(group, [by_digest[name] for name in some])
                return {name: found[by_digest[name]] for name in some if by_digest[name] in found}

            def lay(columns: Columns) -> None:
                rows_of_columns(columns, _only(self._schema, columns), 0, piece.rows)

            self._auto.measurements.read_back(piece.rows, filled.nbytes, filled.written_s, find, lay)

    def _part(self, fragment: Fragment, segment: Segment, found: Columns, clock: StageClock) -> CachedPart:
        """The rows that are needed of a segment: of the features that were found, and of others, which are computed."""
        start, stop = segment.start, segment.stop
        needed = PieceRequest(fragment=fragment, skip=segment.first + start, rows=stop - start)
        if not found:
            return self._computed(needed, clock)
        columns = {name: found[digest] for digest, name in self._own.items() if digest in found}
        if not segment.is_whole:
            columns = {name: column for name, column in columns.items() if can_count_part(column)}
        rest = {column.name for column in self._schema if column.name not in columns}
        if rest:
            others = self._columns(needed, rest, clock)
            columns = {**self._cut(columns, segment), **others}
            start, stop = 0, stop - start
        encoded = rows_of_columns(columns, self._schema, start, stop)
        if rest or segment.is_whole:
            quality = quality_of(columns, self._schema, stop - start)
        else:
            quality = quality_of_part(columns, self._schema, encoded)
        by = None
        if self._names.by is not None:
            known = found.get(self._names.by)
            by = self._read_by(needed) if known is None else _series(known, segment)
        return CachedPart(encoded, quality, by)

    def _cut(self, columns: Columns, segment: Segment) -> Columns:
        """The rows that are needed of columns whose parts can be counted."""
        if segment.is_whole:
            return columns
        schema = _only(self._schema, columns)
        part = rows_of_columns(columns, schema, segment.start, segment.stop)
        return split_columns(part, schema, quality_of_part(columns, schema, part))

    def _columns(self, piece: PieceRequest, names: Collection[str], clock: StageClock) -> dict[str, CachedColumn]:
        """Some features of a piece's rows, or all where pieces lack ever others: each set is compiled once."""
        wanted = frozenset(names)
        if wanted not in self._sets and len(self._sets) >= _MOST_SETS:
            wanted = frozenset(column.name for column in self._schema)
        self._sets.add(wanted)
        schema, rows, quality = self._encode(piece, wanted, clock)
        return split_columns(rows, schema, quality)

    def _computed(self, piece: PieceRequest, clock: StageClock) -> CachedPart:
        """Rows as they are computed without a cache."""
        _, rows, quality = self._encode(piece, frozenset(column.name for column in self._schema), clock)
        return CachedPart(rows, quality, None if self._job.by is None else self._read_by(piece))

    def _encode(
        self, piece: PieceRequest, names: frozenset[str], clock: StageClock
    ) -> tuple[BatchSchema, EncodedRows, Quality]:
        """Some features of a piece's rows, with their columns of a batch."""
        compiled = compile_job(self._job_of(names))
        encoder = BlockEncoder(compiled, clock, whole=True)
        encoder.begin_piece()
        clock.lap("read")
        for chunk in piece_chunks(compiled, piece, as_stored=True):
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
        return compiled.layout.schema, whole, encoder.observer.quality()

    def _job_of(self, names: Collection[str]) -> Job:
        """The job of some features alone."""
        features = tuple(feature for feature in self._job.features if feature.name in names)
        return replace(self._job, features=features, by=None, record=None, cache=None, auto=None)

    def _read_by(self, piece: PieceRequest) -> pl.Series:
        by = self._job.by
        assert by is not None
        return pl.concat([column_values(chunk, by) for chunk in piece_chunks(self._compiled, piece, [by])])


_caches: SingleFlight[str, CachedRows] = SingleFlight()


def is_cached(job: Job, compiled: CompiledJob) -> bool:
    """Whether a job has a cache, and no deduplicated groups, which are computed always."""
    return job.cache is not None and not compiled.layout.schema.dedup


def cached_rows(job: Job, compiled: CompiledJob) -> CachedRows | None:
    """The rows of a job with a cache; None where nothing is kept of it."""
    if not is_cached(job, compiled):
        return None
    ref = job.cache
    assert ref is not None
    return _caches.get(job.digest, lambda: CachedRows(job, compiled, open_folder(ref)))


def _nbytes(columns: Columns) -> int:
    return sum(column.nbytes for column in columns.values())


def _series(column: CachedColumn, segment: Segment) -> pl.Series:
    return pl.Series(arrow_array(column.arrays["arrow"]))[segment.start : segment.stop]


def _row_group(fragment: Fragment, position: int) -> Fragment:
    """One row group of a fragment."""
    excluded = fragment.excluded[position] if fragment.excluded else None
    return replace(
        fragment,
        row_groups=(fragment.row_groups[position],),
        expected=(fragment.expected[position],),
        proofs=(fragment.proofs[position],) if fragment.proofs else (),
        excluded=() if excluded is None else (excluded,),
    )


def _only(schema: BatchSchema, names: Mapping[str, CachedColumn]) -> BatchSchema:
    """The columns of a schema that have these names, as of a batch of them alone."""
    offsets: dict[str, int] = {}
    chosen = []
    for column in schema:
        if column.name in names:
            offset = offsets.get(column.group, 0)
            offsets[column.group] = offset + column.width
            chosen.append(replace(column, offset=offset))
    return BatchSchema(tuple(chosen))
