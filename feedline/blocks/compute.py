"""What does one Dask task do? It turns a block's pieces into encoded rows: read, filter, transform, encode, permute.

Runs in: Dask workers: threads of the feeder, processes on this machine, or anywhere in a cluster. A task is stateless
and repeatable: the same `Job` and `BlockRequest` give the same bytes on every worker of the same versions. What it
needs to know travels as values (feature specs, schema, text of the filter) and is compiled once per process.
"""

from __future__ import annotations

import hashlib
import itertools
import platform
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from feedline.artifacts.store import ArtifactSetRef, StoredArtifactSet, prove
from feedline.blocks.environment import Environment, check_environment
from feedline.blocks.permutation import permuted_rows
from feedline.blocks.single_flight import SingleFlight
from feedline.errors import ClusterError, DataError, FeedlineError
from feedline.expressions import BoundExpression, bind_where
from feedline.expressions.column_parts import not_null
from feedline.loader.encoding.encode import EncodedRows, encode, take
from feedline.loader.encoding.layout import BatchSchema, SlotColumn, SlotLayout
from feedline.loader.encoding.quality import Observer, Quality
from feedline.loader.encoding.slot import RowSlice, draft, encoded_rows, write
from feedline.spec.features import FeatureSpec
from feedline.transforms.compile.chains import chain_text
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.registry.user_functions import Needed, check_functions
from feedline.warehouse.reading.read import Chunk, Fragment, read_fragment
from feedline.warehouse.reading.row_position import located
from feedline.warehouse.reading.sample import BoundSample, Sample, bind_sample
from feedline.warehouse.reading.seen_rows import Mark, bind_marks
from feedline.warehouse.rebase.recorded_rows import Recording, recorder_of

# Rows per chunk of reading and transforming: small enough for a chunk's columns to stay in the caches.
CHUNK_ROWS = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every task of a pipeline needs: features, the table's schema (Arrow IPC), filter, versions it must meet.

    Workers are sent it once; tasks name it by its `digest`, which is of everything else here.

    With a sample the schema may hold the virtual column `sample_weight`. knowledge: what ops know besides their
    parameters. record: where the identities of rows go, if anywhere. code: the user's functions that the features call.
    """

    features: tuple[FeatureSpec, ...]
    schema: bytes
    where: str | None
    by: str | None
    environment: Environment
    knowledge: ArtifactSetRef
    sample: Sample | None = None
    record: Recording | None = None
    code: tuple[Needed, ...] = ()
    digest: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hashlib.blake2b(repr(self).encode(), digest_size=16).hexdigest())


class UnknownJobError(Exception):
    """A task names a job that this process was not sent, or has forgotten: to be sent with the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceRequest:
    """`rows` selected rows of some row groups of one file, after skipping the first `skip` selected ones."""

    fragment: Fragment
    skip: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRequest:
    """One block: its pieces, how many rows they make, and the key of its permutation (None: as they come)."""

    pieces: tuple[PieceRequest, ...]
    rows: int
    permutation: tuple[int | str, ...] | None
    nbytes: int  # compressed bytes of the column chunks it reads


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockResult:
    """A block's rows, by reference within a process and as one buffer in slot layout between processes."""

    key: str
    rows: int
    parts: tuple[EncodedRows, ...] | None
    image: pa.Buffer | None
    read_s: float
    transform_s: float
    encode_s: float
    nbytes_read: int
    quality: Quality

    @property
    def nbytes(self) -> int:
        return int(self.image.size) if self.image is not None else sum(part.nbytes for part in self.parts or ())

    def __sizeof__(self) -> int:
        return self.nbytes


@dataclass(frozen=True, slots=True)
class Compiled:
    """A job's expressions, made once per process."""

    features: CompiledFeatures
    schema: pa.Schema
    where: BoundExpression | None
    columns: tuple[str, ...]
    layout: SlotLayout
    sample: BoundSample | None
    marks: tuple[Mark, ...]
    filters: dict[str, str]  # by feature, the filter that would drop the nulls it is made of


_jobs: SingleFlight[str, Job] = SingleFlight()
_compiled: SingleFlight[str, Compiled] = SingleFlight()


def hold_job(job: Job) -> None:
    """From now on tasks of this process may name the job by its digest."""
    _jobs.get(job.digest, lambda: job)


def held_job(named: Job | str) -> Job:
    """The job that a task names, or brings along. Raises UnknownJobError."""
    if isinstance(named, Job):
        return _jobs.get(named.digest, lambda: named)

    def missing() -> Job:
        raise UnknownJobError(f"job {named} was not sent to {platform.node()}")

    return _jobs.get(named, missing)


def compile_job(job: Job) -> Compiled:
    """The job's expressions for this process, compiled by the first who asks: the same object each time."""
    return _compiled.get(job.digest, lambda: _compile(job))


