"""What does a file's footer say: its digest, schema, row groups and column statistics.

Runs where a snapshot is taken (threads: the parsing holds the GIL, the reading does not) and in every process that
reads. The footer's bytes are read once; the digest (sha256 of footer and trailer) and the parsed metadata come from
the same bytes, so no race between two reads can pair a digest with another file's metadata.

Statistics are kept as lower and upper bounds of the logical value, and only where they can be trusted:

- a pair that is missing, out of order or NaN is unknown, as is every statistic of INT96, float16 and nested columns;
- strings and bytes may have been truncated by the writer, which pyarrow does not tell: bounds, not values;
- a null count below zero or above the rows is unknown (-1).
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyarrow.types as pat

from feedline.errors import CorruptFileError, TableError
from feedline.warehouse.faults import explained
from feedline.warehouse.schemas import decoded, leaves

_TRAILER_BYTES = 8  # footer length (4, little-endian) and magic (4)
_GUESS_BYTES = 64 * 1024  # most footers fit: one request instead of two on an object store
_KEPT_FOOTERS = 32  # parsed footers a process keeps; 400 columns x 8 row groups are 3 MB each


@dataclass(slots=True)
class ColumnFacts:
    """One top-level column of one file, a value per row group: compressed bytes, bounds (None: unknown), nulls (-1)."""

    bytes: list[int]
    low: list[Any]
    high: list[Any]
    nulls: list[int]


@dataclass(slots=True)
class FileFacts:
    """A file's footer, boiled down to what a snapshot keeps; `columns` aligned with `schema`."""

    digest: bytes
    footer_bytes: int
    schema: pa.Schema
    rows: list[int]
    columns: list[ColumnFacts]


def file_facts(filesystem: pafs.FileSystem, path: str, size: int, name: str) -> FileFacts:
    """Read one file's footer.

    Raises CorruptFileError for a file that is not Parquet, TableError for an encrypted one, both with `name` in them.
    """
    with explained(name):
        with filesystem.open_input_file(path) as source:
            tail = _tail(source, size, name)
        with opened(pa.BufferReader(tail)) as parquet:
            return _facts(parquet, tail, name)


def footer_digest(tail: bytes) -> bytes:
    """The digest that tells one footer from another: sha256 of footer and trailer."""
    return hashlib.sha256(tail).digest()


