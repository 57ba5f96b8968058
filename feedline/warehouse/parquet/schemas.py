"""Unite drifted schemas: the union of the files' columns, each in the narrowest type that loses nothing.

Pure. Two types of one column are reconciled by these rules, inside lists, structs and maps too; anything else is a
changed kind of value and an error that names the column and two files:

    null, T                     T                   dictionary<T>, T            T (a table's schema has no dictionaries)
    integers of one sign        the wider           unsigned, wider signed      the signed one that holds both
    floats                      the wider           decimals                    digits for both, up to 38 (76)
    string, large_string        large_string        binary, large_binary        large_binary
    list, large_list            large_list          fixed-size list, any list   list or large_list
    timestamps of two units     the finer unit      timestamps of two zones     UTC (the instants are the same)
    structs                     union of fields     a column a file lacks       null in that file's rows

A file's own types are read as `storage_type` has them: extension types as their storage, offsets from UTC as UTC.

A declared type (`SchemaRules`) replaces the union, and the files' types must widen into it (`widens`): by the rules
above, from integers into floats that hold them all, and between the two widths of offsets.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.errors import TableError

FIELD_ID = b"PARQUET:field_id"  # of a field's metadata: its id in the table's log
_UNITS = ("s", "ms", "us", "ns")
# Classes of types that have no zone and no other type inside them.
_PLAIN = {pa.DataType, pa.Decimal128Type, pa.Decimal256Type, pa.FixedSizeBinaryType}
_OFFSET = re.compile(r"[+-]\d\d(:?\d\d)?|[Zz]")  # a zone that is an offset from UTC: +05:30, -03, Z
_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_FLOATS = (pa.float16(), pa.float32(), pa.float64())
_MANTISSA_BITS = {16: 11, 32: 24, 64: 53}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRules:
    """The rules of `source.schema` in pipeline.yaml.

    `missing_error`: a column in use must be in every file. `extra_error`: files have no column other than `columns`.
    `columns`: types that the files' types must widen into without loss.
    """

    missing_error: bool = False
    extra_error: bool = False
    columns: Mapping[str, pa.DataType] = dataclasses.field(default_factory=dict)


class KindChangedError(Exception):
    """Two types that no rule reconciles. Internal: `union` turns it into a TableError with names."""


def union(
    schemas: Iterable[tuple[str, pa.Schema]], rules: SchemaRules | None = None, keys: Collection[str] = ()
) -> pa.Schema:
    """The schema of a table from (file, schema) pairs; columns in order of first appearance.

    A field is nullable if it is so in some file or missing from one. Declared columns have their declared type and
    are nullable; those that no file has come last. `keys`: partition keys, to which no rule applies.

    Raises TableError if a file names a column twice, has one that the rules do not allow, or holds a type that does not
    widen into the declared one, and if a column changed its kind, naming the column and two files.
    """
    rules = rules or SchemaRules()
    declared = rules.columns
    for name in declared:
        if name in keys:
            raise TableError(f"column {name!r} is a partition key: declare its type among `partitions`")
    fields: dict[str, pa.Field] = {}
    origin: dict[str, str] = {}
    names_per_file: list[set[str]] = []
    for file, schema in schemas:
        refuse_duplicate_columns(schema, file)
        names_per_file.append(set(schema.names))
        for field in schema:
            merged = fields.get(field.name)
            if field.name in declared:
                fields[field.name] = _declare(field, declared[field.name], file)
            elif rules.extra_error and field.name not in keys:
                raise TableError(extra_column_message(field.name, file, declared))
            elif merged is None:
                fields[field.name] = field.with_type(without_dictionaries(field.type)).remove_metadata()
                origin[field.name] = file
            elif merged.type != field.type or merged.nullable != field.nullable:
                fields[field.name] = _merge(merged, field, origin[field.name], file)
    fields |= {name: pa.field(name, kind) for name, kind in declared.items() if name not in fields}
    return pa.schema(
        [
            field if all(name in names for names in names_per_file) else field.with_nullable(True)
            for name, field in fields.items()
        ]
    )


def refuse_duplicate_columns(schema: pa.Schema, file: str) -> None:
    """Raise TableError if a file names a column twice."""
    if len(set(schema.names)) < len(schema.names):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise TableError(f"{file} has column {twice!r} more than once: expected each name once. Rename one of them")


def extra_column_message(name: str, holder: str, declared: Iterable[str]) -> str:
    """The message of `extra: error` for a column of a file, or of a table's log."""
    return (
        f"column {name!r} of {holder} is not expected: `columns` names {', '.join(declared)}. "
        "Add it there, or write `extra: ignore`"
    )


