"""Files are written with the chosen encodings, whole dictionaries and checksums, for every engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from optimized import in_duckdb, in_polars, multiset
from warehouse_samples import sample

from feedline.native import parquet as native
from feedline.warehouse.parquet import encodings
from feedline.warehouse.parquet.encodings import CODECS
from feedline.warehouse.parquet.writer import (
    DICTIONARY,
    PLAIN,
    Encoding,
    Limits,
    TableFormat,
    TableWriter,
    leaf_paths,
    writer_options,
)


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
        (physical,) = leaf_paths(rows.select([name]).schema).values()
        found += [(name, encoding) for encoding in encodings._BY_PHYSICAL[physical]]
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
    format = TableFormat(schema=table.schema, encodings=plain, limits=limits)
    writer = TableWriter(pafs.LocalFileSystem(), str(tmp_path), "x", format, note={}, suffix=".parquet")
    writer.write(table)
    (file,) = writer.close()
    path = tmp_path / file.name
    content = bytearray(path.read_bytes())
    content[400] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(path, page_checksum_verification=True).read()


def test_a_file_ends_before_a_row_group_takes_it_past_its_size(tmp_path: Path) -> None:
    table = pa.table({"a": np.random.default_rng(0).integers(0, 2**62, 6000)})  # 8 kB per row group
    format = TableFormat(
        schema=table.schema,
        encodings=[Encoding(leaf="a", encoding=PLAIN, codec="none")],
        limits=Limits(row_group_rows=1000, row_group_bytes=None, file_bytes=20_000),
    )
    writer = TableWriter(pafs.LocalFileSystem(), str(tmp_path), "x", format, note={}, suffix=".parquet")
    writer.write(table)
    assert [file.row_groups for file in writer.close()] == [2, 2, 2]
