"""Run one task of a fit: observe the rows of some files, or merge states of other tasks.

Runs in: Dask workers, or threads of the process that fits. A task is described by a small value (`FitJob`). It reads
its pieces chunk by chunk, computes the columns of every fit in one pass over a chunk, and hands each to its learner;
states are merged as they come, and large ones are spilled to the scratch folder (`spill`).

Of a row group that other tables of the fit read first, a fit observes the rows that these do not:

    rows of the row group    0 1 2 3 4 5
    table 0 reads            x x . . x .
    this table reads         . x x . x x    and observes 2 and 5
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from feedline.artifacts.store import ArtifactSetRef, StoredArtifactSet
from feedline.blocks.environment import Environment, check_environment
from feedline.blocks.single_flight import SingleFlight
from feedline.config.features import FeatureSpec
from feedline.dataclass import dataclass
from feedline.errors import DataError
from feedline.expressions import bind_where
from feedline.fitting.spill import Scratch, SpilledState, State, merge_all, merge_part, spill
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.learning.learner import Learner
from feedline.transforms.registry.user_functions import RequiredFunction, check_functions
from feedline.warehouse.histories.joined_rows import read_rows
from feedline.warehouse.reading.fragment import Chunk, Fragment
from feedline.warehouse.reading.read import ReadRequest
from feedline.warehouse.reading.row_position import kept_mask, with_row_position
from feedline.warehouse.reading.sample import Bools, Sample, bind_sample
from feedline.warehouse.reading.seen_rows import Mark, bind_marks

# Rows observed together: enough to amortize the fixed cost of a group-by, few enough for their lists to fit into
# memory.
OBSERVE_ROWS = 131_072
OBSERVE_BYTES = 128 * 2**20
# States of a task are collected until they are as large as the state they will be merged into, or as this.
_WAITING_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConditions:
    """What selects the rows of one table to learn from. schema: the table's, as Arrow IPC."""

    where: str | None
    sample: Sample | None
    schema: bytes


