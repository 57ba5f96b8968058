"""Parts of columns: their names, the columns of a table that hold them, and expressions written over them.

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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from feedline.expressions.nodes import (
    Arithmetic,
    Call,
    ColumnRef,
    Compare,
    Constant,
    Field,
    Logic,
    Member,
    Negation,
    Negative,
    Node,
    NullTest,
)
from feedline.expressions.parser import parse_tree
from feedline.expressions.spans import Fault
from feedline.expressions.types import column_type

Key: TypeAlias = str | int

_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_FLOATS = (pa.float16(), pa.float32(), pa.float64())


class PartError(Exception):
    """A part that a schema does not have; internal: whoever asks turns it into an error with a place."""


@dataclass(frozen=True, slots=True)
class ColumnPart:
    """What lies in a column at some keys, from the outside in; one key at least."""

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
    """What is wanted of a value: the whole of it, or what lies at some keys, or both."""

    whole: bool = False
    parts: dict[Key, PartTree] = field(default_factory=dict)

    def add(self, keys: tuple[Key, ...]) -> None:
        """Want what lies at these keys, too; the whole for none."""
        if not keys:
            self.whole = True
            return
        self.parts.setdefault(keys[0], PartTree()).add(keys[1:])


def not_null(names: Iterable[str]) -> str:
    """The filter that drops rows in which one of these columns and parts is null: `a is not None and b is not None`."""
    texts = [name if part_of(name) is not None else str(ColumnPart(name, ())) for name in names]
    return " and ".join(f"{text} is not None" for text in texts)


def flattened_name(column: str, key: Key) -> str:
    """The top-level column that holds the values of one key of a map column: `features_map.price`, `weights.7`."""
    return f"{column}.{key}"


def has_column(schema: pa.Schema, name: str) -> bool:
    """Whether a schema has a column of that name: without the list of all names, for schemas of thousands."""
    return bool(schema.get_all_field_indices(name))


@lru_cache(maxsize=65_536)
def part_of(name: str) -> ColumnPart | None:
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
    return ColumnPart(node.name, tuple(reversed(keys))) if isinstance(node, ColumnRef) and keys else None


def part_field(schema: pa.Schema, part: ColumnPart) -> pa.Field:
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
            kind = _reconcile(kind, _type_at(schema.field(column).type, part.keys[1:], part), part, column)
    elif column is not None:
        kind = _type_at(schema.field(column).type, part.keys[1:], part)
    else:
        raise PartError(f"column {part.column!r} is not in the table")
    return pa.field(str(part), kind)


def flattened_column(schema: pa.Schema, part: ColumnPart) -> str | None:
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


def _type_at(kind: pa.DataType, keys: tuple[Key, ...], part: ColumnPart) -> pa.DataType:
    for key in keys:
        kind = _below(kind, key, part)
    return kind


def _below(kind: pa.DataType, key: Key, part: ColumnPart) -> pa.DataType:
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


def _reconcile(kind: pa.DataType, flattened: pa.DataType, part: ColumnPart, column: str) -> pa.DataType:
    """The type that holds the map's values and those of the column for one key."""
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
    """The tree with columns for parts, and the names of its columns. A part that is named like a column stays a chain.

    A part of a map that the schema lacks, and of which it has a column, is that column (or a part of it).
    """
    names: set[str] = set()

    def rewritten(node: Node) -> Node:
        if isinstance(node, ColumnRef | Field):
            part = _part(node, schema)
            if part is not None:
                names.add(part)
                return ColumnRef(name=part, span=node.span)
            if isinstance(node, Field):
                return replace(node, item=rewritten(node.item))
        return _map(node, rewritten)

    return rewritten(tree), frozenset(names)


def _part(node: ColumnRef | Field, schema: pa.Schema) -> str | None:
    """The name of the column, or of the part that a chain of subscripts on a column is."""
    keys: list[Key] = []
    item: Node = node
    while isinstance(item, Field):
        assert isinstance(item.key.value, str | int)
        keys.append(item.key.value)
        item = item.item
    if not isinstance(item, ColumnRef):
        return None
    if not keys:
        return item.name
    part = ColumnPart(item.name, tuple(reversed(keys)))
    if not has_column(schema, part.column) and (flattened := flattened_column(schema, part)) is not None:
        return str(ColumnPart(flattened, part.keys[1:])) if part.keys[1:] else flattened
    return None if has_column(schema, str(part)) else str(part)


def _map(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with its children changed."""

    def argument(value: Node | tuple[Constant, ...]) -> Node | tuple[Constant, ...]:
        return value if isinstance(value, tuple) else change(value)

    match node:
        case Negative(item=item) | Member(item=item) | NullTest(item=item) | Negation(item=item):
            return replace(node, item=change(item))
        case Arithmetic(left=left, right=right) | Compare(left=left, right=right):
            return replace(node, left=change(left), right=change(right))
        case Logic(items=items):
            return replace(node, items=tuple(change(item) for item in items))
        case Call(arguments=arguments, keywords=keywords):
            return replace(
                node,
                arguments=tuple(argument(value) for value in arguments),
                keywords={name: argument(value) for name, value in keywords.items()},
            )
    return node
