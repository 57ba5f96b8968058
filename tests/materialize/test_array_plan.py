"""Shards of arrays are copied out of parts: every element once, from where its part holds it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import SpecError
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.materialize import array_plan
from feedline.materialize.array_plan import FeatureArray, PartSizes, arrays_of, batches_of, feature_path, lists_in


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
    arrays = arrays_of(SCHEMA)
    assert [(array.path, array.dtype, array.width, array.list_index) for array in arrays] == [
        ("dense", "float32", 5, -1),
        ("sparse/ids/offsets", "int64", 0, 0),
        ("sparse/ids/values", "int64", 0, 0),
        ("sparse/pairs/offsets", "int64", 0, 1),
        ("sparse/pairs/values", "int64", 0, 1),
        ("sparse/pairs/weights", "float32", 0, 1),
        ("extra/when/values", "int64", 0, -1),
        ("extra/when/valid", "bool", 0, -1),
        ("extra/word/offsets", "int64", 0, 2),
        ("extra/word/values", "uint8", 0, 2),
        ("extra/word/valid", "bool", 0, -1),
    ]
    assert lists_in(arrays) == 3


def test_extras_that_no_array_holds():
    schema = BatchSchema((column("tags", "extra", "", "large_list<item: int64>"),))
    with pytest.raises(SpecError, match=r"extra 'tags' cannot be an array: got large_list.*--format parquet"):
        arrays_of(schema)


def test_names_are_paths_of_one_segment():
    names = ["a/b", "a%2Fb", "..", ".", "_x", "__x", "ä b", "a.b", "a\\b"]
    paths = [feature_path(column(name, "extra")) for name in names]
    assert len(set(paths)) == len(names)
    assert all(path.count("/") == 1 and path[len("extra/")] not in "._" for path in paths)


@pytest.mark.parametrize(("item", "chunk"), [(1, 1 << 20), (8, 1 << 17), (12, 1 << 16), (1 << 30, 1)])
def test_chunks_are_powers_of_two_of_about_a_mebibyte(item: int, chunk: int):
    array = FeatureArray(path="a", dtype="uint8", kind="rows", width=item)
    assert array.chunk_elements(10 * chunk) == (chunk, 10 * chunk)
    assert array.chunk_elements(10**12) == (chunk, 16 * chunk)
    assert array.chunk_elements(0) == (chunk, chunk)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8), st.data())
def test_shards_hold_every_element_once(parts: list[tuple[int, int, int]], data: st.DataObject):
    arrays = arrays_of(BatchSchema(SCHEMA.columns[:4]))
    rows = np.array([part[0] for part in parts])
    counts = np.array([part[1:] for part in parts])
    sizes = PartSizes(arrays, rows, counts)
    elements = [sizes.elements(index) for index in range(len(arrays))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_plan, "_CHUNK_BYTES", data.draw(st.sampled_from([8, 16, 64])))
        patch.setattr(array_plan, "_SHARD_CHUNKS", 2)
        shards = list(sizes.shards())
        assert [shard for batch in batches_of(shards, 100) for shard in batch] == shards
        for index, array in enumerate(arrays):
            own = [shard for shard in shards if shard.array == index]
            size = array.chunk_elements(sizes.total(index))[1]
            assert [shard.first for shard in own] == list(range(0, sizes.total(index), size))
            found = []
            for shard in own:
                assert sum(piece.nbytes for piece in shard.pieces) == (shard.stop - shard.first) * array.item_bytes
                for piece in shard.pieces:
                    base = sum(
                        int(before[piece.part]) * arrays[k].item_bytes for k, before in enumerate(elements[:index])
                    )
                    first, count = (piece.start - base) // array.item_bytes, piece.nbytes // array.item_bytes
                    found += [(piece.part, first + step, piece.add) for step in range(count)]
            assert found == _expected(array, elements[index], counts)


def _expected(array: FeatureArray, stored: np.ndarray, counts: np.ndarray) -> list[tuple[int, int, int]]:
    """Part, position in it, and what is added, of each element in order."""
    expected = []
    for part, count in enumerate(stored):
        last = array.kind == "offsets" and part < len(stored) - 1
        add = int(counts[:part, array.list_index].sum()) if array.kind == "offsets" else 0
        expected += [(part, position, add) for position in range(count - last)]
    return expected
