"""What does a column hold, in the words that ops, errors and documentation share?

Pure; runs wherever features are compiled. A kind is the element (integer, float, string …) and whether a row holds one,
a list of them (with a weight each, perhaps) or a vector: a list that is equally long in every row, whose length the
column's type knows. Widths of numbers (int8, int64), time units and dictionaries do not matter to it.
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
    spoken,
)
from feedline.transforms.values.arrays import NUMPY_TYPES, Fused, Kernel, KernelStep, converting

ELEMENTS = (INTEGER, FLOAT, DECIMAL, BOOLEAN, STRING, BINARY, DATE, TIMESTAMP, TIME, DURATION, STRUCT, MAP, NULL)
ANYTHING = frozenset(ELEMENTS)
TEMPORAL = frozenset({DATE, TIMESTAMP, TIME, DURATION})
WEIGHTS = pl.List(pl.Float32())
WEIGHTED_FIELDS = ("id", "weight")  # of the structs in a list that is a weighted list without being told


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One of `ELEMENTS` (or the name of a type that no op takes), and how many of them a row holds.

    listed: a list. weighted: a list with a weight per element. width: a vector of so many; it is listed, too.
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
    """Stands for values being looked up, of which some are not known; each is one of its own (see `misses`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A column on its way through a chain of ops: the expression so far and the type it has.

    weights: an expression of `WEIGHTS`, as long in every row as the list of `expr`; only beside a list. fused: the
    kernels that `expr` ends with, to put more behind; it counts only as long as its expression is `expr`. elements:
    likewise for a list whose elements `expr` computes one by one. unknown: which of the ids that an op gives stand for
    what it does not know. lookup: what counts them, on their way through `expr`.
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
        """What it holds."""
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
        """The same with a vector as a list, categories as texts and a list of {id, weight} as a weighted list."""
        dtype, expr = self.dtype, self.expr
        if isinstance(dtype, pl.Array) and spoken(dtype) != dtype:
            dtype, expr = spoken(dtype), expr.arr.to_list()
        if self.weights is None and _is_weighted(dtype):
            return weighted_value(expr, dtype, *WEIGHTED_FIELDS).plain()
        plain = _plain_type(dtype)
        if plain == self.dtype:
            return self
        return Value(expr=expr if plain == dtype else expr.cast(plain), dtype=plain, weights=self.weights)

    def through(self, kernel: Kernel, dtype: pl.DataType) -> Value:
        """What `kernel` makes of each value, nulls kept, as `dtype`; it joins the kernels that made the values.

        Both types are among `NUMPY_TYPES`.
        """
        return self._then(KernelStep(dtype, kernel))

    def filled(self, number: float) -> Value:
        """The same with a number of its type in the place of nulls."""
        if self.dtype in NUMPY_TYPES:
            return self._then(KernelStep(self.dtype, fill=number))
        return Value(expr=self.expr.fill_null(pl.lit(number, dtype=self.dtype)), dtype=self.dtype)

    def _then(self, step: KernelStep) -> Value:
        fused = (self.made or Fused.of(self.expr, self.dtype)).then(step)
        return Value(expr=fused.expr, dtype=step.dtype, fused=fused)

    @property
    def made(self) -> Fused | None:
        """The kernels that make just this value."""
        return self.fused if self.fused is not None and self.fused.expr is self.expr else None

    def converted(self, dtype: pl.DataType) -> Value:
        """The same in another type, by a strict cast."""
        if dtype == self.dtype:
            return self
        if (step := converting(self.dtype, dtype)) is not None:
            return self._then(step)
        return Value(expr=self.expr.cast(dtype), dtype=dtype)

    def one_by_one(self, change: Callable[[Value], Value]) -> Value:
        """A list whose elements are changed one by one, its weights kept; the changes to a list are made in one go."""
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
    """What `expr` does to the elements of `lists`."""

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
    dtype = spoken(dtype)
    return pl.List(spoken(inner_type(dtype))) if isinstance(dtype, pl.List) else dtype
