"""Bloom filters: no value that is there is excluded, damage excludes nothing, DuckDB's probe as the oracle."""

from __future__ import annotations

import datetime
import decimal
import tempfile
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from predicate_truth import predicates, truth
from warehouse_samples import COLLECTION

from feedline.expressions import bind_where
from feedline.expressions.predicates import And, Comparison, Membership, Not, Predicate
from feedline.warehouse.parquet.bloom import (
    RowGroupFilters,
    hashes_of,
    header_of,
    is_refuted,
)
from feedline.warehouse.selection.select import Selection, select_rows
from feedline.warehouse.snapshot.take import take_snapshot

DAY, NOON = datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1, 12)


def filters_of(path: Path, partition: dict[str, object] | None = None) -> RowGroupFilters:
    parquet = pq.ParquetFile(path)
    stored = {name: range(index, index + 1) for index, name in enumerate(parquet.schema_arrow.names)}
    content = path.read_bytes()

    def read_at(size: int, start: int) -> bytes:
        return content[start : start + size]

    return RowGroupFilters(parquet.metadata, parquet.schema_arrow, stored, partition or {}, read_at, len(content))


def denied(path: Path, column: str, *values: Any) -> bool:
    excluded, nbytes = filters_of(path).refute(Membership(column=column, values=values), 0)
    assert nbytes >= 0
    return excluded


# how values of each type are written, and values that are not among them
TYPES: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "i8": (pa.int8(), [-128, 0, 127], [5, -1]),
    "i16": (pa.int16(), [-32768, 9, 32767], [5]),
    "i32": (pa.int32(), [-(2**31), 0, 2**31 - 1], [5, -1]),
    "i64": (pa.int64(), [-(2**63), 0, 2**63 - 1], [5, -1]),
    "u8": (pa.uint8(), [0, 255], [5]),
    "u32": (pa.uint32(), [0, 2**31, 2**32 - 1], [5]),
    "u64": (pa.uint64(), [0, 2**63, 2**64 - 1], [5]),
    "f32": (pa.float32(), [0.5, -1.5, float("inf")], [0.25, 7.0]),
    "f64": (pa.float64(), [0.1, -1.5, 1e300], [0.25, 1e-300]),
    "text": (pa.string(), ["", "a", "é\U0001f600", "x" * 100], ["b", "A"]),
    "large": (pa.large_string(), ["a", "bc"], ["b"]),
    "raw": (pa.binary(), [b"", b"\xff\x00"], [b"b"]),
    "fixed": (pa.binary(3), [b"abc", b"\x00\x00\x00"], [b"abd"]),
    "day": (pa.date32(), [DAY, datetime.date(1960, 2, 29)], [datetime.date(2026, 1, 2)]),
    "ms": (pa.timestamp("ms"), [NOON, datetime.datetime(1900, 1, 1)], [NOON.replace(hour=1)]),
    "us": (pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=datetime.UTC)], [NOON.replace(hour=1, tzinfo=datetime.UTC)]),
    "ns": (pa.timestamp("ns"), [NOON], [NOON.replace(microsecond=1)]),
    "d4": (pa.decimal128(5, 2), [Decimal("-1.50"), Decimal("999.99")], [Decimal("1.51")]),
    "d9": (pa.decimal128(15, 3), [Decimal("-1.5"), Decimal(10**11)], [Decimal(3)]),
    "d30": (pa.decimal128(30, 4), [Decimal(-3), Decimal(10**20)], [Decimal(7)]),
}


@pytest.mark.parametrize("version", ["1.0", "2.6"])
@pytest.mark.parametrize("as_integers", [False, True])
def test_every_type_as_it_is_stored(tmp_path: Path, version: Any, as_integers: bool) -> None:
    most = 1 + max(len(values) for _, values, _ in TYPES.values())
    columns = {
        name: pa.array([*values, *[None] * (most - len(values))], kind) for name, (kind, values, _) in TYPES.items()
    }
    options = {"version": version, "store_decimal_as_integer": as_integers}
    filters = {name: {"ndv": 100, "fpp": 0.001} for name in TYPES}
    pq.write_table(pa.table(columns), tmp_path / "f", bloom_filter_options=filters, **options)
    for name, (_, values, others) in TYPES.items():
        for value in values:
            assert not denied(tmp_path / "f", name, value), (name, value)
            assert not denied(tmp_path / "f", name, others[0], value), (name, value)
        for value in others:
            assert denied(tmp_path / "f", name, value), (name, value)
        assert denied(tmp_path / "f", name, *others), name


