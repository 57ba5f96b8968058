"""Add field ids, and partition keys whose type folders cannot convey, to the schema that `optimize` writes.

Pure; runs where `optimize` is planned. A key that folders alone would read with another type (`zip=007`, a string in
the table's log) is also stored in the files as a column. A key that still cannot be read back is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from feedline.errors import TableError
from feedline.warehouse.discovery.partitions import keys_of_path, refine, typed_columns
from feedline.warehouse.parquet.schemas import FIELD_ID, child_fields, is_list, is_text, nested_like
from feedline.warehouse.snapshot.snapshot import Snapshot


def key_columns(snapshot: Snapshot) -> list[pa.Field]:
    """Return the partition keys that must be columns of the rewritten files to keep their type.

    Raises TableError for a key that is only in the table's log, or whose values cannot be folder names.
    """
    if not snapshot.logged or not snapshot.partition_columns:
        return []
    paths = snapshot.files["path"].to_pylist()
    folders = {path.rpartition("/")[0]: path for path in paths}
    for path in folders.values():
        unspelled = [name for name in snapshot.partition_columns if name not in keys_of_path(path)]
        if unspelled:
            raise TableError(
                f"partition key {unspelled[0]!r} of {snapshot.uri} exists only in its log: got the path {path!r}, "
                f"expected a folder {unspelled[0]}=…, which the rewritten table would have too. {_REMEDY}"
            )
    found = []
    for name, spelled in typed_columns(paths).items():
        if name not in snapshot.partition_columns:
            continue
        values = pc.struct_field(snapshot.files["partition"], name).combine_chunks()
        if _same(spelled, values):
            continue
        if not _same(refine(spelled, name, values.type, paths), values):
            raise TableError(
                f"partition key {name!r} of {snapshot.uri} cannot be read back from folders: got {values.type} in its "
                f"log, spelled as in {paths[0]!r}. {_REMEDY}"
            )
        found.append(pa.field(name, values.type, nullable=values.null_count > 0))
    return found


_REMEDY = "Write the table to a new folder with the key as an ordinary column, and optimize that"


def with_field_ids(schema: pa.Schema, files: Iterable[pa.Schema]) -> pa.Schema:
    """Add the field ids, nested ones too, on which all files that have them agree."""
    others: dict[str, list[pa.Field]] = {}
    for stored in files:
        for field in stored:
            others.setdefault(field.name, []).append(field)
    fields = [_with_id(field, others.get(field.name, [])) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def field_ids(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return (path, field id) of a schema's fields that have one; empty for tables without."""
    found: list[tuple[str, str]] = []

    def add(field: pa.Field, path: str) -> None:
        if (field_id := (field.metadata or {}).get(FIELD_ID)) is not None:
            found.append((path, field_id.decode()))
        for child in child_fields(field.type):
            add(child, f"{path}.{child.name}")

    for field in schema:
        add(field, field.name)
    return sorted(found)


def _same(read: pa.Array, values: pa.Array) -> bool:
    """Whether a key read back has the log's values, ignoring the width of integers and offsets."""
    if read.type != values.type and not any(
        test(read.type) and test(values.type) for test in (pat.is_integer, is_text)
    ):
        return False
    try:
        return bool(read.cast(values.type).equals(values))
    except pa.ArrowInvalid:
        return False


def _with_id(field: pa.Field, others: Sequence[pa.Field]) -> pa.Field:
    ids = {(other.metadata or {}).get(FIELD_ID) for other in others} - {None}
    metadata = {FIELD_ID: ids.pop()} if len(ids) == 1 else None
    return field.with_type(_with_inner_ids(field.type, [other.type for other in others])).with_metadata(metadata)


def _with_inner_ids(kind: pa.DataType, others: Sequence[pa.DataType]) -> pa.DataType:
    mine = child_fields(kind)
    if not mine or not (pat.is_struct(kind) or is_list(kind) or pat.is_map(kind)):
        return kind
    if pat.is_struct(kind):
        below: list[Mapping[str, pa.Field]] = [{field.name: field for field in child_fields(other)} for other in others]
        return pa.struct(
            [_with_id(field, [fields[field.name] for fields in below if field.name in fields]) for field in mine]
        )
    inner = [
        _with_id(field, [child_fields(other)[index] for other in others if len(child_fields(other)) == len(mine)])
        for index, field in enumerate(mine)
    ]
    return nested_like(kind, inner)
