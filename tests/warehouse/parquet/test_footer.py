"""Footers: their parsed structure against pyarrow's, and damage in every byte of one."""

from __future__ import annotations

import io
import random
import tracemalloc
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from warehouse_samples import COLLECTION, collection, sample, write

from feedline import Table
from feedline.errors import CorruptFileError, FeedlineError, TableError
from feedline.warehouse.parquet.bounds import bounds_of
from feedline.warehouse.parquet.footer import file_facts
from feedline.warehouse.parquet.thrift import (
    BYTE_ARRAY,
    FIXED,
    INT32,
    INT64,
    PHYSICAL,
    MalformedError,
    Structure,
    structure_of,
)
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot


def first_facts(snapshot: Snapshot) -> dict[str, Any]:
    """The facts of the first row group's columns."""
    return {name: snapshot.column_facts(name)[0].as_py() for name in snapshot.schema.names}


def footer(content: bytes) -> bytes:
    return content[-8 - int.from_bytes(content[-8:-4], "little") : -8]


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def check_structure(content: bytes) -> None:
    """The same row groups and chunks as through pyarrow's accessors."""
    metadata = pq.read_metadata(pa.BufferReader(content))
    structure = structure_of(footer(content))
    assert not structure.encrypted
    assert structure.rows == [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    for index, chunks in enumerate(structure.chunks):
        assert len(chunks) == metadata.num_columns
        for leaf, chunk in enumerate(chunks):
            expected = metadata.row_group(index).column(leaf)
            assert (chunk.type, chunk.bytes) == (PHYSICAL[expected.physical_type], expected.total_compressed_size)
            statistics = expected.statistics
            if statistics is not None and statistics.has_null_count:
                assert chunk.nulls == statistics.null_count
            if statistics is not None and statistics.has_min_max and isinstance(statistics.min_raw, bytes):
                assert statistics.min_raw in (chunk.low, chunk.old_low)
                assert statistics.max_raw in (chunk.high, chunk.old_high)


@pytest.mark.parametrize("version", ["1.0", "2.6"])
@pytest.mark.parametrize("statistics", [True, False])
def test_pyarrow_footers_are_read_as_pyarrow_reads_them(version: Any, statistics: bool) -> None:
    table = sample(50).drop_columns(["ns"] if version == "1.0" else [])
    check_structure(
        written(table, row_group_size=20, version=version, write_statistics=statistics, write_page_index=True)
    )


def test_duckdb_footers_are_read_as_pyarrow_reads_them(tmp_path: Path) -> None:
    duckdb.sql(
        "copy (select i, i::varchar as s, [i, i] as l, i / 3 as f from range(5000) t(i)) "
        f"to '{tmp_path}/f.parquet' (row_group_size 2048)"
    )
    check_structure((tmp_path / "f.parquet").read_bytes())
    assert take_snapshot(str(tmp_path)).rows == 5000


@pytest.mark.skipif(not COLLECTION.exists(), reason=f"the Parquet collection is not at {COLLECTION}")
def test_footers_of_many_writers_are_read_as_pyarrow_reads_them() -> None:
    checked = 0
    for path in collection("data"):
        content = path.read_bytes()
        try:
            pq.read_metadata(path)
        except (OSError, pa.ArrowInvalid):
            continue
        if "plaintext_footer" not in path.name:
            check_structure(content)
            checked += 1
    assert checked > 50


@pytest.mark.skipif(not COLLECTION.exists(), reason=f"the Parquet collection is not at {COLLECTION}")
@pytest.mark.parametrize("path", [path for path in collection("data") if "encrypt" in path.name], ids=lambda p: p.name)
def test_encrypted_files_are_refused_as_such(path: Path) -> None:
    with pytest.raises(TableError, match=r"is encrypted: expected a plain Parquet file"):
        take_snapshot(str(path))


def test_footers_of_other_files_are_refused_and_moved_files_are_read(tmp_path: Path) -> None:
    collected: list[pq.FileMetaData] = []
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "a.parquet", metadata_collector=collected)
    [metadata] = collected
    metadata.set_file_path("k=1/a.parquet")
    with pa.OSFile(str(tmp_path / "summary.parquet"), "wb") as file:
        metadata.write_metadata_file(file)
    with pytest.raises(CorruptFileError, match=r"summary\.parquet holds no rows, but footers .* in 'k=1/a\.parquet'"):
        take_snapshot(str(tmp_path / "summary.parquet"))
    whole = (tmp_path / "a.parquet").read_bytes()
    footer_bytes = int.from_bytes(whole[-8:-4], "little") + 8
    moved = whole[:-footer_bytes] + (tmp_path / "summary.parquet").read_bytes()[4:]
    (tmp_path / "moved.parquet").write_bytes(moved)
    assert pq.read_metadata(tmp_path / "moved.parquet").row_group(0).column(0).file_path == "k=1/a.parquet"
    assert Table(str(tmp_path / "moved.parquet")).read() == pq.read_table(tmp_path / "a.parquet")


