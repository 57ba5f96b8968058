"""Pruning over real files of every type, whatever a writer's statistics hold back: each verdict against the rows.

The statistics of footers are made poorer and stranger before anything looks at them, but never wrong: bounds dropped,
one of a pair dropped, of the wrong length, truncated, in the deprecated fields alone, null counts missing.
"""

from __future__ import annotations

import datetime
import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline import Table
from feedline.expressions import bind_where
from feedline.warehouse.parquet.thrift import BYTE_ARRAY, ColumnChunk, Structure, structure_of
from feedline.warehouse.reading.row_filter import EntryTruths
from feedline.warehouse.selection.column_bounds import statistics_of
from feedline.warehouse.selection.pruning import ALL, NONE, SOME, prune
from feedline.warehouse.selection.select import screen_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot

UTC = datetime.UTC
START = datetime.datetime(2026, 1, 1)


def moment(steps: int) -> datetime.datetime:
    return START + datetime.timedelta(hours=steps)


# type, value from a small whole number, and how a literal of it is written; the numbers are what bounds are made of
KINDS: dict[str, tuple[pa.DataType, Callable[[int], Any], Callable[[Any], str]]] = {
    "i8": (pa.int8(), lambda n: n * 20, str),
    "i32": (pa.int32(), lambda n: n * 2**28, str),
    "i64": (pa.int64(), lambda n: n * 2**60, str),
    "u32": (pa.uint32(), lambda n: (n + 7) * 2**28, str),
    "u64": (pa.uint64(), lambda n: (n + 7) * 2**60, str),
    "f32": (pa.float32(), lambda n: [n / 4, -0.0, math.inf, math.nan][n % 4 if n > 3 else 0], repr),
    "f64": (pa.float64(), lambda n: [n / 7, -0.0, -math.inf, math.nan][n % 4 if n > 3 else 0], repr),
    "flag": (pa.bool_(), lambda n: n > 0, str),
    "day": (pa.date32(), lambda n: datetime.date(1970, 1, 3) + datetime.timedelta(n), lambda v: json.dumps(str(v))),
    "s": (pa.timestamp("s"), moment, lambda v: json.dumps(v.isoformat())),
    "ms": (pa.timestamp("ms"), moment, lambda v: json.dumps(v.isoformat())),
    "us": (pa.timestamp("us", "UTC"), lambda n: moment(n).replace(tzinfo=UTC), lambda v: json.dumps(v.isoformat())),
    "ns": (pa.timestamp("ns", "Asia/Tokyo"), lambda n: moment(n).replace(tzinfo=UTC), lambda v: json.dumps(str(v))),
    "d5": (pa.decimal128(5, 2), lambda n: Decimal(n) / 4, str),
    "d15": (pa.decimal128(15, 1), lambda n: Decimal(n) * 10**12 + Decimal("0.5"), str),
    "d38": (pa.decimal128(38, 3), lambda n: Decimal(n) * 10**12 + Decimal("0.125"), str),
    "text": (
        pa.string(),
        lambda n: ("é" if n > 0 else "a") + chr(0x1F608 + n) + "x" * (n % 3),
        lambda v: json.dumps(v, ensure_ascii=False),
    ),
    "word": (pa.dictionary(pa.int8(), pa.string()), lambda n: f"w{n}", json.dumps),
    "raw": (pa.binary(), lambda n: bytes([n + 8]) * (n % 3 + 1), repr),
}  # fmt: skip
NUMBERS = st.integers(-6, 6)


@st.composite
def conditions(draw: st.DrawFn, names: list[str]) -> str:
    def atom() -> str:
        name = draw(st.sampled_from(names))
        _, make, show = KINDS[name]

        def literal() -> str:
            value = make(draw(NUMBERS))
            text = show(0.25 if isinstance(value, float) and not math.isfinite(value) else value)
            return f"({text})" if text.startswith("-") else text

        forms = ["is None", "is not None", "compare", "compare", "compare"]
        if name == "flag":
            return draw(st.sampled_from(["flag", "not flag", "flag is None", "flag == False"]))
        form = draw(st.sampled_from([*forms, "in", "chain"]))
        if form == "compare":
            return f"{name} {draw(st.sampled_from(['==', '!=', '<', '<=', '>', '>=']))} {literal()}"
        if form == "in":
            return f"{name} in [{', '.join(literal() for _ in range(draw(st.integers(1, 4))))}]"
        return f"{literal()} <= {name} < {literal()}" if form == "chain" else f"{name} {form}"

    text = atom()
    for _ in range(draw(st.integers(0, 2))):
        text = f"({text}) {draw(st.sampled_from(['and', 'or', 'and not', 'or not']))} ({atom()})"
    return f"not ({text})" if draw(st.booleans()) else text


