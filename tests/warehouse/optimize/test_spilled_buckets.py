"""Spill files have the rows of each bucket, in their order, whatever is gathered together."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.warehouse.optimize import rewrite

ROWS = st.tuples(
    st.none() | st.integers(-5, 5),
    st.none() | st.booleans(),
    st.none() | st.text(max_size=3),
    st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3),
    st.lists(st.text(max_size=2), max_size=2),
)
SCHEMA = pa.schema(
    [
        ("n", pa.int32()),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("ids", pa.list_(pa.int64())),
        ("words", pa.list_(pa.string())),
        ("bucket", pa.int64()),
    ]
)


@pytest.mark.parametrize("gather_rows", [1, 5, 32_768])
def test_buckets_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gather_rows: int):
    monkeypatch.setattr(rewrite, "_GATHER_ROWS", gather_rows)
    target: Any = SimpleNamespace(
        filesystem=pafs.LocalFileSystem(), is_local=True, make_folder=lambda path: Path(path).mkdir(exist_ok=True)
    )

    @examples(30)
    @given(st.lists(st.tuples(*[ROWS, st.integers(0, 6)]), max_size=40), st.data())
    def check(rows: list[tuple[tuple[Any, ...], int]], data: st.DataObject) -> None:
        table = pa.Table.from_pylist(
            [dict(zip(SCHEMA.names, (*values, bucket), strict=True)) for values, bucket in rows], schema=SCHEMA
        )
        path = str(tmp_path / "spill" / uuid.uuid4().hex)
        buckets = np.array([bucket for _, bucket in rows], np.int64)
        sizes = rewrite.write_buckets(target, path, [table], buckets, 7)
        first = data.draw(st.integers(0, 6))
        stop = data.draw(st.integers(first + 1, 7))
        found = rewrite.read_buckets(target, path, first, stop)
        found.validate(full=True)
        expected = [row for bucket in range(first, stop) for row in table.to_pylist() if row["bucket"] == bucket]
        assert found.to_pylist() == expected
        for bucket, size in enumerate(sizes):  # but for an offset too many, and bits in whole bytes
            assert abs(size - table.take(np.flatnonzero(buckets == bucket)).nbytes) <= 64

    check()
