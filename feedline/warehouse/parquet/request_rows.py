"""Store a request as one row, and read its rows as impressions: the format, and both directions.

Runs in: the tasks of `optimize`, and in every process that reads tables. Pure, over Arrow arrays.

A request table has a row per request. Its *candidates* columns are lists of equal lengths, one element per impression;
every other column holds the request's side once. A request whose lists are empty or null has no impressions. The
footer's key-value metadata names them, under `feedline.requests`, the same in all files of a table:

    {"version": 1, "by": ["request_id"], "candidates": ["item_id", "clicked"]}

and under `feedline.requests.rows` the requests and impressions of each of the file's row groups: `[[80, 1302], [80,
1288]]`. See docs/decisions/0098.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.errors import DataError, TableError
from feedline.warehouse.parquet.repeated_rows import first_rows_of_table
from feedline.warehouse.parquet.schemas import is_list

REQUESTS_KEY, ROWS_KEY = b"feedline.requests", b"feedline.requests.rows"
_VERSION = 1
_SHOWN = 5  # columns in a message

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestColumns:
    """The columns that identify a request, and those that are lists of its candidates."""

    by: tuple[str, ...]
    candidates: tuple[str, ...]

    def to_json(self) -> bytes:
        document = {"version": _VERSION, "by": list(self.by), "candidates": list(self.candidates)}
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, content: bytes, place: str) -> Self:
        """Parse what `to_json` wrote. Raises TableError, naming the file or table, for anything else."""
        try:
            document = json.loads(content)
        except ValueError:
            document = None
        if not isinstance(document, dict) or document.get("version") != _VERSION:
            raise TableError(
                f"{REQUESTS_KEY.decode()!r} in the footer of {place} is malformed: got {content[:80]!r}, expected "
                f"version {_VERSION}. Read it with the version of Feedline that wrote it, or write the table again"
            )
        return cls(by=tuple(document["by"]), candidates=tuple(document["candidates"]))


def requests_of(metadata: Mapping[bytes, bytes] | None, place: str) -> RequestColumns | None:
    """The columns that a footer's metadata names; None where it is of no request table."""
    content = (metadata or {}).get(REQUESTS_KEY)
    return None if content is None else RequestColumns.from_json(content, place)


def impressions_of(
    metadata: Mapping[bytes, bytes] | None, columns: Collection[str], requests_stored: Sequence[int]
) -> Int64s | None:
    """int64 [row groups of a file]: the impressions of each, if its footer says so of these columns, and of row groups
    of so many requests: other tools keep metadata when they rewrite a file."""
    requests = requests_of(metadata, "the file")
    content = (metadata or {}).get(ROWS_KEY)
    if requests is None or content is None or not requests.candidates or not set(columns) <= set(requests.candidates):
        return None
    counts: list[Any] = json.loads(content)
    if [stored for stored, _ in counts] != list(requests_stored):
        return None
    return np.array([impressions for _, impressions in counts], np.int64)


def request_schema(schema: pa.Schema, candidates: Collection[str]) -> pa.Schema:
    """The columns of impressions as a request table has them: candidates as lists."""
    fields = [
        pa.field(field.name, pa.list_(pa.field("element", field.type, nullable=field.nullable)), nullable=False)
        if field.name in candidates
        else field
        for field in schema
    ]
    return pa.schema(fields, metadata=schema.metadata)


def impression_schema(schema: pa.Schema, candidates: Collection[str]) -> pa.Schema:
    """The columns of a request table as impressions have them: of candidates, the elements."""
    fields = [
        pa.field(field.name, field.type.value_type, nullable=field.type.value_field.nullable)
        if field.name in candidates
        else field
        for field in schema
    ]
    return pa.schema(fields, metadata=schema.metadata)


def differing_columns(table: pa.Table, by: Sequence[str]) -> tuple[str, ...]:
    """The columns whose values differ in rows of a request. The rows of a request lie together."""
    starts = first_rows_of_table(table, by)
    others = [name for name in table.schema.names if name not in by]
    return tuple(name for name in others if (first_rows_of_table(table, [name]) & ~starts).any())