@pytest.mark.skipif(not COLLECTION.exists(), reason=f"the Parquet collection is not at {COLLECTION}")
def test_truncated_bounds_are_marked_as_such() -> None:
    snapshot = take_snapshot(str(COLLECTION / "data" / "binary_truncated_min_max.parquet"))
    exact = {name: fact["exact"] for name, fact in first_facts(snapshot).items()}
    assert exact == {
        "utf8_full_truncation": False,
        "binary_full_truncation": False,
        "utf8_partial_truncation": False,
        "binary_partial_truncation": False,
        "utf8_no_truncation": True,
        "binary_no_truncation": True,
    }


def test_a_chunk_of_another_type_than_its_column_is_refused(tmp_path: Path) -> None:
    good = written(pa.table({"x": [b"abc"]}), store_schema=False)
    tail = footer(good)
    places = [i for i in range(len(tail)) if tail[i : i + 2] == b"\x15\x0c"]  # type: BYTE_ARRAY, in schema and chunk
    assert len(places) == 2
    for place in places:
        bad = bytearray(good)
        bad[len(good) - 8 - len(tail) + place + 1] = 4  # INT64
        (tmp_path / "f.parquet").write_bytes(bad)
        with pytest.raises(CorruptFileError, match="row groups that do not match its columns"):
            take_snapshot(str(tmp_path))


def test_an_unknown_codec_is_refused(tmp_path: Path) -> None:
    """pyarrow would end the process where the codec is asked for."""
    good = written(pa.table({"x": [1]}), store_schema=False, compression="zstd", write_statistics=False)
    tail = footer(good)
    path_and_codec = b"\x18\x01x\x15\x0c"
    assert tail.count(path_and_codec) == 1
    place = len(good) - 8 - len(tail) + tail.index(path_and_codec) + 4
    (tmp_path / "f.parquet").write_bytes(good[:place] + b"\x14" + good[place + 1 :])
    with pytest.raises(CorruptFileError, match="a column chunk has type 2, codec 10 "):
        take_snapshot(str(tmp_path))


def test_size_statistics_of_other_levels_than_the_column_has_are_refused(tmp_path: Path) -> None:
    """pyarrow would end the process where the column chunk is asked for."""
    good = written(pa.table({"x": [[1, 2], [], None], "y": ["a", "b", "c"]}), store_schema=False)
    tail = footer(good)
    sizes = [chunk.sizes for chunk in structure_of(tail).chunks[0]]
    assert sizes == [(False, 2, 4), (True, 0, 2)]
    repetition, definition = b"\x29\x26\x06\x02", b"\x19\x46\x02\x02\x00\x04"  # 3 and 1; 1, 1, 0 and 2
    assert tail.count(repetition + definition) == 1
    longer, shorter = b"\x29\x36\x06\x02\x00" + definition, repetition + b"\x19\x36\x02\x02\x00"
    of_strings = b"\x16\x02" + b"\x19\x26\x06\x02" + definition
    for wrong in (longer, shorter, of_strings):
        bad = tail.replace(repetition + definition, wrong)
        assert structure_of(bad).chunks[0][0].sizes != sizes[0]
        file = good[: len(good) - 8 - len(tail)] + bad + len(bad).to_bytes(4, "little") + b"PAR1"
        (tmp_path / "f.parquet").write_bytes(file)
        with pytest.raises(CorruptFileError, match="row groups that do not match its columns"):
            take_snapshot(str(tmp_path))


