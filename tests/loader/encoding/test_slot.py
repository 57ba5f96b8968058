"""Encoding, gathering and slots, against plain Python lists."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import DataError
from feedline.loader.batch import Batch
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.encoded_rows import slice_rows, take
from feedline.loader.encoding.layout import BatchSchema, SlotColumn, SlotLayout
from feedline.loader.encoding.shuffled_rows import ShuffledRows, shuffle
from feedline.loader.encoding.slot import RowSlice, draft, encoded_rows, read_header, write
from feedline.loader.tensors import slot_tensors
from feedline.native import rows as native

SCHEMA = BatchSchema(
    (
        SlotColumn(name="d0", group="dense", dtype="float32", arrow="float", offset=0),
        SlotColumn(name="v0", group="dense", dtype="float32", arrow="fixed_size_list<…>[3]", offset=1, width=3),
        SlotColumn(name="d1", group="dense", dtype="float32", arrow="float", offset=4),
        SlotColumn(name="c0", group="categorical", dtype="int64", arrow="int64", offset=0),
        SlotColumn(name="s0", group="sparse", dtype="int64", arrow="large_list<item: int64>", offset=0),
        SlotColumn(name="w0", group="sparse", dtype="float32", arrow="large_list<item: float>", offset=1),
        SlotColumn(name="s1", group="sparse", dtype="int64", arrow="large_list<item: int64>", offset=2),
        SlotColumn(name="p0", group="sparse", dtype="int64", arrow="struct<…>", offset=3, weighted=True),
        SlotColumn(name="p1", group="sparse", dtype="int64", arrow="struct<…>", offset=4, weighted=True),
        SlotColumn(name="y", group="label", dtype="float32", arrow="float", offset=0),
        SlotColumn(name="id", group="extra", dtype="int64", arrow="int64", offset=0),
        SlotColumn(name="at", group="extra", dtype="int64", arrow="timestamp[us, tz=UTC]", offset=1, unit="us"),
        SlotColumn(name="flag", group="extra", dtype="bool", arrow="bool", offset=2),
        SlotColumn(name="text", group="extra", dtype="", arrow="large_string", offset=3),
    )
)
LAYOUT = SlotLayout(SCHEMA)

floats = st.floats(width=32, allow_nan=False)
integers = st.integers(-(2**63), 2**63 - 1)
pairs = st.lists(st.tuples(integers, floats), max_size=3)
rows = st.fixed_dictionaries(
    {
        "d0": floats,
        "d1": floats,
        "c0": integers,
        "s0": st.none() | st.lists(integers, max_size=4),
        "w0": st.lists(floats, max_size=3),
        "s1": st.lists(integers, max_size=3),
        "p0": pairs,
        "p1": st.none() | pairs,
        "v0": st.lists(floats, min_size=3, max_size=3),
        "y": floats,
        "id": integers,
        "at": st.integers(0, 2**50),
        "flag": st.booleans(),
        "text": st.none() | st.text(max_size=5),
    }
)
FIELDS = ("values", "weights")
WEIGHTED = pl.Struct({"values": pl.List(pl.Int64), "weights": pl.List(pl.Float32)})
TYPES = {
    "d0": pl.Float32,
    "d1": pl.Float32,
    "c0": pl.Int64,
    "s0": pl.List(pl.Int64),
    "w0": pl.List(pl.Float32),
    "s1": pl.List(pl.Int64),
    "p0": WEIGHTED,
    "p1": WEIGHTED,
    "v0": pl.Array(pl.Float32, 3),
    "y": pl.Float32,
    "id": pl.Int64,
    "at": pl.Datetime("us", "UTC"),
    "flag": pl.Boolean,
    "text": pl.String,
}


def apart(row):
    """The pairs of weighted lists as the transforms hand them over: a list of ids and one of weights."""
    both = {name: row[name] for name in ("p0", "p1")}
    lists = {
        name: {part: None if held is None else [pair[place] for pair in held] for place, part in enumerate(FIELDS)}
        for name, held in both.items()
    }
    return row | lists


def frame_of(records):
    ints = {**TYPES, "at": pl.Int64}
    return pl.DataFrame([apart(row) for row in records], schema=ints).with_columns(pl.col("at").cast(TYPES["at"]))


def batch_of(cuts):
    return Batch.over(LAYOUT, np.frombuffer(bytearray(image_of(cuts)), np.uint8))


def check(batch, records):
    assert batch.rows == len(batch) == len(records)
    assert batch.dense.tolist() == [[r["d0"], *r["v0"], r["d1"]] for r in records]
    assert batch["v0"].tolist() == [r["v0"] for r in records]
    assert batch.categorical.tolist() == [[r["c0"]] for r in records]
    assert batch.labels.tolist() == [[r["y"]] for r in records]
    for name in ("s0", "w0", "s1"):
        wanted = [r[name] or [] for r in records]
        sparse = batch.sparse[name]
        assert sparse.lengths.tolist() == [len(x) for x in wanted]
        assert sparse.offsets.tolist() == np.cumsum([0, *map(len, wanted)]).tolist()
        assert sparse.values.tolist() == [v for x in wanted for v in x]
        assert sparse.weights is None
    for name in ("p0", "p1"):
        wanted = [r[name] or [] for r in records]
        sparse = batch.sparse[name]
        assert sparse.lengths.tolist() == [len(x) for x in wanted]
        assert sparse.values.tolist() == [v for x in wanted for v, _ in x]
        assert sparse.weights.tolist() == [w for x in wanted for _, w in x]
    keys, values, weights, lengths = batch.weighted_keyed_jagged()
    assert keys == ["p0", "p1"]
    assert values.tolist() == [*batch.sparse["p0"].values.tolist(), *batch.sparse["p1"].values.tolist()]
    assert weights.tolist() == [*batch.sparse["p0"].weights.tolist(), *batch.sparse["p1"].weights.tolist()]
    assert lengths.tolist() == [*batch.sparse["p0"].lengths.tolist(), *batch.sparse["p1"].lengths.tolist()]
    assert batch.extra["id"].tolist() == [r["id"] for r in records]
    assert batch.extra["at"].tolist() == [r["at"] for r in records]
    assert batch.extra["flag"].tolist() == [r["flag"] for r in records]
    assert batch.extra["text"].to_pylist() == [r["text"] for r in records]


def image_of(cuts: list[RowSlice]) -> bytes:
    """The bytes of a slot that held others before."""
    measured = draft(LAYOUT, cuts, epoch=3, step=5)
    buffer = np.full(measured.placement.nbytes, 255, dtype=np.uint8)
    write(LAYOUT, measured, buffer)
    return buffer.tobytes()


@examples(100)
@given(st.lists(st.lists(rows, min_size=1, max_size=6), min_size=1, max_size=4), st.data())
def test_batches_equal_their_rows(chunks, data):
    parts = [encode(frame_of(chunk), SCHEMA) for chunk in chunks]
    cuts = []
    records = []
    for part, chunk in zip(parts, chunks, strict=True):
        start = data.draw(st.integers(0, len(chunk) - 1))
        stop = data.draw(st.integers(start + 1, len(chunk)))
        cuts.append(RowSlice(encoded=part, start=start, stop=stop))
        records += chunk[start:stop]
    batch, image = batch_of(cuts), image_of(cuts)
    check(batch, records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "COMPILED", False)
        assert image_of(cuts) == image
    assert (batch.epoch, batch.step) == (3, 5)
    assert batch.valid.all()
    check(batch.clone(), records)


@examples(60)
@given(st.lists(rows, min_size=1, max_size=12), st.data())
def test_take_join_slice_and_the_buffer_form(records, data):
    encoded = encode(frame_of(records), SCHEMA)
    indices = data.draw(st.lists(st.integers(0, len(records) - 1), min_size=1, max_size=15))
    taken = take([encoded], np.array(indices, dtype=np.int64))
    expected = [records[i] for i in indices]
    check(batch_of([RowSlice(encoded=taken, start=0, stop=taken.rows)]), expected)
    both = take([encoded, taken], np.arange(encoded.rows + taken.rows))
    check(batch_of([RowSlice(encoded=both, start=0, stop=both.rows)]), [*records, *expected])
    middle = slice_rows(both, 1, both.rows)
    check(batch_of([RowSlice(encoded=middle, start=0, stop=middle.rows)]), [*records, *expected][1:])
    again = encoded_rows(LAYOUT, pa.py_buffer(image_of([RowSlice(encoded=both, start=0, stop=both.rows)])))
    check(batch_of([RowSlice(encoded=again, start=0, stop=again.rows)]), [*records, *expected])


@examples(60)
@given(st.lists(st.lists(rows, max_size=6), min_size=1, max_size=4), st.data())
def test_shuffled_rows_fill_a_slot_with_the_same_bytes_with_and_without_the_kernel(chunks, data):
    parts, records = [encode(frame_of(chunk), SCHEMA) for chunk in chunks], [row for chunk in chunks for row in chunk]
    order = np.array(data.draw(st.permutations(range(len(records)))), dtype=np.int64)
    start = data.draw(st.integers(0, len(records)))
    stop = data.draw(st.integers(start, len(records)))

    def image() -> bytes:
        shuffled = shuffle(parts, order)
        ends = [RowSlice(encoded=shuffled, start=start, stop=stop), RowSlice(encoded=shuffled, start=0, stop=start)]
        if isinstance(shuffled, ShuffledRows):
            alone = shuffled.rows_at(start, stop)
            check(
                batch_of([RowSlice(encoded=alone, start=0, stop=alone.rows)]), [records[i] for i in order[start:stop]]
            )
        return image_of(ends)

    found = image()
    check(
        Batch.over(LAYOUT, np.frombuffer(bytearray(found), np.uint8)),
        [records[i] for i in (*order[start:stop], *order[:start])],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "COMPILED", False)
        assert image() == found


def record(**changes):
    base = {"d0": 1.0, "d1": 2.0, "c0": 3, "s0": [1], "w0": [], "s1": [2, 3], "y": 0.0, "id": 1, "at": 5, "flag": True}
    return {**base, "text": "x", "v0": [0.5, 1.5, 2.5], "p0": [(7, 0.5)], "p1": [(8, 1.0), (9, 2.0)], **changes}


def test_features_by_name_and_the_keyed_jagged_view():
    batch = batch_of([RowSlice(encoded=encode(frame_of([record(), record(c0=9)]), SCHEMA), start=0, stop=2)])
    assert batch["d1"].tolist() == [2.0, 2.0]
    assert batch["c0"].tolist() == [3, 9]
    assert batch["y"].tolist() == [0.0, 0.0]
    assert batch["s1"].values.tolist() == [2, 3, 2, 3]
    assert list(batch.to_dict()) == [column.name for column in SCHEMA]
    keys, values, lengths = batch.keyed_jagged()
    assert keys == ["s0", "s1", "p0", "p1"]
    assert values.tolist() == [1, 1, 2, 3, 2, 3, 7, 7, 8, 9, 8, 9]
    assert lengths.tolist() == [1, 1, 2, 2, 1, 1, 2, 2]
    weights = batch.weighted_keyed_jagged()[2]
    assert weights.data_ptr() == batch.sparse["p0"].weights.data_ptr()
    assert repr(batch["p0"]) == "Sparse(rows=2, values=(2,) torch.int64, weighted)"
    assert values.data_ptr() == batch.sparse["s0"].values.data_ptr()
    assert batch.categorical[:, 0].is_contiguous()
    with pytest.raises(KeyError, match="no feature 'nope'"):
        batch["nope"]
    with pytest.raises(KeyError, match="no feature 'd0' here"):
        batch.sparse["d0"]


@pytest.mark.parametrize("where", ["slot", "clone", "device"])
def test_a_change_of_one_tensor_in_place_is_no_change_of_another(where: str):
    """Else autograd would refuse to go back through the others."""
    batch = batch_of([RowSlice(encoded=encode(frame_of([record(), record()]), SCHEMA), start=0, stop=2)])
    batch = {"slot": lambda: batch, "clone": batch.clone, "device": lambda: batch.to("meta")}[where]()
    tensors = [batch.dense, batch.categorical, batch.labels, batch.valid]
    for sparse in batch.sparse.values():
        tensors += [
            part for part in (sparse.values, sparse.lengths, sparse.offsets, sparse.weights) if part is not None
        ]
    assert len(tensors) == 4 + 5 * 3 + 2
    for number, tensor in enumerate(tensors):
        tensor.mul_(2) if tensor.dtype != torch.bool else tensor.logical_not_()
        assert [each._version for each in tensors] == [1] * (number + 1) + [0] * (len(tensors) - number - 1)


def test_numeric_extras_with_nulls_are_arrow_arrays():
    frame = frame_of([record(id=None), record()])
    batch = batch_of([RowSlice(encoded=encode(frame, SCHEMA), start=0, stop=2)])
    assert batch.extra["id"].to_pylist() == [None, 1]
    assert batch.extra["at"].tolist() == [5, 5]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"d1": None}, "feature 'd1' holds a null: got 1 nulls in 2 rows"),
        ({"c0": None}, "feature 'c0' holds a null"),
        ({"y": None}, "feature 'y' holds a null"),
        ({"s0": [1, None]}, "feature 's0' holds a null inside a list: .*Add fill_null"),
        ({"v0": None}, r"feature 'v0' holds a null: got 1 null vectors in 2 rows, expected none.*pad: 3"),
        ({"v0": [0.0, None, 1.0]}, "feature 'v0' holds a null inside a vector: got 1 null elements, expected none"),
        ({"p1": [(1, 0.5), (None, 0.5)]}, "feature 'p1' holds a null inside a list: .*Add fill_null"),
        ({"p1": [(1, 0.5), (2, None)]}, "feature 'p1' holds a null inside a list of weights.*weighted: {fill: 1.0}"),
    ],
)
def test_remaining_nulls_are_errors(change, words):
    frame = frame_of([record(), record(**change)])
    with pytest.raises(DataError, match=words) as caught:
        encode(frame, SCHEMA)
    assert caught.value.row == 1


def test_sliced_frames_and_empty_batches():
    frame = frame_of([record(c0=i, s0=[i] * i) for i in range(10)])
    part = encode(frame.slice(4, 3), SCHEMA)
    batch = batch_of([RowSlice(encoded=part, start=0, stop=3)])
    assert batch.sparse["s0"].values.tolist() == [4] * 4 + [5] * 5 + [6] * 6
    empty = encode(frame.slice(0, 0), SCHEMA)
    assert empty.rows == 0
    assert batch_of([RowSlice(encoded=empty, start=0, stop=0)]).dense.shape == (0, 5)


def test_sections_are_aligned_and_the_schema_survives_json():
    batch = batch_of([RowSlice(encoded=encode(frame_of([record()]), SCHEMA), start=0, stop=1)])
    place = batch._placement
    matrices = place.matrices
    starts = [matrices.dense, matrices.categorical, matrices.labels, matrices.valid]
    starts += [matrices.lengths, matrices.offsets, place.ipc]
    assert all(start % 64 == 0 for start in starts)
    assert [start is None for start in place.weights] == [True, True, False, False, True]
    assert place.weights[2] % 64 == 0
    assert place.weights[3] == place.weights[2] + 4
    assert BatchSchema.from_json(SCHEMA.to_json()) == SCHEMA


def test_an_announced_slot_is_read_when_a_tensor_needs_more_than_its_rows(monkeypatch: pytest.MonkeyPatch):
    rows = [record(), record()]
    whole = batch_of([RowSlice(encoded=encode(frame_of(rows), SCHEMA), start=0, stop=2)])
    reads = []
    monkeypatch.setattr(slot_tensors, "read_header", lambda *found: reads.append(1) or read_header(*found))
    batch = Batch(LAYOUT, 3, 5, 2, whole.nbytes, whole._root)
    assert (batch.rows, batch.epoch, batch.step, batch.nbytes) == (2, 3, 5, whole.nbytes)
    for name in ("dense", "categorical", "labels", "valid"):
        assert torch.equal(getattr(batch, name), getattr(whole, name)), name
    assert not reads
    check(batch, rows)
    assert batch.clone().to_dict().keys() == whole.to_dict().keys()
    assert reads == [1]


def test_offsets_are_those_of_the_rows_asked_for():
    sizes = [3, 0, 3, 7]
    found = [LAYOUT.place(rows, [1] * len(LAYOUT.sparse), [True] * len(LAYOUT.extra), 0) for rows in sizes]
    assert found[0] == found[2]
    assert [SlotLayout(SCHEMA).place_matrices(rows).end for rows in sizes] == [
        LAYOUT.place_matrices(rows).end for rows in sizes
    ]
