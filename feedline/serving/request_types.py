"""Convert the columns of a request to the types of training, and refuse what does not fit them.

Pure. Columns are converted by these rules, which also apply inside lists, structs and maps; anything else is an error
that names the column and both types:

    equal types, null                  as they are
    dictionary<T>                      as T
    integers, decimals                 of any width and sign, where each value fits
    integers, decimals into floats     where the float is exactly the integer; decimals are rounded
    floats                             of any width; rounded to a narrower one, as when a table is written
    strings; binary values             of any Arrow layout
    strings into timestamps            ISO 8601, as JSON has them; with an offset or Z where training has a zone, else
    and dates                          without
    timestamps, durations              of any unit, where no value loses digits; with a zone or without, as in training
    lists, large lists, vectors        of one another; a vector's length must fit
    structs                            fields by name; a missing one is null, unless a feature reads it

Values without a type of their own (Python lists) are parsed as training's type.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from feedline.errors import DataError, SpecError
from feedline.expressions.column_parts import PartError, has_column, part_field, part_of
from feedline.expressions.types import column_type, holds

Column: TypeAlias = pa.Array | pa.ChunkedArray

_LISTS = (pat.is_list, pat.is_large_list, pat.is_fixed_size_list)
_STRINGS = (pat.is_string, pat.is_large_string, pat.is_string_view)
_BYTES = (pat.is_binary, pat.is_large_binary, pat.is_binary_view, pat.is_fixed_size_binary)


def needs_no_conversion(source: pa.Field, target: pa.Field) -> bool:
    """Whether both have one type in the transforms, so that no conversion is needed."""
    if source.type == target.type:
        return True
    dtype = column_type(source)
    return dtype is not None and dtype == column_type(target) and dtype != pl.Null()


def convertible(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of one type may be converted to another by the rules above; single values may not fit."""
    if pat.is_null(source) or source == target:
        return True
    if pat.is_dictionary(source) or pat.is_dictionary(target):
        return convertible(_value_type(source), _value_type(target))
    if pat.is_struct(source) and pat.is_struct(target):
        fields = {field.name: field.type for field in source}
        return all(convertible(fields.get(field.name, pa.null()), field.type) for field in target)
    if pat.is_map(source) and pat.is_map(target):
        return convertible(source.key_type, target.key_type) and convertible(source.item_type, target.item_type)
    if _is(source, _LISTS) and _is(target, _LISTS):
        return convertible(source.value_type, target.value_type)
    return _flat(source, target)


def _flat(source: pa.DataType, target: pa.DataType) -> bool:
    if pat.is_floating(target):
        return bool(pat.is_floating(source) or pat.is_integer(source) or pat.is_decimal(source))
    if pat.is_integer(target) or pat.is_decimal(target):
        return bool(pat.is_integer(source) or pat.is_decimal(source))
    if pat.is_timestamp(target):
        return _is(source, _STRINGS) or (pat.is_timestamp(source) and (source.tz is None) == (target.tz is None))
    if pat.is_date(target) and _is(source, _STRINGS):
        return True
    families = (_STRINGS, _BYTES, (pat.is_duration,), (pat.is_date,), (pat.is_time,))
    return any(_is(source, family) and _is(target, family) for family in families)


def convert(column: Column, target: pa.DataType, name: str) -> Column:
    """Convert a column to a convertible type.

    Raises DataError, naming column, row and value, if a value does not fit.
    """
    try:
        return _cast(column, target)
    except pa.ArrowInvalid:
        pass
    # A cast also checks elements in memory outside of a slice's rows: copy the slice.
    column = column.take(pa.array(range(len(column)), pa.int64()))
    try:
        return _cast(column, target)
    except pa.ArrowInvalid as error:
        row = _first_wrong(column, target)
        value, cause = repr(column[row].as_py())[:80], str(error).partition("\n")[0]
        remedy = _iso_remedy(target) if holds(column.type, _is_string) else ""
        raise DataError(
            f"column {name!r} holds a value that does not fit its type in training: got {value}, expected {target} "
            f"({cause}){remedy}"
        ).at(row) from error


def refuse_other_kinds(source: pa.Field, target: pa.DataType) -> None:
    """Raise SpecError for a column whose type cannot be converted to the target."""
    if not convertible(source.type, target):
        raise SpecError(
            f"column {source.name!r} is of another type than in training: got {source.type}, expected {target} or a "
            "type that converts to it exactly. Convert it"
        )


def refuse_absent_parts(source: pa.Schema, names: Iterable[str]) -> None:
    """Raise SpecError if a part that features read, such as a struct's field, is missing in the rows' columns."""
    for name in names:
        part = part_of(name)
        if part is None or name in source.names or not has_column(source, part.column):
            continue
        try:
            part_field(source, part)
        except PartError as error:
            raise SpecError(f"the rows lack {name}, which training had: {error}") from None


