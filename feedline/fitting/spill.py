"""Keep statistics that outgrow memory on disk.

Runs in: workers, in the tasks that merge states, and the process that finishes a fit. The first bits of a hash of a
row's keys (`Learner.keys`) assign it to one of `PARTS` parts. A state that grows beyond the limit is written as one
file of a scratch folder, a table per part (`content_store`), and only the file's name travels on. At the end each part
is merged from all files, one part at a time.

    merge_all(states) -> a state ──► … ──► merge_all(states) -> a state ──► parts_of(state) ──► Learner.finish

The scratch folder is a path or URI that all workers reach. Its creator removes it with `discard`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs

from feedline.dataclass import dataclass
from feedline.hashing import GOLDEN, cross_terms, digest, hash_words
from feedline.transforms.learning.learner import Learner, Parts
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, delete_folder, locate
from feedline.warehouse.storage.retry import with_retries

_PART_BITS = 6
PARTS = 1 << _PART_BITS  # 50 M ids and their counts are 800 MB: 12.5 MB per part
_COMPRESSION = "lz4"  # it shrinks counts; ids hardly compress, and zstd is slower than the disk
_MERGED_BYTES = 4 * 2**20  # states smaller than this are collected before they are merged
_NULL_WORD = np.uint64(0x6E756C6C)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """The folder for spilled states, and the size that makes them spill. Merging takes about 3 x `limit_bytes`."""

    folder: str
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpilledState:
    """A state on disk: files of a scratch folder, each cut into the same parts. `rows`: of all files together."""

    files: tuple[str, ...]
    rows: int


State: TypeAlias = pa.Table | SpilledState


def merge_all(learner: Learner, states: Iterable[State], scratch: Scratch) -> State:
    """Merge states into one, on disk if it is larger than the limit (and has keys).

    `states`, at least one, may be a generator: each is fetched when there is room for it. Raises what the learner
    raises.
    """
    buffer = _MergeBuffer(learner)
    spilled: list[SpilledState] = []
    for state in states:
        if isinstance(state, SpilledState):
            spilled.append(state)
            continue
        buffer.add(pl.DataFrame(state))
        if learner.keys and buffer.size_bytes > scratch.limit_bytes:
            buffer.merge()
            # a state that has not shrunk to half would be merged again and again
            if buffer.size_bytes > scratch.limit_bytes // 2:
                spilled.append(spill(learner, buffer.take(), scratch))
    if not spilled:
        whole: pa.Table = buffer.take().to_arrow()
        return whole
    if buffer.size_bytes:
        spilled.append(spill(learner, buffer.take(), scratch))
    return SpilledState(
        files=tuple(name for one in spilled for name in one.files), rows=sum(one.rows for one in spilled)
    )


def spill(learner: Learner, state: pl.DataFrame, scratch: Scratch) -> SpilledState:
    """Write a merged state of any size to a file of the scratch folder."""
    name = _new_name()
    parts = (part.to_arrow() for part in cut(state, learner.keys))
    content_store.create(scratch.folder, name, parts, compression=_COMPRESSION)
    return SpilledState(files=(name,), rows=state.height)


def merge_part(learner: Learner, state: SpilledState, part: int, scratch: Scratch) -> str:
    """Merge one of the `PARTS` parts of a spilled state into its own file; returns its name, for `parts_of`."""
    return _write_part(learner, _find_files(state, scratch), part, scratch)


def state_parts(learner: Learner, state: State, scratch: Scratch, merged_parts: Sequence[str] = ()) -> Parts:
    """Return a state as `Learner.finish` takes it: one frame, or `PARTS` frames read one by one at each iteration.

    merged_parts: the names that `merge_part` returned, in order of parts (default: parts are merged on first use, and
    kept on disk).
    """
    if isinstance(state, SpilledState):
        return _SpilledParts(learner, state, scratch, list(merged_parts))
    return [pl.DataFrame(state)]


def discard(scratch: Scratch) -> None:
    """Remove the scratch folder and its content, if it exists."""
    location = locate(absolute(scratch.folder))

    def remove() -> None:
        if location.filesystem.get_file_info(location.path).type != pafs.FileType.NotFound:
            delete_folder(location.filesystem, location.path)

    with_retries(remove, location.filesystem, location.uri, verb="removed")


def cut(state: pl.DataFrame, keys: Sequence[str]) -> list[pl.DataFrame]:
    """Split a state into its parts: `PARTS` frames in order."""
    part = (_hashes(state, keys) >> np.uint64(64 - _PART_BITS)).astype(np.uint8)
    # rows of the parts [1, 0, 1] -> ends [1, 3, 3, ...]: row 1, then rows 0 and 2
    ends = np.cumsum(np.bincount(part, minlength=PARTS)).tolist()
    ordered = state[np.argsort(part, kind="stable")]
    return [ordered[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _hashes(state: pl.DataFrame, keys: Sequence[str]) -> npt.NDArray[np.uint64]:
    total = np.zeros(state.height, dtype=np.uint64)
    for key in keys:
        np.multiply(total, np.uint64(GOLDEN), out=total)
        np.add(total, cross_terms(_words(state[key])), out=total)
    return hash_words(total, 0)


def _words(series: pl.Series) -> npt.NDArray[np.uint64]:
    """64 bits per value, equal for equal values of any width."""
    series = series.rechunk()
    if series.dtype in (pl.String, pl.Binary):
        words = digest(series)
    elif series.dtype.is_float():
        floats = series.cast(pl.Float64).fill_null(0).to_numpy() + 0.0  # -0 becomes 0
        words = np.where(np.isnan(floats), np.nan, floats).view(np.uint64)
    else:
        physical = series.to_physical()
        wide = physical if physical.dtype == pl.UInt64 else physical.cast(pl.Int64)
        words = wide.fill_null(0).to_numpy().view(np.uint64)
    return np.where(series.is_null().to_numpy(), _NULL_WORD, words) if series.null_count() else words


class _MergeBuffer:
    """A merged state, and others that are merged into it once they are as large together."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._states: list[pl.DataFrame] = []
        self._first_bytes = 0
        self.size_bytes = 0

    def add(self, state: pl.DataFrame) -> None:
        self._states.append(state)
        self.size_bytes += int(state.estimated_size())
        if len(self._states) > 1 and self.size_bytes > 2 * max(self._first_bytes, _MERGED_BYTES):
            self.merge()

    def merge(self) -> None:
        if self._states:
            self._states = [self._learner.merge(self._states)]
            self._first_bytes = self.size_bytes = int(self._states[0].estimated_size())

    def take(self) -> pl.DataFrame:
        whole = self._learner.merge(self._states)
        self._states, self._first_bytes, self.size_bytes = [], 0, 0
        return whole


