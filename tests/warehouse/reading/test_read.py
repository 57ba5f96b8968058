"""Reading splits: equal to pyarrow's own reading, and nothing at all from a file that is not what it was."""

from __future__ import annotations

import datetime
import os
import pickle
import shutil
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from warehouse_samples import COLLECTION, sample, write

from feedline.errors import CorruptFileError, DataError, FeedlineError, TableChangedError, TableError
from feedline.expressions import bind_where
from feedline.warehouse.reading.fragment import (
    UNCOUNTED,
    Fragment,
    count_excluded,
    fragment_at,
    fragment_of,
    pack_mask,
    unpack_mask,
)
from feedline.warehouse.reading.read import ReadRequest, batches, bytes_of, read_arrow, read_fragment
from feedline.warehouse.selection.select import count_fragment, plan_fragments, screen_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.splits import plan_splits
from feedline.warehouse.snapshot.take import take_snapshot


def whole(snapshot: Snapshot, file: int = 0) -> Fragment:
    groups = np.flatnonzero(snapshot.file_of_row_group == file)
    return fragment_at(snapshot, file, groups, snapshot.rows_per_row_group[groups])


def frames(
    snapshot: Snapshot, fragment: Fragment, columns: list[str], text: str | None = None, **options: Any
) -> pl.DataFrame:
    where = None if text is None else bind_where(text, snapshot.schema)
    parts = [chunk.frame for chunk in read_fragment(fragment, ReadRequest(columns, snapshot.schema, where, **options))]
    return pl.concat(parts) if parts else pl.DataFrame()


@pytest.mark.parametrize(("columns", "expected"), [(1, 131_072), (160, 104_857), (600, 32_768)])
def test_narrow_rows_come_in_larger_chunks_than_wide_ones(tmp_path: Path, columns: int, expected: int):
    names = [f"c{index}" for index in range(columns)]
    rows = expected + 9_000
    pq.write_table(pa.table(dict.fromkeys(names, pa.array(np.zeros(rows, np.int64)))), tmp_path / "0.parquet")
    snapshot = take_snapshot(str(tmp_path))
    for chunk_rows, height in ((131_072, expected), (32_768, 32_768), (1_000, 1_000)):
        chunks = read_fragment(whole(snapshot), ReadRequest(names, snapshot.schema, chunk_rows=chunk_rows))
        heights = [chunk.frame.height for chunk in chunks]
        assert heights[0] == max(heights) == height
        assert sum(heights) == rows


def plain(table: pa.Table) -> pa.Table:
    """The table without dictionaries, as Feedline gives it."""
    schema = [(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type) for f in table.schema]
    return table.cast(pa.schema(schema))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    root = tmp_path_factory.mktemp("shop")
    tables = {f"ds=2026-01-0{day}/f{part}.parquet": sample(50, day * 10 + part) for day in (1, 2) for part in (0, 1)}
    return take_snapshot(write(root, tables, row_group_size=20))


def test_frames_equal_pyarrows_in_the_requested_order(shop: Snapshot) -> None:
    columns = ["ids", "f32", "user", "a.b", "word", "text", "half", "ns", "i64"]
    read = frames(shop, whole(shop, 1), columns)
    expected = pq.read_table(f"{shop.uri}/{shop.files['path'][1].as_py()}", columns=columns, partitioning=None)
    assert read.columns == columns
    assert read.to_dict(as_series=False) == pl.from_arrow(plain(expected.select(columns))).to_dict(as_series=False)


def test_arrow_tables_equal_pyarrows_with_their_types(shop: Snapshot) -> None:
    columns = list(shop.file_columns)
    read = read_arrow(whole(shop, 2), ReadRequest(columns, shop.schema))
    expected = plain(pq.read_table(f"{shop.uri}/{shop.files['path'][2].as_py()}", partitioning=None))
    assert read.equals(expected)


def test_requested_partition_keys_are_typed_constants(shop: Snapshot) -> None:
    read = frames(shop, whole(shop, 3), ["ds", "i8"])
    assert read.schema["ds"] == pl.Date
    assert read["ds"].unique().to_list() == [datetime.date(2026, 1, 2)]
    assert frames(shop, whole(shop, 3), ["ds"]).height == 50


