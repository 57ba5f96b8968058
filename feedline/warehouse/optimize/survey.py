"""What `optimize` has to know of a whole table before it writes a file: where nulls are, and the keys of its maps.

Runs where `optimize` is planned (`survey`) and in its tasks (`survey_files`). A column without a null anywhere is
stored without the levels that mark nulls, which decode faster. Footers prove it for most columns: the snapshot has the
null counts of flat ones, and the statistics of a list's leaf count null and empty lists, too, so that zero there proves
lists and elements. What footers do not prove is read, and so is every map that is to be flattened. Structs, maps and
lists of them stay nullable.

A place of a column is its name, `name[]` for the elements of its lists, and so on. (A column that is called so only
makes the elements count as nullable.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from feedline.warehouse.optimize.clustering import whole
from feedline.warehouse.optimize.flattening import Key, count_keys
from feedline.warehouse.parquet.footer import column_leaves
from feedline.warehouse.parquet.open_file import open_unchanged
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, fragment_at
from feedline.warehouse.reading.read import read_arrow
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import join, locate
from feedline.warehouse.storage.parallel import Map

_TASK_FILES, _TASK_BYTES = 32, 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Places that hold a null somewhere, or may; per map how many rows have a value for each key."""

    nulls: frozenset[str]
    keys: dict[str, Counter[Key]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyTask:
    """Whole files to look at; `columns` whose nulls are not known, `maps` whose keys are counted."""

    fragments: tuple[Fragment, ...]
    schema: pa.Schema
    columns: tuple[str, ...]
    maps: tuple[str, ...]


def survey(snapshot: Snapshot, maps: Sequence[str], *, map: Map, keep_nullable: bool = False) -> Survey:
    """Survey a table: from its snapshot, the rest with `map`. `keep_nullable`: nulls do not matter."""
    schema = pa.schema([snapshot.schema.field(name) for name in snapshot.file_columns])
    unknown, nulls = [], set()
    for field in schema:
        if keep_nullable or not _is_simple(field.type):
            nulls |= set(_places(field.name, field.type))
            continue
        counts = snapshot.column_facts(field.name).field("nulls").to_numpy()
        if (counts < 0).any():
            unknown.append(field.name)
        elif counts.any():
            nulls.add(field.name)
    keys: dict[str, Counter[Key]] = {name: Counter() for name in maps}
    if unknown or maps:
        tasks = list(_tasks(snapshot, schema, tuple(unknown), tuple(maps)))
        for found in map(survey_files, tasks):
            nulls |= found.nulls
            for name, counted in found.keys.items():
                keys[name].update(counted)
    return Survey(nulls=frozenset(nulls), keys=keys)


def survey_files(task: SurveyTask) -> Survey:
    """Run one task: per file, read the maps, and those columns whose nulls its footer does not prove to be none."""
    nulls: set[str] = set()
    keys: dict[str, Counter[Key]] = {name: Counter() for name in task.maps}
    for fragment in task.fragments:
        proven = _proven(fragment, task.columns)
        wanted = [name for name in task.columns if name not in proven]
        for row_group in fragment.row_groups:
            one = fragment_of_group(fragment, row_group)
            for name in dict.fromkeys([*wanted, *task.maps]):
                column = whole(read_arrow(one, [name], None, task.schema)[name])
                if name in wanted:
                    nulls |= set(places_with_nulls(name, column))
                if name in keys:
                    keys[name].update(count_keys(column))
    return Survey(nulls=frozenset(nulls), keys=keys)


def without_nulls(field: pa.Field, nulls: frozenset[str]) -> pa.Field:
    """The field, not nullable where its places hold no null: the column itself, the elements of lists in lists."""
    return pa.field(field.name, _type_without(field.type, field.name, nulls), nullable=field.name in nulls)


def places_with_nulls(name: str, array: pa.Array) -> Iterator[str]:
    """The places of a column's array that hold a null."""
    if array.null_count:
        yield name
    if pat.is_list(array.type) or pat.is_large_list(array.type):
        yield from places_with_nulls(f"{name}[]", array.flatten())


def places_without_nulls(field: pa.Field) -> Iterator[str]:
    """The places of a column that are not nullable."""
    kind, name = field.type, field.name
    if not field.nullable:
        yield name
    if pat.is_list(kind) or pat.is_large_list(kind):
        yield from places_without_nulls(kind.value_field.with_name(f"{name}[]"))


def footer_of(fragment: Fragment) -> tuple[pq.FileMetaData, pa.Schema]:
    """A file's footer and Arrow schema."""
    location = locate(fragment.table)
    with open_unchanged(location.filesystem, join(location.path, fragment.path), fragment.seen) as file:
        return file.metadata, file.schema


def whole_file(snapshot: Snapshot, file: int) -> Fragment:
    """The order to read all of a file's rows."""
    groups = snapshot.row_groups_of(file)
    return fragment_at(snapshot, file, groups, np.full(len(groups), UNCOUNTED))


def fragment_of_group(fragment: Fragment, row_group: int) -> Fragment:
    """The order to read one row group of a file, by its index there."""
    return replace(fragment, row_groups=(row_group,), expected=(UNCOUNTED,))


def _tasks(
    snapshot: Snapshot, schema: pa.Schema, columns: tuple[str, ...], maps: tuple[str, ...]
) -> Iterator[SurveyTask]:
    fragments: list[Fragment] = []
    for file in range(len(snapshot.files)):
        fragments.append(whole_file(snapshot, file))
        if len(fragments) >= _TASK_FILES or sum(one.bytes for one in fragments) >= _TASK_BYTES:
            yield SurveyTask(fragments=tuple(fragments), schema=schema, columns=columns, maps=maps)
            fragments = []
    if fragments:
        yield SurveyTask(fragments=tuple(fragments), schema=schema, columns=columns, maps=maps)


def _proven(fragment: Fragment, columns: Sequence[str]) -> set[str]:
    """The columns of which a file's footer says that no value, list or element is null."""
    metadata, schema = footer_of(fragment)
    leaves = column_leaves(schema, metadata.num_columns, fragment.uri)
    places = dict(zip(schema.names, leaves, strict=True))
    proven = set()
    for name in columns:
        if name not in places or not _is_simple(schema.field(name).type):
            continue
        (leaf,) = places[name]
        chunks = [metadata.row_group(group).column(leaf) for group in range(metadata.num_row_groups)]
        counts = [chunk.statistics.null_count if chunk.is_stats_set else None for chunk in chunks]
        if all(count == 0 for count in counts):
            proven.add(name)
    return proven


def _is_simple(kind: pa.DataType) -> bool:
    """Whether it is a list of lists … of flat values: one leaf, and no struct or map on the way."""
    while pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        kind = kind.value_type
    return not pat.is_nested(kind)


def _places(name: str, kind: pa.DataType) -> Iterator[str]:
    yield name
    if pat.is_list(kind) or pat.is_large_list(kind):
        yield from _places(f"{name}[]", kind.value_type)


def _type_without(kind: pa.DataType, name: str, nulls: frozenset[str]) -> pa.DataType:
    if not (pat.is_list(kind) or pat.is_large_list(kind)):
        return kind
    item = f"{name}[]"
    field = pa.field(kind.value_field.name, _type_without(kind.value_type, item, nulls), nullable=item in nulls)
    return pa.large_list(field) if pat.is_large_list(kind) else pa.list_(field)