@dataclass(slots=True)
class _SpilledParts:
    """The parts of a spilled state; each is merged once and then read. `names`: files of the parts merged so far."""

    learner: Learner
    state: SpilledState
    scratch: Scratch
    names: list[str]

    def __iter__(self) -> Iterator[pl.DataFrame]:
        files = _find_files(self.state, self.scratch)
        for part in range(PARTS):
            if len(files) == 1:  # it is merged already
                yield pl.DataFrame(files[0].table(part))
                continue
            if part == len(self.names):
                self.names.append(_write_part(self.learner, files, part, self.scratch))
            yield pl.DataFrame(content_store.find(self.scratch.folder, self.names[part]).table(0))


def _find_files(state: SpilledState, scratch: Scratch) -> list[content_store.StoredFile]:
    return [content_store.find(scratch.folder, name) for name in state.files]


def _write_part(learner: Learner, files: Sequence[content_store.StoredFile], part: int, scratch: Scratch) -> str:
    buffer = _MergeBuffer(learner)
    for file in files:
        buffer.add(pl.DataFrame(file.table(part)))
    name = _new_name()
    content_store.create(scratch.folder, name, [buffer.take().to_arrow()], compression=_COMPRESSION)
    return name


def _new_name() -> str:
    return f"state-{secrets.token_hex(12)}"
