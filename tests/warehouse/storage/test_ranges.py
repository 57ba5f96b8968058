"""Ranges: as few as the rules allow, all requested bytes, little else; and no short answer goes unnoticed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from s3_store import KEYS
from warehouse_samples import collection, sample, write

from feedline import Table
from feedline.errors import DataError, TableChangedError, TableError
from feedline.warehouse.parquet.footer import chunk_ranges
from feedline.warehouse.reading.read import ReadRequest, read_arrow
from feedline.warehouse.selection.select import plan_fragments, screen_rows
from feedline.warehouse.storage.faults import ShortBodyError
from feedline.warehouse.storage.locations import absolute, locate, redact
from feedline.warehouse.storage.ranges import (
    HOLE_BYTES,
    HOLES_PART,
    RANGE_BYTES,
    SparseFile,
    adjacent,
    coalesce,
    merge,
    read_range,
)

KIB, MIB = 2**10, 2**20
RANGES = st.lists(
    st.tuples(st.integers(0, 200 * MIB), st.one_of(st.integers(0, 64 * KIB), st.integers(0, 80 * MIB))).map(
        lambda pair: (pair[0], pair[0] + pair[1])
    ),
    max_size=30,
)


def union(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes as disjoint ranges that do not touch, by counting starts and stops."""
    events = sorted(
        [(start, -1) for start, stop in ranges if start < stop] + [(stop, 1) for start, stop in ranges if start < stop]
    )
    found, depth = [], 0
    for place, change in events:
        if depth == 0:
            opened = place
        depth -= change
        if depth == 0:
            found.append((opened, place))
    return found


@given(RANGES)
def test_adjacent_ranges_are_read_at_once_and_nothing_between_others(ranges: list[tuple[int, int]]):
    ranges = [each for each in ranges if each[0] < each[1]]
    spans = list(adjacent(ranges))
    assert [each for _, inner in spans for each in inner] == sorted(ranges)
    assert all((min(inner)[0], max(stop for _, stop in inner)) == span for span, inner in spans)
    assert union([span for span, _ in spans]) == union(ranges), "no byte that was not asked for"
    for ((start, stop), inner), ((begin, _), _) in pairwise(spans):
        assert begin > stop or stop - start >= 4 * MIB
        assert max((end for _, end in inner[:-1]), default=0) - start < 4 * MIB, "one range more than the limit at most"


@given(RANGES)
def test_ranges_cover_the_requested_bytes_and_little_else(wanted: list[tuple[int, int]]) -> None:
    asked = coalesce(wanted)
    assert asked == sorted(asked)
    assert all(before[1] <= after[0] for before, after in pairwise(asked))  # nothing twice
    assert all(0 < stop - start <= RANGE_BYTES for start, stop in asked)
    plain = union(wanted)
    assert union(asked + plain) == union(asked)  # nothing is left out
    total = sum(stop - start for start, stop in plain)
    holes = sum(stop - start for start, stop in asked) - total
    assert 0 <= holes <= max(HOLE_BYTES, HOLES_PART * total)
    left = [after[0] - before[1] for before, after in pairwise(union(asked))]
    assert all(size > HOLE_BYTES or holes + size > max(HOLE_BYTES, int(HOLES_PART * total)) for size in left)


def test_ranges_of_examples() -> None:
    assert coalesce([]) == []
    assert coalesce([(5, 5)]) == []
    assert coalesce([(10, 20), (0, 10)]) == [(0, 20)]
    assert coalesce([(0, 10), (10 + HOLE_BYTES, 20 + HOLE_BYTES)]) == [(0, 20 + HOLE_BYTES)]
    assert coalesce([(0, 10), (11 + HOLE_BYTES, 20 + HOLE_BYTES)]) == [(0, 10), (11 + HOLE_BYTES, 20 + HOLE_BYTES)]
    far = [(i * 300 * KIB, i * 300 * KIB + 10) for i in range(5)]  # three of the four holes fit into one window
    assert coalesce(far) == [(0, 900 * KIB + 10), far[4]]
    assert coalesce([(0, 2 * RANGE_BYTES)]) == [(0, RANGE_BYTES), (RANGE_BYTES, 2 * RANGE_BYTES)]
    assert merge([(0, 2 * RANGE_BYTES)], 10) == [(0, 2 * RANGE_BYTES)]
    assert merge([(0, 10), (20, 30), (41, 50)], 10) == [(0, 30), (41, 50)]