def opened(source: Any, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """A Parquet file with the settings that every reader of Feedline must share.

    INT96 timestamps become microseconds, as Spark writes them: as nanoseconds they wrap around silently outside
    1677-2262. Extension types are read as their storage. Pages that carry a checksum are verified.
    """
    return pq.ParquetFile(
        source,
        metadata=metadata,
        pre_buffer=True,
        coerce_int96_timestamp_unit="us",
        page_checksum_verification=True,
        arrow_extensions_enabled=False,
    )


class _ParsedFooters:
    """The footers parsed last, by digest; shared by the reading threads of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, pq.FileMetaData] = OrderedDict()

    def get(self, digest: bytes, tail: bytes) -> pq.FileMetaData:
        with self._lock:
            metadata = self._kept.get(digest)
            if metadata is not None:
                self._kept.move_to_end(digest)
                return metadata
        metadata = pq.read_metadata(pa.BufferReader(tail))
        with self._lock:
            self._kept[digest] = metadata
            while len(self._kept) > _KEPT_FOOTERS:
                self._kept.popitem(last=False)
        return metadata


parsed_footers = _ParsedFooters()


def column_leaves(schema: pa.Schema, columns: int, name: str) -> list[range]:
    """Which of a file's Parquet columns hold each field of its Arrow schema; exact where names contain dots."""
    places: list[range] = []
    start = 0
    for field in schema:
        stop = start + leaves(field.type)
        places.append(range(start, stop))
        start = stop
    if start != columns:
        raise TableError(f"{name} has {columns} Parquet columns: expected the {start} that its Arrow schema spells out")
    return places


def _tail(source: pa.NativeFile, size: int, name: str) -> bytes:
    if size < _TRAILER_BYTES + 4:
        raise CorruptFileError(f"{name} is not Parquet: got {size} bytes, expected at least 12. Restore or delete it")
    guess = min(size, _GUESS_BYTES)
    tail: bytes = source.read_at(guess, size - guess)
    magic = tail[-4:]
    if magic == b"PARE":
        raise TableError(f"{name} is encrypted: expected a plain Parquet file. Write it without encryption")
    if len(tail) != guess or magic != b"PAR1":
        raise CorruptFileError(
            f"{name} is not Parquet: got {magic!r} as its last bytes, expected b'PAR1'. Restore or delete it"
        )
    wanted = int.from_bytes(tail[-8:-4], "little") + _TRAILER_BYTES
    if wanted > size - 4:
        raise CorruptFileError(
            f"{name} has a corrupt footer: got a length of {wanted - _TRAILER_BYTES} bytes in a file of {size}. "
            "Restore or delete it"
        )
    return tail[-wanted:] if wanted <= guess else source.read_at(wanted, size - wanted)


def _facts(parquet: pq.ParquetFile, tail: bytes, name: str) -> FileFacts:
    metadata = parquet.metadata
    schema = parquet.schema_arrow
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = [group.num_rows for group in groups]
    if any(count < 0 for count in rows) or sum(rows) != metadata.num_rows:
        raise CorruptFileError(
            f"{name} has a corrupt footer: got {metadata.num_rows} rows in all and {rows} in its row groups, "
            "expected their sum. Restore or delete it"
        )
    places = column_leaves(schema, metadata.num_columns, name)
    return FileFacts(
        digest=footer_digest(tail),
        footer_bytes=len(tail),
        schema=schema,
        rows=rows,
        columns=[_column(groups, rows, place, field.type) for place, field in zip(places, schema, strict=True)],
    )


def _column(groups: list[Any], rows: list[int], place: range, kind: pa.DataType) -> ColumnFacts:
    facts = ColumnFacts([], [], [], [])
    kind = decoded(kind)
    flat = not pat.is_nested(kind)
    for group, count in zip(groups, rows, strict=True):
        chunks = [group.column(leaf) for leaf in place]
        facts.bytes.append(sum(chunk.total_compressed_size for chunk in chunks))
        low, high, nulls = _bounds(chunks[0].statistics, count, kind) if flat else (None, None, -1)
        if pat.is_null(kind):
            nulls = count
        facts.low.append(low)
        facts.high.append(high)
        facts.nulls.append(nulls)
    return facts


def _bounds(statistics: Any, rows: int, kind: pa.DataType) -> tuple[Any, Any, int]:
    if statistics is None:
        return None, None, -1
    nulls = statistics.null_count if statistics.has_null_count else -1
    if not 0 <= nulls <= rows:
        nulls = -1
    if not statistics.has_min_max or not has_bounds(kind) or statistics.physical_type == "INT96":
        return None, None, nulls
    try:
        low, high = _values(statistics, kind)
    except UnicodeDecodeError:  # a bound cut in the middle of a character
        return None, None, nulls
    trusted = low <= high and not (isinstance(low, float) and (math.isnan(low) or math.isnan(high)))
    return (low, high, nulls) if trusted else (None, None, nulls)


def has_bounds(kind: pa.DataType) -> bool:
    """Whether bounds are kept for columns of this type."""
    if pat.is_floating(kind):
        return not pat.is_float16(kind)
    tests = (
        pat.is_integer,
        pat.is_boolean,
        pat.is_date32,
        pat.is_timestamp,
        pat.is_decimal,
        pat.is_string,
        pat.is_large_string,
        pat.is_binary,
        pat.is_large_binary,
    )
    return any(test(kind) for test in tests)


def _values(statistics: Any, kind: pa.DataType) -> tuple[Any, Any]:
    """Bounds as plain Python values; dates and timestamps as the integers that they are stored as."""
    if pat.is_date32(kind) or pat.is_timestamp(kind):
        return statistics.min_raw, statistics.max_raw
    return statistics.min, statistics.max