@pytest.mark.parametrize(("stored", "kept"), [(-5, -1), (3, -1), (2, 2), (0, 0)])
def test_null_counts_that_cannot_be_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: int, kept: int
) -> None:
    def tampered(data: bytes) -> Structure:
        structure = structure_of(data)
        return replace(
            structure, chunks=[[chunk._replace(nulls=stored) for chunk in group] for group in structure.chunks]
        )

    monkeypatch.setattr("feedline.warehouse.parquet.footer.structure_of", tampered)
    snapshot = take_snapshot(write(tmp_path, {"f.parquet": pa.table({"x": [1, 2]})}))
    assert first_facts(snapshot)["x"]["nulls"] == kept


def test_bounds_of_the_wrong_length_are_unknown(tmp_path: Path) -> None:
    good = written(pa.table({"x": pa.array([2**40, 2**41])}), store_schema=False)
    tail = footer(good)
    bound = (2**41).to_bytes(8, "little")
    place = tail.index(b"\x08" + bound)  # shorten the first copy of the upper bound by moving its end
    shorter = tail[:place] + b"\x07" + bound[:7] + tail[place + 9 :]
    content = good[: len(good) - 8 - len(tail)] + shorter + len(shorter).to_bytes(4, "little") + b"PAR1"
    (tmp_path / "f.parquet").write_bytes(content)
    fact = first_facts(take_snapshot(str(tmp_path)))["x"]
    assert fact["max"] in (None, 2**41)
    assert (fact["min"] is None) == (fact["max"] is None)


def test_deprecated_bounds_count_for_signed_integers_only(tmp_path: Path) -> None:
    """Without declared orders, min and max were computed by signed comparison, whatever the type."""
    table = pa.table({"i": pa.array([1, 2], pa.int32()), "u": pa.array([1, 2], pa.uint32()), "f": [1.0, 2.0]})
    good = written(table)
    tail = footer(good)
    orders = tail.rindex(b"\x19\x3c\x1c\x00\x00\x1c\x00\x00\x1c\x00\x00")  # field 7, three unions: TYPE_ORDER
    # field 5 (key_value_metadata) comes before created_by (6); column_orders (7) is cut out
    content = (
        good[: len(good) - 8 - len(tail)] + (cut := tail[:orders] + b"\x00") + len(cut).to_bytes(4, "little") + b"PAR1"
    )
    (tmp_path / "f.parquet").write_bytes(content)
    fact = first_facts(take_snapshot(str(tmp_path)))
    assert [(fact[name]["min"], fact[name]["max"]) for name in "iuf"] == [(1, 2), (None, None), (None, None)]


def test_decimals_of_every_storage_have_bounds(tmp_path: Path) -> None:
    values = [-12345, 0, 99999]
    for kind in (pa.decimal128(9, 2), pa.decimal128(18, 2), pa.decimal128(38, 2), pa.decimal256(60, 2)):
        unscaled = pa.array(values).cast(pa.decimal256(60, 0))
        table = pa.table({"d": pa.array([v.as_py().scaleb(-2) for v in unscaled], kind)})
        for stored_as_integer in (True, False):
            root = write(tmp_path, {"f.parquet": table}, store_decimal_as_integer=stored_as_integer)
            fact = first_facts(take_snapshot(root))["d"]
            assert [fact["min"], fact["max"]] == [table["d"][0].as_py(), table["d"][2].as_py()]


def test_unsigned_bounds_beyond_the_signed_range(tmp_path: Path) -> None:
    table = pa.table({f"u{n}": pa.array([1, 2**n - 1], f"uint{n}") for n in (8, 16, 32, 64)})
    for version in ("1.0", "2.6"):
        fact = first_facts(take_snapshot(write(tmp_path, {"f.parquet": table}, version=version)))
        assert [fact[f"u{n}"]["max"] for n in (8, 16, 32, 64)] == [2**n - 1 for n in (8, 16, 32, 64)]
        assert np.unique([fact[f"u{n}"]["min"] for n in (8, 16, 32, 64)]).tolist() == [1]


