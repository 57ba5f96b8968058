"""Filters over codes keep the rows that filters over values keep."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from damage import flip_a_page
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from warehouse_samples import write

from feedline.blocks.coded_chunks import expand_codes
from feedline.expressions import bind_where
from feedline.native import parquet as native
from feedline.warehouse.bad_files import BadFilesFoundError, ForgivingMap
from feedline.warehouse.parquet.column_chunk import ChunkDecoder, Request
from feedline.warehouse.parquet.decode import DECODER_VARIABLE
from feedline.warehouse.reading import row_filter
from feedline.warehouse.reading.columns import is_coded
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, fragment_at
from feedline.warehouse.reading.read import ReadRequest, batches, read_fragment
from feedline.warehouse.reading.row_filter import EntryTruths, RowFilter, codable_columns
from feedline.warehouse.reading.sample import Sample, bind_sample
from feedline.warehouse.selection.select import Count, count_fragment, select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot

KINDS = {"i": pa.int64(), "f": pa.float64(), "s": pa.string(), "j": pa.int64(), "b": pa.bool_()}
NAN = float("nan")
VALUES: dict[str, list[Any]] = {
    "i": [0, 1, 2, 3, 7],
    "f": [0.0, -0.0, NAN, 1.5, float("inf"), -2.0],
    "s": ["", "a", "ab", "é", "x"],
    "j": [0, 1, 2],
    "b": [False, True],
}
ATOMS = [  # in Feedline's language and in SQL; None: DuckDB orders NaN otherwise
    ("i == 3", "i = 3"),
    ("i != 2", "i <> 2"),
    ("i in [0, 3, 9]", "i in (0, 3, 9)"),
    ("1 <= i < 7", "1 <= i and i < 7"),
    ("i is None", "i is null"),
    ("i % 2 == 0", "i % 2 = 0"),
    ('s == "a"', "s = 'a'"),
    ('s > "a"', "s > 'a'"),
    ('s.str.starts_with("a")', "s like 'a%'"),
    ('s.str.contains("b")', "s like '%b%'"),
    ("s.str.len_chars() == 1", "length(s) = 1"),
    ("s is not None", "s is not null"),
    ("b", "b"),
    ("j >= 1", "j >= 1"),
    ("i > j", "i > j"),
    ("coalesce(i, j) == 1", "coalesce(i, j) = 1"),
    ("f > 0", None),
    ("f <= 0", None),
    ("f != 1.5", None),
    ("f.is_nan()", None),
    ("f < i", None),
    ("1 / f < 0", None),
]


@st.composite
def conditions(draw: st.DrawFn, *, sql: bool = False) -> tuple[str, str]:
    """The same condition in Feedline's language and in SQL, as far as there is one."""
    atoms = [(one, other or "") for one, other in ATOMS if other is not None or not sql]
    items = draw(st.lists(st.sampled_from(atoms), min_size=1, max_size=5))

    def join(left: tuple[str, str], right: tuple[str, str]) -> tuple[str, str]:
        word = draw(st.sampled_from(["({}) and ({})", "({}) or ({})", "not (({}) and ({}))", "({}) or not ({})"]))
        return word.format(left[0], right[0]), word.format(left[1], right[1])

    return reduce(join, items)


@pytest.fixture(autouse=True, scope="module")
def small_row_groups() -> Iterator[None]:
    """Row groups of few rows are read as those of many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_filter, "_LEAST_STRINGS", 0)
        patch.setattr(row_filter, "_LEAST_NUMBERS", 0)
        yield


@st.composite
def coded_rows(draw: st.DrawFn) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Rows of which some columns are codes, and the same with values. Entries may be unused, doubled or missing."""
    rows = draw(st.integers(0, 12))
    arrays, plain = [], []
    for name, kind in KINDS.items():
        entries = pa.array(draw(st.lists(st.sampled_from(VALUES[name]), max_size=6)), kind)
        numbers = draw(st.lists(st.none() | st.integers(0, max(len(entries) - 1, 0)), min_size=rows, max_size=rows))
        codes = pa.array(numbers if len(entries) else [None] * rows, draw(st.sampled_from([pa.uint16(), pa.int32()])))
        values = entries.take(codes)
        coded = kind != pa.bool_() and draw(st.booleans())
        arrays.append(pa.DictionaryArray.from_arrays(codes, entries) if coded else values)
        plain.append(values)
    return pa.RecordBatch.from_arrays(arrays, list(KINDS)), pa.RecordBatch.from_arrays(plain, list(KINDS))


