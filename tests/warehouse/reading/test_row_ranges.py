"""Rows by position: equal to pyarrow's rows, of few bytes, and never wrong ones."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from stored_runs import write_in_place
from tagged_store import TaggedStore
from warehouse_samples import sample, write

from feedline.errors import CorruptFileError, DataError, TableArgumentError, TableChangedError
from feedline.warehouse.parquet.decode import kernel_refusal
from feedline.warehouse.parquet.offset_index import index_place, page_indexes
from feedline.warehouse.reading import row_ranges
from feedline.warehouse.reading.fragment import Fragment, fragment_at
from feedline.warehouse.reading.read import ReadRequest, read_arrow
from feedline.warehouse.reading.row_ranges import RangeRows, read_ranges
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.warehouse.storage import ranges as storage_ranges

ROWS = 6_000
PAGE_ROWS = 64
GROUP_ROWS = 2_500
SMALL_PAGES: dict[str, Any] = {
    "write_page_index": True,
    "write_batch_size": PAGE_ROWS,
    "data_page_size": 1,
    "row_group_size": GROUP_ROWS,
}
needs_kernel = pytest.mark.skipif(bool(kernel_refusal()), reason="pages are decoded by the kernel alone")


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    page_indexes._values.clear()


def whole(snapshot: Snapshot, file: int = 0) -> Fragment:
    groups = np.flatnonzero(snapshot.file_of_row_group == file)
    return fragment_at(snapshot, file, groups, snapshot.rows_per_row_group[groups])


def expected(snapshot: Snapshot, columns: list[str], ranges: NDArray[np.int64]) -> pa.Table:
    """The rows of the first file, by reading all of them with pyarrow."""
    table = pq.read_table(f"{snapshot.uri}/{snapshot.files['path'][0].as_py()}", partitioning=None)
    rows = np.concatenate([np.arange(start, stop) for start, stop in ranges])
    schema = pa.schema([snapshot.schema.field(name) for name in columns])
    return table.select(columns).take(rows).cast(schema)


def read(snapshot: Snapshot, columns: list[str], *ranges: tuple[int, int]) -> RangeRows:
    return read_ranges(whole(snapshot), columns, snapshot.schema, np.array(ranges, np.int64).reshape(-1, 2))


def check(snapshot: Snapshot, columns: list[str], *ranges: tuple[int, int]) -> int:
    """Compare rows with pyarrow's. Returns the bytes that were read."""
    rows = read(snapshot, columns, *ranges)
    rows.table.validate(full=True)
    assert rows.table.equals(expected(snapshot, columns, np.array(ranges)))
    return rows.bytes_read


@pytest.fixture
def whole_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, tuple[str, ...]]]:
    """The row groups that are read whole, each with the columns."""
    reads: list[tuple[int, tuple[str, ...]]] = []
    own = row_ranges._read_whole

    def recorded(fragment: Any, row_group: int, columns: Any, *rest: Any) -> pa.Table:
        reads.append((row_group, tuple(columns)))
        return own(fragment, row_group, columns, *rest)

    monkeypatch.setattr(row_ranges, "_read_whole", recorded)
    return reads


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    rng = np.random.default_rng(1)
    table = pa.table(
        {
            "id": rng.integers(0, 2**40, ROWS),
            "code": pa.array(rng.integers(0, 50, ROWS), pa.int32()),
            "name": [f"n{value}" for value in rng.integers(0, 50, ROWS)],
            "ids": [[int(value)] * 2 for value in rng.integers(0, 50, ROWS)],
        }
    )
    folder = tmp_path_factory.mktemp("events")
    return take_snapshot(
        write(folder, {"day=3/a.parquet": table}, **SMALL_PAGES, compression="zstd", use_dictionary=["code", "name"])
    )


