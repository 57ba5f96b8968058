"""Run one task of a fit: observe the rows of some files, or merge states of other tasks.

Runs in: Dask workers, or threads of the process that fits. Tasks are stateless and repeatable, and know what they need
from small values (`FitJob`): the columns to observe as features, the keys of what learns from them. A task reads its
fragments chunk by chunk, computes the columns of every fit in one pass over a chunk, and hands each to its learner;
states are merged as they come, and one that grows beyond its limit goes on in the scratch folder (`spilling`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from feedline.artifacts.store import ArtifactSetRef, StoredArtifactSet
from feedline.blocks.environment import Environment, check_environment
from feedline.blocks.single_flight import SingleFlight
from feedline.errors import DataError
from feedline.expressions import BoundExpression, bind_where
from feedline.fitting.spill import Scratch, Spilled, State, merge_all, merge_part, spill
from feedline.spec.features import FeatureSpec
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.learning.learner import Learner
from feedline.transforms.registry.user_functions import RequiredFunction, check_functions
from feedline.warehouse.reading.fragment import Chunk, Fragment
from feedline.warehouse.reading.read import read_fragment
from feedline.warehouse.reading.row_position import with_row_position
from feedline.warehouse.reading.sample import BoundSample, Sample, bind_sample
from feedline.warehouse.reading.seen_rows import Mark, bind_marks

# Rows that are observed together: what a group-by costs besides its rows is spread over them, and lists of that many
# rows still fit into memory beside each other.
OBSERVED_ROWS = 131_072
OBSERVED_BYTES = 128 * 2**20
# States of a task wait until they are as large as what they will be merged into, or as this.
_WAITING_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class FitJob:
    """What every task of one pass needs.

    features: the pipeline's. schema: the table's, as Arrow IPC. keys: of the fits of this pass. artifacts: what was
    fitted before. where, sample: the rows to learn from. code: the user's functions that the features call.
    """

    features: tuple[FeatureSpec, ...]
    schema: bytes
    where: str | None
    sample: Sample | None
    keys: tuple[str, ...]
    artifacts: ArtifactSetRef
    scratch: Scratch
    environment: Environment
    code: tuple[RequiredFunction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """What was observed of some rows: a state per key of the job, none where there was no row."""

    states: tuple[State, ...]
    rows: int

    def __sizeof__(self) -> int:
        return sum(state.nbytes for state in self.states if isinstance(state, pa.Table))


NO_ROWS = States(states=(), rows=0)


@dataclass(frozen=True, slots=True)
class Observing:
    """A job's expressions and learners, made once per process.

    streams: per fit, the columns of each of its streams. marks: what tells rows that earlier fits saw from others.
    """

    learners: tuple[Learner, ...]
    streams: tuple[tuple[tuple[str, ...], ...], ...]
    observed: CompiledFeatures
    schema: pa.Schema
    where: BoundExpression | None
    sample: BoundSample | None
    marks: tuple[Mark, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """What is read of the table, besides what filter and sample need."""
        return tuple(dict.fromkeys([*self.observed.parts, *(part for mark in self.marks for part in mark.parts)]))


_compiled: SingleFlight[FitJob, Observing] = SingleFlight()


def compile_fit(job: FitJob) -> Observing:
    """What the job's tasks compute, for this process; compiled by the first who asks."""
    return _compiled.get(job, lambda: _compile(job))


def _compile(job: FitJob) -> Observing:
    check_functions(job.code)
    schema = pa.ipc.read_schema(pa.py_buffer(job.schema))
    artifacts = StoredArtifactSet(job.artifacts)
    wanted = {want.key: want for want in compile_features(job.features, schema, artifacts).missing_fits}
    fits = [wanted[key] for key in job.keys]
    streams = [stream for fit in fits for stream in fit.streams]
    observed = compile_features([feature for stream in streams for feature in stream], schema, artifacts)
    return Observing(
        learners=tuple(fit.learner for fit in fits),
        streams=tuple(tuple(tuple(feature.name for feature in stream) for stream in fit.streams) for fit in fits),
        observed=observed,
        schema=schema,
        where=bind_where(job.where, schema) if job.where is not None else None,
        sample=bind_sample(job.sample, schema) if job.sample is not None else None,
        marks=bind_marks(observed.marks, schema),
    )


