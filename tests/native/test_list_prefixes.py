"""Are lists cut to what they begin with, wherever pages and calls cut them?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from page_bytes import bits, exact, packed, repeated

from feedline.native import parquet as native

pytestmark = pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")

INT32, INT64, FIXED, PLAIN, CODED = 1, 2, 7, 0, 8


@given(
    lists=st.lists(st.none() | st.lists(st.integers(0, 9) | st.none(), max_size=40), min_size=1, max_size=40),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=9),
    prefix=st.integers(1, 12),
    step=st.integers(1, 20),
    form=st.sampled_from([(INT64, 8, 0), (INT32, 4, 0), (FIXED, 3, 0), (INT64, 8, 2), (INT64, 8, 4)]),
    nulls=st.sampled_from(["all", "elements", "none"]),
    repeat=st.booleans(),
)
@examples(200)
def test_prefixes_are_what_lists_begin_with(
    lists: list[Any], sizes: list[int], prefix: int, step: int, form: tuple[int, int, int], nulls: str, repeat: bool
):
    """In pages of any size, that cut lists anywhere; all of whose lists, and elements, may be there."""
    if nulls != "all":
        lists = [each or [0] for each in lists]
    if nulls == "none":
        lists = [[item or 0 for item in each] for each in lists]
    max_def = {"all": 3, "elements": 2, "none": 1}[nulls]
    slots: list[tuple[int, int, int]] = []  # levels, and a number
    for each in lists:
        if not each:
            slots.append((0, 0 if each is None else 1, 0))
        for index, item in enumerate(each or []):
            slots.append((int(index > 0), max_def - (item is None), item or 0))
    physical, size, codes = form
    decoder = native._compiled.Cursor(physical, size, 2 if nulls == "all" else 1, max_def, codes, prefix)
    if codes:
        decoder.dictionary(np.arange(10, dtype=np.int64).tobytes(), 10)
    found: list[Any] = []

    def take() -> None:
        rows, elements, content, _, valid, null_elements, starts, list_valid, null_lists, _ = decoder.take()
        width = codes or size
        raw = bytes(content)
        assert len(raw) == elements * width
        numbers = [int.from_bytes(raw[at : at + width], "little") for at in range(0, len(raw), width)]
        there, listed, ends = bits(valid, elements), bits(list_valid, rows), np.frombuffer(starts, np.int32).tolist()
        assert (there.count(0), listed.count(0)) == (null_elements, null_lists)
        items = [number if here else None for number, here in zip(numbers, there, strict=True)]
        found.extend(items[ends[row] : ends[row + 1]] if listed[row] else None for row in range(rows))

    wanted = min(step, len(lists))
    for number in range(len(slots)):  # pages, until there are no slots
        page, slots = slots[: sizes[number % len(sizes)]], slots[sizes[number % len(sizes)] :]
        if not page:
            break
        width = 2 if max_def > 1 else 1
        runs = (lambda values, width: b"".join(repeated(value, 1, width) for value in values)) if repeat else packed
        reps, defs = runs([slot[0] for slot in page], 1), runs([slot[1] for slot in page], width)
        values = [slot[2] for slot in page if slot[1] == max_def]
        content = b"".join(value.to_bytes(size, "little") for value in values)
        content = b"\x04" + packed(values, 4) if codes else content
        decoder.begin(exact(reps + defs), exact(content), len(page), CODED if codes else PLAIN, len(reps), len(defs))
        while decoder.advance(wanted):
            take()
            wanted = min(step, len(lists) - len(found))
            if not wanted:
                break
    if wanted:
        take()
    assert found == [each and each[:prefix] for each in lists]
