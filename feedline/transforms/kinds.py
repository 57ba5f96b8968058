"""What does a column hold, in the words that ops, errors and documentation share?

Pure; runs wherever features are compiled. A kind is the element (integer, float, string …) and whether a row holds one
or a list of them; widths (int8, int64), time units and layouts (dictionaries, fixed-size lists) do not matter to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from feedline.expression_types import (
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL,
    DURATION,
    FLOAT,
    INTEGER,
    MAP,
    NULL,
    STRING,
    STRUCT,
    TIME,
    TIMESTAMP,
    inner_type,
    kind,
    spoken,
)

ELEMENTS = (INTEGER, FLOAT, DECIMAL, BOOLEAN, STRING, BINARY, DATE, TIMESTAMP, TIME, DURATION, STRUCT, MAP, NULL)
ANYTHING = frozenset(ELEMENTS)
TEMPORAL = frozenset({DATE, TIMESTAMP, TIME, DURATION})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One of `ELEMENTS` (or the name of a type that no op takes), and whether a row holds a list of them."""

    element: str
    listed: bool = False

    def __str__(self) -> str:
        return f"{self.element} list" if self.listed else self.element


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A column on its way through a chain of ops: the expression so far and the type it has."""

    expr: pl.Expr
    dtype: pl.DataType

    @property
    def kind(self) -> Kind:
        """What it holds."""
        dtype = _plain_type(self.dtype)
        return Kind(element=kind(element_type(dtype)), listed=isinstance(dtype, pl.List))

    def plain(self) -> Value:
        """The same with a fixed-size list as a list and categories as texts."""
        dtype, expr = self.dtype, self.expr
        if isinstance(dtype, pl.Array) and spoken(dtype) != dtype:
            dtype, expr = spoken(dtype), expr.arr.to_list()
        plain = _plain_type(dtype)
        return Value(expr=expr if plain == dtype else expr.cast(plain), dtype=plain)


def element_type(dtype: pl.DataType) -> pl.DataType:
    """The type of a list's elements; any other type is returned as it is."""
    return inner_type(dtype) if isinstance(dtype, pl.List) else dtype


def _plain_type(dtype: pl.DataType) -> pl.DataType:
    dtype = spoken(dtype)
    return pl.List(spoken(inner_type(dtype))) if isinstance(dtype, pl.List) else dtype
