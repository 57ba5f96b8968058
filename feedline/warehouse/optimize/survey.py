"""Survey a whole table before `optimize` writes it: where nulls are, and the keys of its maps.

Runs where `optimize` is planned (`survey`) and in its tasks (`survey_files`). Footers prove for most columns that they
have no null; the others are read, and so is every map to be flattened. Structs, maps and lists of them stay nullable.
The path of a column is its name, of the elements of its lists `name[]`, and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.errors import TableArgumentError
from feedline.progress import track
from feedline.warehouse.parquet.footer import column_leaves
from feedline.warehouse.parquet.schemas import is_list, is_text, nested_like
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, fragment_at, gather
from feedline.warehouse.reading.read import ReadRequest, read_arrow
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import Map

# --------------------------------------------------------------------------------------------------------------------
# Flatten maps into columns: choose the keys that get a column of their own, and move their values there. Pure; runs
# in the tasks of `optimize`. A key with a value in at least `coverage` of the rows becomes the column
# `flattened_name(map, key)`; the map column keeps the rest, in its order. No value is lost: of equal keys in one row
# the first moves, if its value is not null; null and empty maps stay distinct.

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
    frequent = [key for key, count in counts.items() if count and count >= coverage * rows]
    return tuple(sorted(frequent, key=lambda key: (-counts[key], isinstance(key, str), key)))


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
    # maps {a: 1, b: 2}, null, {b: 3, b: 4} -> rows [0, 0, 2, 2], codes of keys [0, 1, 1, 1], first [T, T, T, F]
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


# --------------------------------------------------------------------------------------------------------------------

_TASK_FILES, _TASK_BYTES = 32, 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """`nulls`: paths that hold, or may hold, a null; `keys`: per map, how many rows have a value for each key."""

    nulls: frozenset[str]
    keys: dict[str, Counter[Key]]


def survey(
    snapshot: Snapshot,
    maps: Sequence[str],
    *,
    map: Map,
    keep_nullable: bool = False,
    repeated: Sequence[str] = (),
) -> Survey:
    """Survey a table from its snapshot, and with `map` where that is not enough; `keep_nullable`: ignore nulls.

    `repeated`: columns that some file stores once per run, with a null in each row that repeats the one above.
    """
    schema = pa.schema([snapshot.schema.field(name) for name in snapshot.file_columns])
    uncounted, nulls = [], set()
    for field in schema:
        if keep_nullable or not _is_simple(field.type):
            nulls |= set(_paths(field.name, field.type))
            continue
        counts = snapshot.column_part(field.name, "nulls")
        if (counts < 0).any() or (field.name in repeated and counts.any()):
            uncounted.append(field.name)
        elif counts.any():
            nulls.add(field.name)
    keys: dict[str, Counter[Key]] = {name: Counter() for name in maps}
    if uncounted or maps:
        files = (file_fragment(snapshot, file) for file in range(len(snapshot.files)))
        parts = list(gather(((file, file.bytes) for file in files), _TASK_BYTES, _TASK_FILES))
        of_files = partial(survey_files, schema=schema, columns=tuple(uncounted), maps=tuple(maps))
        for part in track(map(of_files, parts), "looking for nulls and keys", [len(part) for part in parts], "files"):
            nulls |= part.nulls
            for name, counts in part.keys.items():
                keys[name].update(counts)
    return Survey(nulls=frozenset(nulls), keys=keys)


def survey_files(
    fragments: Sequence[Fragment], *, schema: pa.Schema, columns: Sequence[str], maps: Sequence[str]
) -> Survey:
    """Survey whole files: read the maps, and of the columns, whose null counts are unknown, those that the footer does
    not prove to be free of nulls."""
    nulls: set[str] = set()
    keys: dict[str, Counter[Key]] = {name: Counter() for name in maps}
    for fragment in fragments:
        without_null = _columns_without_nulls(fragment, columns)
        unproven = [name for name in columns if name not in without_null]
        for row_group in fragment.row_groups:
            group = fragment_of_group(fragment, row_group)
            for name in dict.fromkeys([*unproven, *maps]):
                column = contiguous(read_arrow(group, ReadRequest([name], schema))[name])
                if name in unproven:
                    nulls |= set(null_paths(name, column))
                if name in keys:
                    keys[name].update(count_keys(column))
    return Survey(nulls=frozenset(nulls), keys=keys)


def without_nulls(field: pa.Field, nulls: frozenset[str]) -> pa.Field:
    """Make the field, and the elements of its lists, non-nullable where their paths hold no null."""
    return pa.field(field.name, _type_without(field.type, field.name, nulls), nullable=field.name in nulls)


def null_paths(name: str, array: pa.Array) -> Iterator[str]:
    """Yield the paths of a column's array that hold a null."""
    if array.null_count:
        yield name
    if is_list(array.type):
        yield from null_paths(f"{name}[]", array.flatten())


def required_paths(field: pa.Field) -> Iterator[str]:
    """Yield the paths of a column that are not nullable."""
    if not field.nullable:
        yield field.name
    if is_list(field.type):
        yield from required_paths(field.type.value_field.with_name(f"{field.name}[]"))


def footer_of(fragment: Fragment) -> tuple[pq.FileMetaData, pa.Schema]:
    with fragment.open() as file:
        return file.metadata, file.schema


def file_fragment(snapshot: Snapshot, file: int) -> Fragment:
    groups = snapshot.row_groups_of(file)
    return fragment_at(snapshot, file, groups, np.full(len(groups), UNCOUNTED))


def fragment_of_group(fragment: Fragment, row_group: int) -> Fragment:
    return replace(fragment, row_groups=(row_group,), expected=(UNCOUNTED,))


def _columns_without_nulls(fragment: Fragment, columns: Sequence[str]) -> set[str]:
    metadata, schema = footer_of(fragment)
    leaves = column_leaves(schema, metadata.num_columns, fragment.uri)
    leaves_of = dict(zip(schema.names, leaves, strict=True))
    without_null = set()
    for name in columns:
        if name not in leaves_of or not _is_simple(schema.field(name).type):
            continue
        (leaf,) = leaves_of[name]
        chunks = [metadata.row_group(group).column(leaf) for group in range(metadata.num_row_groups)]
        counts = [chunk.statistics.null_count if chunk.is_stats_set else None for chunk in chunks]
        if all(count == 0 for count in counts):
            without_null.add(name)
    return without_null


def _is_simple(kind: pa.DataType) -> bool:
    """Whether a type has a single leaf with only lists around it, no struct or map."""
    while is_list(kind) or pat.is_fixed_size_list(kind):
        kind = kind.value_type
    return not pat.is_nested(kind)


def _paths(name: str, kind: pa.DataType) -> Iterator[str]:
    yield name
    if is_list(kind):
        yield from _paths(f"{name}[]", kind.value_type)


def _type_without(kind: pa.DataType, name: str, nulls: frozenset[str]) -> pa.DataType:
    if not is_list(kind):
        return kind
    item = f"{name}[]"
    field = pa.field(kind.value_field.name, _type_without(kind.value_type, item, nulls), nullable=item in nulls)
    return nested_like(kind, [field])
