"""Name parts of columns, find the table's columns that hold them, and rewrite expressions over them.

Pure. A part is what subscripts alone reach in a column: a struct's field (`user["country"]`), a map's value
(`features_map["price"]`), any depth of both. A name in a list of what to read may be a part, written as in an
expression; frames then have a column of that name. A table may keep one key of a map as a column of its own
(`flattened_name`), which replaces the key of the map wherever it is not null.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from dataclasses import field
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.expressions.nodes import ColumnRef, Fault, Field, Node, map_children
from feedline.expressions.parser import parse_tree
from feedline.expressions.types import column_type

Key: TypeAlias = str | int

_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_FLOATS = (pa.float16(), pa.float32(), pa.float64())


class PartError(Exception):
    """A part that a schema does not have; callers turn it into an error with a position."""


@dataclass(frozen=True, slots=True)
class ColumnPart:
    """A column and the keys into it, outermost first; at least one key."""

    column: str
    keys: tuple[Key, ...]

    def __str__(self) -> str:
        """The part as an expression, which is also its name."""
        name = self.column  # Python normalises identifiers that are not ASCII
        plain = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
        column = self.column if plain else f"col({_quote(self.column)})"
        return column + "".join(f"[{_quote(key) if isinstance(key, str) else key}]" for key in self.keys)


@dataclass(slots=True)
class PartTree:
    """The requested parts of a value: the whole, the values at some keys, or both."""

    whole: bool = False
    parts: dict[Key, PartTree] = field(default_factory=dict)

    def add(self, keys: tuple[Key, ...]) -> None:
        """Request the value at these keys, too; without keys, the whole."""
        if not keys:
            self.whole = True
            return
        self.parts.setdefault(keys[0], PartTree()).add(keys[1:])


def not_null(names: Iterable[str]) -> str:
    """The filter that drops rows in which one of these columns and parts is null: `a is not None and b is not None`."""
    sources = [name if part_of(name) is not None else str(ColumnPart(name, ())) for name in names]
    return " and ".join(f"{source} is not None" for source in sources)


def flattened_name(column: str, key: Key) -> str:
    """The top-level column that holds the values of one key of a map column: `features_map.price`, `weights.7`."""
    return f"{column}.{key}"


def has_column(schema: pa.Schema, name: str) -> bool:
    """Whether a schema has a column of that name, without listing thousands of names."""
    return bool(schema.get_all_field_indices(name))


@lru_cache(maxsize=65_536)
def part_of(name: str) -> ColumnPart | None:
    """The part of that name; None where it is not one. Check first that the schema has no such column."""
    if not name.endswith("]"):
        return None
    try:
        node = parse_tree(name)
    except Fault:
        return None
    part = _subscripts(node)
    return part if part is not None and part.keys else None


def _subscripts(node: Node) -> ColumnPart | None:
    """The part that a chain of subscripts on a column reaches, without keys for the column itself."""
    keys: list[Key] = []  # user["geo"]["lat"] -> lat, geo: the last subscript is the outermost node
    while isinstance(node, Field):
        assert isinstance(node.key.value, str | int)
        keys.append(node.key.value)
        node = node.item
    return ColumnPart(node.name, tuple(reversed(keys))) if isinstance(node, ColumnRef) else None


def part_field(schema: pa.Schema, part: ColumnPart) -> pa.Field:
    """The part as a nullable Arrow field of its name. Raises PartError where the schema has no such column, field or
    type of key, and where the column for a key of a map has an incompatible type."""
    index = schema.get_field_index(part.column)
    column = flattened_column(schema, part)
    if index >= 0:
        kind = _type_at(schema.field(index).type, part.keys, part)
        if column is not None:
            kind = _reconcile(kind, _type_at(schema.field(column).type, part.keys[1:], part), part, column)
    elif column is not None:
        kind = _type_at(schema.field(column).type, part.keys[1:], part)
    else:
        raise PartError(f"column {part.column!r} is not in the table")
    return pa.field(str(part), kind)


def flattened_column(schema: pa.Schema, part: ColumnPart) -> str | None:
    """The column of this schema for the first of the part's keys; None where there is none."""
    index = schema.get_field_index(part.column)
    if index >= 0 and not pat.is_map(schema.field(index).type):
        return None
    name = flattened_name(part.column, part.keys[0])
    return name if schema.get_field_index(name) >= 0 else None


