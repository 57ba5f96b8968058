"""Look up which rows of a file of events belong to a key, by the note of histories in the file's footer.

Pure; runs in every process that reads histories. Keys are ordered by their hash (`parquet.key_hashes`), so a key is
found by binary search, and its file by the first and last hashes of files (`HashRanges`), of which only the ends may be
equal. Different keys of one hash are told apart by their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, TableArgumentError, TableError
from feedline.hashing import Words
from feedline.warehouse.parquet.history_note import NOTE_KEY, HistoryNote
from feedline.warehouse.parquet.key_hashes import key_hashes, series_of
from feedline.warehouse.parquet.schemas import is_bytes, is_text
from feedline.warehouse.snapshot.column_facts import contiguous

Int64s = NDArray[np.int64]
Keys: TypeAlias = pa.Array | pa.ChunkedArray | pl.Series

# Types whose values are the same whatever their widths.
_ALIKE = (
    pat.is_integer,
    lambda kind: is_text(kind) or pat.is_string_view(kind),
    lambda kind: is_bytes(kind) or pat.is_binary_view(kind),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventIndex:
    """The histories of one file: whose events lie in which of its rows, and from when its stripes are.

    `keys` [k]: distinct, in the order of rows, in their column's type; `hashes`: uint64 [k], ascending, equal only for
    different keys. `starts`, `stops`: int64 [k], rows of the file. `times`: int64 [ceil(rows / stripe_rows)], the first
    column of `sort_by` in the first row of each stripe, in its type's unit (`NULL_TIME` for a null).
    """

    key: str
    sort_by: tuple[str, ...]
    stripe_rows: int
    rows: int
    keys: pa.Array
    hashes: Words
    starts: Int64s
    stops: Int64s
    times: Int64s

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        arrays = (self.hashes, self.starts, self.stops, self.times)
        return int(self.keys.nbytes) + sum(array.nbytes for array in arrays)

    def runs(self, keys: Keys) -> tuple[Int64s, Int64s]:
        """int64 [n], int64 [n]: the first row of each key's events in the file and the one after its last; 0 and 0 if
        it has none, or the key is null.

        Keys may be integers or offsets of another width than the file's. Raises TableArgumentError for another type.
        """
        asked = self._as_stored(keys)
        hashes = hashes_of(asked)
        found = np.full(len(asked), -1, np.int64)
        left = np.flatnonzero(asked.is_valid())
        places = np.searchsorted(self.hashes, hashes[left])
        while len(left):  # again only for keys of equal hashes
            within = places < len(self.hashes)
            left, places = left[within], places[within]
            within = self.hashes[places] == hashes[left]
            left, places = left[within], places[within]
            equal = np.asarray(pc.equal(self.keys.take(pa.array(places)), asked.take(pa.array(left))))
            found[left[equal]] = places[equal]
            left, places = left[~equal], places[~equal] + 1
        has_events = found >= 0
        starts, stops = np.zeros((2, len(asked)), np.int64)
        starts[has_events], stops[has_events] = self.starts[found[has_events]], self.stops[found[has_events]]
        return starts, stops

    def _as_stored(self, keys: Keys) -> pa.Array:
        """The keys in the type of the file's; null where they do not fit."""
        array = keys.to_arrow() if isinstance(keys, pl.Series) else keys
        array = contiguous(array) if isinstance(array, pa.ChunkedArray) else array
        kind, stored = array.type, self.keys.type
        if kind == stored:
            return array
        if not pat.is_null(kind) and not any(test(kind) and test(stored) for test in _ALIKE):
            raise TableArgumentError(
                f"keys have another type than {self.key!r} of the events: got {kind}, expected {stored}. Cast one of "
                "the two"
            )
        return series_of(array).cast(series_of(self.keys[:0]).dtype, strict=False).to_arrow().cast(stored)


def read_event_index(metadata: Mapping[bytes, bytes] | None, uri: str) -> EventIndex | None:
    """The index in a footer's key-value metadata; None if the file has none.

    Raises CorruptFileError, naming the file, for a note that is damaged or of another version.
    """
    content = (metadata or {}).get(NOTE_KEY)
    if content is None:
        return None
    note = HistoryNote.from_json(content, uri)
    hashes = hashes_of(note.keys)
    _refuse_disorder(note.keys, hashes, uri)
    stops = note.null_rows + np.cumsum(note.counts)
    return EventIndex(
        key=note.order.key,
        sort_by=note.order.sort_by,
        stripe_rows=note.stripe_rows,
        rows=note.rows,
        keys=note.keys,
        hashes=hashes,
        starts=stops - note.counts,
        stops=stops,
        times=note.times,
    )


def hashes_of(keys: Keys) -> Words:
    """uint64 [n]: the hash of each key, 0 of a null."""
    return key_hashes(pa.table({"key": keys.to_arrow() if isinstance(keys, pl.Series) else keys}), ["key"])


@dataclass(frozen=True, slots=True, kw_only=True)
class HashRanges:
    """Which file of a table may hold a key: `files`: int64 [m], those with keys, in the order of their hashes; `lows`,
    `highs`: uint64 [m], the hashes of the first and last key of each."""

    files: Int64s
    lows: Words
    highs: Words

    @classmethod
    def of(cls, indexes: Sequence[EventIndex], uri: str) -> Self:
        """The ranges of a table's files. Raises TableError, naming the table, where they overlap."""
        lows, highs = (
            np.array([index.hashes[end] if len(index.hashes) else 0 for index in indexes], np.uint64) for end in (0, -1)
        )
        order = np.lexsort((highs, lows))
        files = order[[len(indexes[file].hashes) > 0 for file in order]].astype(np.int64)
        lows, highs = lows[files], highs[files]
        if (lows[1:] < highs[:-1]).any():
            raise TableError(
                f"files of {uri} hold overlapping ranges of keys: expected those of one table of histories. Write the "
                "table again with feedline optimize --history, from its source"
            )
        return cls(files=files, lows=lows, highs=highs)

    def candidates(self, hashes: Words) -> tuple[Int64s, Int64s]:
        """int64 [n], int64 [n]: where in `files` the files that may hold each key begin and end: none or one, more
        only if keys of one hash lie in several."""
        # files of hashes 3 to 5, 5 to 9, 12 to 20: of hash 4 [0, 1), of 5 [0, 2), of 10 [2, 2)
        starts, stops = np.searchsorted(self.highs, hashes), np.searchsorted(self.lows, hashes, side="right")
        return starts, np.maximum(starts, stops)


def _refuse_disorder(keys: pa.Array, hashes: Words, uri: str) -> None:
    """Raise CorruptFileError unless keys are distinct and in the order of their hashes."""
    ties = np.flatnonzero(hashes[1:] == hashes[:-1])
    twice = pc.any(pc.equal(keys.take(pa.array(ties)), keys.take(pa.array(ties + 1)))).as_py()
    if (hashes[1:] < hashes[:-1]).any() or twice:
        raise CorruptFileError(
            f"the note of histories in {uri} must have distinct keys in the order of their hashes: got others. Write "
            "the table again with feedline optimize --history, from its source"
        )