def test_a_null_key_is_a_null_of_its_type(tmp_path: Path) -> None:
    table = pa.table({"x": [1, 2]})
    snapshot = take_snapshot(write(tmp_path, {"k=1/f": table, "k=__HIVE_DEFAULT_PARTITION__/f": table}))
    read = frames(snapshot, whole(snapshot, 1), ["k", "x"])
    assert read.schema == {"k": pl.Int64, "x": pl.Int64}
    assert read["k"].to_list() == [None, None]


def test_chunks_are_bounded_and_name_their_row_group(shop: Snapshot) -> None:
    chunks = list(read_fragment(whole(shop), ReadRequest(["i64"], shop.schema, chunk_rows=8)))
    assert [(chunk.row_group, chunk.frame.height) for chunk in chunks] == [
        (0, 8), (0, 8), (0, 4), (1, 8), (1, 8), (1, 4), (2, 8), (2, 2),
    ]  # fmt: skip
    assert {chunk.uri for chunk in chunks} == {f"{shop.uri}/{shop.files['path'][0].as_py()}"}


def test_another_number_of_kept_rows_is_an_error(shop: Snapshot) -> None:
    where = bind_where("i64 > 0", shop.schema)
    fragment = whole(shop)
    counted = count_fragment(Fragment(**{**_fields(fragment), "expected": (UNCOUNTED,) * 3}), where, shop.schema)
    right = tuple(count.rows for count in counted)
    for expected in ((*right[:2], right[2] + 1), (right[0], right[1] - 1, right[2])):
        wrong = Fragment(**{**_fields(fragment), "expected": expected})
        for read in (
            lambda f: list(read_fragment(f, ReadRequest(["i8"], shop.schema, where))),
            lambda f: read_arrow(f, ReadRequest(["i8"], shop.schema, where)),
        ):
            with pytest.raises(DataError, match=r"f0.parquet, row group \d than was counted: got \d+, expected \d+"):
                read(wrong)
    with pytest.raises(DataError, match="than was counted"):
        list(read_fragment(Fragment(**{**_fields(fragment), "expected": right}), ReadRequest(["i8"], shop.schema)))


def _fields(fragment: Fragment) -> dict[str, Any]:
    return {name: getattr(fragment, name) for name in Fragment.__dataclass_fields__}


def test_unknown_and_missing_columns_are_said_so(shop: Snapshot) -> None:
    with pytest.raises(TableError, match=r"column 'i65' is not in the table. Did you mean 'i64'"):
        list(read_fragment(whole(shop), ReadRequest(["i65"], shop.schema)))
    with pytest.raises(DataError, match="list of columns is empty"):
        list(read_fragment(whole(shop), ReadRequest([], shop.schema)))


def test_drifted_files_are_read_in_the_tables_types(tmp_path: Path) -> None:
    old = pa.table(
        {
            "id": pa.array([1, None], pa.int32()),
            "gone": ["x", "y"],
            "late": pa.nulls(2),
            "l": pa.array([[1], None], pa.list_(pa.int16())),
        }
    )
    new = pa.table(
        {
            "late": pa.array(["a", "b"]).dictionary_encode(),
            "id": pa.array([2**40, 3], pa.int64()),
            "l": pa.array([[2**40], []], pa.large_list(pa.int64())),
            "more": pa.array([{"a": 1}, None], pa.struct({"a": pa.int8()})),
        }
    )
    snapshot = take_snapshot(write(tmp_path, {"a.parquet": old, "b.parquet": new}))
    columns = ["id", "gone", "late", "l", "more"]
    tables = [read_arrow(whole(snapshot, file), ReadRequest(columns, snapshot.schema)) for file in (0, 1)]
    assert all(table.schema.equals(pa.schema([snapshot.schema.field(name) for name in columns])) for table in tables)
    assert pa.concat_tables(tables).to_pydict() == {
        "id": [1, None, 2**40, 3],
        "gone": ["x", "y", None, None],
        "late": [None, None, "a", "b"],
        "l": [[1], None, [2**40], []],
        "more": [None, None, {"a": 1}, None],
    }
    both = [frames(snapshot, whole(snapshot, file), columns) for file in (0, 1)]
    assert both[0].schema == both[1].schema