def _compile(job: Job) -> Compiled:
    check_functions(job.code)
    schema = pa.ipc.read_schema(pa.py_buffer(job.schema))
    features = compile_features(job.features, schema, StoredArtifactSet(job.knowledge))
    columns = dict.fromkeys([*features.parts, *kept_columns(job)])
    where = bind_where(job.where, schema) if job.where is not None else None
    sample = bind_sample(job.sample, schema) if job.sample is not None else None
    marks = bind_marks(features.marks, schema)
    filters = {output.name: not_null(output.reads) for output in features.outputs if output.reads}
    layout = SlotLayout(batch_schema(features))
    return Compiled(features, schema, where, tuple(columns), layout, sample, marks, filters)


def kept_columns(job: Job) -> tuple[str, ...]:
    """What blocks read besides their features: the column that keeps runs together, and the row key."""
    by = (job.by,) if job.by is not None else ()
    return (*by, *(job.record.identity.key if job.record is not None else ()))


def check_job(job: Job) -> None:
    """Hold a job, and raise where this worker cannot do what it asks: ClusterError for other versions, or for artifacts
    that are not there."""
    check_environment(job.environment)
    try:
        prove(job.knowledge)
    except (FeedlineError, OSError) as error:
        raise ClusterError(f"a worker on {platform.node()} cannot read what was fitted: {error}") from error
    hold_job(job)


def run_block(job: Job | str, request: BlockRequest, key: str, packed: bool) -> BlockResult:
    """Compute a block. `packed` sends it as one buffer, for a result that leaves the process.

    job: or its digest. Raises UnknownJobError where the digest says nothing here; DataError naming file, row group and
    row, CorruptFileError, TableChangedError naming file and row group; ClusterError for another environment.
    """
    job = held_job(job)
    check_environment(job.environment)
    compiled = compile_job(job)
    clock = _Clock()
    encoder = _Encoder(compiled, clock)
    starts: list[NDArray[np.int64]] = []
    done = 0
    for piece in request.pieces:
        groups: list[pl.Series] = []
        rows = 0
        recorder = recorder_of(job.record, piece.fragment, piece.skip, piece.rows)
        for chunk in _chunks(compiled, piece):
            if job.by is not None:
                groups.append(chunk.frame.get_column(job.by))
            rows += chunk.frame.height
            if recorder is not None:
                recorder.add(chunk.frame)
            clock.lap("read")
            encoder.add(chunk)
            del chunk  # before the next one is decoded
        if groups:
            starts.append(run_starts(pl.concat(groups)) + done)
        done += rows
        if recorder is not None:
            recorder.write()
    clock.lap("read")
    parts = encoder.finish()
    if done != request.rows:
        raise DataError(f"block {key} has another number of rows than planned: got {done}, expected {request.rows}")
    if request.permutation is not None:
        runs = np.concatenate(starts) if job.by is not None else None
        parts = [take(parts, permuted_rows(done, runs, *request.permutation))]
        clock.lap("encode")
    image = pack(compiled.layout, parts) if packed else None
    clock.lap("encode")
    return BlockResult(
        key=key,
        rows=done,
        parts=None if packed else tuple(parts),
        image=image,
        read_s=clock.seconds["read"],
        transform_s=clock.seconds["transform"],
        encode_s=clock.seconds["encode"],
        nbytes_read=request.nbytes,
        quality=encoder.observer.quality(),
    )


def pack(layout: SlotLayout, parts: list[EncodedRows]) -> pa.Buffer:
    """A block as one buffer, which pickles out of band: gathered at memory speed, whatever the number of columns."""
    measured = draft(layout, [RowSlice(encoded=part, start=0, stop=part.rows) for part in parts], epoch=0, step=0)
    target = np.empty(measured.placement.nbytes, dtype=np.uint8)
    write(layout, measured, target)
    return pa.py_buffer(target)


def unpack(layout: SlotLayout, result: BlockResult) -> tuple[EncodedRows, ...]:
    """A result's rows: views of its buffer."""
    return result.parts if result.parts is not None else (encoded_rows(layout, result.image),)


class _Clock:
    """Seconds per stage."""

    def __init__(self) -> None:
        self.seconds = {"read": 0.0, "transform": 0.0, "encode": 0.0}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] += now - self._last
        self._last = now


def _chunks(compiled: Compiled, piece: PieceRequest) -> Iterator[Chunk]:
    """The piece's rows, chunk by chunk."""
    position, missing = 0, piece.rows
    chunks = read_fragment(
        piece.fragment,
        compiled.columns,
        compiled.where,
        compiled.schema,
        sample=compiled.sample,
        marks=compiled.marks,
        chunk_rows=CHUNK_ROWS,
    )
    for chunk in chunks:
        height = chunk.frame.height
        start = min(max(piece.skip - position, 0), height)
        stop = min(height, start + missing)
        position += height
        missing -= max(0, stop - start)
        if stop > start:
            held = [chunk if stop - start == height else chunk.part(start, stop)]
            del chunk
            yield held.pop()  # the caller's alone: nothing here refers to it while the next one is decoded
        if missing == 0:
            break