def source_columns(schema: pa.Schema, names: Iterable[str]) -> tuple[str, ...]:
    """The table's columns that hold these columns and parts, each once; columns that it lacks are left out."""
    sources: dict[str, None] = {}
    for name in names:
        part = None if has_column(schema, name) else part_of(name)
        if part is None:
            sources[name] = None
            continue
        columns = (part.column, flattened_name(part.column, part.keys[0]))
        candidates = columns if flattened_column(schema, part) is not None else columns[:1]
        sources.update(dict.fromkeys(column for column in candidates if has_column(schema, column)))
    return tuple(sources)


def _type_at(kind: pa.DataType, keys: tuple[Key, ...], part: ColumnPart) -> pa.DataType:
    for key in keys:
        kind = _below(kind, key, part)
    return kind


def _below(kind: pa.DataType, key: Key, part: ColumnPart) -> pa.DataType:
    if pat.is_struct(kind) and isinstance(key, str):
        indices = kind.get_all_field_indices(key)
        if len(indices) == 1:
            return kind.field(indices[0]).type
        raise PartError(f"{part} is not in the table: the struct has {len(indices)} fields {key!r}")
    if pat.is_map(kind):
        fits = pat.is_integer(kind.key_type) if isinstance(key, int) else _is_string(kind.key_type)
        if fits:
            return kind.item_type
        raise PartError(f"{part} is not in the table: the map's keys are {kind.key_type}, the key is {key!r}")
    raise PartError(f"{part} is not in the table: {kind} has no part {key!r}")


def _is_string(kind: pa.DataType) -> bool:
    if pat.is_dictionary(kind):
        return _is_string(kind.value_type)
    return any(test(kind) for test in (pat.is_string, pat.is_large_string, pat.is_string_view))


def _reconcile(kind: pa.DataType, flattened: pa.DataType, part: ColumnPart, column: str) -> pa.DataType:
    """The common type of the map's values and the column for one of its keys."""
    for family in (_SIGNED, _FLOATS):
        if kind in family and flattened in family:
            return family[max(family.index(kind), family.index(flattened))]
    if kind == flattened or column_type(pa.field("", kind)) == column_type(pa.field("", flattened)):
        return kind
    raise PartError(f"{part} has two types: {kind} in the map, {flattened} in the column {column!r}")


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def over_parts(tree: Node, schema: pa.Schema) -> tuple[Node, frozenset[str]]:
    """The tree with columns for parts, and the names of its columns. A part with the name of a column stays a chain.
    Where the schema has the column for a key of a map but not the map, the part is that column (or a part of it)."""
    names: set[str] = set()

    def rewrite(node: Node) -> Node:
        part = _part(node, schema) if isinstance(node, ColumnRef | Field) else None
        if part is None:
            return map_children(node, rewrite)
        names.add(part)
        return ColumnRef(name=part, span=node.span)

    return rewrite(tree), frozenset(names)


def _part(node: ColumnRef | Field, schema: pa.Schema) -> str | None:
    """The name of a column, or of the part that a chain of subscripts on a column reaches."""
    part = _subscripts(node)
    if part is None or not part.keys:
        return None if part is None else part.column
    if not has_column(schema, part.column) and (flattened := flattened_column(schema, part)) is not None:
        return str(ColumnPart(flattened, part.keys[1:])) if part.keys[1:] else flattened
    return None if has_column(schema, str(part)) else str(part)