def test_arrow_decodes_every_column_from_its_ranges(tmp_path: Path) -> None:
    """Every kind of column by itself: decoded from fetched bytes it equals a plain read."""
    path = tmp_path / "f.parquet"
    table = sample(3000)
    pq.write_table(table, path, row_group_size=1000)
    content, metadata = path.read_bytes(), pq.read_metadata(path)
    for leaf in range(metadata.num_columns):
        fetched = SparseFile(len(content))
        fetched.set_ranges(coalesce(chunk_ranges(metadata, 1, [leaf], len(content))))
        fetched.fetch(pa.BufferReader(content))
        [got] = pq.ParquetFile(fetched.reader(), metadata=metadata).reader.iter_batches(
            2000, row_groups=[1], column_indices=[leaf]
        )
        [expected] = pq.ParquetFile(path).reader.iter_batches(2000, row_groups=[1], column_indices=[leaf])
        assert got.equals(expected)
    assert pq.ParquetFile(SparseFile(10).reader(), metadata=metadata).metadata.equals(metadata)


class Source:
    """A file whose streams claim to have read all, though only its first `held` bytes arrive, as pyarrow's S3 files do
    if a body is complete, but shorter than requested."""

    def __init__(self, content: bytes, held: int) -> None:
        self.content, self.held, self.asked = content, held, []

    def get_stream(self, start: int, size: int) -> Source.Stream:
        self.asked.append((start, size))
        return Source.Stream(self, start, size)

    class Stream:
        def __init__(self, source: Source, start: int, size: int) -> None:
            self.source, self.start, self.size = source, start, size

        def readinto(self, view: memoryview) -> int:
            found = self.source.content[self.start : min(self.start + self.size, self.source.held)]
            memoryview(view)[: len(found)] = found
            return self.size


@given(st.binary(min_size=1, max_size=50), st.data())
def test_a_short_answer_is_always_detected(content: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(content) - 1))
    size = data.draw(st.integers(1, len(content) - start))
    held = data.draw(st.integers(0, len(content)))
    source = Source(content, held)
    if held >= start + size:
        assert read_range(source, start, size) == content[start : start + size]
        assert len(source.asked) == 1 + (content[start + size - 1] == 0xA7)
    else:
        with pytest.raises(ShortBodyError, match="answer is too short"):
            read_range(source, start, size)


def test_fetched_ranges_are_not_requested_again() -> None:
    content = np.random.default_rng(0).bytes(5 * MIB)
    source = Source(content, 3 * MIB)
    fetched = SparseFile(len(content))
    fetched.set_ranges([(0, 100), (2 * MIB, 2 * MIB + 100), (4 * MIB, 4 * MIB + 100)])
    with pytest.raises(ShortBodyError):
        fetched.fetch(source)
    source.held, source.asked = len(content), []
    fetched.fetch(source)
    assert source.asked == [(4 * MIB, 100)]
    fetched.fetch(source)
    assert source.asked == [(4 * MIB, 100)]
    for start in (0, 2 * MIB, 4 * MIB):
        assert fetched.reader().read_at(100, start) == content[start : start + 100]


# -- other file systems -------------------------------------------------------------------------------------------