def test_zeros_of_both_signs_are_one_value(tmp_path: Path) -> None:
    for kind in (pa.float32(), pa.float64()):
        for stored in (0.0, -0.0):
            values = pa.array([stored, 3.0, float("nan")], kind)
            pq.write_table(
                pa.table({"x": values}), tmp_path / "f", bloom_filter_options={"x": {"ndv": 50, "fpp": 0.001}}
            )
            assert not denied(tmp_path / "f", "x", 0.0)
            assert not denied(tmp_path / "f", "x", -0.0)
            assert denied(tmp_path / "f", "x", 2.0)


def test_doubtful_literals_are_not_looked_up(tmp_path: Path) -> None:
    columns = {name: pa.array([values[0]], kind) for name, (kind, values, _) in TYPES.items()}
    columns["flag"] = pa.array([True])
    options = {name: {"ndv": 50, "fpp": 0.001} for name in TYPES}
    pq.write_table(pa.table(columns), tmp_path / "f", bloom_filter_options=options)
    aware = NOON.replace(tzinfo=datetime.UTC)
    for name, value in (
        ("i8", 300), ("i8", 1.5), ("i8", True), ("i8", "1"), ("u8", -1), ("u64", 2**64), ("i64", Decimal(1)),
        ("f32", 0.1), ("f32", float("nan")), ("f32", 2**60 + 1), ("f32", "x"), ("f32", 1e300), ("f64", 2**60 + 1),
        ("text", b"b"), ("raw", "b"), ("fixed", b"ab"), ("day", NOON), ("day", 3), ("ms", aware), ("us", NOON),
        ("ms", NOON.replace(microsecond=1)), ("ns", DAY), ("d4", Decimal("1.505")), ("d4", 1), ("d4", Decimal(10**9)),
        ("d4", Decimal("1E+200")), ("flag", False), ("unheard", 1),
    ):  # fmt: skip
        assert not denied(tmp_path / "f", name, value), (name, value)
    assert denied(tmp_path / "f", "i8", 5.0), "a float that is a whole number has one clear form"
    assert denied(tmp_path / "f", "f64", 5)


def test_types_of_the_file_decide_not_those_of_the_table() -> None:
    assert (
        hashes_of([7], pa.int32(), "INT32", '{"Type":"None"}', 0).tolist()
        != hashes_of([7], pa.int64(), "INT64", '{"Type":"None"}', 0).tolist()
    )
    assert hashes_of([NOON], pa.timestamp("us"), "INT64", '{"Type":"None"}', 0) is None
    assert hashes_of([NOON], pa.timestamp("ns"), "INT96", '{"Type":"None"}', 0) is None
    assert hashes_of([Decimal(1)], pa.decimal128(5, 2), "BYTE_ARRAY", '{"Type":"Decimal"}', 0) is None


