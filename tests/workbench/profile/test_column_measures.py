"""Facts of single columns, compared with pandas and numpy; every type of Arrow is described."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.workbench.profile import column_measures
from feedline.workbench.profile.column_measures import (
    SampledColumn,
    count_distinct,
    frequent_values,
    histogram_of,
    measure_column,
    moments,
    number_facts,
    quantiles_of,
)
from feedline.workbench.profile.roles import role_of_type
from feedline.workbench.profile.table_facts import QUANTILES, ColumnProfile, ColumnRole

DAY = datetime.date(2024, 5, 17)
MOMENT = datetime.datetime(2024, 5, 17, 1, 2, 3)
WEIGHTED = pa.struct([("id", pa.int64()), ("weight", pa.float32())])
ODD_TYPES: list[tuple[pa.DataType, ColumnRole, list[object]]] = [
    (pa.null(), "unsupported", [None, None]),
    (pa.bool_(), "category", [True, None]),
    (pa.int8(), "numeric", [1, 2]),
    (pa.uint64(), "numeric", [2**64 - 1, 0]),
    (pa.float16(), "numeric", [np.float16(1.5), None]),
    (pa.float64(), "numeric", [float("nan"), float("inf")]),
    (pa.decimal128(38, 10), "numeric", [Decimal("1.5"), None]),
    (pa.decimal256(70, 2), "unsupported", [Decimal("1.5"), None]),
    (pa.string(), "string", ["a", ""]),
    (pa.large_string(), "string", ["a", None]),
    (pa.string_view(), "string", ["a", None]),
    (pa.binary(), "string", [b"\xff\x00", None]),
    (pa.large_binary(), "string", [b"", b"a"]),
    (pa.binary_view(), "string", [b"", b"a"]),
    (pa.binary(3), "string", [b"abc", None]),
    (pa.date32(), "time", [DAY, None]),
    (pa.date64(), "time", [DAY, None]),
    (pa.timestamp("s"), "time", [MOMENT, None]),
    (pa.timestamp("ns", "Europe/Berlin"), "time", [MOMENT, None]),
    (pa.time32("ms"), "unsupported", [datetime.time(1, 2), None]),
    (pa.time64("ns"), "unsupported", [datetime.time(1, 2), None]),
    (pa.duration("us"), "unsupported", [datetime.timedelta(1), None]),
    (pa.list_(pa.int64()), "list", [[1, None], None]),
    (pa.large_list(pa.string()), "list", [["a"], []]),
    (pa.list_(pa.bool_()), "list", [[True], [False, None]]),
    (pa.list_(pa.float32(), 2), "list", [[1.0, 2.0], None]),
    (pa.list_(pa.date32()), "nested", [[DAY], None]),
    (pa.list_(pa.list_(pa.int64())), "nested", [[[1]], None]),
    (pa.list_(WEIGHTED), "list", [[{"id": 1, "weight": 2.0}], None]),
    (pa.list_(pa.struct([("a", pa.int64())])), "nested", [[{"a": 1}], None]),
    (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]), "nested", [{"a": 1, "b": ["x"]}, None]),
    (pa.map_(pa.string(), pa.int64()), "nested", [[("k", 1)], None]),
    (pa.list_(pa.decimal256(70, 2)), "nested", [[Decimal("1.5")], None]),
]


def measure(values: pa.Array | pa.ChunkedArray, **changed: object) -> ColumnProfile:
    chunked = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    usual: dict[str, object] = {
        "field": pa.field("x", chunked.type),
        "values": chunked,
        "runs": np.zeros(len(chunked), np.int64),
        "borders": np.zeros(min(len(chunked), 1), np.int64),
        "whole": True,
        "table_rows": len(chunked),
    }
    return measure_column(SampledColumn(**{**usual, **changed}))


@pytest.mark.parametrize(("kind", "role", "values"), ODD_TYPES, ids=[str(kind) for kind, *_ in ODD_TYPES])
def test_every_type_is_described(kind: pa.DataType, role: ColumnRole, values: list[object]):
    by_type, reason = role_of_type(kind)
    assert by_type == role
    assert reason is not None or role not in ("nested", "unsupported")
    array = pa.array(values, kind)
    found = measure(array)
    assert found.type == str(kind)
    assert found.null_rate == array.null_count / 2
    empty = measure(array[:0])
    assert (empty.rows, empty.null_rate, empty.vocabulary) == (0, None, None)
    nothing = measure(pa.nulls(5, kind))
    assert nothing.all_null
    assert nothing.numbers is None


def test_a_type_that_no_op_takes_is_unsupported():
    kind = pa.month_day_nano_interval()
    assert role_of_type(kind) == ("unsupported", f"no op takes {kind}")


def test_decimals_and_integers_beyond_int64_have_numbers():
    found = measure(pa.array([Decimal("1.25"), Decimal("-3")], pa.decimal128(10, 2)))
    assert (found.numbers.min, found.numbers.max) == (-3.0, 1.25)
    found = measure(pa.array([2**64 - 1, 0], pa.uint64()))
    assert found.numbers.max == 2**64 - 1
    assert found.role == "category"


def test_strings_hold_no_values_unless_shown():
    values = pa.array(["secret"] * 3 + ["b"])
    assert "secret" not in repr(measure(values))
    assert measure(values, shown=True).frequent[0].value == "secret"
    assert measure(values).frequent[0].share == 0.75
    assert measure(values).string_bytes == (19 / 4, 6)


def test_dates_as_strings_are_like_times():
    found = measure(pa.array(["2024-01-05", "2023-12-31", None]))
    assert found.time_like is not None
    assert (found.first, found.last) == ("2023-12-31", "2024-01-05")
    assert measure(pa.array(["2024-01-05", "soon"])).time_like is None


def test_times_have_a_range_as_far_as_the_calendar_goes():
    found = measure(pa.array([MOMENT, None, datetime.datetime(2020, 1, 1)], pa.timestamp("us")))
    assert (found.first, found.last) == ("2020-01-01T00:00:00", "2024-05-17T01:02:03")
    beyond = measure(pa.array([2**60, 0], pa.int64()).cast(pa.timestamp("us")))
    assert beyond.role == "time"
    assert (beyond.first, beyond.last) == ("1970-01-01T00:00:00", "+38504-08-17T21:30:06.846976")


@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo", "US/Pacific"])
@pytest.mark.parametrize("day", ["0001-01-01", "9999-12-31", "+33658-01-01", "-30000-01-01"])
def test_sentinels_are_measured_in_every_unit_and_zone(zone: str | None, day: str):
    seconds = int(np.datetime64(day.removeprefix("+"), "s").astype(np.int64))
    end = "T00:00:00" + ("" if zone is None else "+00:00")
    expected = [text + end for _, text in sorted([(seconds, day), (0, "1970-01-01")])]
    for unit, factor in (("s", 1), ("ms", 10**3), ("us", 10**6)):
        found = measure(pa.array([seconds * factor] * 3 + [0], pa.timestamp(unit, zone)))
        assert [found.first, found.last] == expected
        assert [value.share for value in found.frequent] == [0.75, 0.25]
        assert found.reason is None


@pytest.mark.parametrize(("stored", "meant"), [("us", "ms"), ("ms", "us"), ("us", "s"), ("ns", "us"), ("ms", "s")])
def test_a_wrong_unit_is_found(stored: str, meant: str):
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[meant]
    seconds = 1_700_000_000 + np.arange(100) * 86_400
    found = measure(pa.array(seconds * per_second, pa.timestamp(stored)))
    ends = "most values lie between 2023-11-23 and 2024-02-11"
    assert found.reason == f"its unit may be wrong: as {meant} since 1970, {ends}"
    right = measure(pa.array(seconds * per_second, pa.timestamp(meant)))
    assert right.reason is None


def test_a_column_that_cannot_be_measured_says_why(monkeypatch: pytest.MonkeyPatch):
    def fail(*arguments: object) -> None:
        raise pl.exceptions.PanicException("out-of-range date\nand more")

    monkeypatch.setattr(column_measures, "count_distinct", fail)
    values = pa.chunked_array([pa.array([1, 2, 3])])
    column = SampledColumn(
        field=pa.field("x", pa.int64()),
        values=values,
        runs=np.zeros(3, np.int64),
        borders=np.zeros(1, np.int64),
        whole=True,
        table_rows=3,
    )
    found = column_measures.measure_any(column)
    assert (found.role, found.rows) == ("unsupported", 3)
    assert found.reason == "its values cannot be measured: PanicException: out-of-range date"


def test_lists_have_lengths_and_elements():
    lists = [[1, 2, 3], [], None, [2, None], [2] * 40]
    found = measure(pa.array(lists, pa.list_(pa.int32())))
    assert (found.lengths.max, found.lengths.empty_rate, found.lengths.mean) == (40, 0.25, 45 / 4)
    assert found.element_null_rate == 1 / 45
    assert found.vocabulary.sample == 3
    assert found.frequent[0].value == "2"
    assert found.element == "int32"


def test_lists_of_very_many_elements_are_counted_in_part():
    lists = pa.ListArray.from_arrays(np.arange(0, 3_000_001, 1000), pa.array(np.arange(3_000_000) % 7000))
    found = measure(lists)
    assert found.lengths.fixed == 1000
    assert found.vocabulary.sample == 7000


def test_repeats_are_counted_within_pieces():
    values = pa.chunked_array([pa.array([1, 1, 2]), pa.array([2, 2, None, None])])
    assert measure(values, borders=np.array([0, 3])).repeated == 3 / 5
    assert measure(pa.array([[1], [1], [2]]), borders=np.array([0])).repeated == 1 / 2


def test_constants_and_ids_are_marked():
    assert measure(pa.array([7, None, 7])).constant
    assert measure(pa.array([[], []], pa.list_(pa.int64()))).constant
    assert not measure(pa.array([7, 8])).constant
    assert measure(pa.array(np.arange(1000))).id_like
    assert not measure(pa.array(np.arange(1000) // 2)).id_like
    assert not measure(pa.array(np.random.default_rng(0).random(1000))).id_like  # numbers are distinct, but no ids


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=300))
def test_quantiles_are_those_of_the_inverted_distribution_function(values: list[int]):
    array = np.array(values)
    expected = [int(np.quantile(array, share, method="inverted_cdf")) for share in QUANTILES]
    assert list(quantiles_of(array, QUANTILES)) == expected


@pytest.mark.parametrize("seed", range(3))
def test_moments_are_those_of_scipy(seed: int):
    values = np.random.default_rng(seed).lognormal(size=5000)
    mean, std, skewness = moments(values)
    assert mean == pytest.approx(values.mean())
    assert std == pytest.approx(values.std())
    assert skewness == pytest.approx(scipy.stats.skew(values))


def test_a_constant_has_no_deviation():
    assert moments(np.full(1000, 0.1)) == (pytest.approx(0.1), 0.0, 0.0)
    assert moments(np.array([7])) == (7.0, 0.0, 0.0)


def test_moments_beyond_float64_are_unknown():
    assert moments(np.array([1e308, -1e308, 1e308])) == (pytest.approx(1e308 / 3), None, None)
    assert moments(np.array([], np.float64)) == (None, None, None)


def test_rates_are_of_values_that_are_not_null():
    facts = number_facts(pl.Series([0.0, -1.0, math.nan, math.inf, -math.inf, None, 2.0, None, 3.0, 4.0]))
    assert (facts.zero_rate, facts.negative_rate, facts.nan_rate, facts.inf_rate) == (1 / 8, 1 / 8, 1 / 8, 2 / 8)
    assert (facts.min, facts.max) == (-1.0, 4.0)


def test_lists_are_measured_by_their_elements():
    facts = number_facts(pl.Series([[1.0, math.nan], None, [], [3.0, None]]))
    assert (facts.min, facts.max, facts.nan_rate) == (1.0, 3.0, 1 / 3)


def test_a_column_of_nulls_has_no_numbers():
    assert number_facts(pl.Series([None, None], dtype=pl.Float32)) is None


def test_a_column_without_finite_numbers_has_rates():
    facts = number_facts(pl.Series([math.nan, math.inf]))
    assert (facts.min, facts.mean, facts.quantiles, facts.histogram) == (None, None, (), None)
    assert facts.nan_rate == 0.5


NUMBERS = st.one_of(
    st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=100).map(np.array),
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=100).map(lambda values: np.array(values, np.int64)),
    st.lists(st.integers(0, 5), min_size=1, max_size=100).map(lambda values: np.array(values, np.int64)),
)


@settings(max_examples=100, deadline=None)
@given(NUMBERS, st.sampled_from([0.0, 5.0, None]))
def test_histograms_count_every_number_once(values: np.ndarray, skewness: float | None):
    histogram = histogram_of(values, skewness)
    if histogram is None:
        return
    assert sum(histogram.counts) == len(values)
    assert len(histogram.edges) == len(histogram.counts) + 1
    assert list(histogram.edges) == sorted(histogram.edges)


def test_few_integers_have_a_bin_each():
    histogram = histogram_of(np.array([1, 1, 2, 4]), 0.0)
    assert histogram.counts == (2, 1, 0, 1)


def test_skewed_positive_numbers_have_growing_bins():
    values = np.random.default_rng(0).lognormal(sigma=2, size=10_000)
    histogram = histogram_of(values, 10.0)
    assert histogram.log
    ratios = np.diff(np.log(histogram.edges))
    assert np.allclose(ratios, ratios[0])
    assert max(histogram.counts) < 0.3 * len(values)  # in linear bins, nearly all would be in the first one


def test_numbers_far_out_do_not_flatten_the_others():
    values = np.append(np.random.default_rng(0).normal(size=10_000), [1e6, -1e6])
    histogram = histogram_of(values, 0.0)
    assert (histogram.edges[0], histogram.edges[-1]) == (-1e6, 1e6)
    assert max(histogram.counts) < 0.2 * len(values)


def test_zeros_of_skewed_numbers_have_a_bin_of_their_own():
    values = np.concatenate([np.zeros(100), np.random.default_rng(0).lognormal(sigma=3, size=100)])
    histogram = histogram_of(values, 10.0)
    assert histogram.log
    assert (histogram.edges[0], histogram.counts[0]) == (0.0, 100)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=200))
def test_counts_are_those_of_pandas(values: list[int | None]):
    distinct, counts = count_distinct(pl.Series(values, dtype=pl.Int64), None, len(values))
    expected = pd.Series([value for value in values if value is not None], dtype="int64").value_counts()
    assert dict(zip(counts["value"], counts["count"], strict=True)) == expected.to_dict()
    shares = [value.share for value in frequent_values(counts, shown=False)]
    assert shares == pytest.approx((expected / expected.sum()).head(5).to_list())
    assert (distinct.sample, distinct.table, distinct.error) == (len(expected), len(expected), 0.0)
    assert distinct.once == pytest.approx((expected == 1).mean() if len(expected) else 0.0)


def test_frequent_values_are_shown_on_request_alone():
    _, counts = count_distinct(pl.Series(["a", "b", "a", "c", "b", "a"]), None, 6)
    assert [value.share for value in frequent_values(counts, shown=False)] == [3 / 6, 2 / 6, 1 / 6]
    assert {value.value for value in frequent_values(counts, shown=False)} == {None}
    assert [value.value for value in frequent_values(counts, shown=True)] == ["a", "b", "c"]


def test_ties_are_in_the_order_of_values():
    _, counts = count_distinct(pl.Series(list("hgfedcba")), None, 8)
    assert [value.value for value in frequent_values(counts, shown=True)] == list("abcde")


def sampled(table: np.ndarray, places: int, rows: int) -> tuple[pl.Series, np.ndarray]:
    starts = np.linspace(0, len(table) - rows, places).astype(int)
    index = np.concatenate([np.arange(start, start + rows) for start in starts])
    return pl.Series(table[index]), np.repeat(np.arange(places), rows)


def test_the_estimate_for_equally_frequent_values_is_within_a_few_errors():
    values, runs = sampled(np.random.default_rng(0).integers(0, 20_000, 1_000_000), 20, 1000)
    distinct, _ = count_distinct(values, runs, 1_000_000)
    assert distinct.sample < 14_000
    assert abs(distinct.table - 20_000) < 4 * distinct.error * distinct.table
    assert distinct.error < 0.05


MILLION = 1_000_000
RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("table", "places", "once"),
    [
        pytest.param(RANDOM.integers(0, 50, MILLION), 20, 0.0, marks=pytest.mark.nightly),
        (RANDOM.integers(0, MILLION, MILLION), 20, None),  # a million users, of whom the rows have 632,000, not all
        (RANDOM.integers(0, MILLION, MILLION), 1, None),  # rows of one place alone are taken as drawn one by one
        (np.arange(MILLION), 20, 1.0),
        (np.repeat(np.arange(100_000), 10), 20, 0.0),  # sessions of 10 rows: hardly a value occurs once in the sample
    ],
)
def test_distinct_values_of_a_table_are_estimated(table: np.ndarray, places: int, once: float | None):
    values, runs = sampled(table, places, 60_000 // places)
    distinct, _ = count_distinct(values, runs, MILLION)
    assert distinct.table == pytest.approx(len(np.unique(table)), rel=0.05)
    assert once is None or distinct.once == pytest.approx(once, abs=0.01)


def test_nulls_are_no_values():
    values = pl.Series([None, 1, None, 2] * 10)
    distinct, counts = count_distinct(values, np.repeat(np.arange(4), 10), 40)
    assert distinct.sample == 2
    assert counts["count"].sum() == 20
