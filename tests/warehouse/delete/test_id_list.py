"""Lists of values are read in the type of the column, or refused by what is wrong with them."""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import TableArgumentError
from feedline.warehouse.delete.id_list import read_ids

DAY = datetime.date(2026, 1, 5)


def parquet(folder: Path, values: Any, kind: pa.DataType | None = None, **others: Any) -> str:
    file = folder / "ids.parquet"
    pq.write_table(pa.table({"any": pa.array(values, kind), **others}), file)
    return str(file)


@given(values=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1))
def test_values_are_distinct_and_counted(tmp_path_factory: pytest.TempPathFactory, values: list[int]) -> None:
    folder = tmp_path_factory.getbasetemp()
    file = parquet(folder, values, pa.int64())
    ids = read_ids(file, pa.field("user", pa.int32()))
    assert ids.values.type == pa.int32()
    assert sorted(ids.values.to_pylist()) == sorted(set(values))
    assert (ids.count, ids.digest) == (len(values), hashlib.sha256(Path(file).read_bytes()).hexdigest())


@given(values=st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1), min_size=1))
def test_csv_and_text_hold_the_same_strings(tmp_path_factory: pytest.TempPathFactory, values: list[str]) -> None:
    folder = tmp_path_factory.getbasetemp()
    field = pa.field("user", pa.string())
    pacsv.write_csv(pa.table({"user": values}), folder / "ids.csv")
    (folder / "ids.txt").write_text("".join(f"{value}\n" for value in values), newline="\n")
    for name in ("ids.csv", "ids.txt"):
        assert sorted(read_ids(str(folder / name), field).values.to_pylist()) == sorted(set(values))


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pa.int64(), "17\n-3\n", [17, -3]),
        (pa.string(), "007\n", ["007"]),
        (pa.date32(), "2026-01-05\n", [DAY]),
        (pa.timestamp("us"), "2026-01-05 00:00:00\n", [datetime.datetime(2026, 1, 5)]),
        (pa.dictionary(pa.int32(), pa.string()), "a\r\nb\r\n", ["a", "b"]),
    ],
)
def test_text_is_parsed_as_the_column(tmp_path: Path, kind: pa.DataType, text: str, expected: list[object]) -> None:
    (tmp_path / "ids.txt").write_bytes(text.encode())
    assert read_ids(str(tmp_path / "ids.txt"), pa.field("user", kind)).values.to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "kind", "column", "message"),
    [
        (["17"], pa.string(), pa.int64(), "must hold values of the column's type: got string, expected integers"),
        ([17], pa.int64(), pa.string(), "got int64, expected strings"),
        ([1.0], pa.float64(), pa.int64(), "got double, expected integers"),
        ([2**40], pa.int64(), pa.int32(), "must hold values that column 'user' can hold"),
        ([17, None], pa.int64(), pa.int64(), "must not hold nulls: got 1 of 2"),
        ([], pa.int64(), pa.int64(), "must not be empty"),
        ([17], pa.int64(), pa.float64(), "cannot be tested for the values of a file: got double"),
        ([DAY], pa.date32(), pa.timestamp("us"), "got date32"),
    ],
)
def test_other_types_are_refused(
    tmp_path: Path, values: list[object], kind: pa.DataType, column: pa.DataType, message: str
) -> None:
    with pytest.raises(TableArgumentError, match=message):
        read_ids(parquet(tmp_path, values, kind), pa.field("user", column))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("ids.csv", b"17\n18\n", "the header of .* must name the column: got '17', expected 'user'"),
        ("ids.csv", b"user,name\n1,a\n", r"must have one column: got 2 \(user, name\)"),
        ("ids.csv", b"user\n", "must not be empty"),
        ("ids.txt", b"", "must not be empty"),
        ("ids.txt", b"17\nx\n", "can hold: got .*x"),
        ("ids.txt", b"\xff\n", "cannot be read|can hold"),
        ("ids.parquet", b"17\n", "cannot be read"),
        ("ids.json", b"[17]", "must be Parquet, CSV or text"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TableArgumentError, match=message):
        read_ids(str(tmp_path / name), pa.field("user", pa.int64()))


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    field = pa.field("user", pa.int64())
    with pytest.raises(TableArgumentError, match=r"ids\.csv does not exist"):
        read_ids(str(tmp_path / "ids.csv"), field)
    (tmp_path / "ids.csv").mkdir()
    with pytest.raises(TableArgumentError, match=r"ids\.csv cannot be read"):
        read_ids(str(tmp_path / "ids.csv"), field)
    with pytest.raises(TableArgumentError, match=r"must have one column: got 2"):
        read_ids(parquet(tmp_path, [1], other=pa.array([2])), field)
