"""The columns that a pipeline reads, each once: of features, keys, filter and sample."""

from __future__ import annotations

import pyarrow as pa
from minimal_pipeline import completed

from feedline.config import parse_spec
from feedline.planning.read_columns import read_columns_of

USER = pa.struct({"id": pa.int64(), "country": pa.string()})
SCHEMA = pa.schema([("price", pa.float64()), ("day", pa.int64()), ("session", pa.int64()), ("user", USER)])


def columns_of(text: str) -> tuple[list[str], list[str]]:
    read = read_columns_of(parse_spec(completed(text), base_dir="/"), SCHEMA)
    return list(read.columns(SCHEMA)), list(read.parts(SCHEMA))


def test_keys_and_conditions_follow_features():
    text = 'source: {table: data, where: "day > 3 and price > 0", row_key: [session]}\nshuffle: {by: session}\n'
    assert columns_of(text)[0] == ["price", "session", "day"]


def test_only_fields_that_are_used_are_read():
    columns, parts = columns_of("source: {table: data, where: 'user[\"country\"] is not None'}\n")
    assert columns == ["price", "user"]
    assert parts == ["price", 'user["country"]']
