"""Kinds of columns, in the words that ops, errors and documentation share.

Pure; runs wherever features are compiled. A kind is the element (integer, float, string …) and whether a row holds one,
a list of them (perhaps with weights) or a vector: a list of the same length in every row, which the column's type
states. Kinds ignore widths of numbers (int8, int64), time units and dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import polars as pl

from feedline.expressions.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL,
    DURATION,
    FLOAT,
    INTEGER,
    MAP,
    NULL,
    NUMBERS,
    STRING,
    STRUCT,
    TIME,
    TIMESTAMP,
    inner_type,
    instance,
    kind,
    language_type,
)
from feedline.transforms.values.arrays import NUMPY_TYPES, Fused, Kernel, KernelStep, converting

ELEMENTS = (INTEGER, FLOAT, DECIMAL, BOOLEAN, STRING, BINARY, DATE, TIMESTAMP, TIME, DURATION, STRUCT, MAP, NULL)
ANYTHING = frozenset(ELEMENTS)
TEMPORAL = frozenset({DATE, TIMESTAMP, TIME, DURATION})
WEIGHTS = pl.List(pl.Float32())
WEIGHTED_FIELDS = ("id", "weight")  # a list of structs with these fields is a weighted list without an op


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One of `ELEMENTS` (or the name of a type that no op takes), and how many of them a row holds.

    listed: a list. weighted: a list with a weight per element. width: the length of a vector, which is also listed.
    """

    element: str
    listed: bool = False
    weighted: bool = False
    width: int | None = None

    def __str__(self) -> str:
        if self.width is not None:
            return f"{self.element} vector of {self.width}"
        return f"{'weighted ' if self.weighted else ''}{self.element} list" if self.listed else self.element


class Lookup:
    """Identifies one lookup whose unknown values are counted (see `lookup_counts`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A column at one point of a chain of ops: the expression so far and its type.

    weights: an expression of `WEIGHTS` with the lengths of the list `expr`; only beside a list. fused: the kernels that
    `expr` ends with, so that more can be appended; valid only while its expression is `expr`. elements: the same for a
    list whose elements `expr` computes one by one. unknown: the ids that an op gives to values it does not know.
    lookup: the counter of those, in `expr`.
    """

    expr: pl.Expr
    dtype: pl.DataType
    weights: pl.Expr | None = None
    fused: Fused | None = field(default=None, repr=False, compare=False)
    elements: Elements | None = field(default=None, repr=False, compare=False)
    unknown: range | None = None
    lookup: Lookup | None = None

    @property
    def kind(self) -> Kind:
        """The kind of the column."""
        plain = self.plain()
        listed = isinstance(plain.dtype, pl.List)
        element = kind(element_type(plain.dtype))
        return Kind(element=element, listed=listed, weighted=plain.weights is not None, width=self.width)

    @property
    def width(self) -> int | None:
        """A vector's length, None for anything else."""
        dtype = self.dtype
        return dtype.size if isinstance(dtype, pl.Array) and len(dtype.shape) == 1 else None

    def plain(self) -> Value:
        """The value with a vector as a list, categories as strings, a list of {id, weight} as a weighted list."""
        dtype, expr = self.dtype, self.expr
        if isinstance(dtype, pl.Array) and language_type(dtype) != dtype:
            dtype, expr = language_type(dtype), expr.arr.to_list()
        if self.weights is None and _is_weighted(dtype):
            return weighted_value(expr, dtype, *WEIGHTED_FIELDS).plain()
        plain = _plain_type(dtype)
        if plain == self.dtype:
            return self
        return Value(expr=expr if plain == dtype else expr.cast(plain), dtype=plain, weights=self.weights)

    def through(self, kernel: Kernel, dtype: pl.DataType) -> Value:
        """Apply `kernel` to each value, keeping nulls, as `dtype`; it joins the kernels before it.

        Both types are among `NUMPY_TYPES`.
        """
        return self._then(KernelStep(dtype, kernel))

    def filled(self, number: float) -> Value:
        """The value with nulls replaced by a number of its type."""
        if self.dtype in NUMPY_TYPES:
            return self._then(KernelStep(self.dtype, fill=number))
        return Value(expr=self.expr.fill_null(pl.lit(number, dtype=self.dtype)), dtype=self.dtype)

    def _then(self, step: KernelStep) -> Value:
        fused = (self.kernels or Fused.of(self.expr, self.dtype)).then(step)
        return Value(expr=fused.expr, dtype=step.dtype, fused=fused)

    @property
    def kernels(self) -> Fused | None:
        """The kernels that produce this very value."""
        return self.fused if self.fused is not None and self.fused.expr is self.expr else None

    def converted(self, dtype: pl.DataType) -> Value:
        """The value in another type, by a strict cast."""
        if dtype == self.dtype:
            return self
        if (step := converting(self.dtype, dtype)) is not None:
            return self._then(step)
        return Value(expr=self.expr.cast(dtype), dtype=dtype)

    def one_by_one(self, change: Callable[[Value], Value]) -> Value:
        """Change the elements of a list one by one, keeping its weights; consecutive changes share one pass over the
        list.
        """
        held = self.elements
        if held is None or held.expr is not self.expr:
            before, element = self.expr, Value(expr=pl.element(), dtype=element_type(self.dtype))
        else:
            before, element = held.lists, held.element
        made = change(element)
        expr = before.list.eval(made.expr)
        elements = Elements(lists=before, element=made, expr=expr)
        dtype = pl.List(made.dtype)
        return Value(expr=expr, dtype=dtype, weights=self.weights, elements=elements, unknown=made.unknown)

    def as_vector(self, width: int) -> Value:
        """A list that is `width` long in every row, as a vector."""
        return Value(expr=self.expr.list.to_array(width), dtype=pl.Array(element_type(self.dtype), width))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Elements:
    """How `expr` changes the elements of `lists`."""

    lists: pl.Expr
    element: Value
    expr: pl.Expr


def weighted_value(expr: pl.Expr, dtype: pl.DataType, ids: str, weights: str) -> Value:
    """Two fields of a list of structs as a weighted list."""
    fields = struct_fields(element_type(dtype))
    field = pl.element().struct.field
    return Value(
        expr=expr.list.eval(field(ids)),
        dtype=pl.List(fields[ids]),
        weights=expr.list.eval(field(weights).cast(pl.Float32())),
    )


def struct_fields(dtype: pl.DataType) -> dict[str, pl.DataType]:
    """The fields of a struct by name; none for any other type."""
    return {field.name: instance(field.dtype) for field in dtype.fields} if isinstance(dtype, pl.Struct) else {}


def _is_weighted(dtype: pl.DataType) -> bool:
    fields = struct_fields(element_type(dtype))
    return fields.keys() == {*WEIGHTED_FIELDS} and kind(fields[WEIGHTED_FIELDS[1]]) in NUMBERS


def element_type(dtype: pl.DataType) -> pl.DataType:
    """The type of a list's elements; any other type is returned as it is."""
    return inner_type(dtype) if isinstance(dtype, pl.List) else dtype


def _plain_type(dtype: pl.DataType) -> pl.DataType:
    dtype = language_type(dtype)
    return pl.List(language_type(inner_type(dtype))) if isinstance(dtype, pl.List) else dtype
