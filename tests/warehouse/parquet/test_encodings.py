"""Encodings are chosen by their cost, and three engines read every candidate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from optimized import events, in_duckdb, in_polars, multiset, rewrite, warehouse
from warehouse_samples import sample

from feedline.native import parquet as native
from feedline.warehouse.parquet import encodings
from feedline.warehouse.parquet.decode import DECODER_VARIABLE
from feedline.warehouse.parquet.encodings import CODECS, GOALS, EncodingCost, Goal, choose, cost
from feedline.warehouse.parquet.writer import (
    DICTIONARY,
    PLAIN,
    Encoding,
    Limits,
    TableWriter,
    leaf_paths,
    writer_options,
)
from feedline.warehouse.storage import ranges


def measured(encoding: str, nbytes: int, ns: float) -> EncodingCost:
    return EncodingCost(column="a", leaf="a", encoding=encoding, codec="lz4", values=100, bytes=nbytes, ns_per_value=ns)


def test_cost_is_decoding_and_fetching() -> None:
    assert cost(measured(PLAIN, 200, 3.0), "decode") == pytest.approx(3.0 + 2 / 2)  # 2 GB/s
    assert cost(measured(PLAIN, 200, 3.0), "balanced") == pytest.approx(3.0 + 2 / 0.2)  # 200 MB/s
    small, quick = measured(PLAIN, 200, 9.0), measured(PLAIN, 201, 1.0)
    assert cost(small, "size") < cost(quick, "size")
    assert cost(replace(quick, op_ns=2.0), "decode") == cost(quick, "decode") + 2.0


@pytest.mark.parametrize("goal", GOALS)
def test_every_leaf_gets_a_choice_that_its_bytes_confirm(goal: Goal) -> None:
    table = events(3000).combine_chunks()
    table = table.append_column(
        "m", pa.array([[("a", 1.5), ("b", i)] for i in range(3000)], pa.map_(pa.string(), pa.float64()))
    )
    choices = choose(table, goal)
    assert [choice.chosen.leaf for choice in choices] == leaf_paths(table.schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=3000, **writer_options([choice.encoding for choice in choices]))
    group = pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
    for index, choice in enumerate(choices):
        assert choice.chosen.bytes == group.column(index).total_compressed_size, choice
        assert choice.chosen.values == group.column(index).num_values
        assert choice.default.encoding == DICTIONARY
        assert choice.default.codec == "zstd"
        assert choice.chosen.ns_per_value > 0
    if goal == "size":
        assert all(choice.chosen.bytes <= choice.default.bytes for choice in choices)


def test_the_clock_decides_for_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock by which byte-stream-split under snappy is fastest, it is chosen."""

    def decode(buffer: pa.Buffer, metadata: pq.FileMetaData, *more: object) -> tuple[float, float]:
        chunk = metadata.row_group(0).column(0)
        return (1e-9 if "BYTE_STREAM_SPLIT" in chunk.encodings and chunk.compression == "SNAPPY" else 1e-3), 0.0

    monkeypatch.setattr(encodings, "_decode", decode)
    monkeypatch.setattr(encodings, "_FINALISTS", 4)
    (choice,) = choose(pa.table({"a": np.arange(5000)}), "decode")
    assert (choice.chosen.encoding, choice.chosen.codec) == ("BYTE_STREAM_SPLIT", "snappy")


def test_noise_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1, 10**6))
    monkeypatch.setattr(encodings, "_decode", lambda *_: (1e-3 * (1 + 1e-9 * next(clock)), 0.0))
    (choice,) = choose(pa.table({"a": np.random.default_rng(0).integers(0, 2**60, 3000)}), "decode")
    assert choice.chosen.encoding == PLAIN


def skewed(values: int) -> np.ndarray:
    """Few distinct ids, in no order."""
    return np.random.default_rng(0).zipf(1.3, values) % 5000 * 1_000_003


@pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")
@pytest.mark.parametrize("decoder", ["auto", "arrow"])
def test_a_value_that_could_be_a_code_costs_an_op_more(monkeypatch: pytest.MonkeyPatch, decoder: str) -> None:
    """For readers, lists and strings are codes if the kernel decodes them; flat numbers hardly ever."""
    monkeypatch.setenv(DECODER_VARIABLE, decoder)
    numbers = skewed(20_000)
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, 20_001, 10), pa.int32()), pa.array(numbers))
    unique = pa.array(np.arange(2000).astype(str))
    for values, codes, expected in (
        (lists, True, {PLAIN: 1.0, DICTIONARY: 0.0}),
        (lists, False, {PLAIN: 0.0, DICTIONARY: 0.0}),  # of a table with columns stored once per run
        (pa.array(numbers.astype(str)), True, {PLAIN: 1.0, DICTIONARY: 0.0}),
        (unique, True, {PLAIN: 1.0, DICTIONARY: 1.0}),  # as many entries as values
        (pa.array(numbers), True, {PLAIN: 0.0, DICTIONARY: 0.0}),
        (pa.array([{"a": 1}] * 9), True, {PLAIN: 0.0, DICTIONARY: 0.0}),
    ):
        table = pa.table({"a": values})
        (path,) = leaf_paths(table.schema)
        for encoding, op_ns in expected.items():
            chosen = [Encoding(leaf=path, encoding=encoding, codec="lz4")]
            found = encodings._measure(table, chosen, 1, codes)[path]
            assert found.op_ns == (op_ns if decoder == "auto" else 0.0), (values.type, encoding)
    name = encodings.decoder_name()
    assert name == (f"kernel {native.VERSION}" if decoder == "auto" else f"pyarrow {pa.__version__}")


@pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")
def test_lists_of_few_ids_become_codes_for_the_kernel() -> None:
    """By the real clock: codes of 2 bytes, where plain values, the best for pyarrow, take twice as long."""
    numbers = skewed(400_000)
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, 400_001, 20), pa.int32()), pa.array(numbers))
    (choice,) = choose(pa.table({"a": lists}), "decode")
    assert (choice.chosen.encoding, choice.chosen.op_ns) == (DICTIONARY, 0.0)


@pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")
def test_a_chosen_dictionary_is_not_cut_at_a_mebibyte() -> None:
    numbers = np.random.default_rng(0).integers(0, 200_000, 800_000) * 1_000_003
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, 800_001, 20), pa.int32()), pa.array(numbers))
    chosen = [Encoding(leaf="a.list.element", encoding=DICTIONARY, codec="none")]
    table = pa.table({"a": lists})
    assert encodings._measure(table, chosen, 1, True)["a.list.element"].op_ns == 0.0
    assert encodings._measure(table, chosen, 1, True, usual=True)["a.list.element"].op_ns == 1.0


def candidates() -> list[tuple[str, str]]:
    rows = sample(300)
    found = []
    for name in ("i8", "i64", "u64", "f32", "f64", "flag", "day", "ms", "price", "text", "raw", "ids"):
        (path,) = leaf_paths(rows.select([name]).schema)
        found += [
            (name, encoding) for encoding in encodings._BY_PHYSICAL[encodings._physical(rows.select([name]), path)]
        ]
    return found


@pytest.mark.parametrize(("column", "encoding"), candidates())
def test_three_engines_read_every_candidate(tmp_path: Path, column: str, encoding: str) -> None:
    rows = sample(300).select([column])
    (path,) = leaf_paths(rows.schema)
    for codec in CODECS:
        chosen = [Encoding(leaf=path, encoding=encoding, codec=codec)]
        pq.write_table(rows, tmp_path / f"{codec}.parquet", **writer_options(chosen))
        stored = pq.read_metadata(tmp_path / f"{codec}.parquet").row_group(0).column(0)
        assert stored.is_stats_set
        assert (encoding.removesuffix("IONARY") in " ".join(stored.encodings)) or encoding == DICTIONARY
    expected = multiset(pa.concat_tables([rows] * len(CODECS)))
    assert multiset(pq.read_table(tmp_path)) == expected
    assert multiset(in_polars(tmp_path)) == expected
    assert multiset(in_duckdb(tmp_path).cast(rows.schema)) == expected


def test_pages_carry_checksums(tmp_path: Path) -> None:
    limits = Limits(row_group_rows=100, row_group_bytes=None, file_bytes=1 << 20)
    table = pa.table({"a": np.arange(100)})
    plain = [Encoding(leaf="a", encoding=PLAIN, codec="none")]
    writer = TableWriter(
        pafs.LocalFileSystem(), str(tmp_path), "x", schema=table.schema, encodings=plain, limits=limits, note={},
        suffix=".parquet",
    )  # fmt: skip
    writer.write(table)
    (file,) = writer.close()
    path = tmp_path / file.name
    content = bytearray(path.read_bytes())
    content[400] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(path, page_checksum_verification=True).read()


def test_the_report_counts_the_requests_of_a_projection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adjacent popular columns are one request; with larger holes in between, one each."""
    monkeypatch.setattr(ranges, "HOLE_BYTES", 200)
    rng = np.random.default_rng(0)
    source = tmp_path / "in"
    wide = pa.table({f"c{i}": rng.random(4000) for i in range(20)})
    (source / "ds=1").mkdir(parents=True)
    pq.write_table(wide, source / "ds=1" / "a.parquet", row_group_size=2000)
    popular = ("c3", "c9", "c15")
    report = rewrite(source, tmp_path / "out", order=popular, row_group_rows=2000, projection=popular)
    assert report.before.requests_per_row_group == 3
    assert report.after.requests_per_row_group == 1
    for root, side in ((source, report.before), (tmp_path / "out", report.after)):
        (path,) = root.rglob("*.parquet")
        metadata = pq.read_metadata(path)
        chunks = [metadata.row_group(g).column(metadata.schema.names.index(n)) for g in range(2) for n in popular]
        assert side.projection.bytes == sum(chunk.total_compressed_size for chunk in chunks)
        assert 0 <= side.projection.requested_bytes - side.projection.bytes <= 200 * len(chunks)
        everything = [metadata.row_group(g).column(i) for g in range(2) for i in range(20)]
        assert side.compressed_bytes == sum(chunk.total_compressed_size for chunk in everything)
        assert side.uncompressed_bytes == sum(chunk.total_uncompressed_size for chunk in everything)
        assert side.bytes == path.stat().st_size
        assert (side.files, side.row_groups, side.rows) == (1, 2, 4000)


def test_one_encoding_per_table_is_in_its_files(tmp_path: Path) -> None:
    report = rewrite(warehouse(tmp_path / "in"), tmp_path / "out", goal="size")
    for path in (tmp_path / "out").rglob("*.parquet"):
        group = pq.read_metadata(path).row_group(0)
        for index, choice in enumerate(report.choices):
            assert group.column(index).compression == choice.chosen.codec.upper()
            assert (choice.chosen.encoding == DICTIONARY) == ("RLE_DICTIONARY" in group.column(index).encodings)
