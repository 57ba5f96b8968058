"""A file of a cache delivers the arrays that were written, or nothing."""

from __future__ import annotations

import datetime
import decimal
import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from cache_entries import columns_of, group_of, right_or_missing, same
from hypothesis import example, given
from hypothesis import strategies as st

from feedline.warehouse.cache.entry_file import (
    CachedColumn,
    DamagedEntryError,
    EntryFile,
    EntryGroup,
    OtherVersionError,
    entry_buffers,
    read_cost,
    write_entry,
)

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", ">i4", ">f8"]
GROUP = group_of(partition={"day": "2026-01-05"})
TRUTH = columns_of(GROUP, count=3, rows=20)
CONTENT = b"".join(bytes(buffer) for buffer in entry_buffers(GROUP, TRUTH, cpu_s=2.5, created_s=7.0))


def write(path: Path, columns: dict[str, CachedColumn], group: EntryGroup = GROUP) -> None:
    buffers = entry_buffers(group, columns, cpu_s=2.5, created_s=7.0)
    write_entry(str(path), buffers, mode=0o600, modified_ns=9 * 10**9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_all_dtypes_and_shapes_are_read_as_written(tmp_path: Path, dtype: str):
    shapes = [(0,), (1,), (1_001,), (0, 3), (3, 0), (5, 7)]
    written = {}
    for shape in shapes:
        numbers = np.random.default_rng(1).integers(0, 2, int(np.prod(shape))).astype(dtype).reshape(shape)
        arrays = {"one": numbers, "two": numbers[::-1]}
        written[f"c{shape}"] = CachedColumn(arrays=arrays, facts={"rows": len(numbers)})
    write(tmp_path / "a.entry", written)
    with EntryFile(str(tmp_path / "a.entry")) as file:
        found, whole = file.read(list(written))
    assert whole
    for name, column in written.items():
        arrays = {key: np.ascontiguousarray(array) for key, array in column.arrays.items()}
        assert same(found[name], CachedColumn(arrays, column.facts)), name
        for array in found[name].arrays.values():
            assert array.ctypes.data % 64 == 0 or not array.nbytes
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 0


def test_a_column_may_have_no_arrays(tmp_path: Path):
    write(tmp_path / "a.entry", {"c0": CachedColumn({}, {"empty": True})})
    with EntryFile(str(tmp_path / "a.entry")) as file:
        assert file.read(["c0"]) == ({"c0": CachedColumn({}, {"empty": True})}, True)


def test_arrays_of_objects_are_refused():
    column = CachedColumn({"x": np.array(["a", None], object)}, {})
    with pytest.raises(ValueError, match="booleans or numbers: got object of 'x'"):
        entry_buffers(GROUP, {"c0": column}, cpu_s=0.0, created_s=0.0)


def test_some_columns_are_read_alone(tmp_path: Path):
    columns = columns_of(GROUP, count=40, rows=30_000)  # so far apart that they are read one by one
    write(tmp_path / "a.entry", columns)
    some = list(columns)[::-7]
    with EntryFile(str(tmp_path / "a.entry")) as file:
        found, whole = file.read([*some, "unknown"])
    assert whole
    assert sorted(found) == sorted(some)
    assert right_or_missing(found, columns)


def test_the_index_says_what_was_written(tmp_path: Path):
    partition = {
        "none": None,
        "flag": True,
        "number": 7,
        "real": 0.5,
        "text": "ä/=",
        "day": datetime.date(2026, 1, 5),
        "at": datetime.datetime(2026, 1, 5, 1, 2, 3, 4),
        "price": decimal.Decimal("1.50"),
        "key": b"\0\xff",
    }
    group = group_of(5, partition=partition)
    write(tmp_path / "a.entry", TRUTH, group)
    with EntryFile(str(tmp_path / "a.entry")) as file:
        index = file.index
    assert (index.group, index.created_s, index.cpu_s) == (group, 7.0, 2.5)
    assert index.file_bytes == (tmp_path / "a.entry").stat().st_size
    assert list(index.columns) == list(TRUTH)
    assert read_cost(str(tmp_path / "a.entry")) == (2.5, index.file_bytes)


def read_all(path: Path) -> dict[str, CachedColumn]:
    try:
        with EntryFile(str(path)) as file:
            return file.read(list(TRUTH))[0]
    except (DamagedEntryError, OtherVersionError):
        return {}


@given(at=st.integers(0, len(CONTENT) - 1), bit=st.integers(0, 7))
@example(at=8, bit=0)
@example(at=16, bit=7)
@example(at=len(CONTENT) - 1, bit=0)
def test_a_flipped_bit_never_changes_an_array(tmp_path_factory: pytest.TempPathFactory, at: int, bit: int):
    damaged = bytearray(CONTENT)
    damaged[at] ^= 1 << bit
    path = tmp_path_factory.getbasetemp() / "flipped.entry"
    path.write_bytes(damaged)
    assert right_or_missing(read_all(path), TRUTH)


def test_each_byte_of_header_and_index_is_covered_by_the_checksum(tmp_path: Path):
    path = tmp_path / "a.entry"
    for at in (*range(36), *range(64, 64 + int.from_bytes(CONTENT[12:16], "little"), 7)):
        damaged = bytearray(CONTENT)
        damaged[at] ^= 0x41
        path.write_bytes(damaged)
        assert read_all(path) == {}, at


def test_a_file_cut_off_anywhere_delivers_whole_columns_or_none(tmp_path: Path):
    path = tmp_path / "a.entry"
    path.write_bytes(CONTENT)
    assert len(read_all(path)) == len(TRUTH)
    for size in range(len(CONTENT) - 1, -1, -1):
        os.truncate(path, size)
        assert right_or_missing(read_all(path), TRUTH), size
    assert read_all(path) == {}


@given(st.binary(max_size=300), st.booleans())
def test_any_other_bytes_are_damaged(tmp_path_factory: pytest.TempPathFactory, content: bytes, has_magic: bool):
    path = tmp_path_factory.getbasetemp() / "any.entry"
    path.write_bytes(b"feedline" * has_magic + content)
    assert read_all(path) == {}


def test_a_huge_index_is_not_allocated(tmp_path: Path):
    path = tmp_path / "a.entry"
    head = bytearray(CONTENT)
    head[12:16] = b"\xff" * 4  # bytes of the index
    head[16:24] = b"\xff" * 8  # bytes of the file
    path.write_bytes(head)
    assert read_all(path) == {}


def test_a_writer_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def writev(number: int, buffers: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", writev)
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path / "a.entry", TRUTH)
    assert list(tmp_path.iterdir()) == []


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = os.writev

    def writev(number: int, buffers: list[memoryview]) -> int:
        return whole(number, [buffers[0][: 1 + len(buffers[0]) // 2]])

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", writev)
        write(tmp_path / "a.entry", TRUTH)
    assert (tmp_path / "a.entry").read_bytes() == CONTENT


def test_mode_and_time_are_as_asked_whatever_the_umask(tmp_path: Path):
    before = os.umask(0o077)
    try:
        buffers = entry_buffers(GROUP, TRUTH, cpu_s=0.0, created_s=0.0)
        write_entry(str(tmp_path / "a.entry"), buffers, mode=0o660, modified_ns=5 * 10**9 + 3)
    finally:
        os.umask(before)
    facts = (tmp_path / "a.entry").stat()
    assert (stat.S_IMODE(facts.st_mode), facts.st_mtime_ns) == (0o660, 5 * 10**9 + 3)


def test_a_removed_file_stays_readable_while_it_is_open(tmp_path: Path):
    write(tmp_path / "a.entry", TRUTH)
    with EntryFile(str(tmp_path / "a.entry")) as file:
        (tmp_path / "a.entry").unlink()
        found, whole = file.read(list(TRUTH))
    assert whole
    assert right_or_missing(found, TRUTH)
    assert len(found) == len(TRUTH)