def test_a_file_system_of_fsspec(tmp_path: Path) -> None:
    local = write(tmp_path / "t", {f"k={i}/f.parquet": sample(500, seed=i) for i in range(3)}, row_group_size=200)
    memory = fsspec.filesystem("memory")
    try:
        memory.put(local, "/t", recursive=True)
        names = [name for name in Table(local).snapshot().schema.names if name not in ("half",)]
        got, expected = Table("memory://t").read(names, where="i64 > 0"), Table(local).read(names, where="i64 > 0")
        assert got.equals(expected)
        assert got.num_rows
        snapshot = Table("memory://t").snapshot()
        [fragment, *_] = plan_fragments(snapshot, screen_rows(snapshot, None), 10**6)
        id = snapshot.save("memory://work/x")
        assert type(snapshot).load("memory://work/x", id).id == id
        memory.pipe("/t/k=0/f.parquet", b"PAR1" * 10)
        with pytest.raises(TableChangedError, match=r"memory://t/k=0/f\.parquet changed after the snapshot was taken"):
            read_arrow(fragment, ReadRequest(names, snapshot.schema))
        memory.rm("/t/k=0/f.parquet")
        with pytest.raises(TableChangedError, match="is gone"):
            read_arrow(fragment, ReadRequest(names, snapshot.schema))
    finally:
        memory.rm("/t", recursive=True)
        memory.rm("/work", recursive=True)


@pytest.mark.nightly
def test_the_interoperability_files_from_memory() -> None:
    """Fetched and decoded from memory, they give the same as from a disk, errors included."""
    memory = fsspec.filesystem("memory")
    for path in collection("data"):
        if path.name.startswith("large_string_map"):
            continue  # two gigabytes of text
        memory.pipe(f"/c/{path.name}", path.read_bytes())
        results = []
        for table in (Table(str(path)), Table(f"memory://c/{path.name}")):
            try:
                results.append(table.read())
            except (TableError, DataError, NotImplementedError) as error:
                results.append((type(error), str(error).partition(path.name)[2]))
        memory.rm("/c", recursive=True)
        assert results[0] == results[1] or _same_nans(*results), path.name


def _same_nans(left: Any, right: Any) -> bool:
    return isinstance(left, pa.Table) and str(left.to_pydict()) == str(right.to_pydict())


def test_a_missing_package_is_named() -> None:
    with pytest.raises(TableError, match=r"az://c/t needs a package that is not installed: .*adlfs"):
        locate("az://c/t")
    with pytest.raises(TableError, match="nope://x cannot be opened by pyarrow or fsspec"):
        locate("nope://x")


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIA:SECRET@bucket/t",
        "s3://AKIA:SE/CRET@bucket/t",
        "s3://:SECRET@bucket/t",
        "https://host/f.parquet?X-Amz-Credential=a&X-Amz-Signature=SECRET",
        "https://host/f.parquet?sp=r&sig=SECRET",
        "abfs://c@a.dfs.core.windows.net/t?client_secret=SECRET",
        "s3://bucket/t?secret_key=SECRET",
        "gs://bucket/t?access_token=SECRET",
    ],
)
def test_credentials_in_a_uri_are_refused_and_not_shown(uri: str) -> None:
    with pytest.raises(TableError, match=r"URI holds a (password|credential)") as caught:
        absolute(uri)
    for text in (str(caught.value), redact(uri)):
        assert "SECRET" not in text
        assert "CRET" not in text


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/ts=12:00/user=a@b",
        "s3://bucket/t?endpoint_override=localhost:9000&region=x&scheme=http",
        "abfs://container@account.dfs.core.windows.net/t?credential_kind=anonymous",
        "http://host:8080/a@b.parquet",
    ],
)
def test_uris_without_credentials_are_accepted(uri: str) -> None:
    assert absolute(uri) == uri


def test_options_of_an_s3_uri_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    for uri, expected in (
        ("s3://b/t?region=eu-north-1", {"region": "eu-north-1", "endpoint_override": "http://127.0.0.1:1"}),
        (
            "s3://b/t?endpoint_override=h:1&scheme=http&allow_bucket_creation=true",
            {"endpoint_override": "h:1", "scheme": "http", "allow_bucket_creation": True},
        ),
    ):
        made = locate(uri).filesystem.__reduce__()[1][0]
        plain = pafs.FileSystem.from_uri(uri)[0].__reduce__()[1][0]
        ours = ("connect_timeout", "request_timeout", "allow_delayed_open")
        assert {key: value for key, value in made.items() if key not in ours} == {
            key: value for key, value in plain.items() if key not in ours
        }
        assert {key: made[key] for key in expected} == expected
        assert made["request_timeout"] > 0
    locate.cache_clear()