@given(coded_rows(), conditions(), st.integers(0, 12))
def test_codes_keep_the_rows_that_values_keep(
    rows: tuple[pa.RecordBatch, pa.RecordBatch], condition: tuple[str, str], half: int
):
    coded, plain = rows
    where = bind_where(condition[0], plain.schema)
    codable = codable_columns(where)
    data = pa.RecordBatch.from_arrays(
        [(coded if name in codable else plain).column(name) for name in KINDS], list(KINDS)
    )
    frame = pl.from_arrow(plain)
    assert isinstance(frame, pl.DataFrame)
    expected = frame.select(where.polars.fill_null(False)).to_series().to_list()
    for compiled in {native.COMPILED, False}:
        truths = EntryTruths()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "COMPILED", compiled)
            found = [*truths.true_rows(data.slice(0, half), where), *truths.true_rows(data.slice(half), where)]
        assert found == expected


@pytest.mark.parametrize(
    ("text", "codable"),
    [
        ("i > 3 and s == 'a'", "is"),
        ("i > 3 and i + j < 9", ""),
        ("(i > 3 or not (s == 'a' and j is None)) and f < j", "is"),
        ("coalesce(i, 0) > 0 and coalesce(s, 'b') == 'b'", "is"),
        ("b and i in [1]", "bi"),
    ],
)
def test_columns_that_are_read_alone_may_be_codes(text: str, codable: str):
    schema = pa.schema(KINDS)
    assert codable_columns(bind_where(text, schema)) == set(codable)


def test_the_key_and_columns_that_another_condition_reads_together_are_values():
    schema = pa.schema(KINDS)
    where = bind_where("i > 1 and s == 'a' and f > 0", schema)
    sample = bind_sample(Sample(fraction=0.5, where="f < j", key=("s",)), schema)
    assert RowFilter(where=where).coded(1000) == {"i", "s", "f"}
    assert RowFilter(where=where, sample=sample).coded(1000) == {"i"}
    assert RowFilter(where=where, sample=sample, decide=False).coded(1000) == {"i", "s", "f"}
    assert RowFilter(where=where, sample=sample, decide=False, weigh=True).coded(1000) == {"i", "s"}


compiled = pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")


def test_numbers_come_as_codes_in_large_row_groups_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(row_filter, "_LEAST_STRINGS", 16_384)
    monkeypatch.setattr(row_filter, "_LEAST_NUMBERS", 262_144)
    conditions = RowFilter(where=bind_where("i > 1 and s == 'a'", pa.schema(KINDS)))
    assert [conditions.coded(rows) for rows in (16_383, 16_384, 262_143, 262_144)] == [set(), {"s"}, {"s"}, {"i", "s"}]


def rows_of(seed: int, rows: int = 400) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns = {
        name: pa.array([VALUES[name][k] for k in rng.integers(0, len(VALUES[name]), rows)], kind)
        for name, kind in KINDS.items()
    }
    for name in ("i", "f", "s", "b"):
        columns[name] = pa.array(columns[name].to_pylist(), KINDS[name], mask=rng.random(rows) < 0.2)
    columns["none"] = pa.nulls(rows, pa.string())
    columns["row"] = pa.array(range(rows))
    return pa.table(columns)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    root = tmp_path_factory.mktemp("codes")
    tables = {f"f{number}.parquet": rows_of(number) for number in range(2)}
    return take_snapshot(write(root, tables, row_group_size=150, data_page_size=64, write_batch_size=16))


def fragment_of(snapshot: Snapshot, file: int = 0) -> Fragment:
    groups = np.flatnonzero(snapshot.file_of_row_group == file)
    return fragment_at(snapshot, file, groups, np.full(len(groups), UNCOUNTED))


