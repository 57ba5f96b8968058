"""Lists that are codes until a slot is written give the bytes of their values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from row_digests import row_digests

from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.encoded_rows import EncodedRows, arrow_table, slice_rows, take, with_values
from feedline.loader.encoding.layout import BatchSchema, SlotColumn, SlotLayout
from feedline.loader.encoding.quality import Observer
from feedline.loader.encoding.shuffled_rows import shuffle
from feedline.loader.encoding.slot import RowSlice, draft, encoded_rows, write, write_rows
from feedline.native import rows as native
from feedline.native.coded_values import CodedArray, CodedValues

compiled = pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")
DTYPES = {"wide": "int64", "narrow": "int64", "floats": "float32"}
SCHEMA = BatchSchema(
    columns=tuple(
        SlotColumn(name=name, group="sparse", dtype=dtype, arrow=dtype, offset=index)
        for index, (name, dtype) in enumerate(DTYPES.items())
    )
)
LAYOUT = SlotLayout(SCHEMA)
TABLES: dict[str, Any] = {
    "wide": np.array([5, -(2**40), 2**40, 0, 7, 1]),
    "narrow": np.array([3, -(2**31), 2**31 - 1, 0, 0, 8]),
    "floats": np.array([-0.0, 0.0, 2.5, -1.25, 9, -7], np.float32),
}
ENTRIES = 6
LISTS = st.lists(st.lists(st.integers(0, ENTRIES - 1), max_size=30), max_size=25)


def coded(lists: list[list[int]], code: Any, cut: tuple[int, int] | None) -> dict[str, CodedValues]:
    """Features of these lists of codes, or of slices of them, of which floats take none."""
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in lists])]).astype(np.int64)
    codes = np.array([each for one in lists for each in one], code)
    used, uses = native.mark_codes(codes, ENTRIES), None
    whole: dict[str, Any] = {"index": None, "entries": ENTRIES, "used": used, "uses": uses, "codes": codes}
    ends = offsets if cut is None else native.slice_lists(offsets, *cut)
    slices = None if cut is None else (cut[0], offsets)
    return {
        name: CodedValues(values=table, **whole, offsets=offsets)
        if name == "floats"
        else CodedValues(values=table, **whole, offsets=ends, slices=slices)
        for name, table in TABLES.items()
    }


def encoded(lists: list[list[int]], code: Any, cut: Any = None, order: Any = None) -> tuple[EncodedRows, bytes]:
    """Those lists as rows, and their quality."""
    observer = Observer(SCHEMA, [(name,) for name in DTYPES])
    values = coded(lists, code, cut)
    found = encode({}, SCHEMA, observer, coded=values, rows=len(lists), order=order)
    return found, observer.quality().to_bytes()


def expected(lists: list[list[int]], cut: Any = None, order: Any = None) -> tuple[EncodedRows, list[Any]]:
    """The rows with their values, by Python, and the least and the greatest of each feature."""
    rows = [lists[row] for row in (range(len(lists)) if order is None else order)]
    values, offsets, extremes = [], [], []
    for name in [column.name for column in SCHEMA.sparse]:
        own = rows if cut is None or name == "floats" else [row[cut[0] : cut[1]] for row in rows]
        flat = np.array([TABLES[name][each] for row in own for each in row], DTYPES[name])
        values.append(flat)
        offsets.append(np.concatenate([[0], np.cumsum([len(row) for row in own])]).astype(np.int64))
        extremes.append((flat.min() + 0, flat.max() + 0) if len(flat) else None)
    none = np.empty((len(rows), 0), np.float32)
    return EncodedRows(
        rows=len(rows), dense=none, categorical=(), labels=none, values=tuple(values), weights=(None,) * 3,
        offsets=tuple(offsets), extra=(),
    ), extremes  # fmt: skip


def same(found: EncodedRows, wanted: EncodedRows) -> None:
    for one, other in zip(found.values, wanted.values, strict=True):
        assert np.asarray(one).tobytes() == other.tobytes()
        assert one.dtype == other.dtype
    for ends, borders in zip(found.offsets, wanted.offsets, strict=True):
        assert ends.tolist() == borders.tolist()


def image(*slices: RowSlice) -> bytes:
    batch = draft(LAYOUT, slices, epoch=0, step=0)
    buffer = np.full(batch.placement.nbytes, 255, np.uint8)
    write(LAYOUT, batch, buffer)
    return buffer.tobytes()


@compiled
@given(
    lists=LISTS,
    code=st.sampled_from([np.uint16, np.int32]),
    cut=st.none() | st.tuples(st.integers(-9, 9), st.integers(-9, 20)),
    seed=st.none() | st.integers(0, 9),
    data=st.data(),
)
@examples(150)
def test_slots_and_quality_are_those_of_the_values(lists, code, cut, seed, data):
    order = None if seed is None else np.random.default_rng(seed).permutation(len(lists)).astype(np.int32)
    found, quality = encoded(lists, code, cut, order)
    wanted, extremes = expected(lists, cut, order)
    same(found, wanted)
    with pytest.MonkeyPatch.context() as patch:  # a slot without the kernel
        border = data.draw(st.integers(0, len(lists)))
        cuts = [(0, border), (border, len(lists)), (border // 2, border)]
        slices = [[RowSlice(encoded=rows, start=a, stop=b) for a, b in cuts] for rows in (found, wanted)]
        images = [image(*each) for each in slices]
        patch.setattr(native, "COMPILED", False)
        images += [image(*each) for each in slices]
    assert len(set(images)) == 1
    index = {column.name: place for place, column in enumerate(SCHEMA)}
    measured = type(Observer(SCHEMA, [()] * 3).quality()).from_bytes(quality)
    for name, bounds in zip([column.name for column in SCHEMA.sparse], extremes, strict=True):
        kept = measured.floats if name == "floats" else measured.integers
        if bounds is not None:
            assert kept[:, index[name]].tolist() == list(bounds)
            assert not np.signbit(kept[0, index[name]]) or bounds[0] < 0


@compiled
@given(
    lists=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=30), min_size=8, max_size=25),
    seed=st.integers(0, 9),
)
@examples(40)
def test_whoever_needs_the_values_gets_them(lists, seed):
    (found, _), (wanted, _) = encoded(lists, np.uint16), expected(lists)
    index = np.random.default_rng(seed).permutation(2 * len(lists))
    twice, in_turn = ([found, found], [wanted, wanted]), np.arange(len(index))
    same(with_values(found), wanted)
    same(take(twice[0], in_turn), take(twice[1], in_turn))
    same(take(twice[0], index), take(twice[1], index))
    same(slice_rows(found, 1, 7), slice_rows(wanted, 1, 7))
    assert arrow_table(found, SCHEMA) == arrow_table(wanted, SCHEMA)
    assert row_digests(found).tolist() == row_digests(wanted).tolist()
    shuffled, plain = shuffle(twice[0], index), shuffle(twice[1], index)
    assert shuffled.nbytes == plain.nbytes
    assert image(RowSlice(encoded=shuffled, start=0, stop=8)) == image(RowSlice(encoded=plain, start=0, stop=8))
    packed = encoded_rows(LAYOUT, pa.py_buffer(write_rows(LAYOUT, twice[0])))
    same(packed, take(twice[1], in_turn))


@compiled
def test_codes_are_kept_where_they_take_fewer_bytes():
    many, few = [[0, 5, 2]] * 100, [[1], []]
    kept, _ = encoded(many, np.uint16)
    assert [type(values) for values in kept.values] == [CodedArray] * 3
    saved = sum(np.asarray(values).nbytes - 2 * len(values) - values.table.nbytes for values in kept.values)
    assert saved > 3_000
    assert with_values(kept).nbytes - kept.nbytes == saved
    wide, _ = encoded(many, np.int32)
    assert {column.name: type(values) for column, values in zip(SCHEMA.sparse, wide.values, strict=True)} == {
        "wide": CodedArray, "narrow": CodedArray, "floats": np.ndarray,
    }  # fmt: skip
    gathered, _ = encoded(few, np.uint16)
    assert not any(isinstance(values, CodedArray) for values in gathered.values)


@compiled
@pytest.mark.parametrize("code", [np.uint16, np.int32])
def test_codes_and_tables_that_cannot_be_are_refused(code):
    rows, _ = encoded([[0, 1, 2, 3, 4, 5]] * 20, code)
    place = next(index for index, values in enumerate(rows.values) if isinstance(values, CodedArray))
    values = rows.values[place]

    def written(**changes: Any) -> None:
        changed = {"codes": values.codes, "table": values.table, **changes}
        arrays = (*rows.values[:place], CodedArray(**changed), *rows.values[place + 1 :])
        image(RowSlice(encoded=replace(rows, values=arrays), start=0, stop=rows.rows))

    written()
    outside = values.codes.copy()
    for wrong in (6, np.iinfo(code).max, -1 if code is np.int32 else 7):
        outside[-1] = wrong
        with pytest.raises(ValueError, match="a code of a slot's lists is out of range"):
            written(codes=outside)
    with pytest.raises(ValueError, match="a code of a slot's lists is out of range"):
        written(table=values.table[:5])
    with pytest.raises(ValueError, match="the codes of lists has a wrong size"):
        written(codes=values.codes[:-1])
    with pytest.raises(ValueError, match="a code has a wrong size: got 8 bytes"):
        written(codes=values.codes.astype(np.int64))
    with pytest.raises(ValueError, match="the values of codes have another size"):
        written(table=values.table.astype(np.int16))