@examples(25)
@given(st.sampled_from(["i64", "f64", "text", "i32"]), st.integers(0, 2**32), st.sampled_from([0.5, 0.1, 0.01]))
def test_duckdb_probes_the_same(name: str, seed: int, fpp: float) -> None:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 300, 120)
    sql, make = {
        "i64": ("bigint", int),
        "i32": ("integer", int),
        "f64": ("double", lambda n: n / 4),
        "text": ("varchar", lambda n: f"v{n}"),
    }[name]
    kind = TYPES[name][0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.parquet"
        column = pa.array([make(n) for n in numbers], kind)
        pq.write_table(
            pa.table({"x": column}), path, row_group_size=40, bloom_filter_options={"x": {"ndv": 60, "fpp": fpp}}
        )
        filters = filters_of(path)
        for number in rng.integers(0, 300, 15):
            value = make(int(number))
            excluded = [filters.refute(Comparison(column="x", op="==", value=value), group)[0] for group in range(3)]
            probed = duckdb.execute(
                f"select bloom_filter_excludes from parquet_bloom_probe('{path}', 'x', ?::{sql}) order by row_group_id",
                [value],
            ).fetchall()
            assert [(found,) for found in excluded] == probed


def test_filters_that_duckdb_wrote(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    duckdb.sql(
        "copy (select (i % 50) * 3 as x, 'v' || (i % 50) as s, (i % 50) / 4 as f from range(4000) t(i)) "
        f"to '{path}' (format parquet, row_group_size 2048)"
    )
    chunk = pq.read_metadata(path).row_group(0).column(0)
    assert chunk.bloom_filter_offset is not None
    for value in range(50):
        assert not denied(path, "x", value * 3)
        assert not denied(path, "s", f"v{value}")
        assert not denied(path, "f", value / 4)
    assert sum(denied(path, "x", value * 3 + 1) for value in range(200)) > 180
    assert sum(denied(path, "s", f"w{value}") for value in range(200)) > 180


@pytest.mark.skipif(not COLLECTION.exists(), reason=f"the Parquet collection is not at {COLLECTION}")
@pytest.mark.parametrize("name", ["data_index_bloom_encoding_stats", "data_index_bloom_encoding_with_length"])
def test_filters_of_other_writers_with_and_without_a_length(name: str) -> None:
    path = COLLECTION / "data" / f"{name}.parquet"
    known = pq.read_table(path)["String"].to_pylist()
    assert (pq.read_metadata(path).row_group(0).column(0).bloom_filter_length is None) == name.endswith("stats")
    for value in known:
        assert not denied(path, "String", value)
    assert sum(denied(path, "String", f"{value} not") for value in known) > 0.9 * len(known)


# -- headers and damage ------------------------------------------------------------------------------------------------

GOOD = bytes([0x15, 0x80, 0x01, 0x1C, 0x1C, 0x00, 0x00, 0x1C, 0x1C, 0x00, 0x00, 0x1C, 0x1C, 0x00, 0x00, 0x00])


@given(st.binary(max_size=80))
def test_any_bytes_are_a_header_or_none(data: bytes) -> None:
    for content in (data, GOOD + data, GOOD[:5] + data):
        header = header_of(content)
        assert header is None or (header[0] <= len(content) and (header[1] - header[0]) % 32 == 0)
    assert header_of(GOOD + data) == (16, 80)


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        GOOD[:-1],
        b"\x15\x00" + GOOD[3:],  # no bytes at all
        b"\x15\x7f" + GOOD[3:],  # a negative number of them
        b"\x15\x82\x01" + GOOD[3:],  # no whole number of blocks
        b"\x15\x80\x80\x80\x80\x08" + GOOD[3:],  # gigabytes
        b"\x15" + b"\xff" * 60,
        GOOD[:4] + b"\x2c" + GOOD[5:],  # another algorithm
        GOOD[:8] + b"\x2c" + GOOD[9:],  # another hash
        GOOD[:12] + b"\x2c" + GOOD[13:],  # compressed
        GOOD[:11] + b"\x00",  # no compression named
        GOOD[:-1] + b"\x15\x02\x00",  # a field that nobody knows
    ],
)
def test_unsupported_headers_are_ignored(wrong: bytes) -> None:
    assert header_of(wrong) is None


def test_an_empty_filter_excludes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"x": [1, 2, 3]}), path, bloom_filter_options={"x": {"ndv": 20, "fpp": 0.01}})
    chunk = pq.read_metadata(path).row_group(0).column(0)
    content = bytearray(path.read_bytes())
    stop = chunk.bloom_filter_offset + chunk.bloom_filter_length
    content[stop - 32 : stop] = bytes(32)
    path.write_bytes(content)
    assert not denied(path, "x", 7)