def table_of(columns: Mapping[str, Any], types: pa.Schema | None) -> pa.Table:
    """Build a table from columns by name: sequences, numpy arrays (two-dimensional: vectors), Arrow arrays, Polars
    series.

    Raises DataError for columns of different lengths, and for values that do not fit the type of their column.
    """
    arrays: dict[str, Any] = {}
    for name, values in columns.items():
        index = -1 if types is None else types.get_field_index(name)
        arrays[name] = _array(name, values, None if types is None or index < 0 else types.field(index).type)
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        first, other = next((a, b) for a, b in zip(lengths, [*lengths][1:], strict=False) if lengths[a] != lengths[b])
        raise DataError(
            f"columns have different lengths: got {lengths[first]} rows of {first!r} and {lengths[other]} of {other!r}"
        )
    return pa.table(arrays)


def is_pandas(value: Any, name: str) -> bool:
    """Whether a value is an instance of a pandas class, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, getattr(pandas, name))


def series_array(name: str, series: Any, kind: pa.DataType | None) -> pa.Array | pa.ChunkedArray:
    """Convert a pandas series: NaN becomes null, and whole floats become integers in an integer column.

    Raises DataError for values that do not fit the type of their column.
    """
    try:
        if series.dtype == object:
            _refuse_characters(series, kind)
        array = pa.array(series, kind if series.dtype == object else None, from_pandas=True)
        if kind is not None and pat.is_integer(kind) and pat.is_floating(array.type):
            return array.cast(kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise _type_error(name, kind, error) from None
    return array


def _array(name: str, values: Any, kind: pa.DataType | None) -> Any:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, pl.Series):
        return values.to_arrow()
    if is_pandas(values, "Series"):
        return series_array(name, values, kind)
    if isinstance(values, np.ndarray):
        if values.ndim == 1:
            return pa.array(values)
        if values.ndim == 2:
            return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
        raise DataError(f"column {name!r} has {values.ndim} dimensions: expected 1, or 2 for vectors")
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise DataError(
            f"column {name!r} is not a column: got {type(values).__name__}, expected a sequence or an array"
        )
    try:
        _refuse_characters(values, kind)
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        if kind is None or not holds(kind, _is_moment):
            raise _type_error(name, kind, error) from None
    return _of_strings(name, values, kind)


def _refuse_characters(values: Iterable[Any], kind: pa.DataType | None) -> None:
    """Raise TypeError for a string among lists: Arrow would take it for the list of its characters, or bytes."""
    strings = {str, bytes} & set(map(type, values)) if kind is not None and _is(kind, _LISTS) else None
    if strings:
        raise TypeError(f"got {', '.join(sorted(each.__name__ for each in strings))} in place of a list")


def _of_strings(name: str, values: Sequence[Any], kind: pa.DataType) -> Any:
    """Values whose times are strings, as JSON has them."""
    try:
        array = pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise _type_error(name, kind, error) from None
    if not convertible(array.type, kind):
        raise _type_error(name, kind, TypeError(f"got {array.type}"))
    return convert(array, kind, name)


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pat.is_timestamp(kind) or pat.is_date(kind))


def _is_string(kind: pa.DataType) -> bool:
    return _is(_value_type(kind), _STRINGS)


def _iso_remedy(kind: pa.DataType) -> str:
    """How the times of a type are written as strings."""
    if not holds(kind, _is_moment):
        return ""
    if holds(kind, pat.is_date):
        return ". Write dates as ISO 8601: 2026-01-31"
    zoned = holds(kind, lambda inner: bool(pat.is_timestamp(inner) and inner.tz is not None))
    form, rule = ("2026-01-31T12:00:00+00:00", "an offset or Z") if zoned else ("2026-01-31T12:00:00", "no offset")
    return f". Write times as ISO 8601 with {rule}, as training has them: {form}"


def _type_error(name: str, kind: pa.DataType | None, error: Exception) -> DataError:
    cause = str(error).partition("\n")[0]
    is_list = kind is not None and _is(kind, _LISTS)
    remedy = ". A dict of lists holds columns: write one row of lists as [row]" if is_list else ""
    return DataError(f"column {name!r} holds values of another type: expected {kind or 'one type'} ({cause}){remedy}")


def _is(kind: pa.DataType, tests: Sequence[Any]) -> bool:
    return any(test(kind) for test in tests)


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pat.is_dictionary(kind) else kind


def _cast(column: Column, target: pa.DataType) -> Column:
    """Raises ArrowInvalid where a value does not fit."""
    if pat.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    result = column.cast(target)
    flat, rounded = column, result
    while _is(flat.type, _LISTS):
        flat, rounded = pc.list_flatten(flat), pc.list_flatten(rounded)
    narrows = pat.is_floating(flat.type) and pat.is_floating(rounded.type)
    if narrows and flat.type.bit_width > rounded.type.bit_width:
        infinite = pc.is_inf(rounded)
        if pc.any(infinite).as_py():
            wrong = pc.and_(infinite, pc.is_finite(flat))
            if pc.any(wrong).as_py():
                raise pa.ArrowInvalid(f"Float value {flat[pc.index(wrong, True).as_py()].as_py()} not in range")
    return result


def _first_wrong(column: Column, target: pa.DataType) -> int:
    """Find the first row that cannot be cast; there is one."""
    low, high = 0, len(column)  # all rows before `low` can be cast, some before `high` cannot
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _cast(column.take(pa.array(range(low, middle), pa.int64())), target)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low
