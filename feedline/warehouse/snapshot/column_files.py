"""Join the footers of base files with those of their column files, so that a snapshot is of one table.

Runs where a snapshot is taken. The footers of the column files are read like others; each must be the one that was
added, of the base file that is there now, and have its row groups. The facts of their fields then stand at the row
groups of the base files, whose schemas get the fields. Base files of the last snapshot whose column files are the same
have been joined before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.errors import CorruptFileError, TableChangedError, TableError
from feedline.warehouse.discovery.column_log import (
    COLUMN_FILES,
    ColumnFile,
    column_file_names,
    column_files_of,
    with_files_of_base,
)
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.parquet.schemas import without_dictionaries
from feedline.warehouse.snapshot.column_facts import Facts, contiguous
from feedline.warehouse.snapshot.footer_tasks import read_footers
from feedline.warehouse.snapshot.packed_facts import Assembly, assemble
from feedline.warehouse.storage.locations import join, redact
from feedline.warehouse.storage.parallel import Map

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def same_column_files(listing: Listing, last: pa.Table, index: Int64s) -> Bools:
    """bool [listed files]: whether the column files are those of the file of that index (-1: none) in a snapshot."""
    if COLUMN_FILES not in listing.files.schema.names and COLUMN_FILES not in last.schema.names:
        return np.ones(len(index), np.bool_)
    now, before = (np.array(column_file_names(files), object) for files in (listing.files, last))
    return np.where(index >= 0, now == before[index], False) if len(before) else np.zeros(len(index), np.bool_)


def with_own_column_files(listing: Listing, base: Assembly) -> Listing:
    """The listing, of files with several versions of column files with those that were written for the files as they
    are."""
    if listing.columns is None:
        return listing
    digests = contiguous(base.files["footer_digest"]).to_pylist()
    return dataclasses.replace(listing, files=with_files_of_base(listing.files, digests))


def with_column_facts(listing: Listing, base: Assembly, fresh: Bools, map: Map | None) -> Assembly:
    """The files with the fields of their column files. fresh: those whose own footers were read just now.

    Raises TableChangedError for a column file of another base file, or one that was replaced, TableError where row
    groups or types differ, CorruptFileError for a footer that is corrupt.
    """
    if listing.columns is None:
        return base
    visible = tuple(listing.columns.visible(schema) for schema in base.schemas)
    base = dataclasses.replace(base, schemas=visible)
    has = contiguous(listing.files[COLUMN_FILES]).is_valid().to_numpy(zero_copy_only=False)
    files, entries = [], list[ColumnFile]()
    for file in np.flatnonzero(has & fresh).tolist():
        for entry in column_files_of(listing.files, file):
            files.append(file)
            entries.append(entry)
    if not entries:
        return base
    columns = _read(listing, entries, map)
    of = np.array(files, np.int64)
    _check(listing, base, columns, of, entries)
    return _join(base, columns, of, entries)


def _read(listing: Listing, entries: Sequence[ColumnFile], map: Map | None) -> Assembly:
    parts = []
    for result in read_footers(listing.uri, [(i, file.path, file.bytes) for i, file in enumerate(entries)], map):
        for _, message in result.corrupt:
            raise CorruptFileError(message)
        parts += [block.part() for block in result.blocks]
    return assemble(parts)


def _check(listing: Listing, base: Assembly, columns: Assembly, of: Int64s, entries: Sequence[ColumnFile]) -> None:
    digests, own_digests = (contiguous(each.files["footer_digest"]).to_pylist() for each in (columns, base))
    kinds = contiguous(columns.files["schema"]).to_pylist()
    rows, own_rows = _rows_by_file(columns), _rows_by_file(base)
    assert listing.columns is not None
    declared, root = listing.columns.fields, redact(listing.uri)
    for index, (file, entry) in enumerate(zip(of.tolist(), entries, strict=True)):
        name, path = join(root, entry.path), join(root, listing.files["path"][file].as_py())
        fields = ", ".join(entry.fields)
        if digests[index] != entry.footer_digest:
            raise TableChangedError(
                f"column file {name} was replaced after it was added: got another footer. Restore it, or drop its "
                f"columns ({fields}) with feedline columns drop"
            )
        if own_digests[file] != entry.base_digest:
            raise TableChangedError(
                f"column file {name} is of another base file than {path}, which was rewritten after {fields} had been "
                "added: got another footer of the base file. Add the columns again for that file, with feedline "
                f"columns add --replace, or drop them with feedline columns drop"
            )
        if not np.array_equal(rows[index], own_rows[file]):
            raise TableError(
                f"column file {name} has other row groups than {path}: got {_shape(rows[index])}, expected "
                f"{_shape(own_rows[file])}. Add the columns again for that file, with feedline columns add --replace"
            )
        schema = columns.schemas[kinds[index]]
        for field in entry.fields:
            got = without_dictionaries(schema.field(field).type) if field in schema.names else "no such column"
            if got != declared[field].type:
                raise TableError(
                    f"column {field!r} of column file {name} is not what its commit says: got {got}, expected "
                    f"{declared[field].type}. Restore the file, or drop the column with feedline columns drop"
                )


def _join(base: Assembly, columns: Assembly, of: Int64s, entries: Sequence[ColumnFile]) -> Assembly:
    starts, own_starts = _first_row_groups(base), _first_row_groups(columns)
    counts = contiguous(columns.files["row_groups"]).to_numpy().astype(np.int64)
    # of each row group of column files, in their order: that of the base file
    within = np.arange(int(own_starts[-1])) - np.repeat(own_starts[:-1], counts)
    target = np.repeat(starts[of], counts) + within
    added = contiguous(columns.row_groups["bytes"]).to_numpy()
    total = contiguous(base.row_groups["bytes"]).to_numpy().copy()
    np.add.at(total, target, added)
    place = base.row_groups.schema.get_field_index("bytes")
    places: dict[str, Int64s] = {}
    for name in dict.fromkeys(field for entry in entries for field in entry.fields):
        holders = np.array([name in entry.fields for entry in entries], np.bool_)
        places[name] = np.flatnonzero(np.repeat(holders, counts))
    schemas, kinds = _joined_schemas(base, columns, of, entries)
    kind = base.files.schema.get_field_index("schema")
    return dataclasses.replace(
        base,
        files=base.files.set_column(kind, "schema", pa.array(kinds, pa.int32())),
        row_groups=base.row_groups.set_column(place, "bytes", pa.array(total)),
        facts=_with_fields(base.facts, columns.facts, target, places, len(total)),
        schemas=schemas,
        first=tuple(kinds.index(each) for each in range(len(schemas))),
    )


def _with_fields(own: Facts, added: Facts, target: Int64s, places: Mapping[str, Int64s], row_groups: int) -> Facts:
    """The facts of row groups, those of fields at the row groups of base files. places: of each field, those of the row
    groups of column files that hold it."""

    def fetch(field: pa.Field) -> pa.StructArray:
        facts = own.fetch(field)
        if field.name not in places:
            return facts
        here = places[field.name]
        # 4 row groups, of which the last two have the field in the first two of column files -> [0, 1, 4, 5]
        index = np.arange(row_groups)
        index[target[here]] = row_groups + here
        return pa.concat_arrays([facts, added.fetch(field)]).take(pa.array(index))

    return Facts(fetch)


def _joined_schemas(
    base: Assembly, columns: Assembly, of: Int64s, entries: Sequence[ColumnFile]
) -> tuple[tuple[pa.Schema, ...], list[int]]:
    """The distinct schemas of base files with their fields, and the index of each file's."""
    kind_of_file = contiguous(base.files["schema"]).to_pylist()
    added = contiguous(columns.files["schema"]).to_pylist()
    extra: dict[int, list[tuple[int, tuple[str, ...]]]] = {}
    for index, (file, entry) in enumerate(zip(of.tolist(), entries, strict=True)):
        extra.setdefault(file, []).append((added[index], entry.fields))
    indices: dict[tuple[object, ...], int] = {}
    schemas: list[pa.Schema] = []
    kinds = []
    for file, kind in enumerate(kind_of_file):
        key = kind, *extra.get(file, ())
        if key not in indices:
            indices[key] = len(schemas)
            fields = [columns.schemas[each].field(name) for each, own in extra.get(file, ()) for name in own]
            names = {each.name for each in fields}
            schemas.append(pa.schema([*(each for each in base.schemas[kind] if each.name not in names), *fields]))
        kinds.append(indices[key])
    return tuple(schemas), kinds


def _first_row_groups(files: Assembly) -> Int64s:
    """int64 [files + 1]: the first row group of each; last, all."""
    counts = contiguous(files.files["row_groups"]).to_numpy().astype(np.int64)
    return np.concatenate([[0], np.cumsum(counts)])


def _rows_by_file(files: Assembly) -> list[Int64s]:
    return np.split(contiguous(files.row_groups["rows"]).to_numpy(), _first_row_groups(files)[1:-1])


def _shape(rows: Int64s) -> str:
    return f"{len(rows)} row groups of {int(rows.sum()):,} rows"