def observe_fragments(job: FitJob, fragments: tuple[Fragment, ...]) -> States:
    """Observe the rows of some fragments, one after the other.

    Raises DataError naming file, row group and row, CorruptFileError and TableChangedError naming file and row group;
    ClusterError for other versions.
    """
    check_environment(job.environment)
    observing = compile_fit(job)
    growing = [_FitState(learner, job.scratch) for learner in observing.learners]
    rows = 0
    for chunks in _gathered(observing, fragments):
        frame = _observed(observing, chunks)
        chunks.clear()
        rows += frame.height
        for state, streams in zip(growing, observing.streams, strict=True):
            for stream in streams:
                state.observe([frame.get_column(name) for name in stream])
        if sum(state.size_bytes for state in growing) > job.scratch.limit_bytes:
            _relieve(growing, job.scratch)
    return States(states=tuple(state.take() for state in growing) if rows else (), rows=rows)


def merge_states(job: FitJob, states: Sequence[States]) -> States:
    """What was observed by several tasks, as if one had observed it all."""
    full = [one for one in states if one.rows]
    if len(full) < 2:
        return full[0] if full else NO_ROWS
    growing = [_FitState(learner, job.scratch) for learner in compile_fit(job).learners]
    for place, state in enumerate(growing):
        state.add(one.states[place] for one in full)
        if sum(state.size_bytes for state in growing) > job.scratch.limit_bytes:
            _relieve(growing, job.scratch)
    return States(states=tuple(state.take() for state in growing), rows=sum(one.rows for one in full))


def merge_spilled(job: FitJob, place: tuple[int, Spilled, int]) -> str:
    """Merges one part of a state that is on disk: of the fit at a place, which part; the name of its file."""
    fit, state, part = place
    return merge_part(compile_fit(job).learners[fit], state, part, job.scratch)


class _FitState:
    """One fit's state while a task works on it: what is merged, and what waits to be."""

    def __init__(self, learner: Learner, scratch: Scratch) -> None:
        self._learner = learner
        self._scratch = scratch
        self._held: list[State] = []
        self._merged_bytes = self._waiting_bytes = 0

    @property
    def size_bytes(self) -> int:
        """In memory."""
        return self._merged_bytes + self._waiting_bytes

    @property
    def may_spill(self) -> bool:
        """Whether there is something that may go to disk."""
        return bool(self._learner.keys) and self.size_bytes > 0

    def observe(self, columns: Sequence[pl.Series]) -> None:
        """Some rows more."""
        state = self._learner.observe(columns).to_arrow()
        self._held.append(state)
        self._waiting_bytes += state.nbytes
        if self._waiting_bytes > max(self._merged_bytes, _WAITING_BYTES):
            self.merge()

    def add(self, states: Iterable[State]) -> None:
        """What others observed."""
        self._hold(merge_all(self._learner, states, self._scratch))

    def merge(self) -> None:
        """Make one of what is held."""
        if len(self._held) > 1 or self._waiting_bytes:
            self._hold(merge_all(self._learner, self._held, self._scratch))

    def spill(self) -> None:
        """Put it to disk; it is merged."""
        frame = pl.from_arrow(self._held[0])
        assert isinstance(frame, pl.DataFrame)
        self._hold(spill(self._learner, frame, self._scratch))

    def take(self) -> State:
        """The state of all rows."""
        self.merge()
        return self._held[0]

    def _hold(self, state: State) -> None:
        self._held = [state]
        self._merged_bytes = 0 if isinstance(state, Spilled) else state.nbytes
        self._waiting_bytes = 0


def _relieve(growing: Sequence[_FitState], scratch: Scratch) -> None:
    """Put the largest states to disk, until the others are within the limit together."""
    for state in growing:
        state.merge()
    large = sorted((state for state in growing if state.may_spill), key=lambda state: state.size_bytes)
    while large and sum(state.size_bytes for state in growing) > scratch.limit_bytes:
        large.pop().spill()


def _gathered(observing: Observing, fragments: Sequence[Fragment]) -> Iterator[list[Chunk]]:
    """Chunks to be observed together."""
    chunks: list[Chunk] = []
    rows = size_bytes = 0
    for fragment in fragments:
        for chunk in read_fragment(
            fragment,
            observing.observed.parts,
            observing.where,
            observing.schema,
            sample=observing.sample,
            marks=observing.marks,
        ):
            chunks.append(chunk)
            rows += chunk.frame.height
            size_bytes += int(chunk.frame.estimated_size())
            if rows >= OBSERVED_ROWS or size_bytes >= OBSERVED_BYTES:
                yield chunks
                chunks, rows, size_bytes = [], 0, 0
    if chunks:
        yield chunks


def _observed(observing: Observing, chunks: Sequence[Chunk]) -> pl.DataFrame:
    """The columns of every fit; an error names file, row group and row."""
    frames = [chunk.frame for chunk in chunks]
    try:
        return observing.observed.apply(pl.concat(frames, rechunk=True) if len(frames) > 1 else frames[0])
    except DataError as error:
        raise with_row_position(error, chunks, observing.where, observing.schema, sample=observing.sample) from error
