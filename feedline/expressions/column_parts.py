"""What is a part of a column, how is it named, and which columns of a table hold it?

Runs in: every process. Pure.

A part is what one reaches in a column by subscripts alone: a struct's field (`user["country"]`), a map's value
(`features_map["price"]`), any depth of both. Whoever lists what to read lists names, and a name that is no column of
the table may be a part, written as in an expression; a frame then has a column of that name. So a reader decodes only
the fields of a struct that are asked for, and looks up all keys of a map in one pass (`extraction`).

A table may keep one key of a map as a column of its own (`flattened_name`), as `feedline optimize --flatten` writes
it. Such a column stands for the key in every file that has it, and wins over the map wherever it is not null.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from feedline.expressions.nodes import Column, Field
from feedline.expressions.parser import parse_tree
from feedline.expressions.tokens import Fault
from feedline.expressions.types import column_type

Key: TypeAlias = str | int

_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_FLOATS = (pa.float16(), pa.float32(), pa.float64())


class PartError(Exception):
    """A part that a schema does not have; internal: whoever asks turns it into an error with a place."""


@dataclass(frozen=True, slots=True)
class Part:
    """What lies in a column at some keys, from the outside in; one key at least."""

    column: str
    keys: tuple[Key, ...]

    def __str__(self) -> str:
        """The part as an expression, which is also its name."""
        name = self.column  # Python normalises identifiers that are not ASCII
        plain = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
        column = self.column if plain else f"col({_quoted(self.column)})"
        return column + "".join(f"[{_quoted(key) if isinstance(key, str) else key}]" for key in self.keys)


@dataclass(slots=True)
class Wanted:
    """What is wanted of a value: the whole of it, or what lies at some keys, or both."""

    whole: bool = False
    parts: dict[Key, Wanted] = field(default_factory=dict)

    def add(self, keys: tuple[Key, ...]) -> None:
        """Want what lies at these keys, too; the whole for none."""
        if not keys:
            self.whole = True
            return
        self.parts.setdefault(keys[0], Wanted()).add(keys[1:])


def not_null(names: Iterable[str]) -> str:
    """The filter that drops rows in which one of these columns and parts is null: `a is not None and b is not None`."""
    texts = [name if part_of(name) is not None else str(Part(name, ())) for name in names]
    return " and ".join(f"{text} is not None" for text in texts)


def flattened_name(column: str, key: Key) -> str:
    """The top-level column that holds the values of one key of a map column: `features_map.price`, `weights.7`."""
    return f"{column}.{key}"


def has_column(schema: pa.Schema, name: str) -> bool:
    """Whether a schema has a column of that name: without the list of all names, for schemas of thousands."""
    return bool(schema.get_all_field_indices(name))


@lru_cache(maxsize=65_536)
def part_of(name: str) -> Part | None:
    """The part that a name means, None for a name that means none. Ask the schema first whether it is a column."""
    if not name.endswith("]"):
        return None
    try:
        node = parse_tree(name)
    except Fault:
        return None
    keys: list[Key] = []
    while isinstance(node, Field):
        assert isinstance(node.key.value, str | int)
        keys.append(node.key.value)
        node = node.item
    return Part(node.name, tuple(reversed(keys))) if isinstance(node, Column) and keys else None


def part_field(schema: pa.Schema, part: Part) -> pa.Field:
    """The part as an Arrow field, named by it and nullable.

    Raises PartError where the schema has no such column, field or kind of key, and where a column that holds one key
    of the map has another kind of values.
    """
    place = schema.get_field_index(part.column)
    column = flattened_column(schema, part)
    if place >= 0:
        kind = schema.field(place).type
        for key in part.keys:
            kind = _below(kind, key, part)
        if column is not None:
            kind = _reconciled(kind, _type_at(schema.field(column).type, part.keys[1:], part), part, column)
    elif column is not None:
        kind = _type_at(schema.field(column).type, part.keys[1:], part)
    else:
        raise PartError(f"column {part.column!r} is not in the table")
    return pa.field(str(part), kind)


def flattened_column(schema: pa.Schema, part: Part) -> str | None:
    """The column of this schema that holds the first of the part's keys; None where there is none."""
    place = schema.get_field_index(part.column)
    if place >= 0 and not pat.is_map(schema.field(place).type):
        return None
    name = flattened_name(part.column, part.keys[0])
    return name if schema.get_field_index(name) >= 0 else None


def source_columns(schema: pa.Schema, names: Iterable[str]) -> tuple[str, ...]:
    """The columns of a table that hold these columns and parts, each once, as far as the table has them."""
    found: dict[str, None] = {}
    for name in names:
        part = None if has_column(schema, name) else part_of(name)
        if part is None:
            found[name] = None
            continue
        places = (part.column, flattened_name(part.column, part.keys[0]))
        held = places if flattened_column(schema, part) is not None else places[:1]
        found.update(dict.fromkeys(column for column in held if has_column(schema, column)))
    return tuple(found)


def _type_at(kind: pa.DataType, keys: tuple[Key, ...], part: Part) -> pa.DataType:
    for key in keys:
        kind = _below(kind, key, part)
    return kind


def _below(kind: pa.DataType, key: Key, part: Part) -> pa.DataType:
    if pat.is_struct(kind) and isinstance(key, str):
        places = kind.get_all_field_indices(key)
        if len(places) == 1:
            return kind.field(places[0]).type
        raise PartError(f"{part} is not in the table: the struct has {len(places)} fields {key!r}")
    if pat.is_map(kind):
        fits = pat.is_integer(kind.key_type) if isinstance(key, int) else _is_text(kind.key_type)
        if fits:
            return kind.item_type
        raise PartError(f"{part} is not in the table: the map's keys are {kind.key_type}, the key is {key!r}")
    raise PartError(f"{part} is not in the table: {kind} has no part {key!r}")


def _is_text(kind: pa.DataType) -> bool:
    if pat.is_dictionary(kind):
        return _is_text(kind.value_type)
    return any(test(kind) for test in (pat.is_string, pat.is_large_string, pat.is_string_view))


def _reconciled(kind: pa.DataType, flattened: pa.DataType, part: Part, column: str) -> pa.DataType:
    """The type that holds the map's values and those of the column for one key."""
    for family in (_SIGNED, _FLOATS):
        if kind in family and flattened in family:
            return family[max(family.index(kind), family.index(flattened))]
    if kind == flattened or column_type(pa.field("", kind)) == column_type(pa.field("", flattened)):
        return kind
    raise PartError(f"{part} has two types: {kind} in the map, {flattened} in the column {column!r}")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
