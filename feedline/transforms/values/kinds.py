"""Kinds of columns, in the terms that ops, errors and documentation share.

Pure; runs wherever features are compiled. A kind is the element (integer, float, string …) and whether a row holds one,
a list of them (perhaps with weights) or a vector: a list whose length is part of the column's type. Kinds ignore widths
of numbers (int8, int64), time units and dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import polars as pl

from feedline.dataclass import dataclass
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
from feedline.transforms.values.arrays import NUMPY_TYPES, FusedKernels, Kernel, KernelStep, Values, conversion

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lookup:
    """One lookup of a chain: the column of its ids, the expression that computes them, and the ids of unknown values
    (see `lookup_counts`)."""

    name: str
    ids: pl.Expr
    unknown: range


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A column at one point of a chain of ops: the expression so far and its type.

    weights: an expression of `WEIGHTS` with the lengths of the list `expr`; only with a list. last: the kernels,
    changes of elements or slice that `expr` ends with, so that more can be appended. unknown: the ids that an op gives
    to values it does not know. lookup: the lookup whose column `expr` derives from.
    """

    expr: pl.Expr
    dtype: pl.DataType
    weights: pl.Expr | None = None
    last: FusedKernels | Elements | TailSlice | None = field(default=None, repr=False, compare=False)
    unknown: range | None = None
    lookup: Lookup | None = None

    @property
    def kind(self) -> Kind:
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
        plain = language_type(dtype)
        if isinstance(plain, pl.List):
            plain = pl.List(language_type(inner_type(plain)))
        if plain is self.dtype or plain == self.dtype:
            return self
        return Value(expr=expr if plain == dtype else expr.cast(plain), dtype=plain, weights=self.weights)

    def apply_kernel(self, kernel: Kernel, dtype: pl.DataType) -> Value:
        """Apply `kernel` to each value, fused with the kernels before it; nulls stay null. Both types are among
        `NUMPY_TYPES`.
        """
        return self._append_step(KernelStep(dtype, kernel))

    def apply_to_series(self, function: Callable[[Any, Values], None], *, of_arrow: bool = False) -> Value:
        """Apply `function(series, out)`, which writes one int64 per value, to whole series; nulls stay null."""
        kernels = FusedKernels.of_series(self.expr, function, of_arrow=of_arrow)
        return Value(expr=kernels.expr, dtype=kernels.dtype, last=kernels)

    def fill_nulls(self, number: float) -> Value:
        """Replace nulls by a number of the value's type."""
        if self.dtype in NUMPY_TYPES:
            return self._append_step(KernelStep(self.dtype, fill=number))
        return Value(expr=self.expr.fill_null(pl.lit(number, dtype=self.dtype)), dtype=self.dtype)

    def _append_step(self, step: KernelStep) -> Value:
        kernels = self.ending if isinstance(self.ending, FusedKernels) else FusedKernels.of(self.expr, self.dtype)
        kernels = kernels.with_step(step)
        return Value(expr=kernels.expr, dtype=step.dtype, last=kernels)

    @property
    def ending(self) -> FusedKernels | Elements | TailSlice | None:
        """What computes this value: `last`, while its expression is `expr`."""
        return self.last if self.last is not None and self.last.expr is self.expr else None

    def convert(self, dtype: pl.DataType) -> Value:
        if dtype == self.dtype:
            return self
        if (step := conversion(self.dtype, dtype)) is not None:
            return self._append_step(step)
        return Value(expr=self.expr.cast(dtype), dtype=dtype)

    def change_elements(self, change: Callable[[Value], Value]) -> Value:
        """Change each element of a list, keeping its weights; consecutive changes share one pass over the list."""
        if isinstance(before := self.ending, Elements):
            lists, start, element = before.lists, before.start, before.element
        else:
            lists, start = self, Value(expr=pl.element(), dtype=element_type(self.dtype))
            element = start
        result = change(element)
        expr = lists.expr.list.eval(result.expr)
        elements = Elements(lists=lists, start=start, element=result, expr=expr)
        dtype = pl.List(result.dtype)
        return Value(expr=expr, dtype=dtype, weights=self.weights, last=elements, unknown=result.unknown)

    def as_vector(self, width: int) -> Value:
        """A list that is `width` long in every row, as a vector."""
        return Value(expr=self.expr.list.to_array(width), dtype=pl.Array(element_type(self.dtype), width))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Elements:
    """How `expr` changes the elements of `lists`, from `start` to `element`."""

    lists: Value
    start: Value
    element: Value
    expr: pl.Expr

    @property
    def kernels(self) -> FusedKernels | None:
        """The kernels that are all of the change, of numbers: strings would have to be copied from Polars' views."""
        kernels = self.element.ending
        if isinstance(kernels, FusedKernels) and kernels.values is self.start.expr and self.start.dtype.is_numeric():
            return kernels
        return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TailSlice:
    """How `expr` is `list[start:stop]` of each of `lists`."""

    lists: pl.Expr
    start: int
    stop: int | None
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
    element = element_type(dtype)
    if not isinstance(element, pl.Struct):
        return False
    fields = struct_fields(element)
    return fields.keys() == {*WEIGHTED_FIELDS} and kind(fields[WEIGHTED_FIELDS[1]]) in NUMBERS


def element_type(dtype: pl.DataType) -> pl.DataType:
    """The type of a list's elements; any other type is returned as it is."""
    return inner_type(dtype) if isinstance(dtype, pl.List) else dtype
