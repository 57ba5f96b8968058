"""How often columns repeat, and which change together, recounted with pandas and plain Python."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.planning.dedup.column_changes import (
    INVERSE_BYTES,
    ColumnChanges,
    factor_of,
    find_changes,
    propose_groups,
    without_worst,
)

TYPES = {
    "s": pl.Int64,
    "a": pl.Int64,
    "f": pl.Float64,
    "w": pl.String,
    "h": pl.List(pl.Int64),
    "g": pl.List(pl.Float32),
}
VALUES = {
    "s": [1, 2, 3],
    "a": [1, 2, None],
    "f": [0.0, -0.0, float("nan"), None],
    "w": ["", "x", None],
    "h": [[], [1, 2], [1, 3], None],
    "g": [[0.0], [-0.0], [float("nan")], []],
}


def bits(value: Any) -> Any:
    """A value that equals others of the same bits."""
    if isinstance(value, float):
        return struct.pack("d", value)
    return tuple(map(bits, value)) if isinstance(value, list) else (type(value).__name__, value)


@st.composite
def samples(draw: st.DrawFn) -> list[tuple[pl.DataFrame, list[int]]]:
    frames = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(1, 12))
        columns = {name: draw(st.lists(st.sampled_from(VALUES[name]), min_size=rows, max_size=rows)) for name in TYPES}
        borders = draw(st.lists(st.integers(0, rows - 1), max_size=2))
        frames.append((pl.DataFrame(columns, schema=TYPES), borders))
    return frames


@examples(25)
@given(samples(), st.sampled_from([None, "s"]), st.sets(st.sampled_from("afwhg"), min_size=1))
def test_counts_are_those_of_pandas(frames: list[tuple[pl.DataFrame, list[int]]], by: str | None, chosen: set[str]):
    columns = sorted(chosen)
    found = find_changes(frames, {name: [name] for name in "afwhg"}, by)
    table = pd.concat(
        [
            pd.DataFrame({name: list(map(bits, frame[name].to_list())) for name in TYPES}).assign(
                piece=f"{number}:"
                + pd.Series([sum(border <= row for border in borders) for row in range(frame.height)]).astype(str)
            )
            for number, (frame, borders) in enumerate(frames)
        ],
        ignore_index=True,
    )
    keys = ["piece"] if by is None else ["piece", by]
    sessions = (table[keys] != table[keys].shift()).any(axis=1)
    differ = {name: (table[name] != table[name].shift()) | sessions for name in "afwhg"}
    runs = pd.concat([differ[name] for name in columns], axis=1).any(axis=1)
    assert found.rows == len(table)
    assert found.session_rows == pytest.approx(len(table) / sessions.sum())
    assert found.unique_rows(columns) == runs.sum()
    assert found.factor(columns) == pytest.approx(table.groupby(runs.cumsum()).size().mean())
    others = ~sessions
    for name in columns:
        wanted = (~differ[name])[others].mean() if others.any() else 0.0
        assert found.repeated(name) == pytest.approx(wanted)
        alone = factor_of(found.session_rows, found.repeated(name))  # of one column the formula is the factor
        assert alone == pytest.approx(found.factor([name]))
    if (worst := without_worst(found, columns)) is not None:
        assert worst[1] == max(found.factor([n for n in columns if n != name]) for name in columns)
        assert worst[1] == found.factor([name for name in columns if name != worst[0]])


def test_the_formula_is_that_of_the_paper():
    assert factor_of(16.5, 0.95) == pytest.approx(9.3, abs=0.01)
    assert factor_of(16.5, 0.8) == pytest.approx(4.02, abs=0.01)
    assert factor_of(1, 0.99) == 1


@st.composite
def changes(draw: st.DrawFn) -> tuple[ColumnChanges, dict[str, float]]:
    """Columns that change in the rows of one of a few patterns, now and then in others."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = draw(st.integers(1, 200))
    sessions = rng.random(rows) < 0.1
    sessions[0] = True
    patterns = [rng.random(rows) < draw(st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0])) for _ in range(3)]
    names = [f"c{number}" for number in range(draw(st.integers(0, 7)))]
    found = {}
    for name in names:
        noise = rng.random(rows) < draw(st.sampled_from([0.0, 0.0, 0.01]))
        found[name] = (patterns[draw(st.integers(0, 2))] | noise) & ~sessions
    nbytes = {name: float(draw(st.sampled_from([0, 4, 8, 200]))) for name in names}
    return ColumnChanges(sessions=sessions, changes=found), nbytes


@examples(50)
@given(changes())
def test_no_two_proposed_groups_save_more_as_one(found: tuple[ColumnChanges, dict[str, float]]):
    measured, nbytes = found
    groups = propose_groups(measured, nbytes)
    table = pd.DataFrame({**measured.changes, "s": measured.sessions})

    def saved(columns: tuple[str, ...]) -> float:
        unique = table[[*columns, "s"]].any(axis=1).mean()
        return sum(nbytes[name] for name in columns) * (1 - unique) - INVERSE_BYTES

    columns = [name for group in groups for name in group]
    assert len(columns) == len(set(columns))
    assert all(list(group) == [name for name in nbytes if name in group] for group in groups)
    assert [saved(group) for group in groups] == sorted(map(saved, groups), reverse=True)
    assert all(saved(group) > 0 for group in groups)
    for one, other in itertools.combinations(groups, 2):
        assert saved(one + other) < saved(one) + saved(other) + 1e-9
    for name in nbytes:  # what changes in exactly the same rows is in the same group
        for group in groups:
            if any(table[name].equals(table[other]) for other in group) and name not in columns:
                assert nbytes[name] == 0 or table[[name, "s"]].any(axis=1).mean() > 0.8


def test_columns_that_change_together_are_one_group_and_others_are_not():
    rng = np.random.default_rng(3)
    rows = 4_000
    sessions = np.arange(rows) % 16 == 0
    together, apart = (rng.random(rows) < 0.05) & ~sessions, (rng.random(rows) < 0.05) & ~sessions
    always = ~sessions
    found = {"a": together, "b": together, "x": apart, "constant": np.zeros(rows, np.bool_), "item": always}
    measured = ColumnChanges(sessions=sessions, changes=found)
    nbytes = {"a": 200.0, "b": 100.0, "x": 200.0, "constant": 8.0, "item": 8.0}
    groups = propose_groups(measured, nbytes)
    assert [group for group in groups if "constant" not in group or len(group) > 1] == groups
    assert [tuple(name for name in group if name != "constant") for group in groups] == [("a", "b"), ("x",)]
    assert propose_groups(measured, {"item": 8}) == []
    assert propose_groups(measured, {"a": 4}) == []  # the inverse takes as much
