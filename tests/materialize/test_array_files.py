"""Extras become arrays of values, offsets and validity; shards are written whole, and only once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

from feedline.loader.encoding.layout import SlotColumn
from feedline.materialize.array_files import _extra, _PutStore
from feedline.materialize.output_folder import ROOT_GROUP
from feedline.warehouse.storage.locations import locate


def column(dtype: str, arrow: str) -> SlotColumn:
    return SlotColumn(name="x", group="extra", dtype=dtype, arrow=arrow, offset=0)


@pytest.mark.parametrize(
    ("array", "dtype", "expected"),
    [
        (pa.array([1, None, 3], pa.int16()), "int16", [[1, 0, 3]]),
        (pa.array([True, None, True]), "bool", [[True, False, True]]),
        (pa.array(["ab", None, "ü"], pa.large_string()), "", [[0, 2, 2, 4], list("abü".encode())]),
        (pa.array([None, None, None], pa.large_binary()), "", [[0, 0, 0, 0], []]),
        (pa.array([b"xx", b"a", None, b"b"])[1:], "", [[0, 1, 1, 2], list(b"ab")]),
    ],
)
def test_extras(array: pa.Array, dtype: str, expected: list[list[object]]):
    *values, valid = _extra(array, column(dtype, str(array.type)))
    assert [each.tolist() for each in values] == expected
    assert valid.tolist() == array.is_valid().to_pylist()


def test_the_store_keeps_the_root_back(tmp_path: Path):
    store = _PutStore(locate(str(tmp_path)))
    array = zarr.create_array(store=store, name="group/a", shape=(5,), chunks=(2,), dtype="f4", compressors=None)
    array[:] = np.arange(5)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        *(f"group/a/c/{chunk}" for chunk in range(3)),
        "group/a/zarr.json",
        "group/zarr.json",
    ]
    assert not (tmp_path / ROOT_GROUP).exists()
    assert zarr.open_array(tmp_path / "group" / "a", mode="r")[:].tolist() == [0, 1, 2, 3, 4]
    prototype = default_buffer_prototype()
    assert asyncio.run(store.get("group/a/c/0", prototype)) is None
    assert asyncio.run(store.get("nothing/zarr.json", prototype)) is None
    assert asyncio.run(store.exists("group/zarr.json"))
    assert not asyncio.run(store.exists("nothing/zarr.json"))
