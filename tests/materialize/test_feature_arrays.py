"""Features become arrays that grow by whole shards; their metadata is written at the end, the root's by the folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zarr
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.materialize import arrays_writer, feature_arrays
from feedline.materialize.arrays_writer import ArraysWriter
from feedline.materialize.feature_arrays import FeatureArray, _extra, arrays_of, feature_path
from feedline.materialize.output_folder import OutputFolder


def column(name: str, group: str, dtype: str = "int64", arrow: str = "int64", offset: int = 0, **more) -> SlotColumn:
    return SlotColumn(name=name, group=group, dtype=dtype, arrow=arrow, offset=offset, **more)


SCHEMA = BatchSchema(
    (
        column("price", "dense", "float32"),
        column("vector", "dense", "float32", offset=1, width=4),
        column("ids", "sparse"),
        column("pairs", "sparse", weighted=True),
        column("when", "extra", unit="us"),
        column("word", "extra", "", "large_string"),
    )
)


def test_arrays_of_a_schema():
    assert [(array.path, array.dtype, array.width, array.offsets) for array in arrays_of(SCHEMA)] == [
        ("dense", "float32", 5, False),
        ("sparse/ids/offsets", "int64", 0, True),
        ("sparse/ids/values", "int64", 0, False),
        ("sparse/pairs/offsets", "int64", 0, True),
        ("sparse/pairs/values", "int64", 0, False),
        ("sparse/pairs/weights", "float32", 0, False),
        ("extra/when/values", "int64", 0, False),
        ("extra/when/valid", "bool", 0, False),
        ("extra/word/offsets", "int64", 0, True),
        ("extra/word/values", "uint8", 0, False),
        ("extra/word/valid", "bool", 0, False),
    ]


def test_names_are_paths_of_one_segment():
    names = ["a/b", "a%2Fb", "..", ".", "_x", "__x", "ä b", "a.b", "a\\b"]
    paths = [feature_path(column(name, "extra")) for name in names]
    assert len(set(paths)) == len(names)
    assert all(path.count("/") == 1 and path[len("extra/")] not in "._" for path in paths)


@pytest.mark.parametrize(("item", "chunk"), [(1, 1 << 20), (8, 1 << 17), (12, 1 << 16), (1 << 30, 1)])
def test_chunks_are_powers_of_two_of_about_a_mebibyte(item: int, chunk: int):
    assert FeatureArray(path="a", dtype="uint8", width=item).chunk_elements == chunk


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
    *values, valid = _extra(array, column("x", "extra", dtype, str(array.type)))
    assert [elements.tolist() for elements in values] == expected
    assert valid.tolist() == array.is_valid().to_pylist()


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@examples(10, by_day=4)
@given(
    st.lists(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=9), min_size=1, max_size=5),
    st.sampled_from([16, 64, 1 << 20]),  # bytes of a buffer: shards of one chunk, of two, of up to four
)
def test_blocks_are_appended_by_whole_shards(blocks: list[list[list[int]]], buffer: int):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_arrays, "CHUNK_BYTES", 16)
        patch.setattr(arrays_writer, "_SHARD_CHUNKS", 4)
        patch.setattr(arrays_writer, "_BUFFER_BYTES", buffer)
        output = OutputFolder(f"{folder}/arrays", overwrite=False).begin()
        writer = ArraysWriter(BatchSchema((column("ids", "sparse"),)), output)
        out, chunks = Path(output.files.path), max(1, min(4, buffer // 32))
        for block in blocks:
            offsets = np.cumsum([0, *map(len, block)])
            values = np.array([value for row in block for value in row], np.int64)
            writer.append([(offsets,), (values[:2], values[2:])])
        assert not any(name.endswith("zarr.json") for name in files(out))
        nbytes = writer.finish()
        rows = [row for block in blocks for row in block]
        expected = {"offsets": np.cumsum([0, *map(len, rows)]).tolist(), "values": [x for row in rows for x in row]}
        names = {"sparse/zarr.json", "sparse/ids/zarr.json"}
        for name, elements in expected.items():
            array = zarr.open_array(out / "sparse" / "ids" / name, mode="r")
            assert array[:].tolist() == elements
            [shard] = array.shards or ()
            assert shard == 2 * max(1, min(chunks, -(-len(elements) // 2)))
            names |= {f"sparse/ids/{name}/zarr.json"}
            names |= {f"sparse/ids/{name}/c/{index}" for index in range(-(-len(elements) // shard))}
        assert files(out) == names
        assert nbytes == 8 * sum(map(len, expected.values()))
