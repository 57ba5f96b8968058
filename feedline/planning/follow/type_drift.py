"""Hold the columns of a followed table to the types that they had when its run began.

Pure; runs where a border is decided. Files with narrower types, or without a column, are read in the run's types. A
file that a column's type does not hold, and a partition key of another type, are refused.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from feedline.errors import TableError
from feedline.warehouse.parquet.schemas import widens, without_dictionaries
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import join, redact


def types_to_declare(before: Snapshot, after: Snapshot) -> dict[str, pa.DataType]:
    """The types to declare for a later snapshot's columns so that they keep those of an earlier one; empty where they
    have them. Raises TableError, with both types, where a file or a key does not fit."""
    changed = []
    for field in before.schema:
        here = after.schema.field(field.name) if field.name in after.schema.names else None
        if here is not None and here.type == field.type:
            continue
        if field.name in before.partition_columns or field.name in after.partition_columns:
            raise _key_error(after, field, here)
        _refuse_files(after, field, here)
        changed.append(field.name)
    if not changed:
        return {}
    keys = after.partition_columns  # also of a key that files of an earlier epoch held themselves
    return {name: before.schema.field(name).type for name in before.file_columns if name not in keys}


def _key_error(after: Snapshot, field: pa.Field, here: pa.Field | None) -> TableError:
    got = "no such key" if here is None else f"{here.type}{_first_misfit(after, field)}"
    return TableError(
        f"partition key {field.name!r} of the followed table {redact(after.uri)} changed its type: got {got}, expected "
        f"{field.type} as in the epoch before. Rename the folder that does not fit, or start a new run, with the type "
        "declared in source.partitions"
    )


def _first_misfit(after: Snapshot, field: pa.Field) -> str:
    """` in ds=oops/a.parquet`: the first file whose value of a key is none of the key's earlier type."""
    if field.name not in after.partition_columns:
        return ""
    values = pc.struct_field(contiguous(after.files["partition"]), field.name)
    unique = pc.unique(values)
    for value in unique:
        try:
            value.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return f" in {after.files['path'][values.index(value).as_py()].as_py()}"
    return ""


def _refuse_files(after: Snapshot, field: pa.Field, here: pa.Field | None) -> None:
    """Raise TableError where a file, or the log, has a type that the column's does not hold."""
    remedy = "Write files with that type, or start a new run, with the wider type declared in source.schema.columns"
    first = f"column {field.name!r} of the followed table changed its type: got"
    if after.logged and here is not None:
        raise TableError(f"{first} {here.type} in the log of {redact(after.uri)}, expected {field.type}. {remedy}")
    schema_of_file = contiguous(after.files["schema"])
    for index, schema in enumerate(after.file_schemas):
        if field.name not in schema.names:
            continue
        stored = without_dictionaries(schema.field(field.name).type)
        if not widens(stored, field.type):
            file = after.files["path"][schema_of_file.index(pa.scalar(index, schema_of_file.type)).as_py()].as_py()
            name = join(redact(after.uri), file)
            raise TableError(f"{first} {stored} in {name}, expected {field.type} as in the epoch before. {remedy}")