def test_a_value_that_the_table_cannot_hold_is_an_error(tmp_path: Path) -> None:
    far = pa.table({"t": pa.array([datetime.datetime(2500, 1, 1)], pa.timestamp("us"))})
    fine = pa.table({"t": pa.array([1], pa.timestamp("ns"))})
    snapshot = take_snapshot(write(tmp_path, {"a.parquet": far, "b.parquet": fine}))
    with pytest.raises(DataError, match=r"column 't' of .*a.parquet, row group 0 does not fit the table's type"):
        list(read_fragment(whole(snapshot), ReadRequest(["t"], snapshot.schema)))


def test_types_that_polars_panics_on_are_refused(tmp_path: Path) -> None:
    wide = pa.table({"x": [1], "d": pa.array([1], pa.decimal256(50, 0))})
    snapshot = take_snapshot(write(tmp_path, {"a.parquet": wide}))
    with pytest.raises(TableError, match="column 'd' has a type that frames cannot hold"):
        list(read_fragment(whole(snapshot), ReadRequest(["d"], snapshot.schema)))
    assert frames(snapshot, whole(snapshot), ["x"]).height == 1
    assert read_arrow(whole(snapshot), ReadRequest(["d"], snapshot.schema)).equals(wide.select(["d"]))


def test_only_chunks_of_requested_columns_are_read(tmp_path: Path) -> None:
    """Everything but one column of one row group is overwritten: reading that one still works."""
    table = pa.table({"a": range(100), "b": range(100), "l": [[i] for i in range(100)]})
    root = write(tmp_path, {"f.parquet": table}, row_group_size=50, compression="none", use_dictionary=False)
    snapshot = take_snapshot(root)
    file = tmp_path / "f.parquet"
    metadata = pq.read_metadata(file)
    chunk = metadata.row_group(1).column(1)
    start, stop = chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size
    content = bytearray(file.read_bytes())
    end = len(content) - snapshot.files["footer_bytes"][0].as_py()
    for place in (*range(4, start), *range(stop, end)):
        content[place] = 0xFF
    rewrite(file, bytes(content))
    fragment = fragment_at(snapshot, 0, np.array([1]), np.array([50]))
    assert frames(snapshot, fragment, ["b"])["b"].to_list() == list(range(50, 100))
    # all rows are known to be kept, so the filter's column is not read either
    assert frames(snapshot, fragment, ["b"], "a >= 50")["b"].to_list() == list(range(50, 100))
    for column in ("a", "l"):
        with pytest.raises(CorruptFileError, match=r"f.parquet, row group 1 is not valid Parquet"):
            frames(snapshot, fragment, [column])


def rewrite(file: Path, content: bytes) -> None:
    """Other bytes in place, with the times of the old ones."""
    times = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "deleted": (lambda file: file.unlink(), r"is gone: it was there when the snapshot was taken"),
    "folder deleted": (lambda file: shutil.rmtree(file.parent), r"is gone"),
    "truncated": (
        lambda file: file.write_bytes(file.read_bytes()[:-100]),
        r"changed after the snapshot was taken: got \d+ bytes",
    ),
    "emptied": (lambda file: file.write_bytes(b""), r"got 0 bytes of .*, expected \d+ bytes"),
    "touched": (lambda file: os.utime(file, ns=(1, 1)), r"got \d+ bytes of 1970-01-01T00:00:00.000000001"),
    "grown": (lambda file: file.write_bytes(file.read_bytes() + b"x"), r"changed after the snapshot was taken"),
    "swapped": (
        lambda file: rewrite(file, _other_footer(file)),
        r"replaced after the snapshot was taken: got another footer",
    ),
    "zeroed": (lambda file: rewrite(file, b"\0" * file.stat().st_size), r"replaced after the snapshot was taken"),
}


