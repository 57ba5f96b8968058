"""The facts of a table's columns per row group, fetched on demand.

Runs where snapshots are taken and where plans are made. The facts of a column are a struct array, one entry per row
group: bytes and nulls (int64; nulls -1: unknown, -1 - n: at least n) and, for types that have them, min and max in the
column's type (null: unknown). Strings and bytes also have the boolean `exact`: both bounds are values of the column,
not truncated ones. See docs/decisions/history.md.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from feedline.warehouse.parquet.bounds import has_bounds, is_binary_like

Part: TypeAlias = Literal["bytes", "nulls"]  # the facts that every column has

_CACHE_BYTES = 64 << 20  # a filter's and a projection's columns of 20,000 files


class Facts:
    """Facts of columns, from a function that fetches them; the recent ones are cached. Thread-safe.

    `fetch_part`: fetches bytes or nulls alone, if that costs less than all facts.
    """

    def __init__(
        self,
        fetch: Callable[[pa.Field], pa.StructArray],
        fetch_part: Callable[[pa.Field, Part], pa.Array] | None = None,
    ) -> None:
        self.fetch = fetch
        self._fetch_part = fetch_part
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[str, pa.DataType, Part | None], pa.Array] = OrderedDict()
        self._bytes = 0

    def column(self, field: pa.Field) -> pa.StructArray:
        """The facts of the column of that name, bounds in the field's type; all null if no file has it."""
        return self._cached((field.name, field.type, None), lambda: self.fetch(field))

    def part(self, field: pa.Field, name: Part) -> npt.NDArray[np.int64]:
        """int64 [row groups]: the column's bytes or nulls."""
        fetch_part = self._fetch_part
        with self._lock:
            known = (field.name, field.type, None) in self._cache
        if known or fetch_part is None:
            part = self.column(field).field(name)
        else:
            part = self._cached((field.name, field.type, name), lambda: fetch_part(field, name))
        return np.asarray(part)

    def _cached(self, key: tuple[str, pa.DataType, Part | None], fetch: Callable[[], pa.Array]) -> pa.Array:
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        facts = fetch()
        with self._lock:
            if key not in self._cache:
                self._cache[key] = facts
                self._bytes += facts.nbytes
            while self._bytes > _CACHE_BYTES and len(self._cache) > 1:
                self._bytes -= self._cache.popitem(last=False)[1].nbytes
        return facts

    def take(self, row_groups: npt.NDArray[np.int64]) -> Facts:
        indices = pa.array(row_groups)
        return Facts(lambda field: self.fetch(field).take(indices))


def join_facts(parts: Sequence[Facts], order: npt.NDArray[np.int64]) -> Facts:
    """The facts of several parts, concatenated and then reordered."""
    in_order = bool((order == np.arange(len(order))).all())
    indices = pa.array(order)

    def fetch(field: pa.Field) -> pa.StructArray:
        whole = pa.concat_arrays([part.fetch(field) for part in parts])
        return whole if in_order else whole.take(indices)

    return Facts(fetch)


def arrange_facts(arrays: Mapping[str, pa.Array] | None, rows: pa.Array, field: pa.Field) -> pa.StructArray:
    """A column's facts from arrays in the type of its files; `arrays`: None if the files have no such column."""
    size = len(rows)
    if arrays is None:
        nulls = pa.array(np.full(size, -1)) if pat.is_nested(field.type) else rows
        arrays = {"bytes": pa.array(np.zeros(size, np.int64)), "nulls": nulls}
    parts = {"bytes": arrays["bytes"], "nulls": arrays["nulls"]}
    if has_bounds(field.type):
        for side in ("min", "max"):
            parts[side] = _cast(arrays[side], field.type) if side in arrays else pa.nulls(size, field.type)
        # both bounds are known or neither, even if only one of them fits the type
        valid = pc.and_(parts["min"].is_valid(), parts["max"].is_valid())
        null = pa.scalar(None, field.type)
        parts |= {side: pc.if_else(valid, parts[side], null) for side in ("min", "max")}
    if is_binary_like(field.type):
        parts["exact"] = arrays.get("exact", pa.array(np.zeros(size, np.bool_)))
    return pa.StructArray.from_arrays(list(parts.values()), names=list(parts))


def _cast(bounds: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bounds in another type; those that do not fit are unknown."""
    if bounds.type == kind:
        return bounds
    try:
        return bounds.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.concat_arrays([pa.array([], kind), *(_cast_one(bounds[i : i + 1], kind) for i in range(len(bounds)))])


def _cast_one(bound: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return bound.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(1, kind)


def contiguous(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; without a copy if it is one chunk, as in every snapshot."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
