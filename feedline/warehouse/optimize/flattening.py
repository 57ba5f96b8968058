"""Flatten maps into columns: choose the keys that get a column of their own, and move their values there.

Pure; runs in the tasks of `optimize`. A key with a value in at least `coverage` of the rows becomes the column
`flattened_name(map, key)`; the map column keeps the rest, in its order. No value is lost: of equal keys in one row the
first moves, if its value is not null; null and empty maps stay distinct.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from feedline.errors import TableArgumentError
from feedline.warehouse.parquet.schemas import is_text

Key = str | int
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Entries:
    """The entries of non-null maps, in order: the row of each, its index among the children, its key's code.

    `first`: no earlier entry of that row has its key. `keys`: the key of each code.
    """

    rows: Int64s
    positions: Int64s
    codes: Int64s
    first: npt.NDArray[np.bool_]
    keys: list[Key]


def refuse_maps(schema: pa.Schema, names: Sequence[str]) -> None:
    """Raise TableArgumentError for columns that are no maps, or whose keys are neither strings nor integers."""
    for name in names:
        kind = schema.field(name).type
        if not pat.is_map(kind):
            raise TableArgumentError(f"--flatten names column {name!r} of type {kind}: expected a map. Leave it out")
        key = kind.key_type
        if not (is_text(key) or pat.is_integer(key)):
            raise TableArgumentError(
                f"--flatten names column {name!r} with keys of type {key}: expected strings or integers. Leave it out"
            )


def count_keys(maps: pa.MapArray) -> Counter[Key]:
    """Count the rows in which each key has a value that flattening would move."""
    entries = _entries(maps)
    moving = entries.codes[_movable(maps, entries)]
    counts = np.bincount(moving, minlength=len(entries.keys))
    return Counter({key: int(count) for key, count in zip(entries.keys, counts, strict=True) if count})


def keys_worth(counts: Mapping[Key, int], rows: int, coverage: float) -> tuple[Key, ...]:
    """Return the keys that reach the coverage, most frequent first."""
    kept = [key for key, count in counts.items() if count and count >= coverage * rows]
    return tuple(sorted(kept, key=lambda key: (-counts[key], isinstance(key, str), key)))


def flatten(maps: pa.MapArray, keys: Sequence[Key]) -> list[pa.Array]:
    """Return one array per key, then the maps without the moved entries."""
    entries = _entries(maps)
    codes = {key: code for code, key in enumerate(entries.keys)}
    movable = np.flatnonzero(_movable(maps, entries))
    movable = movable[np.argsort(entries.codes[movable], kind="stable")]
    sorted_codes = entries.codes[movable]
    stays = np.ones(len(entries.rows), np.bool_)
    items, columns = maps.items, []
    for key in keys:
        code = codes.get(key, -1)
        low, high = np.searchsorted(sorted_codes, [code, code + 1]) if code >= 0 else (0, 0)
        moving = movable[low:high]
        index = np.full(len(maps), -1, np.int64)
        index[entries.rows[moving]] = entries.positions[moving]
        columns.append(items.take(pa.array(index, mask=index < 0)))
        stays[moving] = False
    return [*columns, _rest(maps, entries, stays)]


def _entries(maps: pa.MapArray) -> _Entries:
    offsets = np.asarray(maps.offsets)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    if maps.null_count:
        lengths[maps.is_null().to_numpy(zero_copy_only=False)] = 0
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    rows = np.repeat(np.arange(len(maps)), lengths)
    positions = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    encoded = maps.keys.take(pa.array(positions)).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    keys: list[Key] = encoded.dictionary.to_pylist()
    first = np.zeros(total, np.bool_)
    _, first_entries = np.unique(rows * max(len(keys), 1) + codes, return_index=True)
    first[first_entries] = True
    return _Entries(rows, positions, codes, first, keys)


def _movable(maps: pa.MapArray, entries: _Entries) -> npt.NDArray[np.bool_]:
    items = maps.items
    if not items.null_count:
        return entries.first
    valid = items.is_valid().to_numpy(zero_copy_only=False)
    movable: npt.NDArray[np.bool_] = entries.first & valid[entries.positions]
    return movable


def _rest(maps: pa.MapArray, entries: _Entries, stays: npt.NDArray[np.bool_]) -> pa.MapArray:
    counts = np.bincount(entries.rows[stays], minlength=len(maps))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    positions = pa.array(entries.positions[stays])
    mask = maps.is_null() if maps.null_count else None
    return pa.MapArray.from_arrays(
        pa.array(offsets), maps.keys.take(positions), maps.items.take(positions), type=maps.type, mask=mask
    )