@examples(150)
@given(st.data())
def test_damage_outside_the_bitset_never_excludes_a_value(data: st.DataObject) -> None:
    """Header bytes changed, the file cut, the bitset longer or shorter: no value that is there is excluded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.parquet"
        values = list(range(0, 60, 3))
        pq.write_table(pa.table({"x": values}), path, bloom_filter_options={"x": {"ndv": 64, "fpp": 0.01}})
        chunk = pq.read_metadata(path).row_group(0).column(0)
        content = bytearray(path.read_bytes())
        header = header_of(bytes(content[chunk.bloom_filter_offset :]))
        place = chunk.bloom_filter_offset + data.draw(st.integers(0, header[0] - 1))
        content[place] ^= 1 << data.draw(st.integers(0, 7))
        parquet = pq.ParquetFile(path)
        cut = data.draw(st.integers(0, len(content)))

        def read_at(size: int, start: int) -> bytes:
            return bytes(content[start : min(start + size, cut)])

        filters = RowGroupFilters(parquet.metadata, parquet.schema_arrow, {"x": range(1)}, {}, read_at, len(content))
        for value in values:
            assert not filters.refute(Comparison(column="x", op="==", value=value), 0)[0]
        parquet.close()


@pytest.mark.parametrize("values", [3, 64])
@pytest.mark.parametrize("said", [True, False])
def test_a_filter_beyond_the_end_of_the_file_is_not_read(tmp_path: Path, said: bool, values: int) -> None:
    """On a store a read beyond the end would count as a failure and be retried for minutes."""
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"x": [1, 2, 3]}), path, bloom_filter_options={"x": {"ndv": values, "fpp": 0.01}})
    content, real = path.read_bytes(), pq.ParquetFile(path)
    chunk = real.metadata.row_group(0).column(0)
    start, stop = chunk.bloom_filter_offset, chunk.bloom_filter_offset + chunk.bloom_filter_length
    place = SimpleNamespace(bloom_filter_offset=start, bloom_filter_length=stop - start if said else None)  # or older
    group = SimpleNamespace(column=lambda _: place)
    parquet: Any = SimpleNamespace(
        metadata=SimpleNamespace(row_group=lambda _: group, schema=real.metadata.schema), schema_arrow=real.schema_arrow
    )
    for end in range(start - 2, stop + 3):

        def read_at(size: int, offset: int, end: int = end) -> bytes:
            assert size > 0
            assert offset + size <= end
            return content[offset : offset + size]

        filters = RowGroupFilters(parquet.metadata, parquet.schema_arrow, {"x": range(1)}, {}, read_at, end)
        assert not filters.refute(Comparison(column="x", op="==", value=2), 0)[0]
        assert filters.refute(Comparison(column="x", op="==", value=77), 0)[0] == (end >= stop)
    real.close()


# -- predicates --------------------------------------------------------------------------------------------------------


@examples(300)
@given(predicates(), st.lists(st.fixed_dictionaries({
    "number": st.one_of(st.none(), st.integers(-4, 4)),
    "float": st.sampled_from([None, -0.0, 0.5, float("nan")]),
    "text": st.sampled_from([None, "", "ab"]),
    "key": st.integers(0, 2),
    "ratio": st.sampled_from([-0.0, 0.5, float("nan")]),
    "opaque": st.sampled_from([True, False, None]),
}), max_size=4))  # fmt: skip
def test_a_refuted_predicate_is_true_for_no_row(predicate: Predicate, rows: list[dict[str, Any]]) -> None:
    def absent(leaf: Comparison | Membership) -> bool:
        values = leaf.values if isinstance(leaf, Membership) else (leaf.value,)
        return all(row[leaf.column] not in values for row in rows if row[leaf.column] is not None)

    if is_refuted(predicate, absent):
        assert not any(truth(predicate, row) is True for row in rows)


def test_partitions_and_filters_are_combined(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "f", bloom_filter_options={"x": {"ndv": 20, "fpp": 0.001}})
    filters = filters_of(tmp_path / "f", {"ds": DAY, "c": "a", "n": None})

    def equal(column: str, value: object) -> Predicate:
        return Comparison(column=column, op="==", value=value)

    here, there = equal("ds", DAY), equal("ds", datetime.date(2026, 1, 2))
    for predicate, expected in (
        (And(items=(here, equal("x", 9))), True),
        (And(items=(here, equal("x", 2))), False),
        (And(items=(there, equal("x", 2))), True),
        (Not(item=equal("x", 9)), False),
        (Not(item=Comparison(column="x", op="!=", value=9)), True),
        (Comparison(column="x", op="<", value=0), False),
        (equal("n", 1), True),
        (equal("c", 1), False),
        (Membership(column="c", values=("b", "d")), True),
        (Membership(column="c", values=("b", "a")), False),
    ):
        assert filters.refute(predicate, 0)[0] is expected, predicate


# -- tables ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide ranges that statistics cannot decide, in row groups with filters of two columns; one file has none."""
    root = tmp_path_factory.mktemp("events")
    rng = np.random.default_rng(3)
    for part in range(3):
        ids = np.concatenate([np.append(rng.integers(0, 10**6, 38), [0, 10**6]) for _ in range(4)])
        table = pa.table({"id": ids, "name": [f"n{value % 997}" for value in ids], "v": ids / 7})
        options = {"id": {"ndv": 40, "fpp": 0.001}, "name": {"ndv": 40, "fpp": 0.001}} if part < 2 else None
        pq.write_table(table, root / f"f{part}.parquet", row_group_size=40, bloom_filter_options=options)
    return root