def first_chunks(job: Job, requests: Iterable[BlockRequest], count: int) -> list[pl.DataFrame]:
    """The first chunks of some blocks as their tasks get them: filtered, of at most `CHUNK_ROWS` rows, not permuted."""
    compiled = compile_job(job)
    chunks = (chunk.frame for request in requests for piece in request.pieces for chunk in _chunks(compiled, piece))
    return list(itertools.islice(chunks, count))


class _Encoder:
    """Transforms and encodes chunks, small ones together: a call costs milliseconds however few rows it gets."""

    def __init__(self, compiled: Compiled, clock: _Clock) -> None:
        self._compiled = compiled
        self._clock = clock
        self._waiting: list[Chunk] = []
        self._rows = 0
        self._parts: list[EncodedRows] = []
        outputs = compiled.features.outputs
        self.observer = Observer(compiled.layout.schema, [output.reads for output in outputs])

    def add(self, chunk: Chunk) -> None:
        if self._rows and self._rows + chunk.frame.height > CHUNK_ROWS:
            self._flush()
        self._waiting.append(chunk)
        self._rows += chunk.frame.height
        if self._rows >= CHUNK_ROWS:
            self._flush()

    def finish(self) -> list[EncodedRows]:
        if self._waiting:
            self._flush()
        return self._parts

    def _flush(self) -> None:
        chunks, self._waiting, self._rows = self._waiting, [], 0
        frames = [chunk.frame for chunk in chunks]
        try:
            self._parts.append(self._encode(pl.concat(frames, rechunk=True) if len(frames) > 1 else frames[0]))
        except DataError as error:
            compiled = self._compiled
            raise located(error, chunks, compiled.where, compiled.schema, sample=compiled.sample) from error

    def _encode(self, frame: pl.DataFrame) -> EncodedRows:
        self.observer.source(frame)
        finished, lookups = self._compiled.features.apply_counting(frame)
        for name, (asked, missed) in lookups.items():
            self.observer.looked_up(name, asked, missed)
        self._clock.lap("transform")
        encoded = encode(finished, self._compiled.layout.schema, self.observer, self._compiled.filters)
        self._clock.lap("encode")
        return encoded


def run_starts(groups: pl.Series) -> NDArray[np.int64]:
    """Where a run of equal values starts; nulls are equal to each other."""
    changes = groups.ne_missing(groups.shift(1)).to_numpy().copy()
    changes[:1] = True
    return np.flatnonzero(changes)


def batch_schema(features: CompiledFeatures) -> BatchSchema:
    """The columns of a batch, from the features' outputs."""
    columns: list[SlotColumn] = []
    widths: dict[str, int] = {}
    for output, feature in zip(features.outputs, features.features, strict=True):
        dtype, unit = _fixed_dtype(output.group, output.dtype)
        arrow = str(pl.Series([], dtype=output.dtype).to_arrow().type)
        offset = widths.get(output.group, 0)
        width = output.dtype.size if isinstance(output.dtype, pl.Array) and output.group != "extra" else 1
        columns.append(
            SlotColumn(
                name=output.name,
                group=output.group,
                dtype=dtype,
                arrow=arrow,
                offset=offset,
                width=width,
                unit=unit,
                weighted=output.group == "sparse" and isinstance(output.dtype, pl.Struct),
                chain=chain_text(feature),
                on_nonfinite=feature.on_nonfinite,
                looks_up=bool(output.lookups),
                num_embeddings=output.num_embeddings if dtype == "int64" and output.group != "extra" else None,
            )
        )
        widths[output.group] = offset + width
    return BatchSchema(tuple(columns))


def _fixed_dtype(group: str, dtype: pl.DataType) -> tuple[str, str | None]:
    """The numpy dtype of a feature's values ("" for extras that have no fixed width), and the unit of times."""
    if group in ("dense", "label"):
        return "float32", None
    if group == "categorical":
        return "int64", None
    if group == "sparse":
        return ("float32" if dtype == pl.List(pl.Float32()) else "int64"), None
    if isinstance(dtype, pl.Datetime | pl.Duration):
        return "int64", dtype.time_unit
    if dtype == pl.Date:
        return "int32", "D"
    if dtype == pl.Boolean:
        return "bool", None
    numeric = dtype.is_integer() or dtype.is_float()
    return (str(pl.Series([], dtype=dtype).to_numpy().dtype) if numeric else ""), None