@dataclass(frozen=True, slots=True)
class FitPiece:
    """Row groups of one file to observe. earlier: other tables (indices) that are learnt from before this one, with
    those of the row groups that they read, too."""

    fragment: Fragment
    earlier: tuple[tuple[int, Fragment], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FitJob:
    """The facts that every task of one pass needs.

    features: the pipeline's. rows: of the table. keys: of the fits of this pass. artifacts: those of earlier fits.
    code: the user functions that the features call. tables: the rows of all tables of the fit. alike: per key, the
    other tables (indices) of which it learns the same values.
    """

    features: tuple[FeatureSpec, ...]
    rows: TableConditions
    keys: tuple[str, ...]
    artifacts: ArtifactSetRef
    scratch: Scratch
    environment: Environment
    code: tuple[RequiredFunction, ...]
    tables: tuple[TableConditions, ...] = ()
    alike: tuple[frozenset[int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Statistics of some rows: a state per key of the job; empty if there was no row."""

    states: tuple[State, ...]
    rows: int

    def __sizeof__(self) -> int:
        return sum(state.nbytes for state in self.states if isinstance(state, pa.Table))


NO_ROWS = States(states=(), rows=0)


@dataclass(frozen=True, slots=True)
class CompiledFit:
    """A job's learners and compiled expressions, once per process.

    features: compute the columns of all streams. streams: per fit, the columns of each of its streams. read: its marks
    distinguish the rows that earlier fits have seen. alike: the different values of `FitJob.alike`, and per fit the
    index of its own. tables: the rows of all tables.
    """

    learners: tuple[Learner, ...]
    streams: tuple[tuple[tuple[str, ...], ...], ...]
    features: CompiledFeatures
    read: ReadRequest
    alike: tuple[tuple[frozenset[int], ...], tuple[int, ...]]
    tables: tuple[ReadRequest, ...]


NewRows: TypeAlias = Bools | None

_compiled_fits: SingleFlight[FitJob, CompiledFit] = SingleFlight()


def compile_fit(job: FitJob) -> CompiledFit:
    """Compile a job, once per process."""
    return _compiled_fits.get(job, lambda: _compile(job))


def _compile(job: FitJob) -> CompiledFit:
    check_functions(job.code)
    schema = pa.ipc.read_schema(pa.py_buffer(job.rows.schema))
    artifacts = StoredArtifactSet(job.artifacts)
    requests = {request.key: request for request in compile_features(job.features, schema, artifacts).missing_fits}
    fits = [requests[key] for key in job.keys]
    streams = [stream for fit in fits for stream in fit.streams]
    features = compile_features([feature for stream in streams for feature in stream], schema, artifacts)
    alike = job.alike or (frozenset[int](),) * len(fits)
    distinct = tuple(dict.fromkeys(alike))
    return CompiledFit(
        learners=tuple(fit.learner for fit in fits),
        streams=tuple(tuple(tuple(feature.name for feature in stream) for stream in fit.streams) for fit in fits),
        features=features,
        read=_request(job.rows, schema, features.parts, bind_marks(features.marks, schema)),
        alike=(distinct, tuple(map(distinct.index, alike))),
        tables=tuple(_request(table, pa.ipc.read_schema(pa.py_buffer(table.schema))) for table in job.tables),
    )


def _request(
    rows: TableConditions, schema: pa.Schema, columns: Sequence[str] = (), marks: Sequence[Mark] = ()
) -> ReadRequest:
    where = None if rows.where is None else bind_where(rows.where, schema)
    sample = None if rows.sample is None else bind_sample(rows.sample, schema)
    return ReadRequest(columns, schema, where, sample=sample, marks=marks)


def observe_pieces(job: FitJob, pieces: tuple[FitPiece, ...]) -> States:
    """Observe the rows of some pieces, one after the other.

    Raises DataError naming file, row group and row; CorruptFileError and TableChangedError naming file and row group;
    ClusterError if versions differ.
    """
    check_environment(job.environment)
    compiled = compile_fit(job)
    fit_states = [_FitState(learner, job.scratch) for learner in compiled.learners]
    rows = 0
    for chunks, new_rows in _gather_chunks(compiled, pieces):
        frame = _compute_columns(compiled, chunks)
        chunks.clear()
        frames = [frame if new is None else frame.filter(pl.Series(new)) for new in new_rows]
        rows += frame.height if any(new is None for new in new_rows) else int(np.count_nonzero(_union(new_rows)))
        for state, streams, alike in zip(fit_states, compiled.streams, compiled.alike[1], strict=True):
            for stream in streams:
                state.observe([frames[alike].get_column(name) for name in stream])
        if sum(state.size_bytes for state in fit_states) > job.scratch.limit_bytes:
            _spill_largest(fit_states, job.scratch)
    return States(states=tuple(state.take() for state in fit_states) if rows else (), rows=rows)


def merge_states(job: FitJob, states: Sequence[States]) -> States:
    """Merge the states of several tasks, as if one had observed all rows."""
    full = [one for one in states if one.rows]
    if len(full) < 2:
        return full[0] if full else NO_ROWS
    fit_states = [_FitState(learner, job.scratch) for learner in compile_fit(job).learners]
    for index, state in enumerate(fit_states):
        state.add(one.states[index] for one in full)
        if sum(state.size_bytes for state in fit_states) > job.scratch.limit_bytes:
            _spill_largest(fit_states, job.scratch)
    return States(states=tuple(state.take() for state in fit_states), rows=sum(one.rows for one in full))


def merge_spilled(job: FitJob, task: tuple[int, SpilledState, int]) -> str:
    """Merge a part of a spilled state, task: (index of the fit, state, part); returns the name of the new file."""
    fit, state, part = task
    return merge_part(compile_fit(job).learners[fit], state, part, job.scratch)


class _FitState:
    """One fit's state within a task: the merged state, and states still to be merged into it."""

    def __init__(self, learner: Learner, scratch: Scratch) -> None:
        self._learner = learner
        self._scratch = scratch
        self._states: list[State] = []
        self._merged_bytes = self._waiting_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._merged_bytes + self._waiting_bytes

    @property
    def may_spill(self) -> bool:
        """Whether the state may go to disk: it has keys and is in memory."""
        return bool(self._learner.keys) and self.size_bytes > 0

    def observe(self, columns: Sequence[pl.Series]) -> None:
        state = self._learner.observe(columns).to_arrow()
        self._states.append(state)
        self._waiting_bytes += state.nbytes
        if self._waiting_bytes > max(self._merged_bytes, _WAITING_BYTES):
            self.merge()

    def add(self, states: Iterable[State]) -> None:
        self._replace(merge_all(self._learner, states, self._scratch))

    def merge(self) -> None:
        if len(self._states) > 1 or self._waiting_bytes:
            self._replace(merge_all(self._learner, self._states, self._scratch))

    def spill(self) -> None:
        [state] = self._states
        assert isinstance(state, pa.Table)
        self._replace(spill(self._learner, pl.DataFrame(state), self._scratch))

    def take(self) -> State:
        self.merge()
        return self._states[0]

    def _replace(self, state: State) -> None:
        self._states = [state]
        self._merged_bytes = 0 if isinstance(state, SpilledState) else state.nbytes
        self._waiting_bytes = 0


def _spill_largest(fit_states: Sequence[_FitState], scratch: Scratch) -> None:
    """Spill the largest states until the others are within the limit together."""
    for state in fit_states:
        state.merge()
    large = sorted((state for state in fit_states if state.may_spill), key=lambda state: state.size_bytes)
    while large and sum(state.size_bytes for state in fit_states) > scratch.limit_bytes:
        large.pop().spill()


def _gather_chunks(compiled: CompiledFit, pieces: Sequence[FitPiece]) -> Iterator[tuple[list[Chunk], list[NewRows]]]:
    """Batch chunks to be observed together. With them, for each different value of `FitJob.alike`: bool [rows], which
    are not observed in earlier tables; None: all."""
    chunks, new_rows = list[Chunk](), list[list[NewRows]]()
    rows = size_bytes = 0
    for piece in pieces:
        of_group, position = list[NewRows](), -1
        for chunk in read_rows(piece.fragment, compiled.read):
            if chunk.position != position:
                of_group, position = _new_rows(compiled, piece, chunk.position), chunk.position
            height = chunk.frame.height
            new = [each if each is None else each[chunk.start : chunk.start + height] for each in of_group]
            if not any(each is None or each.any() for each in new):
                continue
            chunks.append(chunk)
            new_rows.append(new)
            rows += height
            size_bytes += int(chunk.frame.estimated_size())
            if rows >= OBSERVE_ROWS or size_bytes >= OBSERVE_BYTES:
                yield chunks, _joined(chunks, new_rows)
                chunks, new_rows, rows, size_bytes = [], [], 0, 0
    if chunks:
        yield chunks, _joined(chunks, new_rows)


def _new_rows(compiled: CompiledFit, piece: FitPiece, position: int) -> list[NewRows]:
    """For each different value of `FitJob.alike`: bool [read rows of a row group], which no such table reads before."""
    alike, row_group = compiled.alike[0], piece.fragment.row_groups[position]
    earlier = {
        index: fragment.alone(fragment.row_groups.index(row_group))
        for index, fragment in piece.earlier
        if row_group in fragment.row_groups
    }
    if not any(earlier.keys() & each for each in alike):
        return [None] * len(alike)
    fragment = piece.fragment.alone(position)
    own = kept_mask(fragment, compiled.read)
    read: dict[int, Bools] = {}
    for index in earlier.keys() & frozenset[int]().union(*alike):
        read[index] = kept_mask(earlier[index], compiled.tables[index])[own]
    earlier_masks = [[read[index] for index in sorted(read.keys() & each)] for each in alike]
    return [~_union(masks) if masks else None for masks in earlier_masks]


def _joined(chunks: Sequence[Chunk], new_rows: Sequence[Sequence[NewRows]]) -> list[NewRows]:
    """The masks of chunks that follow each other."""
    joined: list[NewRows] = []
    for masks in zip(*new_rows, strict=True):
        parts = [
            np.ones(chunk.frame.height, np.bool_) if mask is None else mask
            for chunk, mask in zip(chunks, masks, strict=True)
        ]
        joined.append(None if all(mask is None for mask in masks) else np.concatenate(parts))
    return joined


def _union(masks: Iterable[NewRows]) -> Bools:
    union: Bools = np.logical_or.reduce([mask for mask in masks if mask is not None])
    return union


def _compute_columns(compiled: CompiledFit, chunks: Sequence[Chunk]) -> pl.DataFrame:
    """Compute the columns of every fit; an error names file, row group and row."""
    frames = [chunk.frame for chunk in chunks]
    try:
        return compiled.features.apply(pl.concat(frames, rechunk=True) if len(frames) > 1 else frames[0])
    except DataError as error:
        raise with_row_position(error, chunks, compiled.read) from error
