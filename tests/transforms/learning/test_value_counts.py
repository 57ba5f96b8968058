"""Counts of values: the same vocabulary in any order, in memory or spilled, for columns of any width."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from op_oracles import INTEGERS
from vocabularies import COLUMNS, PARAMETERS, fitted, learner

from feedline.errors import DataError
from feedline.fitting.spill import Scratch, merge_all, state_parts


@examples(20)
@given(column=COLUMNS, parameters=PARAMETERS, seed=st.integers(0, 99), limit=st.sampled_from([1, 300]))
def test_order_and_disk_make_no_difference(tmp_path_factory, column, parameters, seed, limit):
    dtype, values = column
    made = learner(dtype, **parameters)
    pieces = [made.observe([pl.Series(values[start::7], dtype=dtype)]) for start in range(7)]
    straight = made.finish([made.merge(pieces)])
    order = random.Random(seed)
    order.shuffle(pieces)
    scratch = Scratch(folder=str(tmp_path_factory.mktemp("scratch")), limit_bytes=limit)
    halves = [merge_all(made, [piece.to_arrow() for piece in half], scratch) for half in (pieces[:3], pieces[3:])]
    spilled = made.finish(state_parts(made, merge_all(made, halves, scratch), scratch))
    assert spilled.digest == straight.digest
    assert spilled.facts == straight.facts


def test_the_width_of_a_column_makes_no_difference():
    values = [3, 1, 3, 0, 127, None]
    digests = {fitted([pl.Series(values, dtype=dtype)]).digest for dtype in INTEGERS}
    assert len(digests) == 1


def test_ids_of_several_widths_are_counted_together():
    signed, unsigned = pl.Series([5, 6], dtype=pl.Int32()), pl.Series([6, 2**64 - 1], dtype=pl.UInt64())
    assert fitted([signed, unsigned]).table["value"].to_pylist() == [6, 5, 2**64 - 1]
    assert fitted([pl.Series([-5]), pl.Series([6, 6], dtype=pl.UInt64())]).table["value"].to_pylist() == [6, -5]
    for series in ([unsigned, pl.Series([-5])], [pl.Series([-5]), unsigned]):
        with pytest.raises(DataError, match="must fit int64 or uint64 together: got -5 and 18446744073709551615"):
            fitted(series)


def test_parts_of_several_widths_are_finished_together(tmp_path: Path):
    made = learner(pl.Int64())
    scratch = Scratch(folder=str(tmp_path), limit_bytes=1)
    states = [made.observe([pl.Series([5, 6])]), made.observe([pl.Series([6, 2**63], dtype=pl.UInt64())])]
    whole = merge_all(made, [state.to_arrow() for state in states], scratch)
    assert made.finish(state_parts(made, whole, scratch)).table["value"].to_pylist() == [6, 5, 2**63]
    mixed = [made.observe([pl.Series([-1])]), made.observe([pl.Series([2**63], dtype=pl.UInt64())])]
    with pytest.raises(DataError, match="got -1 and 9223372036854775808"):
        made.finish(mixed)


def test_ids_that_lie_close_take_less_memory():
    assert fitted([pl.Series(range(1000))], max_memory=20_004).facts["values"] == 1000
    with pytest.raises(DataError, match="20,004 bytes"):
        fitted([pl.Series(range(1000))], max_memory=20_003)


def test_the_smallest_of_equally_frequent_ids_are_kept():
    parts = [pl.DataFrame({"value": range(start, 90, 3), "count": [1] * 30}) for start in range(3)]
    made = learner(pl.Int64(), max_size=4)
    assert made.finish(parts).table["value"].to_pylist() == [0, 1, 2, 3]
