"""Parts of columns: their names, their types, and the columns of a table that hold them."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import ExpressionError
from feedline.expressions import bind_expression, parse
from feedline.expressions.column_parts import (
    ColumnPart,
    PartError,
    flattened_column,
    flattened_name,
    part_field,
    part_of,
    source_columns,
)
from feedline.expressions.types import column_type

GEO = pa.struct([("lat", pa.float32()), ("lon", pa.float32())])
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("user", pa.struct([("country", pa.string()), ("geo", GEO), ("tags", pa.map_(pa.string(), pa.int8()))])),
        ("m", pa.map_(pa.string(), pa.float32())),
        ("w", pa.map_(pa.int32(), pa.list_(pa.int64()))),
        ("m.price", pa.float64()),
        ("m.odd", pa.string()),
        ("w.7", pa.large_list(pa.int64())),
        ("gone.price", GEO),
        ("user.country", pa.string()),
        ("odd name", pa.map_(pa.int8(), pa.string())),
    ]
)

KEYS = st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.integers(-(2**63), 2**63 - 1))


@examples(60)
@given(st.text(st.characters(exclude_categories=["Cs"])), st.lists(KEYS, min_size=1, max_size=4))
def test_a_part_is_named_like_its_expression(column: str, keys: list[str | int]) -> None:
    part = ColumnPart(column, tuple(keys))
    assert part_of(str(part)) == part


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("m['price']", ColumnPart("m", ("price",))),
        ('user["geo"]["lat"]', ColumnPart("user", ("geo", "lat"))),
        ("w[-7]", ColumnPart("w", (-7,))),
        ('col("odd name")[1]', ColumnPart("odd name", (1,))),
        ("m", None),
        ("m.price", None),
        ('m["price"] + 1', None),
        ('coalesce(m, m)["price"]', None),
        ("m[0.5]", None),
        ("[1]", None),
        ("a b]", None),
        ("x[", None),
    ],
)
def test_names_of_parts(text: str, part: ColumnPart | None) -> None:
    assert part_of(text) == part


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('user["country"]', pa.string()),
        ('user["geo"]', GEO),
        ('user["geo"]["lat"]', pa.float32()),
        ('user["tags"]["x"]', pa.int8()),
        ('m["cost"]', pa.float32()),
        ('m["price"]', pa.float64()),  # the wider of the map's and the column's
        ("w[7]", pa.list_(pa.int64())),
        ('gone["price"]["lon"]', pa.float32()),
        ('col("odd name")[300]', pa.string()),
    ],
)
def test_the_type_of_a_part(text: str, kind: pa.DataType) -> None:
    part = part_of(text)
    assert part is not None
    field = part_field(SCHEMA, part)
    assert (field.name, field.type, field.nullable) == (str(part), kind, True)
    if 'col("odd' not in text:  # the language refuses a key that an int8 cannot be
        assert bind_expression(parse(text), SCHEMA).dtype == column_type(field)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('zzz["a"]', "column 'zzz' is not in the table"),
        ('user["nope"]', "the struct has 0 fields 'nope'"),
        ('user["geo"]["lat"]["x"]', "float has no part 'x'"),
        ("user[0]", "has no part 0"),
        ("m[1]", "the map's keys are string, the key is 1"),
        ('w["1"]', "the map's keys are int32, the key is '1'"),
        ('m["odd"]', "has two types: float in the map, string in the column 'm.odd'"),
    ],
)
def test_parts_that_a_table_lacks_are_errors(text: str, message: str) -> None:
    part = part_of(text)
    assert part is not None
    with pytest.raises(PartError, match=message):
        part_field(SCHEMA, part)


def test_columns_for_keys_of_maps() -> None:
    assert (flattened_name("m", "price"), flattened_name("w", 7)) == ("m.price", "w.7")
    assert flattened_column(SCHEMA, ColumnPart("m", ("price", "x"))) == "m.price"
    assert flattened_column(SCHEMA, ColumnPart("m", ("cost",))) is None
    assert flattened_column(SCHEMA, ColumnPart("user", ("country",))) is None, "a struct's fields have no columns"
    names = ["n", "m['price']", 'm["cost"]', "w[7]", 'gone["price"]["lat"]', 'user["country"]', "n", "zzz"]
    assert source_columns(SCHEMA, names) == ("n", "m", "m.price", "w", "w.7", "gone.price", "user", "zzz")


@pytest.mark.parametrize(
    ("text", "columns", "parts"),
    [
        ("n + 1", {"n"}, {"n"}),
        ('user["country"] == "US"', {"user"}, {'user["country"]'}),
        ('user["geo"]["lat"] - user["geo"]["lon"]', {"user"}, {'user["geo"]["lat"]', 'user["geo"]["lon"]'}),
        ('user is None or user["country"] is None', {"user"}, {"user", 'user["country"]'}),
        ('m["price"] + m["cost"]', {"m", "m.price"}, {'m["price"]', 'm["cost"]'}),
        ('gone["price"]["lat"]', {"gone.price"}, {'col("gone.price")["lat"]'}),
        ('gone["price"] is None', {"gone.price"}, {"gone.price"}),
        ('clip(m["cost"], upper_bound=2)', {"m"}, {'m["cost"]'}),
        ('coalesce(user["geo"], user["geo"])["lat"]', {"user"}, {'user["geo"]'}),
        ('not (1 < n <= 3) or m["cost"] in [1.0]', {"n", "m"}, {"n", 'm["cost"]'}),
    ],
)
def test_parts_of_an_expression(text: str, columns: set[str], parts: set[str]) -> None:
    bound = bind_expression(parse(text), SCHEMA)
    assert (bound.columns, bound.parts) == (columns, parts)
    assert set(bound.narrow.meta.root_names()) <= parts
    again = bind_expression(parse(text), bound.schema)
    assert (again.columns, again.parts, again.dtype) == (bound.columns, bound.parts, bound.dtype)


def test_a_column_named_like_a_part() -> None:
    schema = pa.schema([("m", pa.map_(pa.string(), pa.int64())), ('m["a"]', pa.string())])
    bound = bind_expression(parse('m["a"] + m["b"]'), schema)
    assert bound.parts == {"m", 'm["b"]'}
    assert bound.dtype == pl.Int64()


def test_two_types_of_a_key_are_an_error_with_a_position() -> None:
    with pytest.raises(ExpressionError, match=r"two types: float in the map, string in the column(?s:.*)\^"):
        bind_expression(parse('n + m["odd"]'), SCHEMA)
