"""Deduplicated groups in encoded rows, slots and batches, against the same rows without deduplication."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from row_digests import digest_of

from feedline.loader.batch import Batch
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.encoded_rows import EncodedRows, expand, slice_rows, take
from feedline.loader.encoding.layout import BatchSchema, SlotColumn, SlotLayout
from feedline.loader.encoding.shuffled_rows import shuffle
from feedline.loader.encoding.slot import RowSlice, draft, encoded_rows, write
from feedline.loader.tensors.slot_tensors import InverseColumn, InverseSparse
from feedline.native import rows as native
from feedline.native.unique_rows import UniqueRows

LIST, FLOATS = "large_list<item: int64>", "large_list<item: float>"
# Columns of group u, of group v and of none, mixed, with both dtypes of lists and with weights.
SCHEMA = BatchSchema(
    (
        SlotColumn(name="d", group="dense", dtype="float32", arrow="float", offset=0),
        SlotColumn(name="du", group="dense", dtype="float32", arrow="float", offset=0, dedup="u"),
        SlotColumn(name="xu", group="dense", dtype="float32", arrow="…[2]", offset=1, width=2, dedup="u"),
        SlotColumn(name="dv", group="dense", dtype="float32", arrow="float", offset=0, dedup="v"),
        SlotColumn(name="c", group="categorical", dtype="int64", arrow="int64", offset=0),
        SlotColumn(name="cu", group="categorical", dtype="int64", arrow="int64", offset=0, dedup="u"),
        SlotColumn(name="fu", group="sparse", dtype="float32", arrow=FLOATS, offset=0, dedup="u"),
        SlotColumn(name="s", group="sparse", dtype="int64", arrow=LIST, offset=1),
        SlotColumn(name="pu", group="sparse", dtype="int64", arrow="struct<…>", offset=2, weighted=True, dedup="u"),
        SlotColumn(name="sv", group="sparse", dtype="int64", arrow=LIST, offset=3, dedup="v"),
        SlotColumn(name="p", group="sparse", dtype="int64", arrow="struct<…>", offset=4, weighted=True),
        SlotColumn(name="su", group="sparse", dtype="int64", arrow=LIST, offset=5, dedup="u"),
        SlotColumn(name="y", group="label", dtype="float32", arrow="float", offset=0),
        SlotColumn(name="t", group="extra", dtype="", arrow="large_string", offset=0),
    )
)
PLAIN = BatchSchema(
    tuple(
        replace(column, dedup=None, offset={"xu": 2, "du": 1, "dv": 4, "cu": 1}.get(column.name, column.offset))
        for column in SCHEMA
    )
)
WEIGHTED = pl.Struct({"values": pl.List(pl.Int64), "weights": pl.List(pl.Float32)})
TYPES = {
    **dict.fromkeys(["d", "du", "dv", "y"], pl.Float32),
    "xu": pl.Array(pl.Float32, 2),
    **dict.fromkeys(["c", "cu"], pl.Int64),
    "fu": pl.List(pl.Float32),
    **dict.fromkeys(["s", "sv", "su"], pl.List(pl.Int64)),
    **dict.fromkeys(["p", "pu"], WEIGHTED),
    "t": pl.String,
}
LAYOUT = SlotLayout(SCHEMA)
counts = st.lists(st.integers(1, 4), max_size=4)  # the lengths of the runs of one part


def frame(rows: int, of_u: list[int], of_v: list[int], seed: int) -> pl.DataFrame:
    """Rows whose columns of u and v are decided by the numbers of their runs."""
    rng = np.random.default_rng(seed)

    def values(names: list[str], key: int) -> dict[str, object]:
        draw = np.random.default_rng([seed, key, len(names)])
        lists = [draw.integers(0, 99, draw.integers(0, 4)).tolist() for _ in names]
        return {name: value(TYPES[name], found, draw) for name, found in zip(names, lists, strict=True)}

    def value(kind: object, found: list[int], draw: np.random.Generator) -> object:
        if kind == WEIGHTED:
            return {"values": found, "weights": [float(np.float32(draw.random())) for _ in found]}
        if isinstance(kind, pl.List):
            return found
        if isinstance(kind, pl.Array):
            return [1.0, float(draw.integers(9))]
        return str(draw.integers(9)) if kind == pl.String else int(draw.integers(9))

    groups = {name: [c.name for c in SCHEMA if c.dedup == name] for name in (None, "u", "v")}
    records = [
        {
            **values(groups[None], 1000 + int(rng.integers(1000))),
            **values(groups["u"], of_u[i]),
            **values(groups["v"], 500 + of_v[i]),
        }
        for i in range(rows)
    ]
    return pl.DataFrame(records, schema={c.name: TYPES[c.name] for c in SCHEMA})


def runs(lengths: list[int], rows: int) -> list[int]:
    """The number of the run of each row."""
    numbers = [number for number, length in enumerate(lengths) for _ in range(length)]
    return [*numbers, *[len(lengths)] * rows][:rows]


def deduplicated(data: pl.DataFrame, of_u: list[int], of_v: list[int]) -> EncodedRows:
    groups = []
    own, *grouped = SCHEMA.parts
    for part, numbers in zip(grouped, (of_u, of_v), strict=True):
        first = [numbers.index(number) for number, _ in groupby(numbers)]
        inverse = np.array([sorted(set(numbers)).index(number) for number in numbers], np.int32)
        groups.append(UniqueRows(encode(data[first], part), inverse))
    return replace(encode(data, own), groups=tuple(groups))


def image(layout: SlotLayout, slices: list[RowSlice]) -> np.ndarray:
    measured = draft(layout, slices, epoch=3, step=5)
    buffer = np.full(measured.placement.nbytes, 255, np.uint8)
    write(layout, measured, buffer)
    return buffer


@st.composite
def parts_of_rows(draw):
    """(deduplicated, plain) encoded rows of 1 to 3 parts."""
    found = []
    for seed in range(draw(st.integers(1, 3))):
        of_u, of_v = draw(counts), draw(counts)
        rows = max(sum(of_u), sum(of_v), 1)
        numbers = runs(of_u, rows), runs(of_v, rows)
        data = frame(rows, *numbers, seed)
        found.append((deduplicated(data, *numbers), encode(data, PLAIN)))
    return found


@examples(60)
@given(parts_of_rows(), st.data())
def test_an_expanded_batch_has_the_bytes_of_one_without_deduplication(found, data):
    """From slices of parts, parts laid end to end, and parts that travelled as a buffer; with padding."""
    cuts, plain = [], []
    for grouped, same in found:
        start = data.draw(st.integers(0, same.rows - 1))
        stop = data.draw(st.integers(start + 1, same.rows))
        form = data.draw(st.sampled_from(["itself", "sliced", "buffer"]))
        plain.append(RowSlice(encoded=same, start=start, stop=stop))
        if form == "sliced":
            grouped, start, stop = slice_rows(grouped, start, stop), 0, stop - start
        elif form == "buffer":
            grouped = encoded_rows(
                LAYOUT, pa.py_buffer(image(LAYOUT, [RowSlice(encoded=grouped, start=0, stop=same.rows)]))
            )
        cuts.append(RowSlice(encoded=grouped, start=start, stop=stop))
    batch = Batch.over(LAYOUT, image(LAYOUT, cuts))
    wanted = image(SlotLayout(PLAIN), plain)
    assert batch.expanded()._root.tobytes() == wanted.tobytes()
    assert digest_of(batch) == digest_of(Batch.over(SlotLayout(PLAIN), wanted))
    check_tensors(batch, batch.expanded())
    joined, same = (take(parts, np.arange(sum(part.rows for part in parts))) for parts in zip(*found, strict=True))
    again = expand(joined, SCHEMA)
    assert (
        image(SlotLayout(PLAIN), [RowSlice(encoded=again, start=0, stop=again.rows)]).tobytes()
        == image(SlotLayout(PLAIN), [RowSlice(encoded=same, start=0, stop=same.rows)]).tobytes()
    )


def check_tensors(batch: Batch, plain: Batch) -> None:
    """Every feature by name, expanded by its tensors, is that of the plain batch."""
    for column in SCHEMA:
        value, wanted = batch[column.name], plain[column.name]
        if column.dedup is not None:
            assert isinstance(value, InverseSparse | InverseColumn)
            assert len(value) == batch.rows
            assert value.unique_rows == batch.groups[column.dedup].unique_rows <= batch.rows
            value = value.expand()
        if column.group == "sparse":
            for name in ("values", "lengths", "offsets"):
                assert torch.equal(getattr(value, name), getattr(wanted, name))
            assert (value.weights is None) == (wanted.weights is None)
            assert value.weights is None or torch.equal(value.weights, wanted.weights)
        elif column.group == "extra":
            assert value.equals(wanted)
        else:
            assert torch.equal(value, wanted)


@examples(60)
@given(parts_of_rows(), st.data())
def test_shuffled_rows_keep_the_unique_rows_of_runs_that_stay_whole(found, data):
    parts, plain = [grouped for grouped, _ in found], [same for _, same in found]
    rows = sum(part.rows for part in plain)
    order = np.array(data.draw(st.permutations(range(rows))), np.int64)
    start = data.draw(st.integers(0, rows - 1))
    cut = [(start, rows), (0, start)]

    def images(layout, of):
        shuffled = shuffle(of, order)
        return image(layout, [RowSlice(encoded=shuffled, start=a, stop=b) for a, b in cut])

    wanted = images(SlotLayout(PLAIN), plain)
    found_bytes = images(LAYOUT, parts)
    assert Batch.over(LAYOUT, found_bytes).expanded()._root.tobytes() == wanted.tobytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "COMPILED", False)
        assert images(LAYOUT, parts).tobytes() == found_bytes.tobytes()
    whole = shuffle(parts, np.arange(rows))
    assert [group.rows.rows for group in whole.groups] == [
        sum(part.groups[index].rows.rows for part in parts) for index in range(2)
    ]


def test_a_batch_holds_each_unique_row_once_and_padding_shares_one():
    numbers = [0, 0, 0, 1, 1, 2]
    data, other = frame(6, numbers, [0] * 6, seed=7), frame(3, [0, 1, 2], [0] * 3, seed=8)
    grouped = deduplicated(data, numbers, [0] * 6)
    slices = [
        RowSlice(encoded=deduplicated(other, [0, 1, 2], [0] * 3), start=0, stop=3),
        RowSlice(encoded=grouped, start=3, stop=6),
        RowSlice(
            encoded=slice_rows(encode(data, SCHEMA.parts[0]), 4, 5),
            start=0,
            stop=1,
            valid=False,
            repeats=(grouped, 4),
        ),
    ]
    batch = Batch.over(LAYOUT, image(LAYOUT, slices))
    of_u = batch.groups["u"]
    assert of_u.inverse.tolist() == [0, 1, 2, 3, 3, 4, 3]
    assert batch.groups["v"].inverse.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert of_u.unique_rows == 5
    both = pl.concat([other, data[3:]])
    assert of_u.dense.tolist() == [[both["du"][i], *both["xu"][i]] for i in (0, 1, 2, 3, 5)]
    assert of_u.categorical.tolist() == [[both["cu"][i]] for i in (0, 1, 2, 3, 5)]
    assert batch.dense.tolist() == [[both["d"][i]] for i in (0, 1, 2, 3, 4, 5, 4)]
    assert batch.expanded().valid.tolist() == [True] * 6 + [False]
    assert of_u.expand(of_u.categorical).tolist() == [[both["cu"][i]] for i in (0, 1, 2, 3, 4, 5, 4)]
    keys, values, lengths = batch.keyed_jagged("int64")
    assert keys == ["s", "su", "sv", "p", "pu"]
    assert len(lengths) == 7 + 5 + 2 + 7 + 5
    assert int(lengths.sum()) == len(values)
