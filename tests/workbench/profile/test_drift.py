"""Drift between tables and between parts of one: what changed comes first, what did not is small."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.workbench.profile.drift import (
    TableDrift,
    bin_numbers,
    bin_values,
    compare_tables,
    distance,
    missing_share,
    stability_index,
)
from feedline.workbench.profile.table_sample import ProfileOptions

ROWS = 3000


def columns(seed: int, **changed: object) -> dict[str, object]:
    random = np.random.default_rng(seed)
    usual: dict[str, object] = {
        "row_id": np.arange(ROWS) + seed * ROWS,
        "price": random.lognormal(size=ROWS),
        "shop_id": random.integers(0, 50, ROWS),
        "user_id": random.integers(0, 10**9, ROWS),
        "color": random.choice(["red", "green", "blue"], ROWS),
        "history": [[1] * int(length) for length in random.integers(0, 9, ROWS)],
        "t": pa.array((np.arange(ROWS) + seed * 10**6) * 10**6, pa.timestamp("us")),
        "nested": pa.array([{"a": 1}] * ROWS),
        "nothing": pa.nulls(ROWS, pa.int64()),
    }
    return {**usual, **changed}


def table(path: Path, content: dict[str, object]) -> str:
    path.mkdir(parents=True)
    pq.write_table(
        pa.table({name: values for name, values in content.items() if values is not None}), path / "a.parquet"
    )
    return str(path)


def drift(tmp_path: Path, **changed: object) -> TableDrift:
    base, other = table(tmp_path / "base", columns(1)), table(tmp_path / "other", columns(2, **changed))
    found = compare_tables(base, other, ProfileOptions(), ProfileOptions())
    json.dumps(found.to_json(), allow_nan=False)
    return found


def test_equal_distributions_do_not_drift(tmp_path: Path):
    found = drift(tmp_path)
    assert {column.name for column in found.columns} == set(columns(1))
    assert not found.above(0.1)
    by_name = {column.name: column for column in found.columns}
    assert by_name["color"].new == 0
    assert by_name["user_id"].new is None  # a sample cannot tell which of so many values are new


RANDOM = np.random.default_rng(7)
CHANGES = {
    "price": RANDOM.lognormal(1, size=ROWS),
    "shop_id": RANDOM.integers(50, 100, ROWS),
    "color": RANDOM.choice(["red", "green", "pink"], ROWS),
    "history": [[1] * int(length) for length in RANDOM.integers(5, 20, ROWS)],
    "t": pa.array([None if index % 2 else index for index in range(ROWS)], pa.timestamp("us")),
    "nested": pa.array([None] * ROWS, pa.struct([("a", pa.int64())])),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_column_comes_first(tmp_path: Path, name: str):
    found = drift(tmp_path, **{name: CHANGES[name]})
    assert [column.name for column in found.above(0.25)] == [name]
    assert found.columns[0].name == name


def test_measures_name_what_changed(tmp_path: Path):
    found = {column.name: column for column in drift(tmp_path, **CHANGES).columns}
    assert found["price"].ks is not None
    assert found["price"].ks > 0.3
    assert found["price"].mean[1] > found["price"].mean[0]
    assert (found["shop_id"].new, found["shop_id"].vanished) == (1, 1)
    assert found["color"].new == pytest.approx(1 / 3, abs=0.05)
    assert found["t"].nulls == (0, 0.5)
    assert found["history"].length[1] > found["history"].length[0]


def test_columns_that_cannot_be_compared_come_first(tmp_path: Path):
    found = drift(tmp_path, color=None, price=["a"] * ROWS, more=np.arange(ROWS))
    notes = {column.name: column.note for column in found.columns[:3]}
    assert notes == {
        "color": "only in the base",
        "more": "only in the other",
        "price": "double in the base, string in the other",
    }
    assert len(found.above(100)) == 3


def test_two_days_of_one_table(tmp_path: Path):
    for day in (1, 2):
        table(tmp_path / f"ds={day}", columns(day, price=RANDOM.lognormal(day, size=ROWS)))
    options = [ProfileOptions(where=f"ds == {day}") for day in (1, 2)]
    found = compare_tables(str(tmp_path), str(tmp_path), *options)
    assert [column.name for column in found.above(0.25)] == ["price"]
    assert "ds" not in {column.name for column in found.columns}
    assert found.base.selected_rows == found.other.selected_rows == ROWS


def test_the_stability_index_is_a_symmetric_divergence():
    base, other = np.array([600, 300, 100]), np.array([300, 300, 400])
    p, q = (base + 0.5) / 1001.5, (other + 0.5) / 1001.5
    expected = scipy.stats.entropy(p, q) + scipy.stats.entropy(q, p)
    assert stability_index(base, other) == pytest.approx(expected)
    assert stability_index(base, other) == pytest.approx(stability_index(other, base))
    assert stability_index(base, base * 7) == pytest.approx(0, abs=1e-5)
    assert stability_index(base, np.zeros(3, np.int64)) == 0
    assert math.isfinite(stability_index(np.array([5, 0]), np.array([0, 5])))


@pytest.mark.parametrize("seed", range(3))
def test_the_distance_is_that_of_kolmogorov_and_smirnov(seed: int):
    random = np.random.default_rng(seed)
    base, other = np.round(random.normal(size=500), 1), np.round(random.normal(0.3, size=300), 1)
    assert distance(base, other) == pytest.approx(scipy.stats.ks_2samp(base, other).statistic)
    assert distance(base, base) == 0
    assert distance(base, base[:0]) is None


NUMBERS = st.lists(st.integers(-5, 5) | st.floats(-1e9, 1e9), max_size=60).map(lambda values: np.array(values, float))


@settings(max_examples=80, deadline=None)
@given(NUMBERS, NUMBERS, st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_bins_hold_every_number_once(base: np.ndarray, other: np.ndarray, nulls: tuple[int, int]):
    bins = bin_numbers(base, other, nulls)
    assert len(bins.labels) == len(bins.base) == len(bins.other)
    assert (sum(bins.base), sum(bins.other)) == (len(base) + nulls[0], len(other) + nulls[1])
    assert (bins.base[-1], bins.other[-1]) == nulls


def test_bins_of_continuous_numbers_are_tenths():
    base = np.random.default_rng(0).normal(size=10_000)
    assert np.allclose(bin_numbers(base, base, (0, 0)).base[:-1], 1000, atol=1)


def test_a_shift_of_numbers_is_seen_and_a_resample_is_not():
    random = np.random.default_rng(0)
    base, same, moved = random.normal(size=5000), random.normal(size=5000), random.normal(1, size=5000)
    assert bin_numbers(base, same, (0, 0)).psi < 0.02
    assert bin_numbers(base, moved, (0, 0)).psi > 0.5
    assert bin_numbers(np.ones(1000), np.full(1000, 2.0), (0, 0)).psi > 1
    assert bin_numbers(base, base, (0, 2000)).psi > 0.25


def test_values_are_counted_by_the_base():
    base, other = pl.Series(["a", "a", "b", None]), pl.Series(["a", "c", "c", None, None])
    bins = bin_values(base, other, complete=True)
    assert bins.labels == ("value 1", "value 2", "others", "new", "null")
    assert bins.base == (2, 1, 0, 0, 1)
    assert bins.other == (1, 0, 0, 2, 2)
    assert bin_values(base, other, complete=False).other == (1, 0, 2, 2)


def test_rare_values_are_one_bin():
    base = pl.Series([*range(20)] * 10 + [*range(100, 150)])
    bins = bin_values(base, pl.Series([100, 999]), complete=True)
    assert bins.base[-3:] == (50, 0, 0)
    assert bins.other[-3:] == (1, 1, 0)


def test_missing_values_have_a_share():
    assert missing_share(pl.Series([1, 2, 3, None]), pl.Series([1, 1])) == pytest.approx(2 / 3)
    assert missing_share(pl.Series([], dtype=pl.Int64), pl.Series([1])) == 0