def _other_footer(file: Path) -> bytes:
    """Another table whose file has the same size: rows in reverse, which leaves every length as it is."""
    size = file.stat().st_size
    pq.write_table(
        pq.read_table(file, partitioning=None).take(list(range(39, -1, -1))),
        file,
        row_group_size=10,
        compression="none",
        use_dictionary=False,
    )
    content = file.read_bytes()
    assert len(content) == size
    return content


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("cached", [False, True])
def test_a_file_that_is_not_the_snapshots_is_refused(tmp_path: Path, change: str, cached: bool) -> None:
    table = pa.table({"x": range(40)})
    root = write(tmp_path, {"k=1/f.parquet": table}, row_group_size=10, compression="none", use_dictionary=False)
    snapshot = take_snapshot(root)
    fragment = whole(snapshot)
    if cached:  # its footer is known to the process
        assert frames(snapshot, fragment, ["x"]).height == 40
    do, message = CHANGES[change]
    file = tmp_path / "k=1" / "f.parquet"
    times = file.stat()
    do(file)
    if change == "swapped":
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    for read in (
        lambda: frames(snapshot, fragment, ["x"]),
        lambda: read_arrow(fragment, ReadRequest(["x"], snapshot.schema)),
        lambda: count_fragment(fragment, bind_where("x > 3", snapshot.schema), snapshot.schema),
    ):
        with pytest.raises(TableChangedError, match=message) as caught:
            read()
        assert str(file) in str(caught.value)


def test_a_time_without_its_fraction_of_a_second_is_the_same_time(tmp_path: Path) -> None:
    """As object stores have it: the listing says 12:00:00.123, the object itself 12:00:00."""
    root = write(tmp_path, {"f.parquet": pa.table({"x": [1]})})
    second = 1_700_000_000
    os.utime(tmp_path / "f.parquet", ns=(0, second * 10**9 + 123_000_000))
    snapshot = take_snapshot(root)
    os.utime(tmp_path / "f.parquet", ns=(0, second * 10**9))
    assert frames(snapshot, whole(snapshot), ["x"]).height == 1
    for other in ((second + 1) * 10**9, second * 10**9 + 5):
        os.utime(tmp_path / "f.parquet", ns=(0, other))
        with pytest.raises(TableChangedError, match="changed after the snapshot was taken"):
            frames(snapshot, whole(snapshot), ["x"])


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "lz4", "gzip", "brotli"])
@pytest.mark.parametrize("use_dictionary", [False, True])
def test_flipped_bytes_in_pages_never_pass_where_pages_have_checksums(
    tmp_path: Path, compression: str, use_dictionary: bool
) -> None:
    rng = np.random.default_rng(0)
    table = pa.table({"x": rng.integers(0, 1000, 3000), "s": [str(i) for i in rng.integers(0, 50, 3000)]})
    options = {"compression": compression, "use_dictionary": use_dictionary, "write_page_checksum": True}
    snapshot = take_snapshot(write(tmp_path, {"f.parquet": table}, row_group_size=1000, **options))
    file = tmp_path / "f.parquet"
    good = file.read_bytes()
    data = len(good) - snapshot.files["footer_bytes"][0].as_py()
    for place in rng.integers(4, data, 25):
        bad = bytearray(good)
        bad[place] ^= 0x5A
        rewrite(file, bytes(bad))
        read, refusal = attempt(lambda: read_arrow(whole(snapshot), ReadRequest(["x", "s"], snapshot.schema)))
        if read is None:
            assert str(file) in refusal
        else:
            assert read.equals(table)  # a bit that nobody reads, in a page's header


def attempt(read: Callable[[], pa.Table]) -> tuple[pa.Table | None, str]:
    """What was read, or the message of the refusal; any other exception than Feedline's own fails the test."""
    try:
        return read(), ""
    except FeedlineError as error:
        return None, str(error)


@pytest.mark.parametrize("nested", [False, True])
def test_text_that_is_not_utf8_is_refused_before_polars_believes_it(tmp_path: Path, nested: bool) -> None:
    raw = pa.array([b"fine", b"\xff\xfe"])
    text = pa.StringArray.from_buffers(2, *raw.buffers()[1:])
    column = pa.ListArray.from_arrays([0, 1, 2], text) if nested else text
    snapshot = take_snapshot(write(tmp_path, {"f.parquet": pa.table({"s": column})}))
    with pytest.raises(CorruptFileError, match=r"column 's' of .*f.parquet, row group 0 is not valid Parquet: .*UTF"):
        frames(snapshot, whole(snapshot), ["s"])


