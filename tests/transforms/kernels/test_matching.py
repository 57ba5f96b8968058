"""Are words sorted the same whichever way is taken, and is the way chosen once?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.transforms.kernels import word_sort
from feedline.transforms.kernels.word_sort import by_numpy, by_polars, sorted_words


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_both_ways_give_the_same(words: list[int]):
    for way in (by_numpy, by_polars, sorted_words):
        found = way(np.array(words, np.uint64))
        assert found.dtype == np.uint64
        assert found.tolist() == sorted(words)


@pytest.mark.parametrize("numpy_takes", [1, 3])
def test_the_faster_way_is_taken_and_tried_once(monkeypatch: pytest.MonkeyPatch, numpy_takes: int):
    tried = []

    def seconds(way: object, _: object) -> int:
        tried.append(way)
        return numpy_takes if way is by_numpy else 2

    monkeypatch.setattr(word_sort, "_seconds", seconds)
    word_sort._numpy_is_faster.cache_clear()
    try:
        assert word_sort._numpy_is_faster() is (numpy_takes == 1)
        given_words = np.array([3, 1], np.uint64)
        assert sorted_words(given_words).tolist() == [1, 3]
        assert (given_words[0] == 1) is np.bool_(numpy_takes == 1)  # numpy's way sorts in place
        assert tried == [by_numpy, by_polars]
    finally:
        word_sort._numpy_is_faster.cache_clear()
