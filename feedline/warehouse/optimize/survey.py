"""Survey a whole table before `optimize` writes it: where nulls are, and the keys of its maps.

Runs where `optimize` is planned (`survey`) and in its tasks (`survey_files`). Footers prove for most columns that they
have no null; the others are read, and so is every map to be flattened. Structs, maps and lists of them stay nullable.
The path of a column is its name, of the elements of its lists `name[]`, and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from feedline.progress import track
from feedline.warehouse.optimize.flattening import Key, count_keys
from feedline.warehouse.parquet.footer import column_leaves
from feedline.warehouse.parquet.schemas import is_list, nested_like
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, fragment_at, gather
from feedline.warehouse.reading.read import read_arrow
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import Map

_TASK_FILES, _TASK_BYTES = 32, 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """`nulls`: paths that hold, or may hold, a null; `keys`: per map, how many rows have a value for each key."""

    nulls: frozenset[str]
    keys: dict[str, Counter[Key]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyTask:
    """Whole files to survey; `columns`: those with unknown null counts; `maps`: those whose keys to count."""

    fragments: tuple[Fragment, ...]
    schema: pa.Schema
    columns: tuple[str, ...]
    maps: tuple[str, ...]


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
        tasks = [
            SurveyTask(fragments=part, schema=schema, columns=tuple(uncounted), maps=tuple(maps))
            for part in gather(((file, file.bytes) for file in files), _TASK_BYTES, _TASK_FILES)
        ]
        files_of = [len(task.fragments) for task in tasks]
        for found in track(map(survey_files, tasks), "looking for nulls and keys", files_of, "files"):
            nulls |= found.nulls
            for name, counts in found.keys.items():
                keys[name].update(counts)
    return Survey(nulls=frozenset(nulls), keys=keys)


def survey_files(task: SurveyTask) -> Survey:
    """Run one task: per file, read the maps, and the columns that its footer does not prove to be free of nulls."""
    nulls: set[str] = set()
    keys: dict[str, Counter[Key]] = {name: Counter() for name in task.maps}
    for fragment in task.fragments:
        without_null = _columns_without_nulls(fragment, task.columns)
        unproven = [name for name in task.columns if name not in without_null]
        for row_group in fragment.row_groups:
            one = fragment_of_group(fragment, row_group)
            for name in dict.fromkeys([*unproven, *task.maps]):
                column = contiguous(read_arrow(one, [name], None, task.schema)[name])
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
    """Return a file's footer and Arrow schema."""
    with fragment.open() as file:
        return file.metadata, file.schema


def file_fragment(snapshot: Snapshot, file: int) -> Fragment:
    """Return the fragment of all of a file's rows."""
    groups = snapshot.row_groups_of(file)
    return fragment_at(snapshot, file, groups, np.full(len(groups), UNCOUNTED))


def fragment_of_group(fragment: Fragment, row_group: int) -> Fragment:
    """Return the fragment of one row group, by its index in the file."""
    return replace(fragment, row_groups=(row_group,), expected=(UNCOUNTED,))


def _columns_without_nulls(fragment: Fragment, columns: Sequence[str]) -> set[str]:
    """Return the columns in which, by the file's footer, no value, list or element is null."""
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