@examples(60, by_day=8)
@given(
    seed=st.integers(0, 3),
    borders=st.lists(st.integers(0, 400), min_size=2, max_size=16, unique=True).map(sorted),
    page_rows=st.sampled_from([1, 7, 32, 1000]),
    group_rows=st.sampled_from([90, 400]),
    codec=st.sampled_from(["none", "snappy", "zstd", "lz4", "gzip"]),
    version=st.sampled_from(["1.0", "2.0"]),
    dictionary=st.booleans(),
    checksums=st.booleans(),
    part=st.sampled_from([0.75, 2.0]),
)
def test_rows_are_those_that_pyarrow_reads(
    seed: int,
    borders: list[int],
    page_rows: int,
    group_rows: int,
    codec: str,
    version: str,
    dictionary: bool,
    checksums: bool,
    part: float,
):
    ranges = [(start, stop) for start, stop in zip(borders[::2], borders[1::2], strict=False)]
    options = {
        "write_batch_size": page_rows,
        "data_page_size": 1,
        "write_page_index": True,
        "row_group_size": group_rows,
        "compression": codec,
        "data_page_version": version,
        "use_dictionary": dictionary,
        "write_page_checksum": checksums,
    }
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_ranges, "_MOST_PART", part)
        snapshot = take_snapshot(write(Path(name), {"a.parquet": sample(400, seed)}, **options))
        check(snapshot, snapshot.schema.names, *ranges)
        for column in ("i8", "i64", "text", "ids"):
            check(snapshot, [column], *ranges)


@needs_kernel
def test_pages_of_flat_columns_alone_are_read(events: Snapshot, whole_reads: list[Any]):
    file_bytes = events.files["bytes"][0].as_py()
    nbytes = check(events, ["id", "code", "name"], (100, 110), (2_490, 2_510), (5_000, 5_064))
    assert not whole_reads
    assert nbytes < file_bytes / 10
    one = check(events, ["id"], (128, 192))
    assert one < 64 * 8 + 100  # a page, which does not compress, and its header
    assert check(events, ["id"], (128, 256)) < 2.1 * one
    nothing = read(events, ["id"])
    assert nothing.table.equals(expected(events, ["id"], np.array([[0, 0]])))
    assert nothing.bytes_read == 0


@needs_kernel
def test_most_of_a_row_group_is_read_whole(events: Snapshot, whole_reads: list[Any]):
    nbytes = check(events, ["id", "code"], (100, 2_300), (2_600, 2_700))
    assert whole_reads == [(0, ("id", "code"))]
    with whole(events).open() as file:
        assert nbytes > sum(facts.nbytes for facts in file.decoder.facts(0, [0, 1]))


@needs_kernel
def test_a_column_of_which_most_pages_are_needed_is_read_at_once(events: Snapshot, monkeypatch: pytest.MonkeyPatch):
    ranges = [(start, start + 10) for start in range(0, 2_400, PAGE_ROWS)]
    spans: list[int] = []
    own = row_ranges._part
    monkeypatch.setattr(row_ranges, "_part", lambda *args: (part := own(*args), spans.append(len(part.spans)))[0])
    check(events, ["id"], *ranges)
    assert spans == [1]


def test_lists_parts_and_partition_keys_come_with_the_rest(tmp_path: Path, whole_reads: list[Any]):
    snapshot = take_snapshot(write(tmp_path, {"ds=3/a.parquet": sample(400)}, **SMALL_PAGES))
    ranges = np.array([[3, 9], [100, 140], [390, 400]])
    columns = ['user["age"]', "ds", "i64", "ids", "word"]
    rows = read_ranges(whole(snapshot), columns, snapshot.schema, ranges)
    whole_table = read_arrow(whole(snapshot), ReadRequest(columns, snapshot.schema))
    assert rows.table.equals(whole_table.take(np.concatenate([np.arange(*each) for each in ranges])))
    if not kernel_refusal():
        assert whole_reads == [(0, ('user["age"]', "ids", "word"))]


def test_only_keys_of_the_partition_read_nothing(events: Snapshot):
    rows = read(events, ["day"], (0, 3), (2_400, 2_600))
    assert rows.table.column("day").to_pylist() == [3] * 203
    assert rows.bytes_read == 0