def as_requests(table: pa.Table, requests: RequestColumns) -> pa.Table:
    """Make a row of the rows of each request, which lie together: [impressions] -> [requests].

    Raises DataError for a null in `by`, and, naming columns and request, for columns that differ within a request
    without being candidates.
    """
    # request_id [7, 7, 9], age [3, 3, 4], item_id [4, 5, 4] -> request_id [7, 9], age [3, 4], item_id [[4, 5], [4]]
    for name in requests.by:
        if table[name].null_count:
            raise DataError(
                f"column {name!r} of the request's key is null in some row: got a row of no request, expected an id in "
                "every row. Leave such rows out of the source, or fill the ids in"
            )
    starts = np.flatnonzero(first_rows_of_table(table, requests.by))
    kept = [name for name in table.schema.names if name not in requests.candidates]
    _refuse_differences(table.select(kept), requests)
    offsets = np.append(starts, table.num_rows).astype(np.int32)
    schema = request_schema(table.schema, requests.candidates)
    arrays = []
    for field in schema:
        column = table[field.name]
        if field.name in requests.candidates:
            arrays.append(pa.ListArray.from_arrays(pa.array(offsets), _contiguous(column), type=field.type))
        else:
            arrays.append(column.take(pa.array(starts)))
    return pa.Table.from_arrays(arrays, schema=schema)


def _refuse_differences(table: pa.Table, requests: RequestColumns) -> None:
    differing = differing_columns(table, requests.by)
    if not differing:
        return
    changes = first_rows_of_table(table, [differing[0]]) & ~first_rows_of_table(table, requests.by)
    row = int(np.flatnonzero(changes)[0])
    request = ", ".join(f"{name} {table[name][row].as_py()!r}" for name in requests.by)
    got = " and ".join(str(table[differing[0]][index].as_py())[:40] for index in (row - 1, row))
    named = ", ".join(map(repr, differing[:_SHOWN])) + (" and others" if len(differing) > _SHOWN else "")
    raise DataError(
        f"{'columns' if len(differing) > 1 else 'column'} {named} must be equal in all rows of a request: got {got} in "
        f"that of {request}, expected one value. Name all columns that differ as candidates: "
        f"{','.join([*requests.candidates, *differing])}"
    )


def list_lengths(lists: pa.Array) -> Int64s:
    """int64 [rows]: the elements of each list; a null has none."""
    lengths: Int64s = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def common_lengths(lists: Mapping[str, pa.Array], place: str, first_row: int = 0) -> Int64s:
    """int64 [requests]: the impressions of each, by its lists. Raises DataError, naming place and row, where their
    lengths differ. first_row: the first request's index in the row group."""
    (name, first), *others = lists.items()
    lengths = list_lengths(first)
    for other, array in others:
        found = list_lengths(array)
        if not np.array_equal(lengths, found):
            row = int(np.flatnonzero(lengths != found)[0])
            raise DataError(
                f"lists of a request must have equal lengths: got {int(lengths[row])} in {name!r} and "
                f"{int(found[row])} in {other!r} ({place}, row {first_row + row}). Rewrite the file, or leave one of "
                "the columns out"
            )
    return lengths


def elements(lists: pa.Array) -> pa.Array:
    """The elements of all lists, one after the other, without those that null lists hide."""
    return lists.flatten()


def inverse_of(lengths: Int64s) -> NDArray[np.int32]:
    """int32 [impressions]: the request of each."""
    # lengths [2, 0, 1] -> [0, 0, 2]
    return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)


def as_impressions(table: pa.Table, candidates: Sequence[str], place: str) -> pa.Table:
    """Make a row of each candidate, in the order of requests and of their lists: [requests] -> [impressions].

    Raises DataError, naming place and row, for lists of unequal lengths.
    """
    batch = {name: _contiguous(table[name]) for name in table.schema.names}
    lengths = common_lengths({name: batch[name] for name in candidates}, place)
    index = pa.array(inverse_of(lengths))
    arrays = [elements(array) if name in candidates else array.take(index) for name, array in batch.items()]
    return pa.Table.from_arrays(arrays, schema=impression_schema(table.schema, candidates))


def refuse_no_lists(schema: pa.Schema, candidates: Collection[str]) -> str | None:
    """Why these columns of a table cannot be candidates; None if they can."""
    for name in candidates:
        if name not in schema.names:
            return f"column {name!r} is not in the table's files"
        kind = schema.field(name).type
        if not is_list(kind):
            return f"column {name!r} has type {kind}, expected a list"
    return None


def _contiguous(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