def test_a_row_group_shorter_than_its_footer_says_is_refused() -> None:
    file = COLLECTION / "bad_data" / "ARROW-GH-41317.parquet"
    if not file.exists():
        pytest.skip(f"the Parquet collection is not at {COLLECTION}")
    snapshot = take_snapshot(str(file))
    with pytest.raises(CorruptFileError, match="does not hold the rows of its footer: got 0, expected 3"):
        read_arrow(whole(snapshot), ReadRequest(list(snapshot.file_columns), snapshot.schema))


def test_threads_share_footers_without_harm(shop: Snapshot) -> None:
    fragments = plan_fragments(shop, screen_rows(shop, None), 20) * 6
    with ThreadPoolExecutor(8) as pool:
        heights = list(pool.map(lambda fragment: frames(shop, fragment, ["i64", "ids"]).height, fragments))
    assert sum(heights) == 6 * 200


def test_a_reader_that_stops_early_leaves_no_file_open(shop: Snapshot) -> None:
    reader = read_fragment(whole(shop), ReadRequest(["ids"], shop.schema, chunk_rows=4))
    next(reader)
    path = f"{shop.uri}/{shop.files['path'][0].as_py()}"
    assert path in open_files()
    reader.close()
    assert path not in open_files()


@pytest.mark.parametrize("where", [None, "i64 > 0"])
def test_a_chunk_is_freed_before_the_next_is_decoded(shop: Snapshot, where: str | None) -> None:
    bound = None if where is None else bind_where(where, shop.schema)
    fragment = replace(whole(shop), expected=(UNCOUNTED,) * 3)
    request = ReadRequest(["ids"], shop.schema, bound, chunk_rows=4)
    for chunk in (reader := read_fragment(fragment, request)):
        frame = weakref.ref(chunk.frame)
        break
    del chunk
    assert frame() is None
    reader.close()
    decoded = batches(fragment, request, [0] * 3)
    batch = next(decoded)
    data = weakref.ref(batch.data)
    del batch
    assert data() is None
    decoded.close()


def open_files() -> list[str]:
    return [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.exists()]


def test_bytes_are_those_of_the_column_chunks(shop: Snapshot) -> None:
    def expected(column: str, row_groups: tuple[int, ...]) -> int:
        sql = (
            "select sum(total_compressed_size) from parquet_metadata(?) "
            "where row_group_id in ? and (path_in_schema = ? or path_in_schema like ?)"
        )
        path = f"{shop.uri}/{shop.files['path'][0].as_py()}"
        return int(duckdb.sql(sql, params=[path, list(row_groups), column, f"{column}, %"]).fetchall()[0][0])

    for column in ("i64", "ids", "user"):
        assert bytes_of(shop, np.array([0, 2]), [column]) == expected(column, (0, 2))
    assert bytes_of(shop, np.array([1]), ["i64", "ids", "ds"]) == expected("i64", (1,)) + expected("ids", (1,))
    assert bytes_of(shop, None, list(shop.file_columns)) == sum(shop.row_groups["bytes"].to_pylist())
    assert bytes_of(shop, np.array([], np.int64), ["i64"]) == 0
    with pytest.raises(TableError, match="column 'nope' is not in the table"):
        bytes_of(shop, None, ["nope"])


def test_fragments_are_small_and_picklable(shop: Snapshot) -> None:
    fragment = whole(shop)
    wire = pickle.dumps(fragment)
    assert len(wire) < 700
    assert pickle.loads(wire) == fragment
    assert frames(shop, pickle.loads(wire), ["i64"]).height == 50


def test_row_groups_that_keep_nothing_are_not_in_a_fragment(shop: Snapshot) -> None:
    splits = plan_splits(shop.rows_per_row_group, shop.file_of_row_group, 1000)
    kept = np.where(np.arange(len(shop.rows_per_row_group)) % 3 == 1, 0, shop.rows_per_row_group)
    fragment = fragment_of(shop, splits, kept, 0)
    assert (fragment.row_groups, fragment.expected) == ((0, 2), (20, 10))


@given(st.lists(st.booleans(), max_size=70))
def test_masks(mask: list[bool]):
    bits = pack_mask(np.array(mask, np.bool_))
    assert unpack_mask(bits, len(mask)).tolist() == mask
    assert count_excluded(bits) == sum(mask)
    assert not unpack_mask(None, len(mask)).any()
    assert count_excluded(None) == 0
