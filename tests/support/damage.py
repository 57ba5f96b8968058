"""A table of small files, and ways to change or damage one of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from page_bytes import zigzag
from page_decoding import pages_in

from feedline.native import parquet as native

ROWS, GROUP = 4096, 512


def write(folder: Path, files: int = 4, *, compression: str = "snappy", **changes: Any) -> Path:
    """Write a table of small files whose pages have checksums; `changes` replace columns of the third file."""
    rng = np.random.default_rng(0)
    for number in range(files):
        columns: dict[str, Any] = {
            "id": np.arange(ROWS) + number * ROWS,
            "x": rng.random(ROWS, dtype=np.float32),
            "y": rng.integers(0, 2, ROWS),
            "ids": [list(range(row % 4)) for row in range(ROWS)],
            **(changes if number == 2 else {}),
        }
        path = folder / f"part={number}" / "data.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table(columns), path, row_group_size=GROUP, write_page_checksum=True, compression=compression)
    return folder


def delete(file: Path) -> None:
    file.unlink()


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def replace_by_another(file: Path) -> None:
    draft = file.with_name(".draft")
    pq.write_table(pq.read_table(file, partitioning=None).slice(0, 100), draft)
    draft.rename(file)


def replace_by_one_of_the_same_size_and_time(file: Path) -> None:
    """Change one byte of the footer, so that only the footer's digest differs."""
    status = file.stat()
    content = bytearray(file.read_bytes())
    content[content.rindex(b"parquet-cpp")] ^= 1
    draft = file.with_name(".draft")
    draft.write_bytes(content)
    draft.rename(file)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def flip_a_footer(file: Path) -> None:
    _flip(file, slice(-200, -100))


def flip_a_page(file: Path) -> None:
    """Flip a byte in the data of x in row group 5; size and time stay the same."""
    chunk = pq.read_metadata(file).row_group(5).column(1)
    start = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size // 2
    _flip(file, slice(start, start + 8))


def damage_a_page(file: Path, column: str, *, dictionary: bool, what: str) -> None:
    """Change the body of a page of row group 5, its checksum, or its uncompressed size; size and time stay the same."""
    metadata = pq.read_metadata(file)
    chunk = metadata.row_group(5).column([metadata.schema.column(i).path for i in range(4)].index(column))
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    content = file.read_bytes()[start : start + chunk.total_compressed_size]
    header = 0
    for page in pages_in(content, chunk.num_values):
        if (page.kind == native.DICTIONARY_PAGE) is dictionary:
            break
        header = page.start + page.compressed
    if what == "body":
        at = page.start + page.compressed // 2
        _flip(file, slice(start + at, start + at + 1))
        return
    number = page.uncompressed if what == "size" else page.crc - (page.crc >> 31 << 32)
    at = start + content.index(zigzag(number), header, page.start)
    _flip(file, slice(at, at + 1), bits=2)


def _flip(file: Path, place: slice, *, bits: int = 0xFF) -> None:
    status = file.stat()
    content = bytearray(file.read_bytes())
    content[place] = bytes(byte ^ bits for byte in content[place])
    with file.open("r+b") as same:
        same.write(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