def widens(stored: pa.DataType, declared: pa.DataType) -> bool:
    """Whether every value of one type is a value of the other."""
    if pat.is_null(stored) or stored == declared:
        return True
    if pat.is_nested(stored) and pat.is_nested(declared):
        return _nested_widens(stored, declared)
    if pat.is_integer(stored) and pat.is_floating(declared):
        digits = stored.bit_width - pat.is_signed_integer(stored)
        return bool(digits <= _MANTISSA_BITS[declared.bit_width])
    if pat.is_timestamp(stored) and pat.is_timestamp(declared):
        return (stored.tz is None) == (declared.tz is None) and _UNITS.index(stored.unit) <= _UNITS.index(declared.unit)
    try:
        both = unify(stored, declared)
    except KindChangedError:
        return False
    return both in (declared, {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(declared, declared))


def _nested_widens(stored: pa.DataType, declared: pa.DataType) -> bool:
    if pat.is_fixed_size_list(declared):
        return False  # equal types have returned True before
    if _is_any_list(stored) and _is_any_list(declared):
        return widens(stored.value_type, declared.value_type)
    if pat.is_map(stored) and pat.is_map(declared):
        return widens(stored.key_type, declared.key_type) and widens(stored.item_type, declared.item_type)
    return False


def _declare(field: pa.Field, kind: pa.DataType, file: str) -> pa.Field:
    if not widens(without_dictionaries(field.type), kind):
        raise TableError(
            f"column {field.name!r} of {file} does not widen into its declared type: got {field.type}, expected a type "
            f"that {kind} holds without loss. Declare a wider type, or rewrite the file"
        )
    return pa.field(field.name, kind)


def storage_type(kind: pa.DataType) -> pa.DataType:
    """The type that values of a file's type are read as, in the same memory: an extension type's storage, at any depth,
    and UTC in place of an offset from it, which no frame has: the instants are the same."""
    if isinstance(kind, pa.BaseExtensionType):
        return storage_type(kind.storage_type)
    if pat.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC") if _OFFSET.fullmatch(kind.tz or "") else kind
    if pat.is_dictionary(kind):
        values = storage_type(kind.value_type)
        return kind if values == kind.value_type else pa.dictionary(kind.index_type, values, kind.ordered)
    fields = child_fields(kind)
    types = [storage_type(field.type) for field in fields]
    if all(new == field.type for new, field in zip(types, fields, strict=True)):
        return kind
    return nested_like(kind, [field.with_type(new) for field, new in zip(fields, types, strict=True)])


def storage_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with `storage_type`s; itself if it has no others."""
    if _PLAIN.issuperset(map(type, schema.types)):  # one call: a request has hundreds of columns
        return schema
    types = [storage_type(field.type) for field in schema]
    if all(new == field.type for new, field in zip(types, schema, strict=True)):
        return schema
    fields = [field.with_type(new) for field, new in zip(schema, types, strict=True)]
    return pa.schema(fields, schema.metadata)


def relabel(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch under another schema of the same layout, without a copy."""
    return batch if batch.schema == schema else pa.record_batch(_Relabelled(batch, schema))


def storage_rows(rows: pa.Table) -> pa.Table:
    """The rows in `storage_type`s, without a copy."""
    schema = storage_schema(rows.schema)
    if schema is rows.schema:
        return rows
    return pa.Table.from_batches([relabel(batch, schema) for batch in rows.to_batches()], schema)


class _Relabelled:
    """A batch with another schema of the same layout, by Arrow's C data interface."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self._batch = batch
        self._schema = schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        _, array = self._batch.__arrow_c_array__()
        return self._schema.__arrow_c_schema__(), array


def without_dictionaries(kind: pa.DataType) -> pa.DataType:
    """The type without dictionaries, at any depth; maps get Arrow's field names, as saving a schema loses others."""
    if pat.is_dictionary(kind):
        return without_dictionaries(kind.value_type)
    if not pat.is_nested(kind) or not _holds(kind, (pat.is_dictionary, pat.is_map)):
        return kind
    return _with_types(kind, [without_dictionaries(child.type) for child in child_fields(kind)])


def child_fields(kind: pa.DataType) -> list[pa.Field]:
    """The child fields of a nested type; empty for others."""
    if pat.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pat.is_nested(kind):
        return [kind.field(i) for i in range(kind.num_fields)]
    return []


def leaf_count(kind: pa.DataType) -> int:
    """The number of Parquet columns that a field of this type is stored as."""
    if pat.is_dictionary(kind):
        return leaf_count(kind.value_type)
    below = child_fields(kind)
    return sum(leaf_count(child.type) for child in below) if below else 1


def nested_like(kind: pa.DataType, fields: Sequence[pa.Field]) -> pa.DataType:
    """The nested type with other child fields."""
    if pat.is_struct(kind):
        return pa.struct(fields)
    if pat.is_map(kind):
        return pa.map_(*fields, keys_sorted=kind.keys_sorted)
    if pat.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    return pa.large_list(fields[0]) if pat.is_large_list(kind) else pa.list_(fields[0])


def field_id(field: pa.Field) -> int | None:
    """The id of a field in the table's log; None if it has none."""
    id = (field.metadata or {}).get(FIELD_ID)
    return None if id is None else int(id)


def is_text(kind: pa.DataType) -> bool:
    """Whether values are strings, whatever the width of their offsets."""
    return bool(pat.is_string(kind) or pat.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values are bytes of any length, whatever the width of their offsets."""
    return bool(pat.is_binary(kind) or pat.is_large_binary(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists of any length, whatever the width of their offsets."""
    return bool(pat.is_list(kind) or pat.is_large_list(kind))


def is_unchecked(kind: pa.DataType) -> bool:
    """Whether values of this type may be damaged in a way that pyarrow's reader does not notice and crashes Polars.

    The reader does not check that strings are UTF-8 (Polars relies on it), nor that indices are within their
    dictionary. Checking 65,536 short strings takes 0.2 ms, decoding them 5.
    """
    return _holds(kind, (pat.is_dictionary, pat.is_string, pat.is_large_string, pat.is_string_view))


def unify(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The narrowest type that holds the values of both. Raises KindChangedError if there is none."""
    if a == b:
        return a
    if pat.is_null(a):
        return b
    if pat.is_null(b):
        return a
    if pat.is_nested(a) and pat.is_nested(b):
        return _nest(a, b)
    for rule in (_number, _timestamp, _decimal, _string):
        result = rule(a, b)
        if result is not None:
            return result
    raise KindChangedError


def conform(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array in the table's type; unchanged if it has that type."""
    if array.type == kind:
        return array
    if pat.is_dictionary(array.type):
        return conform(array.dictionary_decode(), kind)
    return array.cast(kind)


def _merge(merged: pa.Field, field: pa.Field, first: str, second: str) -> pa.Field:
    try:
        return _unify_fields(merged, field.with_type(without_dictionaries(field.type)))
    except KindChangedError:
        raise TableError(
            f"column {field.name!r} changed its kind between files: got {merged.type} in {first} and {field.type} in "
            f"{second}, expected types that widen into one. Rewrite one of the files, or leave it out of the table"
        ) from None


def _number(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    for family in (_SIGNED, _UNSIGNED, _FLOATS):
        if a in family and b in family:
            return family[max(family.index(a), family.index(b))]
    signed, unsigned = (a, b) if a in _SIGNED else (b, a)
    if signed in _SIGNED and unsigned in _UNSIGNED:
        index = max(_SIGNED.index(signed), _UNSIGNED.index(unsigned) + 1)
        return _SIGNED[index] if index < len(_SIGNED) else None
    return None


def _timestamp(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    if not (pat.is_timestamp(a) and pat.is_timestamp(b)) or (a.tz is None) != (b.tz is None):
        return None
    return pa.timestamp(max(a.unit, b.unit, key=_UNITS.index), a.tz if a.tz == b.tz else "UTC")


def _decimal(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    if not (pat.is_decimal(a) and pat.is_decimal(b)):
        return None
    scale = max(a.scale, b.scale)
    digits = max(a.precision - a.scale, b.precision - b.scale) + scale
    if digits > 76:
        return None
    wide = digits > 38 or a.bit_width > 128 or b.bit_width > 128
    return pa.decimal256(digits, scale) if wide else pa.decimal128(digits, scale)


def _string(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    if all(is_text(kind) or pat.is_string_view(kind) for kind in (a, b)):
        return pa.large_string()
    if all(is_bytes(kind) or pat.is_binary_view(kind) or pat.is_fixed_size_binary(kind) for kind in (a, b)):
        return pa.large_binary()
    return None


def _nest(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if pat.is_struct(a) and pat.is_struct(b):
        return _struct(a, b)
    if pat.is_map(a) and pat.is_map(b):
        return _with_types(a, [unify(x.type, y.type) for x, y in zip(child_fields(a), child_fields(b), strict=True)])
    if not (_is_any_list(a) and _is_any_list(b)):
        raise KindChangedError
    item = _unify_fields(a.value_field, b.value_field)
    if pat.is_fixed_size_list(a) and pat.is_fixed_size_list(b) and a.list_size == b.list_size:
        return pa.list_(item, a.list_size)
    return pa.large_list(item) if pat.is_large_list(a) or pat.is_large_list(b) else pa.list_(item)


def _is_any_list(kind: pa.DataType) -> bool:
    return is_list(kind) or bool(pat.is_fixed_size_list(kind))


def _unify_fields(a: pa.Field, b: pa.Field) -> pa.Field:
    return pa.field(a.name, unify(a.type, b.type), nullable=a.nullable or b.nullable)


def _struct(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    fields = {field.name: field for field in child_fields(a)}
    if len(fields) < a.num_fields:
        raise KindChangedError  # fields of the same name are ambiguous
    added = {field.name: field for field in child_fields(b)}
    for name, field in added.items():
        fields[name] = _unify_fields(fields[name], field) if name in fields else field.with_nullable(True)
    return pa.struct([field if name in added else field.with_nullable(True) for name, field in fields.items()])


def _holds(kind: pa.DataType, tests: Sequence[Callable[[pa.DataType], bool]]) -> bool:
    return any(test(kind) for test in tests) or any(_holds(child.type, tests) for child in child_fields(kind))


def _with_types(kind: pa.DataType, types: Sequence[pa.DataType]) -> pa.DataType:
    """The nested type with other child types; maps get Arrow's field names."""
    fields = [field.with_type(new) for field, new in zip(child_fields(kind), types, strict=True)]
    if pat.is_map(kind):
        fields = [field.with_name(name) for field, name in zip(fields, ("key", "value"), strict=True)]
    return nested_like(kind, fields)