@st.composite
def columns(draw: st.DrawFn) -> pa.Table:
    """A few columns; a row group of four rows draws from two values, so that bounds tell something."""
    names = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3, unique=True))
    groups = draw(st.integers(1, 4))
    table = {}
    for name in names:
        kind, make, _ = KINDS[name]
        values: list[Any] = []
        for _ in range(groups):
            pool = draw(
                st.lists(st.one_of(NUMBERS, st.none()) if draw(st.booleans()) else NUMBERS, min_size=1, max_size=2)
            )
            values += [None if (n := draw(st.sampled_from(pool))) is None else make(n) for _ in range(4)]
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        table[name] = pa.array(values, plain).cast(kind)
    return pa.table(table)


def poorer(draw: Callable[[st.SearchStrategy[Any]], Any], structure: Structure, text: list[bool]) -> Structure:
    """The statistics of a footer, held back in one way or another."""

    def tampered(chunk: ColumnChunk, is_text: bool) -> ColumnChunk:
        way = draw(
            st.sampled_from(["as is", "none", "low", "high", "length", "wide", "truncated", "deprecated", "mixed"])
        )
        chunk = chunk._replace(nulls=-1) if draw(st.booleans()) else chunk
        if chunk.low is None or chunk.high is None:
            return chunk
        if way == "none":
            return chunk._replace(low=None, high=None)
        if way == "low":
            return chunk._replace(high=None)
        if way == "high":
            return chunk._replace(low=None)
        if way == "length" and chunk.type != BYTE_ARRAY:
            return chunk._replace(low=chunk.low + b"\0")
        if way == "deprecated":  # what they may have been taken by is anybody's guess
            return chunk._replace(low=None, high=None, old_low=chunk.high, old_high=chunk.low)
        if way == "truncated" and chunk.type == BYTE_ARRAY:
            keep = draw(st.integers(0, 3))
            low = chunk.low[:keep]  # may end within a character
            high = chunk.high if len(chunk.high) <= keep else chunk.high[:keep] + b"\xff"
            if is_text and draw(st.booleans()):
                high = "\U0010ffff".encode()
            return chunk._replace(low=low, high=high, exact=False)
        return chunk._replace(exact=False) if way == "not exact" else chunk

    chunks = [[tampered(chunk, is_text) for chunk, is_text in zip(row, text, strict=True)] for row in structure.chunks]
    return replace(structure, chunks=chunks, ordered=structure.ordered and draw(st.integers(0, 4)) > 0)


def check(snapshot: Snapshot, table: pa.Table, text: str, rows: int) -> list[int]:
    """No verdict is contradicted by a row; the verdicts."""
    where = bind_where(text, snapshot.schema)
    outcome = prune(where.predicate, statistics_of(snapshot, where.columns)).outcome.tolist()
    plain = table.cast(snapshot.schema).combine_chunks().to_batches()
    kept = np.concatenate([EntryTruths().true_rows(batch, where) for batch in plain])
    for index, verdict in enumerate(outcome):
        group = kept[index * rows : (index + 1) * rows]
        if verdict == NONE:
            assert not group.any(), (text, index)
        elif verdict == ALL:
            assert group.all(), (text, index)
    return outcome