def test_files_that_lack_a_column_or_store_another_type_give_the_tables(tmp_path: Path):
    new = pa.table({"x": pa.array(range(500), pa.int64()), "y": [str(n) for n in range(500)]})
    old = pa.table({"x": pa.array(range(500), pa.int32())})
    snapshot = take_snapshot(write(tmp_path, {"a.parquet": old, "b.parquet": new}, **SMALL_PAGES))
    assert snapshot.schema.field("x").type == pa.int64()
    rows = read(snapshot, ["y", "x"], (10, 20), (300, 301)).table
    assert rows.schema == pa.schema([snapshot.schema.field("y"), snapshot.schema.field("x")])
    assert rows.to_pydict() == {"y": [None] * 11, "x": [*range(10, 20), 300]}


def test_columns_stored_once_per_run_are_read_whole(tmp_path: Path, whole_reads: list[Any]):
    table = pa.table({"x": range(300), "user": [row // 7 for row in range(300)]})
    starts = {"user": [row % 7 == 0 for row in range(300)]}
    options = {"write_page_index": True, "write_batch_size": 10, "data_page_size": 1}
    write_in_place(tmp_path / "a.parquet", table, {"user": ["user"]}, starts, 150, options=options)
    snapshot = take_snapshot(str(tmp_path))
    rows = read(snapshot, ["user", "x"], (3, 9), (148, 152)).table
    found = [*range(3, 9), *range(148, 152)]
    assert rows.to_pydict() == {"user": [row // 7 for row in found], "x": found}
    if not kernel_refusal():
        assert whole_reads == [(0, ("user",)), (1, ("user",))]


def test_without_an_index_or_the_kernel_row_groups_are_read_whole(
    tmp_path: Path, events: Snapshot, whole_reads: list[Any], monkeypatch: pytest.MonkeyPatch
):
    options = {**SMALL_PAGES, "write_page_index": False}
    snapshot = take_snapshot(write(tmp_path, {"a.parquet": pa.table({"x": range(ROWS)})}, **options))
    check(snapshot, ["x"], (10, 20), (5_900, 6_000))
    assert whole_reads == [(0, ("x",)), (2, ("x",))]
    fragment = replace(whole(events), decoder="arrow")
    rows = read_ranges(fragment, ["id"], events.schema, np.array([[10, 20]])).table
    assert rows.equals(expected(events, ["id"], np.array([[10, 20]])))
    assert whole_reads[2:] == [(0, ("id",))]


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([(5, 5)], r"do not ascend: got 5 behind 5"),
        ([(-1, 5)], "do not ascend"),
        ([(0, 5), (4, 6)], "do not ascend"),
        ([(7, 9), (4, 6)], r"do not ascend: got 4 behind 9"),
        ([(5_999, 6_001)], "ends behind the rows of .*a.parquet: got 6001, expected at most 6000"),
    ],
)
def test_ranges_that_are_none_are_refused(events: Snapshot, ranges: list[tuple[int, int]], message: str):
    with pytest.raises(TableArgumentError, match=message):
        read(events, ["id"], *ranges)


def test_unknown_and_missing_columns_are_named(events: Snapshot):
    with pytest.raises(TableArgumentError, match=r"column 'idd' is not in the table\. Did you mean 'id'"):
        read(events, ["id", "idd"], (0, 5))
    with pytest.raises(DataError, match="list of columns is empty"):
        read(events, [], (0, 5))


def test_row_groups_of_another_fragment_are_refused(events: Snapshot):
    fragment = replace(whole(events), row_groups=(0, 2), expected=(1, 1))
    assert read_ranges(fragment, ["id"], events.schema, np.array([[0, 5], [5_000, 5_001]])).table.num_rows == 6
    with pytest.raises(TableArgumentError, match="that is not read: got 1, expected one of 0, 2"):
        read_ranges(fragment, ["id"], events.schema, np.array([[2_400, 2_600]]))


def test_a_replaced_file_is_refused(tmp_path: Path):
    snapshot = take_snapshot(write(tmp_path, {"a.parquet": pa.table({"x": range(ROWS)})}, **SMALL_PAGES))
    read(snapshot, ["x"], (0, 5))
    pq.write_table(pa.table({"x": range(9)}), tmp_path / "a.parquet")
    with pytest.raises(TableChangedError, match=r"a\.parquet changed"):
        read(snapshot, ["x"], (0, 5))


def test_neighbours_on_one_page_and_a_range_over_all_row_groups(events: Snapshot):
    columns = ["name", "id"]
    check(events, columns, (0, 1), (1, 2), (2, 3), (60, 70), (70, 71))
    check(events, columns, (2_499, 5_001))
    check(events, columns, *((row, row + 1) for row in range(0, ROWS, 100)))
    check(events, columns, (0, ROWS))


class Damage:
    """A file of which one place is overwritten; its footer, size and time stay."""

    def __init__(self, folder: Path, **options: Any) -> None:
        rng = np.random.default_rng(0)
        table = pa.table({"x": rng.integers(0, 2**40, ROWS), "y": rng.integers(0, 90, ROWS)})
        self.snapshot = take_snapshot(write(folder, {"a.parquet": table}, **{**SMALL_PAGES, **options}))
        self.path = folder / "a.parquet"
        self.content = self.path.read_bytes()
        self._stat = self.path.stat()
        with whole(self.snapshot).open() as file:
            places = [index_place(file.metadata, b"", 1, leaf, len(self.content)) for leaf in range(2)]
            self.chunk = file.decoder.facts(1, [0])[0].place
        assert places[0] is not None
        self.index = places[0]

    def overwrite(self, place: int, content: bytes, *, is_new: bool = False) -> None:
        """is_new: at another time."""
        self.path.write_bytes(self.content[:place] + content + self.content[place + len(content) :])
        os.utime(self.path, ns=(self._stat.st_atime_ns, self._stat.st_mtime_ns + is_new * 10**9))


@needs_kernel
def test_a_damaged_index_never_gives_other_rows(tmp_path: Path):
    damage = Damage(tmp_path)
    ranges = [(2_500, 2_501), (2_628, 2_700), (3_700, 3_701), (4_990, 5_000)]
    rows = expected(damage.snapshot, ["x", "y"], np.array(ranges))
    start, stop = damage.index
    rng = random.Random(0)
    for _ in range(300):
        place = rng.randrange(start, stop)
        damage.overwrite(place, bytes([rng.randrange(256)]))
        page_indexes._values.clear()
        assert read(damage.snapshot, ["x", "y"], *ranges).table.equals(rows)


@needs_kernel
def test_an_index_whose_pages_hold_other_numbers_of_rows_is_not_used(tmp_path: Path, whole_reads: list[Any]):
    damage = Damage(tmp_path)
    ranges = [(2_500 + 63, 2_500 + 65)]
    rows = expected(damage.snapshot, ["x"], np.array(ranges))
    start, stop = damage.index
    second_page = damage.content.index(b"\x16\x80\x01\x00", start, stop)  # its first row: 64
    damage.overwrite(second_page, b"\x16\x82\x01\x00")
    assert read(damage.snapshot, ["x"], *ranges).table.equals(rows)
    assert whole_reads == [(1, ("x",))]


@needs_kernel
def test_a_damaged_page_is_an_error_that_names_it(tmp_path: Path):
    damage = Damage(tmp_path, write_page_checksum=True, use_dictionary=False, compression="none")
    first = damage.chunk[0]
    damage.overwrite(first + 200, b"\x01\x02\x03")
    with pytest.raises(CorruptFileError, match=r"column 'x' of .*a\.parquet, row group 1 is not valid Parquet"):
        read(damage.snapshot, ["x"], (2_510, 2_520))
    assert read(damage.snapshot, ["x"], (10, 20), (2_700, 2_710)).table.num_rows == 20


@needs_kernel
def test_an_index_is_kept_for_one_version_of_a_file(tmp_path: Path, whole_reads: list[Any]):
    damage = Damage(tmp_path)
    read(damage.snapshot, ["x"], (2_520, 2_530))
    start, stop = damage.index
    damage.overwrite(damage.content.index(b"\x16\x80\x01\x00", start, stop), b"\x16\x82\x01\x00", is_new=True)
    later = take_snapshot(str(tmp_path))
    assert whole(later).footer_digest == whole(damage.snapshot).footer_digest
    read(later, ["x"], (2_520, 2_530))
    assert whole_reads == [(1, ("x",))]


class Requests:
    """The ranges that are requested of a store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spans: list[tuple[int, int]] = []
        own = storage_ranges._read_into

        def recorded(source: Any, start: int, view: memoryview) -> None:
            self.spans.append((start, start + len(view)))
            own(source, start, view)

        monkeypatch.setattr(storage_ranges, "_read_into", recorded)

    def take(self) -> list[tuple[int, int]]:
        spans, self.spans = self.spans, []
        return spans


@pytest.fixture
def remote(events: Snapshot) -> Iterator[Snapshot]:
    store = TaggedStore()
    content = Path(f"{events.uri}/{events.files['path'][0].as_py()}").read_bytes()
    store.pipe_file("/ranges/day=3/a.parquet", content)
    yield take_snapshot("tagged://ranges")
    store.rm("/ranges", recursive=True)


@needs_kernel
def test_a_store_is_asked_for_the_index_once_and_for_pages_in_few_requests(
    remote: Snapshot, events: Snapshot, monkeypatch: pytest.MonkeyPatch
):
    ranges = [(100, 110), (2_490, 2_510), (5_000, 5_064)]
    requests = Requests(monkeypatch)
    rows = read(remote, ["id", "code"], *ranges)
    assert len(requests.take()) == 3  # footer, indexes, and pages with what lies between them
    page_indexes._values.clear()
    monkeypatch.setattr(storage_ranges, "HOLE_BYTES", 2_000)
    read(remote, ["id", "code"], *ranges)
    assert rows.table.equals(expected(events, ["id", "code"], np.array(ranges)))
    first = requests.take()
    again = read(remote, ["id", "code"], *ranges)
    pages = requests.take()
    assert again.table.equals(rows.table)
    assert set(pages) < set(first)
    assert again.bytes_read == sum(stop - start for start, stop in pages)
    with whole(remote).open() as file:
        facts = [facts for group in range(3) for facts in file.decoder.facts(group, [0, 1])]
    assert again.bytes_read < sum(each.nbytes for each in facts) / 10


@needs_kernel
def test_a_store_that_fails_for_a_moment_or_has_replaced_the_file(
    remote: Snapshot, events: Snapshot, monkeypatch: pytest.MonkeyPatch
):
    read(remote, ["id"], (0, 5))
    failures = [ConnectionResetError("gone")] * 2
    own = storage_ranges._read_into

    def failing(source: Any, start: int, view: memoryview) -> None:
        if failures:
            raise failures.pop()
        own(source, start, view)

    monkeypatch.setattr(storage_ranges, "_read_into", failing)
    assert read(remote, ["id"], (0, 5)).table.equals(expected(events, ["id"], np.array([[0, 5]])))
    assert not failures
    content = bytes(TaggedStore().cat_file("/ranges/day=3/a.parquet"))

    def replacing(source: Any, start: int, view: memoryview) -> None:
        own(source, start, view)
        TaggedStore().pipe_file("/ranges/day=3/a.parquet", content[:100] + b"?" + content[101:])

    monkeypatch.setattr(storage_ranges, "_read_into", replacing)
    with pytest.raises(TableChangedError, match=r"a\.parquet"):
        read(remote, ["id"], (0, 5))
