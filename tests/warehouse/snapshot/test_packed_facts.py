"""The facts of many footers are packed per schema, joined, and taken out column by column."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from feedline.warehouse.parquet.footer import FileFacts, file_facts
from feedline.warehouse.snapshot.packed_facts import blocks_of, group_by_schema, join_blocks, part_without_files


def facts_of(folder: Path, name: str, table: pa.Table) -> FileFacts:
    path = folder / name
    pq.write_table(table, path, row_group_size=2)
    return file_facts(pafs.LocalFileSystem(), str(path), path.stat().st_size, name)


def made(folder: Path) -> list[tuple[int, FileFacts]]:
    tables = {
        5: pa.table({"n": [1, 2, None], "s": ["a", "b", "c"]}),
        2: pa.table({"n": [7.5]}),
        9: pa.table({"n": [10, 20, 30, 40], "s": ["x", None, None, "y"]}),
    }
    return [(index, facts_of(folder, f"{index}.parquet", table)) for index, table in tables.items()]


def test_a_column_has_the_facts_of_its_footers(tmp_path: Path):
    facts = made(tmp_path)
    block = blocks_of(facts)[0]
    column = block.part().facts.column(pa.field("n", pa.int64()))
    assert column.field("min").to_pylist() == [1, None, 10, 30]
    assert column.field("max").to_pylist() == [2, None, 20, 40]
    assert column.field("nulls").to_pylist() == [0, 1, 0, 0]
    stored = [pq.ParquetFile(tmp_path / f"{index}.parquet").metadata for index in (5, 9)]
    sizes = [[m.row_group(g).column(c).total_compressed_size for m in stored for g in range(2)] for c in range(2)]
    assert column.field("bytes").to_pylist() == sizes[0]
    assert block.row_groups["bytes"].to_pylist() == [sum(pair) for pair in zip(*sizes, strict=True)]
    words = block.part().facts.column(pa.field("s", pa.string()))
    assert words.field("min").to_pylist() == ["a", "c", "x", "y"]
    missing = block.part().facts.column(pa.field("other", pa.int8()))
    assert missing.field("nulls").to_pylist() == [2, 1, 2, 2]


def test_joined_blocks_are_the_blocks_of_all_files(tmp_path: Path):
    facts = made(tmp_path)
    joined = join_blocks([block for one in facts for block in blocks_of([one])])
    whole = blocks_of(facts)
    assert len(joined) == len(whole) == 2
    for left, right in zip(joined, whole, strict=True):
        assert (left.schema, left.files, left.row_groups) == (right.schema, right.files, right.row_groups)
        for field in left.schema:
            assert left.part().facts.column(field).equals(right.part().facts.column(field))
    assert [len(same) for same in group_by_schema([*joined, *whole])] == [2, 2]
    assert join_blocks(whole[:1])[0] is whole[0]


def test_bounds_of_one_type_stored_in_two_ways_are_kept_apart(tmp_path: Path):
    plain = pa.table({"d": pa.array([1, 2], pa.decimal128(5, 0))})
    path = tmp_path / "narrow.parquet"
    pq.write_table(plain, path, store_decimal_as_integer=True)
    narrow = file_facts(pafs.LocalFileSystem(), str(path), path.stat().st_size, "narrow")
    wide = facts_of(tmp_path, "wide.parquet", plain)
    assert wide.schema.equals(narrow.schema)
    blocks = blocks_of([(0, wide), (1, narrow)])
    assert [block.files["file"].to_pylist() for block in blocks] == [[0], [1]]
    field = pa.field("d", pa.decimal128(5, 0))
    assert blocks[0].part().facts.column(field).field("max").equals(blocks[1].part().facts.column(field).field("max"))


def test_a_table_without_files_has_no_row_groups():
    part = part_without_files()
    assert (part.files.num_rows, part.row_groups.num_rows) == (0, 0)
    assert len(part.facts.column(pa.field("x", pa.int8()))) == 0