@examples(120, by_day=15)
@given(st.data(), columns(), st.booleans(), st.booleans())
def test_no_verdict_is_contradicted_by_a_row(
    data: st.DataObject, table: pa.Table, dictionary: bool, tamper: bool
) -> None:
    text = [pa.types.is_string(field.type) or pa.types.is_dictionary(field.type) for field in table.schema]

    as_integers, version = data.draw(st.booleans()), data.draw(st.sampled_from(["1.0", "2.6"]))
    options: dict[str, Any] = {"store_decimal_as_integer": as_integers, "version": version}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "f.parquet"
        pq.write_table(table, path, row_group_size=4, use_dictionary=dictionary, **options)
        content = path.read_bytes()
        structure = structure_of(content[-8 - int.from_bytes(content[-8:-4], "little") : -8])
        if tamper:
            structure = poorer(data.draw, structure, text)
        patch.setattr("feedline.warehouse.parquet.footer.structure_of", lambda _: structure)
        snapshot = take_snapshot(folder)
    for _ in range(4):
        check(snapshot, table, data.draw(conditions(table.column_names)), 4)


@pytest.mark.parametrize("name", KINDS)
def test_every_type_is_pruned_at_all(tmp_path: Path, name: str) -> None:
    """Bounds of all types say none and, where they can, all: to know nothing would be no contradiction either."""
    kind, make, show = KINDS[name]
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    numbers = [0, 0, 0, 0] if name == "flag" else [1, 1, 2, 2]
    table = pa.table({name: pa.array([make(n) for n in numbers], plain).cast(kind)})
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=4)
    snapshot = take_snapshot(str(tmp_path))
    if name == "flag":
        assert [check(snapshot, table, text, 4) for text in ("flag", "not flag")] == [[NONE], [ALL]]
        return
    three = show(make(3))
    assert check(snapshot, table, f"{name} >= {three}", 4) == [NONE]
    assert check(snapshot, table, f"{name} in [{three}, {three}]", 4) == [NONE]
    assert check(snapshot, table, f"{name} is None", 4) == [NONE]
    assert check(snapshot, table, f"{name} < {three}", 4) == [SOME if pa.types.is_floating(kind) else ALL]
    assert check(snapshot, table, f"{name} != {three}", 4) == [ALL]


def test_bounds_that_duckdb_truncated(tmp_path: Path) -> None:
    """Strings of hundreds of bytes whose bounds are cut: they may drop a row group, and never take one whole."""
    path = tmp_path / "f.parquet"
    duckdb.sql(
        "copy (select repeat('k', 290) || lpad(i::varchar, 4, '0') as s from range(8192) t(i)) "
        f"to '{path}' (format parquet, row_group_size 2048)"
    )
    table, snapshot = pq.read_table(path), take_snapshot(str(tmp_path))
    head = "k" * 290
    for end in (f'< "{head}"', f'>= "{head}0000"', f'== "{head}2047"', f'> "{head}9999"', '> "k"', '< "l"'):
        assert check(snapshot, table, f"s {end}", 2048) == [SOME] * 4, end
    assert check(snapshot, table, 's < "j"', 2048) == [NONE] * 4
    assert check(snapshot, table, 's >= "l"', 2048) == [NONE] * 4
    assert check(snapshot, table, "s is not None", 2048) == [ALL] * 4


@pytest.mark.filterwarnings("ignore:.*both as partition key")
def test_a_folder_of_a_key_that_is_nan_is_settled_without_reading(tmp_path: Path) -> None:
    for number, folder in enumerate(("1.5", "nan", "0", "__HIVE_DEFAULT_PARTITION__")):
        (tmp_path / f"k={folder}").mkdir()
        key = None if folder.startswith("_") else float(folder)
        pq.write_table(pa.table({"k": pa.array([key], pa.float64()), "x": [number]}), tmp_path / f"k={folder}" / "f")
    snapshot = take_snapshot(str(tmp_path))
    for text, expected in {
        "k != 1.5": [1, 2],
        "not k < 2.0": [1],
        "k in [1.5, 0.0]": [0, 2],
        "k not in [1.5, 2.5]": [1, 2],
        "not 1.0 < k < 2.0": [1, 2],
        "k > 1.0 or k is None": [0, 3],
    }.items():
        where = bind_where(text, snapshot.schema)
        assert screen_rows(snapshot, where).report.counted.rows == 0, text
        assert sorted(Table(str(tmp_path)).read(["x"], text)["x"].to_pylist()) == expected, text
