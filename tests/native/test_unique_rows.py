"""Parts of unique rows are joined, cut and chosen as the rows themselves."""

from __future__ import annotations

from itertools import chain

import numpy as np
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.native.unique_rows import chosen_unique, join_inverses, unique_range


@st.composite
def inverses(draw: st.DrawFn) -> np.ndarray:
    """The inverse of at least one row."""
    starts = [True, *draw(st.lists(st.booleans(), max_size=12))]
    return np.cumsum(starts, dtype=np.int32) - np.int32(1)


@examples(60)
@given(inverses(), st.data())
def test_a_range_of_rows_uses_a_range_of_unique_rows(inverse: np.ndarray, data: st.DataObject):
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(inverse))] * 2)))
    assert list(range(*unique_range(inverse, start, stop))) == sorted(set(inverse[start:stop].tolist()))


@given(st.lists(inverses(), min_size=1, max_size=4))
def test_joined_parts_are_their_rows_end_to_end(parts: list[np.ndarray]):
    values = [[(number, unique) for unique in range(part[-1] + 1)] for number, part in enumerate(parts)]
    rows = [own[unique] for own, part in zip(values, parts, strict=True) for unique in part]
    joined = join_inverses(parts, [len(own) for own in values])
    assert [[*chain(*values)][unique] for unique in joined] == rows
    assert joined.dtype == np.int32


@given(inverses(), st.data())
def test_chosen_rows_are_the_rows(inverse: np.ndarray, data: st.DataObject):
    indices = np.array(data.draw(st.lists(st.integers(0, len(inverse) - 1), max_size=9)), np.int64)
    chosen, own = chosen_unique(inverse, indices)
    assert chosen[own].tolist() == inverse[indices].tolist()
    assert own.tolist() == (np.cumsum(np.diff(inverse[indices], prepend=-1) != 0) - 1).tolist()