def both_ways(call: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The result, or the error, with the kernel and with pyarrow alone."""
    found = []
    for decoder in ("auto", "arrow"):
        monkeypatch.setenv(DECODER_VARIABLE, decoder)
        try:
            found.append(call())
        except Exception as error:
            found.append((type(error), str(error)))
    return found[0], found[1]


@examples(60, by_day=8)
@given(condition=conditions(sql=True), sampled=conditions(), chunk_rows=st.sampled_from([7, 100, 131_072]))
def test_files_give_the_same_rows_and_counts_as_duckdb(
    table: Snapshot, condition: tuple[str, str], sampled: tuple[str, str], chunk_rows: int
):
    fragment, where = fragment_of(table), bind_where(condition[0], table.schema)
    path = f"{table.uri}/{fragment.path}"
    expected = duckdb.sql(f"select row, i, s, f from read_parquet('{path}') where {condition[1]} order by row").pl()
    chunks = read_fragment(
        fragment,
        ReadRequest(["row", "i", "s", "f"], table.schema, where, chunk_rows=chunk_rows, coded={"s": 0, "i": 0}),
    )
    found = [expand_codes(chunk.frame, chunk.dictionaries) for chunk in chunks]
    assert (pl.concat(found) if found else expected.clear()).equals(expected)
    edges = [0, 150, 300, 400]
    counts = [count.rows for count in count_fragment(fragment, where, table.schema)]
    assert counts == np.histogram(expected["row"].to_numpy(), edges)[0].tolist()
    with pytest.MonkeyPatch.context() as patch:
        sample = bind_sample(Sample(fraction=0.3, where=sampled[0], key=("j", "s")), table.schema)
        auto, arrow = both_ways(lambda: count_fragment(fragment, where, table.schema, sample=sample), patch)
    assert auto == arrow
    assert isinstance(auto[0], Count)


@compiled
def test_columns_of_conditions_come_as_codes_and_entries_are_evaluated_once(
    table: Snapshot, monkeypatch: pytest.MonkeyPatch
):
    where = bind_where("(i == 3 or s == 'a') and i + j > 1 and none is None and f < 9", table.schema)
    kinds = []
    evaluated: list[int] = []
    truths = row_filter._truths

    def count(frame: pl.DataFrame, terms: Any) -> Any:
        evaluated.append(frame.height)
        return truths(frame, terms)

    monkeypatch.setattr(row_filter, "_truths", count)
    kept = [0] * 3
    for batch in batches(fragment_of(table), ReadRequest(["row"], table.schema, where, chunk_rows=20), kept):
        kinds.append({field.name for field in batch.data.schema if is_coded(field.type)})
        assert batch.row_filter.apply(batch.data, "", 0).stays is not None
    assert set(map(frozenset, kinds)) == {frozenset("sf")}
    rows = [height for height in evaluated if height in (20, 10)]
    assert len(rows) == len(kinds) == 8 + 8 + 5
    assert len(evaluated) - len(rows) == 2 * 3  # for each row group, the dictionaries of s and f


@pytest.mark.parametrize("used", [False, True])
def test_an_entry_that_cannot_be_evaluated_fails_only_where_a_row_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: bool
):
    codes = pa.array([0, 1, None, 1] * 50 + [2 if used else 0], pa.int32())
    words = pa.DictionaryArray.from_arrays(codes, pa.array(["1", "2", "no number"]))
    stored = pa.table({"s": words, "row": range(201)})
    snapshot = take_snapshot(write(tmp_path / "t", {"f.parquet": stored}, store_schema=False))
    fragment, where = fragment_of(snapshot), bind_where('s.cast("int64") == 2 or row < 2', snapshot.schema)
    if native.COMPILED:
        [batch] = batches(fragment, ReadRequest((), snapshot.schema, where), [0])
        assert batch.data.column("s").dictionary.to_pylist() == ["1", "2", "no number"]

    def read() -> list[int]:
        [chunk] = read_fragment(fragment, ReadRequest(["row"], snapshot.schema, where))
        rows: list[int] = chunk.frame["row"].to_list()
        return rows

    kept, expected = both_ways(read, monkeypatch)
    assert kept == expected
    assert (kept == [0] + [row for row in range(200) if row % 4 in (1, 3)]) is not used
    counts, expected = both_ways(lambda: count_fragment(fragment, where, snapshot.schema), monkeypatch)
    assert counts == expected
    assert counts[0] == (pl.exceptions.InvalidOperationError if used else Count(101, 101))


@compiled
def test_a_damaged_page_is_found_although_no_entry_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Counting decides which files are left out (`on_bad_file: skip`): it decodes all pages of a filter's columns."""
    table = pa.table({"y": range(4000), "x": pa.array([1, 3] * 2000)})
    pages = {"row_group_size": 500, "data_page_size": 64, "write_batch_size": 50, "write_page_checksum": True}
    root = write(tmp_path / "t", {"f.parquet": table}, **pages)
    opened: list[bool] = []
    prepare = ChunkDecoder.__init__

    def count(decoder: ChunkDecoder, request: Request, *arguments: Any) -> None:
        opened.append(request.codes)
        prepare(decoder, request, *arguments)

    monkeypatch.setattr(ChunkDecoder, "__init__", count)
    snapshot = take_snapshot(root)
    where = bind_where("x == 2", snapshot.schema)
    assert select_rows(snapshot, where, work_dir=str(tmp_path / "w")).report.kept.rows == 0
    assert opened == [True] * 8
    flip_a_page(Path(root) / "f.parquet")
    with pytest.raises(BadFilesFoundError) as caught:
        select_rows(snapshot, where, work_dir=str(tmp_path / "other"), map=ForgivingMap())
    assert "row group 5" in next(iter(caught.value.reasons.values()))
