"""States spilled to the scratch folder equal those merged in memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import CorruptFileError
from feedline.fitting.spill import PARTS, Scratch, SpilledState, cut, discard, merge_all, merge_part, spill, state_parts
from feedline.transforms.learning.learner import Artifact, Parts


class Sums:
    """A statistic for these tests: the sum of `count` per key."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys
        self.largest_bytes = 0

    def observe(self, columns: Sequence[pl.Series]) -> pl.DataFrame:
        raise NotImplementedError

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        together = pl.concat(states)
        self.largest_bytes = max(self.largest_bytes, together.estimated_size())
        if not self.keys:
            return together.select(pl.col("count").sum())
        return together.group_by(self.keys).agg(pl.col("count").sum())

    def finish(self, parts: Parts) -> Artifact:
        raise NotImplementedError

    def blank(self) -> Artifact:
        raise NotImplementedError

    def show(self, artifact: Artifact) -> dict[str, Any]:
        raise NotImplementedError


def state(values: Sequence[Any], dtype: pl.DataType | None = None) -> pl.DataFrame:
    counted = Counter(values)
    return pl.DataFrame(
        {"value": pl.Series(list(counted), dtype=dtype), "count": pl.Series(list(counted.values()), dtype=pl.Int64)}
    )


def held(parts: Parts) -> Counter[Any]:
    """Join all parts; fail for a key in two of them."""
    counts: Counter[Any] = Counter()
    for part in parts:
        for value, count in part.rows():
            assert value not in counts
            counts[value] = count
    return counts


@examples(10)
@given(
    chunks=st.lists(st.lists(st.none() | st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)), min_size=1),
    limit=st.sampled_from([1, 200, 10**9]),
    seed=st.integers(0, 99),
)
def test_spilled_merges_equal_merges_in_memory(tmp_path_factory, chunks, limit, seed):
    scratch = Scratch(folder=str(tmp_path_factory.mktemp("scratch")), limit_bytes=limit)
    learner = Sums("value")
    waiting: list[Any] = [state(chunk, pl.Int64()).to_arrow() for chunk in chunks]
    order = random.Random(seed)
    while len(waiting) > 1:
        order.shuffle(waiting)
        count = order.randint(1, 3)
        waiting = [merge_all(learner, waiting[:count], scratch), *waiting[count:]]
    parts = state_parts(learner, waiting[0], scratch)
    expected = Counter(value for chunk in chunks for value in chunk)
    assert held(parts) == expected
    assert held(parts) == expected


@pytest.mark.parametrize("values", [["", "a", "Zürich", "x" * 40, None], [b"", b"\xff", b"\x00" * 30]])
def test_strings_and_bytes(tmp_path: Path, values):
    scratch = Scratch(folder=str(tmp_path), limit_bytes=1)
    whole = merge_all(Sums("value"), [state(values).to_arrow(), state(values[:2]).to_arrow()], scratch)
    assert isinstance(whole, SpilledState)
    assert held(state_parts(Sums("value"), whole, scratch)) == Counter(values + values[:2])


def test_several_keys_of_several_types(tmp_path: Path):
    scratch = Scratch(folder=str(tmp_path), limit_bytes=1)
    frame = pl.DataFrame(
        {
            "day": pl.Series([1, 1, None, 2], dtype=pl.Int32).cast(pl.Date),
            "price": [0.0, -0.0, float("nan"), 1.5],
            "clicked": [True, True, None, False],
            "count": [1, 2, 3, 4],
        }
    )
    learner = Sums("day", "price", "clicked")
    whole = merge_all(learner, [learner.merge([frame]).to_arrow(), learner.merge([frame]).to_arrow()], scratch)
    together = pl.concat(list(state_parts(learner, whole, scratch)))
    assert sorted(together["count"].to_list()) == [6, 6, 8]
    assert together.schema == frame.schema


def test_the_part_of_a_key_does_not_depend_on_its_width():
    values = [0, 1, 77, 126]
    expected = [sorted(part["value"]) for part in cut(state(values, pl.Int64()), ["value"])]
    assert len(expected) == PARTS
    for dtype in (pl.Int8(), pl.UInt32(), pl.UInt64()):
        assert [sorted(part["value"]) for part in cut(state(values, dtype), ["value"])] == expected


def test_parts_are_about_equal():
    sizes = [part.height for part in cut(state(range(64_000), pl.Int64()), ["value"])]
    assert 800 < min(sizes) <= max(sizes) < 1200


def test_memory_is_bounded_by_the_limit(tmp_path: Path):
    limit = 2**20
    scratch = Scratch(folder=str(tmp_path), limit_bytes=limit)
    learner = Sums("value")
    numbers = np.random.default_rng(1).integers(0, 400_000, (40, 16_384))
    states = [state(row.tolist(), pl.Int64()).to_arrow() for row in numbers]
    whole = merge_all(learner, iter(states), scratch)
    assert isinstance(whole, SpilledState)
    together = pl.concat(list(state_parts(learner, whole, scratch))).sort("value")
    assert learner.largest_bytes < 2 * limit
    values, counts = np.unique(numbers, return_counts=True)
    assert together["value"].to_list() == values.tolist()
    assert together["count"].to_list() == counts.tolist()


def test_parts_merged_beforehand_are_read(tmp_path: Path):
    scratch = Scratch(folder=str(tmp_path), limit_bytes=1)
    learner = Sums("value")
    both = merge_all(learner, [state([1, 2]).to_arrow(), state([2, 3]).to_arrow()], scratch)
    assert isinstance(both, SpilledState)
    names = [merge_part(learner, both, part, scratch) for part in range(PARTS)]
    for name in both.files:
        (tmp_path / name).unlink()
    kept = spill(learner, state([1]), scratch)
    stand_in = SpilledState(files=kept.files * 2, rows=0)
    assert held(state_parts(learner, stand_in, scratch, names)) == Counter({1: 1, 2: 2, 3: 1})


def test_a_state_without_keys_stays_in_memory(tmp_path: Path):
    scratch = Scratch(folder=str(tmp_path), limit_bytes=1)
    whole = merge_all(Sums(), [pl.DataFrame({"count": [number]}).to_arrow() for number in range(10)], scratch)
    (part,) = state_parts(Sums(), whole, scratch)
    assert part.item() == 45
    assert not list(tmp_path.iterdir())


def test_an_altered_file_is_refused(tmp_path: Path):
    scratch = Scratch(folder=str(tmp_path), limit_bytes=1)
    spilled = spill(Sums("value"), state(range(1000)), scratch)
    path = tmp_path / spilled.files[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptFileError):
        held(state_parts(Sums("value"), spilled, scratch))


def test_discard_leaves_nothing(tmp_path: Path):
    scratch = Scratch(folder=str(tmp_path / "scratch"), limit_bytes=1)
    spill(Sums("value"), state([1, 2]), scratch)
    discard(scratch)
    discard(scratch)
    assert not list(tmp_path.iterdir())
