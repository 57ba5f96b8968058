"""Describe the histories of a file of events, in its own footer: which rows are whose, and from when stripes are.

Pure; runs in the tasks of `optimize`, which write such files, and where histories are read. The rows of a file are
ordered by (hash of the key, key, sort columns), nulls first, so a key's rows lie together and rows without a key come
first. Pages hold `STRIPE_ROWS` rows, and so do stripes, counted from the file's first row. The note is JSON,

    {"version": 1, "key": "user_id", "sort_by": ["ts", "event_no"], "stripe_rows": 512, "rows": 9, "null_rows": 2,
     "index": …}

its index an Arrow IPC stream (buffers compressed by zstd) in base64: one row of three lists, `keys` in the order of
rows, `counts` of their rows and `times`, the value of the first sort column in the first row of each stripe. Measured
on integer keys: 4.5 bytes a key and 3.7 a stripe before base64; counts take 1.0 byte where starts take 1.4, and
differences of times more bytes than times.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Self, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError
from feedline.warehouse.parquet.repeated_rows import first_rows_of_table
from feedline.warehouse.parquet.schemas import is_bytes, is_text

STRIPE_ROWS = 512
NOTE_KEY = b"feedline.history"
NULL_TIME = int(np.iinfo(np.int64).min)
_VERSION = 1
_REMEDY = "Write the table again with feedline optimize --history, from its source"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOrder:
    """What orders the rows of a table of histories: its key, then the time and columns that break ties."""

    key: str
    sort_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryNote:
    """The note of one file.

    `null_rows`: rows without a key, which come first. `keys` [k]: in the order of rows, in their column's type.
    `counts`: int64 [k], the rows of each. `times`: int64 [ceil(rows / stripe_rows)], `NULL_TIME` for a null.
    """

    order: HistoryOrder
    stripe_rows: int
    rows: int
    null_rows: int
    keys: pa.Array
    counts: NDArray[np.int64]
    times: NDArray[np.int64]

    def to_json(self) -> bytes:
        columns = {"keys": self.keys, "counts": pa.array(self.counts), "times": pa.array(self.times)}
        lists = {name: pa.LargeListArray.from_arrays([0, len(values)], values) for name, values in columns.items()}
        index, sink = pa.table(lists), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, index.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_table(index)
        document = {
            "version": _VERSION,
            "key": self.order.key,
            "sort_by": list(self.order.sort_by),
            "stripe_rows": self.stripe_rows,
            "rows": self.rows,
            "null_rows": self.null_rows,
            "index": base64.b64encode(sink.getvalue()).decode(),
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, content: bytes, file: str) -> Self:
        """Parse what `to_json` wrote. Raises CorruptFileError, naming file and rule, for anything else."""
        try:
            document = json.loads(content)
        except ValueError:
            raise _malformed(file, "must be JSON", "other bytes") from None
        if not isinstance(document, dict) or document.get("version") != _VERSION:
            version = document.get("version") if isinstance(document, dict) else None
            raise _malformed(file, f"must be of version {_VERSION}", f"version {version!r}")
        key, sort_by = document.get("key"), document.get("sort_by")
        if not isinstance(key, str) or not _is_names(sort_by):
            raise _malformed(file, "must name a key and columns to sort by", f"{key!r} and {sort_by!r}")
        sizes = [document.get(name) for name in ("stripe_rows", "rows", "null_rows")]
        stripe_rows, rows, null_rows = (size if type(size) is int else -1 for size in sizes)
        if stripe_rows < 1 or not 0 <= null_rows <= rows:
            raise _malformed(file, "must have stripe_rows >= 1 and 0 <= null_rows <= rows", f"{sizes}")
        keys, counts, times = _index_of(document.get("index"), file)
        note = cls(
            order=HistoryOrder(key=key, sort_by=tuple(sort_by)),
            stripe_rows=stripe_rows,
            rows=rows,
            null_rows=null_rows,
            keys=keys,
            counts=counts,
            times=times,
        )
        note._check(file)
        return note

    def _check(self, file: str) -> None:
        """Raise CorruptFileError unless the index adds up to the file's rows."""
        if len(self.keys) != len(self.counts):
            raise _malformed(file, "must have a count per key", f"{len(self.counts)} counts, {len(self.keys)} keys")
        outside = self.counts[(self.counts < 1) | (self.counts > self.rows)]
        if len(outside):
            raise _malformed(file, f"must count 1 to {self.rows} rows per key", str(outside[0]))
        if (total := self.null_rows + int(self.counts.sum())) != self.rows:
            raise _malformed(file, f"must count the file's {self.rows} rows", str(total))
        if len(self.times) != (stripes := -(-self.rows // self.stripe_rows)):
            raise _malformed(file, f"must have the times of {stripes} stripes", str(len(self.times)))


class NoteBuilder:
    """Collects the note of one file while its rows pass by."""

    def __init__(self, order: HistoryOrder, key_type: pa.DataType) -> None:
        self.order = order
        self.rows = 0
        self._keys: list[pa.ChunkedArray] = [pa.chunked_array([], key_type)]
        self._firsts: list[NDArray[np.int64]] = []
        self._times: list[pa.Array] = []

    def add(self, table: pa.Table) -> None:
        """Add the file's next rows, in its order."""
        firsts = np.flatnonzero(first_rows_of_table(table, [self.order.key]))
        self._keys.append(table[self.order.key].take(pa.array(firsts)))
        self._firsts.append(firsts + self.rows)
        # rows 700 to 1_399 of a file, stripes of 512 rows -> its stripe of row 1_024 begins in row 324 of the table
        stripes = pa.array(np.arange(-self.rows % STRIPE_ROWS, table.num_rows, STRIPE_ROWS))
        self._times.append(_physical(table[self.order.sort_by[0]].take(stripes)))
        self.rows += table.num_rows

    def continued_rows(self, table: pa.Table) -> int:
        """How many of the rows to come next have the key of the last row."""
        last = self._keys[-1]
        keys = pa.chunked_array([*last.slice(max(len(last) - 1, 0)).chunks, *table[self.order.key].chunks], last.type)
        others = np.flatnonzero(first_rows_of_table(pa.table({"key": keys}), ["key"])[1:])
        return int(others[0]) if len(others) else table.num_rows

    def note(self) -> HistoryNote:
        """The note of the rows that were added."""
        keys = pa.chunked_array([chunk for part in self._keys for chunk in part.chunks], self._keys[0].type)
        firsts = np.concatenate([np.empty(0, np.int64), *self._firsts])
        heads = np.flatnonzero(first_rows_of_table(pa.table({"key": keys}), ["key"]))  # a key may go on in later tables
        keys, counts = keys.take(pa.array(heads)), np.diff(firsts[heads], append=self.rows)
        nulls = int(keys.null_count)  # one group at most, the first
        times = pa.chunked_array(self._times, pa.int64())
        return HistoryNote(
            order=self.order,
            stripe_rows=STRIPE_ROWS,
            rows=self.rows,
            null_rows=int(counts[:nulls].sum()),
            keys=pa.concat_arrays(keys.slice(nulls).chunks) if len(keys) > nulls else pa.array([], keys.type),
            counts=counts[nulls:],
            times=times.fill_null(NULL_TIME).to_numpy(),
        )


def is_key_type(kind: pa.DataType) -> bool:
    """Whether a column of this type may be the key of histories."""
    tests = (pat.is_integer, is_text, is_bytes, pat.is_date, pat.is_timestamp)
    return any(test(kind) for test in tests)


def is_time_type(kind: pa.DataType) -> bool:
    """Whether a column of this type may be the time of histories: one whose values fit int64."""
    return bool(pat.is_integer(kind) and not pat.is_uint64(kind)) or pat.is_date(kind) or pat.is_timestamp(kind)


def _physical(times: pa.ChunkedArray) -> pa.Array:
    """int64: the values as their type stores them, in its own unit."""
    days = pat.is_date32(times.type)
    values = (times.cast(pa.int32()) if days else times).cast(pa.int64())
    return values.combine_chunks()


def _is_names(names: Any) -> TypeGuard[list[str]]:
    return isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)


def _index_of(index: Any, file: str) -> tuple[pa.Array, NDArray[np.int64], NDArray[np.int64]]:
    """The keys, counts and times of a note's index."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(base64.b64decode(index, validate=True))) as stream:
            table = stream.read_all()
        table.validate(full=True)
        lists = table.select(["keys", "counts", "times"]).combine_chunks()
    except (ValueError, TypeError, KeyError, OSError, pa.ArrowException) as error:
        raise _malformed(file, "must have an index of keys, counts and times", f"{error}".split("\n")[0]) from error
    if lists.num_rows != 1 or not all(pat.is_large_list(kind) for kind in lists.schema.types):
        raise _malformed(file, "must have an index of one row of lists", f"{lists.num_rows} of {lists.schema.types}")
    keys, counts, times = (column.chunk(0).flatten() for column in lists.columns)
    if keys.null_count or not is_key_type(keys.type):
        raise _malformed(file, "must have keys without nulls", f"{keys.null_count} nulls of type {keys.type}")
    if any(one.type != pa.int64() or one.null_count for one in (counts, times)):
        raise _malformed(file, "must have counts and times of int64 without nulls", f"{counts.type}, {times.type}")
    return keys, counts.to_numpy(), times.to_numpy()


def _malformed(file: str, rule: str, got: str) -> CorruptFileError:
    return CorruptFileError(f"the note of histories in {file} {rule}: got {got}. {_REMEDY}")