def test_the_counting_pass_reads_the_filters_first(events: Path, tmp_path: Path) -> None:
    snapshot = take_snapshot(str(events))
    known = pq.read_table(events / "f0.parquet").to_pylist()
    first, second = known[3], known[100]
    tasted = duckdb.sql(
        "select file_name, row_group_id, path_in_schema, bloom_filter_length, total_compressed_size "
        f"from parquet_metadata('{events}/*.parquet')"
    ).fetchall()

    def select(text: str, folder: str = "w") -> Selection:
        where = bind_where(text, snapshot.schema)
        return select_rows(snapshot, where, work_dir=str(tmp_path / folder))

    def probed(column: str, *values: object) -> set[tuple[str, int]]:
        """The row groups that DuckDB's probe does not exclude."""
        left = set()
        for value in values:
            left |= set(
                duckdb.execute(
                    f"select file_name, row_group_id from parquet_bloom_probe('{events}/*.parquet', '{column}', ?) "
                    "where not bloom_filter_excludes",
                    [value],
                ).fetchall()
            )
        return left

    for text, columns, left in (
        (f"id == {first['id']}", ["id"], probed("id", first["id"])),
        (f"id in [{first['id']}, {second['id']}, 77]", ["id"], probed("id", first["id"], second["id"], 77)),
        (f'name == "{second["name"]}"', ["name"], probed("name", second["name"])),
        (
            f'id == {first["id"]} and name == "{first["name"]}"',
            ["id", "name"],
            probed("id", first["id"]) & probed("name", first["name"]),
        ),
        (
            f'id == {first["id"]} or name == "{second["name"]}"',
            ["id", "name"],
            probed("id", first["id"]) | probed("name", second["name"]),
        ),
    ):
        selection = select(text)
        sql = text.replace("==", "=").replace("[", "(").replace("]", ")").replace('"', "'")
        kept = duckdb.sql(
            f"select filename, file_row_number // 40, count(*) from read_parquet('{events}/*.parquet', "
            f"file_row_number=true, filename=true) where {sql} group by all"
        ).fetchall()
        assert int(selection.rows.sum()) == sum(count for _, _, count in kept)
        report = selection.report
        assert (report.by_bloom.row_groups, report.counted.row_groups) == (12 - len(left), len(left)), text
        assert 0 < report.by_bloom.row_groups < 12
        assert report.counted_bytes == sum(
            size for name, group, column, _, size in tasted if (name, group) in left and column in columns
        )
        longest = sum(length or 0 for _, _, column, length, _ in tasted if column in columns)
        assert 0 < report.bloom_bytes <= longest
        if len(columns) == 1:
            assert report.bloom_bytes == longest
        again = select(text).report
        assert again.cached
        assert (again.by_bloom, again.counted, again.bloom_bytes) == (
            report.by_bloom,
            report.counted,
            report.bloom_bytes,
        )


def test_filters_larger_than_what_they_save_are_not_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, share in (("small", 0.01), ("large", 1e-12)):  # of wrong answers: the fewer, the larger the filter
        table = pa.table({"id": rng.integers(0, 10**9, 200)})
        (tmp_path / name).mkdir()
        options = {"id": {"ndv": 200, "fpp": share}}
        pq.write_table(table, tmp_path / name / "f", row_group_size=100, bloom_filter_options=options)
        snapshot = take_snapshot(str(tmp_path / name / "f"))
        selection = select_rows(snapshot, bind_where("id == 500000001", snapshot.schema), work_dir=str(tmp_path))
        found = selection.report
        expected = (2, 0) if name == "small" else (0, 2)
        assert (found.by_bloom.row_groups, found.counted.row_groups) == expected
        assert (found.bloom_bytes > 0) == (name == "small")


def test_drifted_types_are_looked_up_in_each_files_own(tmp_path: Path) -> None:
    options = {"x": {"ndv": 50, "fpp": 0.001}, "p": {"ndv": 50, "fpp": 0.001}}
    kinds = ((pa.int32(), pa.decimal128(9, 2)), (pa.int64(), pa.decimal128(12, 3)))
    for part, (kind, price) in enumerate(kinds):
        values = [1 + part, 1000, -5]
        prices = [Decimal(part) + Decimal("0.25"), Decimal(900), Decimal(-3)]
        table = pa.table({"x": pa.array(values, kind), "p": pa.array(prices, price)})
        path = tmp_path / "t" / f"f{part}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path, bloom_filter_options=options)
    snapshot = take_snapshot(str(tmp_path / "t"))
    for text, expected, excluded in (
        ("x == 1", [1, 0], 1),
        ("x == 2", [0, 1], 1),
        ("x == 1000", [1, 1], 0),
        ("x in [2, 77]", [0, 1], 1),
        ("p == 0.25", [1, 0], 1),
        ("p == 1.25", [0, 1], 1),
        ("p == 7.5", [0, 0], 2),
    ):
        with decimal.localcontext(prec=5):
            selection = select_rows(snapshot, bind_where(text, snapshot.schema), work_dir=str(tmp_path / "w"))
        assert selection.rows.tolist() == expected, text
        assert selection.report.by_bloom.row_groups == excluded, text