@pytest.mark.parametrize(
    ("physical", "good", "bad"),
    [
        (INT32, (5).to_bytes(4, "little"), (b"", b"\x05", bytes(8))),
        (INT64, (5).to_bytes(8, "little"), (b"", bytes(4), bytes(9))),
        (FIXED, (5).to_bytes(4, "big"), (b"", b"\x05", bytes(3))),
        (BYTE_ARRAY, b"\x05", (b"",)),
    ],
)
def test_decimal_bounds_of_a_wrong_length_are_unknown(physical: int, good: bytes, bad: tuple[bytes, ...]) -> None:
    """No bytes are no 0, and some of the bytes of a number are another number."""
    kind = pa.decimal128(8, 2)
    for wrong in bad:
        low, high = bounds_of([good, wrong, good], [good, good, wrong], physical, kind)
        assert low.to_pylist() == high.to_pylist() == [Decimal("0.05"), None, None]


LOCAL = pafs.LocalFileSystem()


def test_any_damage_to_a_footer_is_an_error_or_harmless(tmp_path: Path) -> None:
    """pyarrow alone would end the process for a few of these."""
    good = written(sample(50), row_group_size=25)
    start = len(good) - 8 - len(footer(good))
    rng = random.Random(0)
    file = tmp_path / "f.parquet"
    refused = 0
    for _ in range(800):
        bad = bytearray(good)
        for _ in range(rng.choice([1, 1, 3])):
            place = rng.randrange(start, len(good) - 8)
            bad[place] = rng.choice([bad[place] ^ (1 << rng.randrange(8)), rng.randrange(256)])
        file.write_bytes(bad)
        try:
            facts = file_facts(LOCAL, str(file), len(bad), "the file")
        except FeedlineError as error:
            refused += 1
            assert str(error).startswith("the file")  # noqa: PT017
        else:
            assert all(rows >= 0 for rows in facts.rows)
    assert 300 < refused < 800


GOOD = written(sample(50), row_group_size=25)
_LENGTHS = st.sampled_from([0, 1, 7, 8, 2**31 - 1, 2**31, 2**32 - 1]) | st.integers(0, 2 * len(GOOD))


@examples(300)
@given(st.data())
def test_lengths_that_lie_and_files_that_are_cut_are_refused_or_harmless(tmp_path_factory: Any, data: Any) -> None:
    """In bounded memory, whatever a length says."""
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        match data.draw(st.sampled_from(("length", "byte", "run", "cut", "longer"))):
            case "length" if len(content) >= 8:
                content[-8:-4] = data.draw(_LENGTHS).to_bytes(4, "little")
            case "byte" if content:
                content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
            case "run":  # of a number's continued bytes, for one
                place = data.draw(st.integers(0, len(content)))
                byte = data.draw(st.sampled_from([b"\xff", b"\x00", b"\x1c", b"\x19"]))
                content[place : place + data.draw(st.integers(0, 12))] = byte * data.draw(st.integers(1, 12))
            case "cut":
                del content[data.draw(st.integers(0, len(content))) :]
            case "longer":
                content += data.draw(st.binary(max_size=12)) + data.draw(st.sampled_from([b"PAR1", b"PARE", b""]))
    file = tmp_path_factory.getbasetemp() / "lies.parquet"
    file.write_bytes(content)
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        facts = file_facts(LOCAL, str(file), len(content), "the file")
    except FeedlineError as error:
        assert str(error).startswith("the file")  # noqa: PT017
    else:
        assert all(rows >= 0 for rows in facts.rows)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 2**25
    assert pa.total_allocated_bytes() - before < 2**25


@given(st.binary(max_size=200))
def test_any_bytes_are_a_structure_or_malformed(data: bytes) -> None:
    try:
        structure = structure_of(data)
    except MalformedError:
        return
    assert len(structure.rows) == len(structure.chunks)


@pytest.mark.parametrize(
    "hostile",
    [
        b"\x19" + b"\xff" * 1_000_000,  # a number without end
        b"\x1c" * 1_000_000,  # structures in structures
        b"\x19\xf9\xff\xff\xff\xff\x0f" + b"\x19" * 100_000,  # lists of lists
        b"\x49\xfc\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00",  # more row groups than bytes
        b"\x18\xff\xff\xff\xff\x0f",  # a text longer than the footer
    ],
)
def test_hostile_footers_are_refused_at_once(hostile: bytes) -> None:
    with pytest.raises(MalformedError):
        structure_of(hostile)
