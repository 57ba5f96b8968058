"""Decide the columns of a table that `optimize` writes: names, order, nulls, field ids, and keys that folders mistype.

Pure; runs where `optimize` is planned. Folders spell the values of partition keys and not their types. Where a table's
log types them, a key that folders alone would type otherwise (`zip=007` is a string there) becomes a column of the
files too, which lends the folders its type. A key that cannot be read back so is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from feedline.errors import TableError
from feedline.warehouse.discovery.partitions import keys_of, refine, typed_columns
from feedline.warehouse.parquet.schemas import children
from feedline.warehouse.snapshot.snapshot import Snapshot

FIELD_ID = b"PARQUET:field_id"


def key_columns(snapshot: Snapshot) -> list[pa.Field]:
    """The partition keys that have to be columns of the rewritten files, so that they keep their type.

    Raises TableError for a key that only the table's log knows, or whose values folders cannot spell.
    """
    if not snapshot.logged or not snapshot.partition_columns:
        return []
    paths = snapshot.files["path"].to_pylist()
    folders = {path.rpartition("/")[0]: path for path in paths}
    for path in folders.values():
        unspelled = [name for name in snapshot.partition_columns if name not in keys_of(path)]
        if unspelled:
            raise TableError(
                f"partition key {unspelled[0]!r} of {snapshot.uri} is known to its log alone: got the path {path!r}, "
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
    """The schema with the field ids on which all files agree that number anything, inside of columns too."""
    held: dict[str, list[pa.Field]] = {}
    for stored in files:
        for field in stored:
            held.setdefault(field.name, []).append(field)
    fields = [_number(field, held.get(field.name, [])) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def field_ids(schema: pa.Schema) -> list[tuple[str, str]]:
    """The places of a schema that have a field id, with it; empty for tables without."""
    found: list[tuple[str, str]] = []

    def add(field: pa.Field, place: str) -> None:
        if (number := (field.metadata or {}).get(FIELD_ID)) is not None:
            found.append((place, number.decode()))
        for child in children(field.type):
            add(child, f"{place}.{child.name}")

    for field in schema:
        add(field, field.name)
    return sorted(found)


def _same(read: pa.Array, values: pa.Array) -> bool:
    """Whether a key that is read back has the values of the log; the width of integers and offsets does not matter."""
    alike = (pat.is_integer, lambda kind: pat.is_string(kind) or pat.is_large_string(kind))
    if read.type != values.type and not any(test(read.type) and test(values.type) for test in alike):
        return False
    try:
        return bool(read.cast(values.type).equals(values))
    except pa.ArrowInvalid:
        return False


def _number(field: pa.Field, held: Sequence[pa.Field]) -> pa.Field:
    numbers = {(other.metadata or {}).get(FIELD_ID) for other in held} - {None}
    metadata = {FIELD_ID: numbers.pop()} if len(numbers) == 1 else None
    return field.with_type(_inside(field.type, [other.type for other in held])).with_metadata(metadata)


def _inside(kind: pa.DataType, held: Sequence[pa.DataType]) -> pa.DataType:
    """The type with the ids of its fields."""
    mine = children(kind)
    if not mine or not (pat.is_struct(kind) or pat.is_list(kind) or pat.is_large_list(kind) or pat.is_map(kind)):
        return kind
    if pat.is_struct(kind):
        below: list[Mapping[str, pa.Field]] = [{field.name: field for field in children(other)} for other in held]
        return pa.struct(
            [_number(field, [fields[field.name] for fields in below if field.name in fields]) for field in mine]
        )
    inner = [
        _number(field, [children(other)[place] for other in held if len(children(other)) == len(mine)])
        for place, field in enumerate(mine)
    ]
    if pat.is_map(kind):
        return pa.map_(inner[0], inner[1], keys_sorted=kind.keys_sorted)
    return pa.large_list(inner[0]) if pat.is_large_list(kind) else pa.list_(inner[0])
