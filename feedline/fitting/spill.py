"""Keep statistics that outgrow memory on disk.

Runs on the workers, in the tasks that merge states, and where a fit is finished. A state's rows are named by keys
(`Learner.keys`), so that it can be cut: a row belongs to one of `PARTS` parts by the first bits of a hash of its keys,
the same on every machine (`feedline.hashing`). A state that grows beyond the limit is written as one file of a scratch
folder, a table per part (`warehouse.store`, which proves what it reads), and only the file's name travels on. At the
end each part is merged from all files, one part at a time. Nothing is lost or rounded: what comes out is the state that
memory would have held, in `PARTS` pieces without a key in common.

    merge_all(states) -> a state ──► … ──► merge_all(states) -> a state ──► parts_of(state) ──► Learner.finish

The scratch folder is a path or URI that all workers reach; whoever made it removes it with `discard`, also what tasks
left there that died.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs

from feedline.hashing import GOLDEN, cross_terms, digest, hash_words
from feedline.transforms.learning.learner import Learner, Parts
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, locate
from feedline.warehouse.storage.retry import with_retries

_PART_BITS = 6
PARTS = 1 << _PART_BITS  # 50 M ids and their counts are 800 MB: 12.5 MB per part
_COMPRESSION = "lz4"  # of counts, mostly: ids hardly shrink, and the disk is faster than zstd
_MERGED_BYTES = 4 * 2**20  # states smaller than this are collected before they are merged
_NULL_WORD = np.uint64(0x6E756C6C)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """Where states are spilled to, and above how many bytes. Merging takes about three times `limit_bytes`."""

    folder: str
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spilled:
    """A state on disk: files of a scratch folder, each cut into the same parts. `rows`: in all files together."""

    files: tuple[str, ...]
    rows: int


State: TypeAlias = pa.Table | Spilled


def merge_all(learner: Learner, states: Iterable[State], scratch: Scratch) -> State:
    """The state after the rows of all, on disk where it is larger than the limit (and has keys).

    `states`, at least one, may be a generator: none is asked for before there is room for it. Raises what the learner
    raises.
    """
    growing = _MergeBuffer(learner)
    spilled: list[Spilled] = []
    for state in states:
        if isinstance(state, Spilled):
            spilled.append(state)
            continue
        growing.add(_frame(state))
        if learner.keys and growing.size_bytes > scratch.limit_bytes:
            growing.merge()
            # what has not shrunk to half would be merged again and again
            if growing.size_bytes > scratch.limit_bytes // 2:
                spilled.append(spill(learner, growing.take(), scratch))
    if not spilled:
        whole: pa.Table = growing.take().to_arrow()
        return whole
    if growing.size_bytes:
        spilled.append(spill(learner, growing.take(), scratch))
    return Spilled(files=tuple(name for one in spilled for name in one.files), rows=sum(one.rows for one in spilled))


def spill(learner: Learner, state: pl.DataFrame, scratch: Scratch) -> Spilled:
    """A merged state, whatever its size, as a file of the scratch folder."""
    name = _new_name()
    parts = (part.to_arrow() for part in cut(state, learner.keys))
    content_store.create(scratch.folder, name, parts, compression=_COMPRESSION)
    return Spilled(files=(name,), rows=state.height)


def merge_part(learner: Learner, state: Spilled, part: int, scratch: Scratch) -> str:
    """Merges one of the `PARTS` parts of a spilled state into a file of its own: its name, for `parts_of`."""
    return _write_part(learner, _found(state, scratch), part, scratch)


def parts_of(learner: Learner, state: State, scratch: Scratch, merged_parts: Sequence[str] = ()) -> Parts:
    """A state as what `Learner.finish` takes: one frame, or `PARTS` frames that are read one by one, as often as asked.

    merged_parts: what `merge_part` returned for each part, in order; without, parts are merged when they are first
    asked for, and kept on disk.
    """
    if isinstance(state, Spilled):
        return _SpilledParts(learner, state, scratch, list(merged_parts))
    return [_frame(state)]


def discard(scratch: Scratch) -> None:
    """Removes the scratch folder with all that is in it; no error where there is none."""
    location = locate(absolute(scratch.folder))

    def remove() -> None:
        if location.filesystem.get_file_info(location.path).type != pafs.FileType.NotFound:
            location.filesystem.delete_dir(location.path)

    with_retries(remove, location.filesystem, location.uri, verb="removed")


def cut(state: pl.DataFrame, keys: Sequence[str]) -> list[pl.DataFrame]:
    """The rows of each part, `PARTS` frames in order."""
    place = (_hashes(state, keys) >> np.uint64(64 - _PART_BITS)).astype(np.uint8)
    ends = np.cumsum(np.bincount(place, minlength=PARTS)).tolist()
    ordered = state[np.argsort(place, kind="stable")]
    return [ordered[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _hashes(state: pl.DataFrame, keys: Sequence[str]) -> npt.NDArray[np.uint64]:
    total = np.zeros(state.height, dtype=np.uint64)
    for key in keys:
        np.multiply(total, np.uint64(GOLDEN), out=total)
        np.add(total, cross_terms(_words(state[key])), out=total)
    return hash_words(total, 0)


def _words(series: pl.Series) -> npt.NDArray[np.uint64]:
    """64 bits that are equal for equal values, whatever the width of their type."""
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
    """A merged state and those that wait to be merged into it, which is done when they are as large as it is."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._held: list[pl.DataFrame] = []
        self._first_bytes = 0
        self.size_bytes = 0

    def add(self, state: pl.DataFrame) -> None:
        self._held.append(state)
        self.size_bytes += _size(state)
        if len(self._held) > 1 and self.size_bytes > 2 * max(self._first_bytes, _MERGED_BYTES):
            self.merge()

    def merge(self) -> None:
        if self._held:
            self._held = [self._learner.merge(self._held)]
            self._first_bytes = self.size_bytes = _size(self._held[0])

    def take(self) -> pl.DataFrame:
        """The state of all; none is left."""
        whole = self._learner.merge(self._held)
        self._held, self._first_bytes, self.size_bytes = [], 0, 0
        return whole


@dataclass(slots=True)
class _SpilledParts:
    """Merged parts of files; each is merged once and then read. `names`: of those that are merged."""

    learner: Learner
    state: Spilled
    scratch: Scratch
    names: list[str]

    def __iter__(self) -> Iterator[pl.DataFrame]:
        files = _found(self.state, self.scratch)
        for part in range(PARTS):
            if len(files) == 1:  # written when it was merged
                yield _frame(files[0].table(part))
                continue
            if part == len(self.names):
                self.names.append(_write_part(self.learner, files, part, self.scratch))
            yield _frame(content_store.find(self.scratch.folder, self.names[part]).table(0))


def _found(state: Spilled, scratch: Scratch) -> list[content_store.StoredFile]:
    return [content_store.find(scratch.folder, name) for name in state.files]


def _write_part(learner: Learner, files: Sequence[content_store.StoredFile], part: int, scratch: Scratch) -> str:
    growing = _MergeBuffer(learner)
    for file in files:
        growing.add(_frame(file.table(part)))
    name = _new_name()
    content_store.create(scratch.folder, name, [growing.take().to_arrow()], compression=_COMPRESSION)
    return name


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _size(frame: pl.DataFrame) -> int:
    return int(frame.estimated_size())


def _new_name() -> str:
    return f"state-{secrets.token_hex(12)}"
