"""All rows that a feature fails on are found, with few passes where few fail, and no other."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from columns_of_kinds import feature
from hypothesis import given
from hypothesis import strategies as st

from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.compile.null_probe import failing_rows, find_failing

SCHEMA = pa.schema({"word": pa.string(), "level": pa.float32(), "parts": pa.list_(pa.float32())})
FEATURES = (
    feature("dense", "number", expr='word.cast("float32")'),
    feature("dense", "vector", {"vector": 2}, column="parts"),
    feature("dense", "level"),
    feature("categorical", "hashed", {"hash_bucket": 9}, column="word"),
)


@given(st.lists(st.booleans(), max_size=70), st.integers(0, 80))
def test_exactly_the_failing_indices_are_found(fails: list[bool], most: int):
    calls = []

    def tried(start: int, stop: int) -> bool:
        assert 0 <= start < stop <= len(fails)
        calls.append((start, stop))
        return any(fails[start:stop])

    found = find_failing(len(fails), tried, most) if any(fails) else np.zeros(len(fails), np.bool_)
    if sum(fails) <= most:
        assert found.tolist() == fails
    else:
        assert most < found.sum()
        assert not (found & ~np.array(fails)).any()
        assert np.flatnonzero(found).tolist() == np.flatnonzero(fails)[: found.sum()].tolist()  # the first ones
    assert len(calls) == len(set(calls))
    bad = max(sum(fails), 1)
    assert len(calls) <= 2 * bad * (math.ceil(math.log2(max(len(fails) / bad, 2))) + 2)


def test_nothing_is_tried_of_nothing():
    assert find_failing(0, lambda start, stop: pytest.fail("called"), 9).tolist() == []


words = st.sampled_from(["1", "2.5", None, "x", "y"])
parts = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=3) | st.none()


@given(st.lists(st.tuples(words, parts), min_size=1, max_size=40))
def test_a_row_is_found_if_it_fails_alone(rows: list[tuple[str | None, list[float] | None]]):
    compiled = compile_features(FEATURES, SCHEMA)
    frame = pl.DataFrame(
        {"word": [word for word, _ in rows], "level": [0.0] * len(rows), "parts": [part for _, part in rows]},
        schema={"word": pl.String, "level": pl.Float32, "parts": pl.List(pl.Float32)},
    )
    found = failing_rows(compiled, frame, len(rows))
    expected = {
        "number": [word in ("x", "y") for word, _ in rows],
        "vector": [part is not None and len(part) != 2 for _, part in rows],
    }
    assert {name: mask.tolist() for name, mask in found.items()} == {
        name: mask for name, mask in expected.items() if any(mask)
    }
    good = ~np.logical_or.reduce([np.zeros(len(rows), np.bool_), *found.values()])
    compiled.apply(frame.filter(pl.Series(good)))


def test_equal_rows_are_tried_once(monkeypatch: pytest.MonkeyPatch):
    """Of 20,000 rows, half of which hold one of two bad words, few passes find all."""
    compiled = compile_features(FEATURES[:1], SCHEMA)
    frame = pl.DataFrame({"word": ["n/a", "7", "?", "7"] * 5_000, "level": 0.0, "parts": None}).cast(
        {"level": pl.Float32, "parts": pl.List(pl.Float32)}
    )
    tried = []
    whole = CompiledFeatures.failure

    def failure(self: CompiledFeatures, frame: pl.DataFrame, index: int) -> Exception | None:
        tried.append(frame.height)
        return whole(self, frame, index)

    monkeypatch.setattr(CompiledFeatures, "failure", failure)
    found = failing_rows(compiled, frame, 20_000)
    assert found["number"].tolist() == [True, False] * 10_000
    assert len(tried) < 8
    assert sum(tried) < 20_020
