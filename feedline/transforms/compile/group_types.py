"""Give values the type of their group, and refuse kinds that the group does not take.

Runs in: every process that compiles features. Pure. The dtype is float32 (or vectors of float32) for dense and label,
int64 for categorical, lists of int64 or float32 for sparse; extra keeps its types. A scalar under sparse is a list of
at most one value. A weighted list becomes one struct of two lists, `VALUES` and `WEIGHTS_OF_VALUES`.
"""

from __future__ import annotations

import polars as pl

from feedline.errors import SpecError
from feedline.expressions.types import BINARY, BOOLEAN, DECIMAL, FLOAT, INTEGER, NUMBERS, STRING
from feedline.spec.features import AnyGroup, Group
from feedline.transforms.values.arrays import map_series
from feedline.transforms.values.kinds import TEMPORAL, WEIGHTS, Kind, Value
from feedline.transforms.values.ragged import lists_of_one

VALUES, WEIGHTS_OF_VALUES = "values", "weights"


def finish_element(value: Value, group: AnyGroup) -> Value:
    """The value of a list's element, of a feature that `finish` takes, in the type that its lists have."""
    if group != "sparse":
        return finish(value, group)
    return value.plain().convert(pl.Int64() if value.kind.element == INTEGER else pl.Float32())


def finish(value: Value, group: AnyGroup) -> Value:
    """The value in its group's type. Raises SpecError, with the remedy, for a kind that the group does not take."""
    if group == "observed":  # as an op over one column takes it
        return value.plain()
    kind = value.kind
    if group == "extra":
        return value
    dtype: pl.DataType
    if group == "categorical":
        _require(kind, group, "one integer id per row", elements=(INTEGER, BOOLEAN), listed=False)
        dtype = pl.Int64()
    elif group == "sparse":
        scalar = not kind.listed and kind.width is None
        expected = "lists of integers or floats, or one per row"
        _require(kind, group, expected, elements=(INTEGER, FLOAT, DECIMAL), listed=not scalar)
        element = pl.Int64() if kind.element == INTEGER else pl.Float32()
        dtype = pl.List(element)
        if scalar:
            numbers = value.plain().convert(element).expr
            return Value(expr=map_series(numbers, lists_of_one, dtype), dtype=dtype)
        if kind.weighted:
            return _finish_weighted(value.plain(), kind, dtype)
    elif kind.width is not None and kind.element in (*NUMBERS, BOOLEAN):
        dtype = pl.Array(pl.Float32(), kind.width)
        return Value(expr=value.expr if dtype == value.dtype else value.expr.cast(dtype), dtype=dtype)
    else:
        _require(kind, group, "one number per row", elements=(INTEGER, FLOAT, DECIMAL, BOOLEAN), listed=False)
        dtype = pl.Float32()
    return value.plain().convert(dtype)


def _finish_weighted(value: Value, kind: Kind, dtype: pl.DataType) -> Value:
    if kind.element != INTEGER:
        raise SpecError(
            f"sparse takes weights beside integer ids: got {kind}. Bucketize the ids, or drop the weights: ids"
        )
    assert value.weights is not None
    values = value.expr if dtype == value.dtype else value.expr.cast(dtype)
    both = pl.struct(values.alias(VALUES), value.weights.alias(WEIGHTS_OF_VALUES))
    return Value(expr=both, dtype=pl.Struct({VALUES: dtype, WEIGHTS_OF_VALUES: WEIGHTS}))


def _require(kind: Kind, group: Group, expected: str, *, elements: tuple[str, ...], listed: bool) -> None:
    if kind.element not in elements or kind.listed is not listed:
        raise SpecError(f"{group} takes {expected}: got {kind}. {_remedy(kind, group, listed)}")


def _remedy(kind: Kind, group: Group, listed: bool) -> str:
    group_name = "sparse" if kind.listed else "dense" if kind.element in (FLOAT, DECIMAL) else "categorical"
    move = "" if kind.listed is listed else f", and put the feature under {group_name}"
    if kind.element in NUMBERS and move:
        number = (
            ", or reduce the list to a number with expr, such as `x.list.len()`, or make a vector with {pad: LENGTH}"
            if kind.listed
            else ""
        )
        return f"Put the feature under {group_name}{number}"
    if kind.element in (FLOAT, DECIMAL):
        return "End its ops with bucketize or {cast: int64}, or put the feature under dense"
    if kind.element in (STRING, BINARY):
        if group in ("dense", "label") and not move:
            return "End its ops with {cast: float32}, or put it under categorical with {hash_bucket: 1000000}"
        return f"End its ops with {{hash_bucket: 1000000}}{move}"
    if kind.element == BOOLEAN:
        return f"End its ops with {{cast: int64}}{move}"
    if kind.element in TEMPORAL:
        return "Extract a number with expr, such as `expr: NAME.dt.hour()`"
    return 'Extract one field with expr, such as `expr: NAME["field"]`'
