"""Files of many writers, those of apache/parquet-testing, keep every value of the rows that stay."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from warehouse_samples import COLLECTION

from feedline.errors import DataError, TableChangedError
from feedline.warehouse.delete.rewrite import FileRows, write_without
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, pack_mask

HUGE = "large_string_map.brotli.parquet"  # 4 GiB
FILES = [path for path in sorted(COLLECTION.rglob("*.parquet")) if path.name != HUGE]
REFUSED = {  # by their values; the corrupt ones have pages with wrong checksums
    "int96_from_spark.parquet": "microseconds do not reach",
    "datapage_v1-corrupt-checksum.parquet": "CRC checksum",
    "rle-dict-uncompressed-corrupt-checksum.parquet": "CRC checksum",
}


def opened(content: bytes) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(content), coerce_int96_timestamp_unit="us")


def without(content: bytes, masks: dict[int, np.ndarray], name: str = "a.parquet") -> bytes:
    """The file without some rows of its row groups."""
    metadata = pq.read_metadata(pa.BufferReader(content))
    rows = tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    footer_bytes = int.from_bytes(content[-8:-4], "little") + 8
    fragment = Fragment(
        table="/table",
        path=name,
        bytes=len(content),
        mtime_ns=0,
        footer_digest=hashlib.sha256(content[-footer_bytes:]).digest(),
        footer_bytes=footer_bytes,
        row_groups=tuple(range(len(rows))),
        expected=(UNCOUNTED,) * len(rows),
    )
    sink = io.BytesIO()
    deleted = {group: pack_mask(mask) for group, mask in masks.items()}
    write_without(FileRows(fragment=fragment, rows=rows, deleted=deleted), pa.BufferReader(content), sink.write)
    return sink.getvalue()


@pytest.mark.nightly
@pytest.mark.skipif(not FILES, reason=f"the files of apache/parquet-testing are not at {COLLECTION}")
def test_files_of_many_writers() -> None:
    rng = np.random.default_rng(0)
    compared = 0
    for path in FILES:
        content = path.read_bytes()
        try:
            file = opened(content)
            tables = [file.read_row_group(group) for group in range(file.num_row_groups)]
        except (pa.ArrowException, OSError):
            continue
        if sum(map(len, tables)) < 2:
            continue
        masks = {group: rng.random(len(table)) < 0.3 for group, table in enumerate(tables) if group % 2 == 0}
        masks = {group: mask for group, mask in masks.items() if mask.any()}
        if path.name in REFUSED:
            with pytest.raises((DataError, ValueError), match=REFUSED[path.name]):
                without(content, masks)
            continue
        found = opened(without(content, masks)).read()
        left = [
            table.filter(pa.array(~masks[group])) if group in masks else table for group, table in enumerate(tables)
        ]
        expected = pa.concat_tables(left)
        assert found.schema.equals(expected.schema), path.name
        # NaN is equal to nothing, but written alike
        assert found.equals(expected) or str(found.to_pylist()) == str(expected.to_pylist()), path.name
        compared += 1
    assert compared > 50


def test_another_file_of_that_name_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "0.parquet")
    content = (tmp_path / "0.parquet").read_bytes()
    mask = np.array([True, False, False])
    assert opened(without(content, {0: mask})).read()["a"].to_pylist() == [2, 3]
    rows = FileRows(
        fragment=Fragment(
            table="/table",
            path="0.parquet",
            bytes=len(content),
            mtime_ns=0,
            footer_digest=b"another",
            footer_bytes=int.from_bytes(content[-8:-4], "little") + 8,
            row_groups=(0,),
            expected=(UNCOUNTED,),
        ),
        rows=(3,),
        deleted={0: pack_mask(mask)},
    )
    with pytest.raises(TableChangedError, match="was replaced while rows were deleted"):
        write_without(rows, pa.BufferReader(content), lambda content: None)


def test_times_in_lists_and_of_both_kinds_are_refused() -> None:
    def written(values: pa.Array) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"a": values}), sink, use_deprecated_int96_timestamps=True)
        return bytes(sink.getvalue())

    mask = np.array([True, False])
    with pytest.raises(DataError, match="in lists or structs"):
        without(written(pa.array([[1], [2]], pa.list_(pa.timestamp("ns")))), {0: mask})
    fine = opened(without(written(pa.array([1, 1_001], pa.timestamp("ns"))), {0: mask}))
    assert fine.metadata.schema.column(0).physical_type == "INT96"
