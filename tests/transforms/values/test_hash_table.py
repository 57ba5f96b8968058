"""Lookup tables: every key is found, nothing else is, whatever its bits are. The oracle is a dict."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.transforms.values import key_index
from feedline.transforms.values.key_index import CuckooTable, DirectTable, StringTable, integer_table

WORDS = st.integers(0, 2**64 - 1) | st.integers(0, 70) | st.integers(2**63 - 40, 2**63 + 40)


def found(table: CuckooTable | DirectTable, values: np.ndarray) -> list[int]:
    out = np.full(len(values), -7, dtype=np.int64)
    table.find(values, out)
    return out.tolist()


@examples(30)
@given(keys=st.lists(WORDS, unique=True), others=st.lists(WORDS))
def test_words(keys, others):
    results = np.arange(1, len(keys) + 1)
    table = CuckooTable.of(np.array(keys, dtype=np.uint64), results)
    known = dict(zip(keys, results.tolist(), strict=True))
    met = [0, 1, 2, 2**64 - 1, *keys, *others]
    assert found(table, np.array(met, dtype=np.uint64)) == [known.get(word, 0) for word in met]


@examples(30)
@given(
    keys=st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=20)
    | st.tuples(st.integers(-(2**63), 2**63 - 1), st.sets(st.integers(0, 60))).map(
        lambda pair: [pair[0] + step for step in pair[1] if pair[0] + step < 2**63]
    ),
    others=st.lists(st.integers(-(2**63), 2**63 - 1)),
)
def test_signed_ids_dense_and_scattered(keys, others):
    results = np.arange(3, len(keys) + 3)
    table = integer_table(np.array(keys, dtype=np.int64), results)
    known = dict(zip(keys, results.tolist(), strict=True))
    near = [key + step for key in keys for step in (-1, 1) if -(2**63) <= key + step < 2**63]
    met = [-(2**63), 2**63 - 1, 0, *keys, *near, *others]
    assert found(table, np.array(met, dtype=np.int64)) == [known.get(value, 0) for value in met]


def test_unsigned_ids_in_a_narrow_range():
    keys = np.array([2**64 - 1, 2**64 - 4], dtype=np.uint64)
    table = integer_table(keys, np.array([1, 2]))
    assert isinstance(table, DirectTable)
    assert found(table, np.array([2**64 - 1, 2**64 - 2, 0, 2**63, 2**64 - 4], dtype=np.uint64)) == [1, 0, 0, 0, 2]


@pytest.mark.parametrize("step", [1, 2**32, 2**52, 0x9E3779B97F4A7C15, 2**32 + 1])
def test_many_keys_of_a_pattern(step: int):
    keys = np.arange(1, 100_001, dtype=np.uint64) * np.uint64(step)
    keys = np.unique(keys)
    table = CuckooTable.of(keys, np.arange(1, len(keys) + 1))
    assert table.cells.nbytes <= 36 * len(keys) + 64
    assert found(table, keys) == list(range(1, len(keys) + 1))
    assert not any(found(table, keys + np.uint64(1)) if step > 1 else found(table, keys + np.uint64(100_000)))


def test_keys_without_a_way_get_a_larger_table(monkeypatch: pytest.MonkeyPatch):
    keys = np.arange(0, 2**40, 2**34, dtype=np.uint64)
    monkeypatch.setattr(key_index, "_LOAD", 0.99)
    monkeypatch.setattr(key_index, "_MOST_MOVES", 20)
    table = CuckooTable.of(keys, np.arange(1, len(keys) + 1))
    assert len(table.cells) > len(keys) + 2
    assert found(table, keys) == list(range(1, len(keys) + 1))


TEXTS = st.text(max_size=30) | st.sampled_from(["", "a", "\0", "\0\0", "12345678", "123456789", "123456789012x"])


@examples(30)
@given(
    texts=st.lists(TEXTS, unique=True, max_size=20), others=st.lists(st.none() | TEXTS, max_size=9), twins=st.booleans()
)
def test_strings(texts, others, twins):
    with pytest.MonkeyPatch.context() as patched:
        if twins:  # four digests for all strings: nearly all of them have to be told apart by their bytes
            plain = key_index.digest
            patched.setattr(key_index, "digest", lambda series: plain(series) & np.uint64(3))
        table = StringTable.of(pl.Series(texts, dtype=pl.String), 3)
        met = pl.Series([*texts, *others, "other"], dtype=pl.String)
        out = np.empty(len(met), dtype=np.int64)
        table.find(met, out)
    known = {text: index for index, text in enumerate(texts, 3)}
    assert [value for value, text in zip(out.tolist(), met, strict=True) if text is not None] == [
        known.get(text, 0) for text in met if text is not None
    ]


def test_binary_values():
    table = StringTable.of(pl.Series([b"\xff\x00", b"", b"\xff" * 20]), 1)
    out = np.empty(4, dtype=np.int64)
    table.find(pl.Series([b"", b"\xff" * 20, b"\xff", b"\xff\x00"]), out)
    assert out.tolist() == [2, 3, 0, 1]
