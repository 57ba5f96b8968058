"""Name a file's columns as the table names them, where a log maps the names or the field ids that files store.

Runs where a snapshot is taken and in every process that reads. Renaming copies no values. A file's column that the
table does not have, but whose name it has for another, gets a name that no column of the table has.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.errors import TableError
from feedline.warehouse.parquet.schemas import child_fields, field_id, nested_like, relabel


class StoredField(NamedTuple):
    """A column of the table, or a field inside one: its name there, its name and id in files, and its own fields."""

    name: str
    stored: str
    id: int | None
    fields: tuple[StoredField, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredNames:
    """The names, or field ids, of a table's columns in its files. `text`: all of them, as JSON."""

    text: str

    @classmethod
    def of(cls, fields: Iterable[StoredField], *, by_id: bool) -> Self:
        """by_id: files' columns are found by their field ids, else by their names."""
        return cls(json.dumps([by_id, list(fields)], separators=(",", ":")))

    def __repr__(self) -> str:
        """A short name: keys of tasks are made of it, once per file."""
        return f"StoredNames({_digest(self.text)})"

    def schema(self, stored: pa.Schema, uri: str) -> pa.Schema:
        """A file's schema under the table's names. Raises TableError, naming `uri`, for a file without field ids."""
        fields, by_id = _parse(self.text)
        try:
            return pa.schema(_renamed(list(stored), fields, by_id))
        except _NoIdError as error:
            raise TableError(
                f"{uri} has no field id for {error.args[0]!r}: expected one for each column, as the table's log maps "
                "columns by id. Rewrite the file with the engine that wrote the table"
            ) from None

    def rename(self, batch: pa.RecordBatch, uri: str) -> pa.RecordBatch:
        """Rows of a file, of all or some of its columns and their fields, under the table's names."""
        return relabel(batch, self.schema(batch.schema, uri))


def groups_under_other_names(uri: str) -> TableError:
    """The error for a file that stores groups of columns once per run, in a table whose log maps names."""
    return TableError(
        f"{uri} stores groups of columns once per run under other names than the table's: expected files that other "
        "readers of the log's mapping can read. Write the table to a new folder with feedline optimize"
    )


class _NoIdError(Exception):
    pass


@functools.lru_cache(maxsize=8)
def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@functools.lru_cache(maxsize=8)
def _parse(text: str) -> tuple[tuple[StoredField, ...], bool]:
    def field(parts: list[Any]) -> StoredField:
        name, stored, id, fields = parts
        return StoredField(name, stored, id, tuple(map(field, fields)))

    by_id, fields = json.loads(text)
    return tuple(map(field, fields)), by_id


def _renamed(stored: Sequence[pa.Field], fields: Sequence[StoredField], by_id: bool) -> Iterator[pa.Field]:
    """The fields of one level of a file, under the table's names and without metadata."""
    by_key = {field.id if by_id else field.stored: field for field in fields}
    taken = {field.name for field in fields} | {field.name for field in stored}
    for column in stored:
        key = field_id(column) if by_id else column.name
        if key is None:
            raise _NoIdError(column.name)
        field = by_key.get(key)
        if field is None:
            is_used = any(column.name == other.name for other in fields)
            yield column.with_name(next(_free(column.name, taken)) if is_used else column.name).remove_metadata()
        else:
            yield pa.field(field.name, _renamed_type(column.type, field.fields, by_id), column.nullable)


def _renamed_type(kind: pa.DataType, fields: Sequence[StoredField], by_id: bool) -> pa.DataType:
    if not fields or not pat.is_nested(kind):
        return kind
    if pat.is_struct(kind):
        return pa.struct(list(_renamed(list(kind), fields, by_id)))
    inner = [  # elements, keys and values have no names of their own
        child.with_type(_renamed_type(child.type, field.fields, by_id)).remove_metadata()
        for child, field in zip(child_fields(kind), fields, strict=True)
    ]
    return nested_like(kind, inner)


def _free(name: str, taken: set[str]) -> Iterator[str]:
    while True:
        name += "'"
        if name not in taken:
            taken.add(name)
            yield name
