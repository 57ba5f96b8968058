"""Row identities: they depend on values alone and tell rows apart; delivered rows are found among others."""

from __future__ import annotations

import datetime
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.warehouse.rebase.row_identity import (
    Identity,
    identity_kind,
    identity_of,
)

KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [0, 1, -1, 127, None]),
    "i64": (pa.int64(), [0, 1, -1, 2**40, None]),
    "u64": (pa.uint64(), [0, 1, 2**64 - 1, None]),
    "f16": (pa.float16(), [0.0, 1.0, -2.5, None]),
    "f32": (pa.float32(), [0.0, 1.0, -2.5, 3e9, None]),
    "f64": (pa.float64(), [float(number) for number in range(-40, 40)] + [None, 0.1]),
    "flag": (pa.bool_(), [True, False, None]),
    "day": (pa.date32(), [datetime.date(2026, 1, 1), datetime.date(1969, 1, 1), None]),
    "ts": (pa.timestamp("us"), [datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 2), None]),
    "ms": (pa.date64(), [datetime.date(2026, 1, 1), datetime.date(1969, 1, 1), None]),
    "clock": (pa.time64("us"), [datetime.time(0, 0, 1), datetime.time(12), None]),
    "took": (pa.duration("ms"), [datetime.timedelta(seconds=1), datetime.timedelta(0), None]),
    "price": (pa.decimal128(30, 2), [Decimal("0.00"), Decimal("1.25"), Decimal("-1.25"), Decimal("1e20"), None]),
    "text": (pa.string(), ["", "a", "b", "a text that is longer than twelve bytes", "a text that is longer", None]),
    "large": (pa.large_string(), ["", "a", None]),
    "raw": (pa.binary(), [b"", b"a", b"\xff", None]),
    "ids": (pa.list_(pa.int64()), [[], [0], [1], [1, 0], [None], None]),
    "weights": (pa.large_list(pa.float32()), [[], [1.0], [2.0], [2.0, 3.0], None]),
    "words": (pa.list_(pa.string()), [[], ["a"], ["a", "b"], None]),
}
# by length and first value alone: a null element counts as zero, and texts do not count
ALIKE = {"ids": [([0], [None])]}


def frame_of(columns: dict[str, list[Any]]) -> tuple[pa.Schema, pl.DataFrame]:
    table = pa.table({name: pa.array(values, KINDS[name][0]) for name, values in columns.items()})
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return table.schema, frame


def identity(schema: pa.Schema, **options: Any) -> Identity:
    found = identity_of(schema, schema.names, **options)
    assert found is not None
    return found


@pytest.mark.parametrize("name", KINDS)
def test_other_values_other_identities(name: str):
    values = KINDS[name][1]
    schema, frame = frame_of({name: values})
    hashes = identity(schema).rows(frame).tolist()
    assert len(set(hashes)) == len(values) - len(ALIKE.get(name, ()))
    for one, other in ALIKE.get(name, ()):
        assert hashes[values.index(one)] == hashes[values.index(other)]


rows = st.integers(0, 30).flatmap(
    lambda count: st.fixed_dictionaries(
        {name: st.lists(st.sampled_from(values), min_size=count, max_size=count) for name, (_, values) in KINDS.items()}
    )
)


@examples(25)
@given(rows, st.integers(0, 30), st.integers(0, 30))
def test_identities_do_not_depend_on_the_position_of_a_row(columns: dict[str, list[Any]], one: int, other: int):
    """In which chunk, at which offset, in which order, and what garbage lies under its nulls."""
    schema, frame = frame_of(columns)
    found = identity(schema, by="text")
    whole = found.rows(frame)
    first, stop = sorted((one, other))
    assert found.rows(frame[first:stop]).tolist() == whole[first:stop].tolist()
    assert found.rows(pl.concat([frame[:first], frame[first:]])).tolist() == whole.tolist()
    assert found.rows(frame.reverse()).tolist() == whole[::-1].tolist()
    assert found.rows(frame.select(reversed(frame.columns))).tolist() == whole.tolist()
    covered = frame.with_columns(pl.when(pl.col("i64") != 1).then(pl.col("i64")).alias("i64"))
    plain = frame.with_columns(pl.Series("i64", covered["i64"].to_list(), pl.Int64))
    assert found.rows(covered).tolist() == found.rows(plain).tolist()
    runs, texts = found.runs(frame).tolist(), columns["text"]
    assert len(set(runs)) == len(set(texts)) == len(set(zip(runs, texts, strict=True)))


def test_identities_of_many_rows_differ():
    """Whole numbers as floats, small integers: the high bits of a product must not be all there is."""
    count = 200_000
    for values in (np.arange(count), np.arange(count) * 2**32, np.arange(count) * 1.0, np.arange(count) / 8):
        frame = pl.DataFrame({"x": values, "y": values[::-1].copy()})
        assert len(np.unique(identity(frame.to_arrow().schema).rows(frame))) == count


def test_columns_of_an_identity():
    schema = pa.schema([*((name, kind) for name, (kind, _) in KINDS.items()), ("struct", pa.struct({"a": pa.int64()}))])
    keyed = identity_of(schema, ["i64", "ds", "text"], by="ids", kept="x")
    assert keyed is not None
    assert (keyed.key, keyed.names) == (("i64", "text"), ("i64", "text", "ids"))
    assert keyed.id != replace(keyed, kept="y").id
    assert identity_of(schema, ["struct"]) is None


@pytest.mark.parametrize(
    "kind", [pa.struct({"a": pa.int64()}), pa.map_(pa.string(), pa.int64()), pa.list_(pa.int64(), 3), pa.null()]
)
def test_kinds_that_are_not_hashed(kind: pa.DataType):
    assert identity_kind(kind) is None
