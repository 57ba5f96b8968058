"""Does a cursor with flags deliver the rows that start runs, and those that hold a value, as one without does?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from page_bytes import bits, exact, packed, repeated, sized

from feedline.native import parquet as native

pytestmark = pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")

BOOLEAN, INT32, INT64, BYTES, FIXED, PLAIN, CODED = 0, 1, 2, 6, 7, 0, 8
FORMS = [(INT64, 8, 0), (INT32, 4, 0), (BOOLEAN, 1, 0), (BYTES, 0, 0), (FIXED, 3, 0), (INT64, 8, 2), (BYTES, 0, 4)]

# Of runs of rows: how many, and whether values are where runs start, as they are written, there or not, or anywhere.
_RUN = st.tuples(st.integers(1, 40), st.sampled_from(["value", "value", "value", "null", "anywhere"]))


def cursor(form: tuple[int, int, int], lists: int, max_def: int) -> Any:
    physical, size, codes = form
    found = native._compiled.Cursor(physical, size, lists, max_def, codes, 0)
    if codes:
        entries = [sized(bytes([entry] * entry)) if size == 0 else bytes([entry] * size) for entry in range(16)]
        found.dictionary(b"".join(entries), len(entries))
    return found


def plain(numbers: list[int], form: tuple[int, int, int]) -> bytes:
    physical, size, codes = form
    if codes:
        return b"\x04" + packed(numbers, 4)
    if physical == BOOLEAN:
        return np.packbits(np.array(numbers, np.uint8) & 1, bitorder="little").tobytes()
    return b"".join(sized(b"x" * number) if size == 0 else number.to_bytes(size, "little") for number in numbers)


def runs_of(values: list[int], width: int, *, repeat: bool) -> bytes:
    return b"".join(repeated(value, 1, width) for value in values) if repeat else packed(values, width)


def values_of(taken: Any, form: tuple[int, int, int]) -> list[Any]:
    """The elements, with the nulls among them."""
    physical, size, codes = form
    there, raw = bits(taken.valid, taken.elements), bytes(taken.values)
    if physical == BOOLEAN:
        found: list[Any] = bits(taken.values, taken.elements)
    elif physical == BYTES and not codes:
        ends = np.frombuffer(raw, np.int32).tolist()
        found = [bytes(taken.bytes)[ends[slot] : ends[slot + 1]] for slot in range(taken.elements)]
    else:
        width = codes or size
        found = [raw[at : at + width] for at in range(0, len(raw), width)]
    assert len(found) == taken.elements
    assert there.count(0) == taken.nulls
    return [value if here else None for value, here in zip(found, there, strict=True)]


def read_both(
    flags: list[bool], pages: list[tuple[Any, ...]], step: int, form: tuple[int, int, int], lists: int, max_def: int
) -> None:
    """Read pages without flags and with them, so many rows at a time, and compare."""
    whole, flagged = cursor(form, lists, max_def), cursor(form, lists, max_def)
    flagged.flags(exact(bytes(flags)))
    left, waiting = len(flags), list(pages)
    while left:
        wanted = min(step, left)
        while True:
            done = whole.advance(wanted)
            assert flagged.advance(wanted) == done
            if done or not waiting:
                break
            page = waiting.pop(0)
            whole.begin(*page)
            flagged.begin(*page)
        first = len(flags) - left
        left -= wanted
        compare(whole.take(), flagged.take(), np.array(flags[first : first + wanted]), form)


def compare(taken: Any, found: Any, flags: Any, form: tuple[int, int, int]) -> None:
    assert taken.rows == len(flags) == found.rows + found.passed
    values = values_of(taken, form)
    if taken.starts is None:
        kept = [value for value, flag in zip(values, flags, strict=True) if flag or value is not None]
        assert values_of(found, form) == kept
        return
    listed = np.array(bits(taken.list_valid, taken.rows), bool)
    keep, starts = flags | listed, np.frombuffer(taken.starts, np.int32)
    assert values_of(found, form) == values
    assert np.frombuffer(found.starts, np.int32).tolist() == [*starts[:-1][keep], starts[-1]]
    assert bits(found.list_valid, found.rows) == listed[keep].astype(int).tolist()
    assert found.null_lists == found.rows - np.count_nonzero(listed)


@st.composite
def stored(draw: st.DrawFn) -> tuple[list[bool], list[bool]]:
    """Where runs start, and which rows are not null."""
    flags: list[bool] = []
    there: list[bool] = []
    for length, kind in draw(st.lists(_RUN, min_size=1, max_size=60)):
        flags += [True] + [False] * (length - 1)
        values = [kind == "value"] + [False] * (length - 1)
        there += draw(st.lists(st.booleans(), min_size=length, max_size=length)) if kind == "anywhere" else values
    return flags, there


ROWS: dict[str, Any] = {
    "rows": stored(),
    "sizes": st.lists(st.integers(1, 900), min_size=1, max_size=5),
    "step": st.integers(1, 2000),
    "form": st.sampled_from(FORMS),
    "repeat": st.booleans(),
}


@given(**ROWS)
@examples(200)
def test_flat_rows_that_start_runs(
    rows: tuple[list[bool], list[bool]], sizes: list[int], step: int, form: tuple[int, int, int], repeat: bool
):
    flags, there = rows
    pages = []
    for first, stop in borders(len(there), sizes):
        part = there[first:stop]
        levels = runs_of([int(each) for each in part], 1, repeat=repeat)
        values = plain([row % 11 for row, each in enumerate(part, first) if each], form)
        pages.append((exact(levels), exact(values), len(part), CODED if form[2] else PLAIN, 0, len(levels)))
    read_both(flags, pages, step, form, 0, 1)


@given(
    **ROWS,
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=20),
    nulls=st.booleans(),
    astray=st.booleans(),
)
@examples(200)
def test_lists_that_start_runs(
    rows: tuple[list[bool], list[bool]],
    sizes: list[int],
    step: int,
    form: tuple[int, int, int],
    repeat: bool,
    lengths: list[int],
    nulls: bool,
    astray: bool,
):
    """Cut anywhere by pages; elements that go astray follow a null list, as no writer lets them."""
    flags, there = rows
    max_def = 3 if nulls else 2
    levels: list[tuple[int, int]] = []
    for row, each in enumerate(there):
        length = lengths[row % len(lengths)] if each else 0
        slots = [max_def - (nulls and item % 7 == 3) for item in range(length)] or [int(each)]
        levels += [(int(item > 0), level) for item, level in enumerate(slots)]
        if astray and row % 5 == 4:
            levels.append((1, max_def))
    pages = []
    for first, stop in borders(len(levels), sizes):
        part = levels[first:stop]
        reps = runs_of([rep for rep, _ in part], 1, repeat=repeat)
        defs = runs_of([level for _, level in part], 2, repeat=repeat)
        values = plain([slot % 11 for slot, (_, level) in enumerate(part, first) if level == max_def], form)
        encoding = CODED if form[2] else PLAIN
        pages.append((exact(reps + defs), exact(values), len(part), encoding, len(reps), len(defs)))
    read_both(flags, pages, step, form, 2, max_def)


def borders(count: int, sizes: list[int]) -> list[tuple[int, int]]:
    """Where pages of these sizes, again and again, begin and end."""
    found, first = [], 0
    while first < count:
        stop = min(count, first + sizes[len(found) % len(sizes)])
        found.append((first, stop))
        first = stop
    return found


def test_there_is_a_flag_for_every_row():
    for lists, max_def in ((0, 1), (2, 3)):
        found = cursor((INT64, 8, 0), lists, max_def)
        found.flags(bytes(3))
        with pytest.raises(ValueError, match="fewer flags"):
            found.advance(4)
    found = cursor((INT64, 8, 0), 0, 1)
    found.flags(bytes(3))
    levels = packed([1] * 8, 1)
    found.begin(levels, bytes(64), 8, PLAIN, 0, len(levels))
    assert found.advance(2)
    found.take()
    with pytest.raises(ValueError, match="fewer flags"):
        found.advance(2)


@pytest.mark.parametrize(("lists", "max_def"), [(0, 0), (1, 1), (1, 2)])
def test_rows_that_are_never_null_take_no_flags(lists: int, max_def: int):
    with pytest.raises(ValueError, match="does not take flags"):
        cursor((INT64, 8, 0), lists, max_def).flags(bytes(3))


def test_flags_come_once_and_first():
    found = cursor((INT64, 8, 0), 0, 1)
    found.flags(bytes(3))
    with pytest.raises(ValueError, match="does not take flags"):
        found.flags(bytes(3))
    found = cursor((INT64, 8, 0), 0, 1)
    levels = packed([1] * 8, 1)
    found.begin(levels, bytes(64), 8, PLAIN, 0, len(levels))
    assert found.advance(2)
    with pytest.raises(ValueError, match="does not take flags"):
        found.flags(bytes(8))
