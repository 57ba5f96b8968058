"""Filters over codes keep the rows that filters over values keep."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pytest
from conditions_of_rows import KINDS, VALUES, conditions
from hypothesis import given
from hypothesis import strategies as st

from feedline.expressions import bind_where
from feedline.native import parquet as native
from feedline.warehouse.reading import row_filter
from feedline.warehouse.reading.row_filter import EntryTruths, RowFilter, codable_columns
from feedline.warehouse.reading.sample import Sample, bind_sample


@pytest.fixture(autouse=True, scope="module")
def small_row_groups() -> Iterator[None]:
    """Row groups of few rows are read as those of many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_filter, "_LEAST_STRINGS", 0)
        patch.setattr(row_filter, "_LEAST_NUMBERS", 0)
        yield


@st.composite
def coded_rows(draw: st.DrawFn) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Rows of which some columns are codes, and the same with values. Entries may be unused, doubled or missing."""
    rows = draw(st.integers(0, 12))
    arrays, plain = [], []
    for name, kind in KINDS.items():
        entries = pa.array(draw(st.lists(st.sampled_from(VALUES[name]), max_size=6)), kind)
        numbers = draw(st.lists(st.none() | st.integers(0, max(len(entries) - 1, 0)), min_size=rows, max_size=rows))
        codes = pa.array(numbers if len(entries) else [None] * rows, draw(st.sampled_from([pa.uint16(), pa.int32()])))
        values = entries.take(codes)
        coded = kind != pa.bool_() and draw(st.booleans())
        arrays.append(pa.DictionaryArray.from_arrays(codes, entries) if coded else values)
        plain.append(values)
    return pa.RecordBatch.from_arrays(arrays, list(KINDS)), pa.RecordBatch.from_arrays(plain, list(KINDS))


@given(coded_rows(), conditions(), st.integers(0, 12))
def test_codes_keep_the_rows_that_values_keep(
    rows: tuple[pa.RecordBatch, pa.RecordBatch], condition: tuple[str, str], half: int
):
    coded, plain = rows
    where = bind_where(condition[0], plain.schema)
    codable = codable_columns(where)
    data = pa.RecordBatch.from_arrays(
        [(coded if name in codable else plain).column(name) for name in KINDS], list(KINDS)
    )
    frame = pl.from_arrow(plain)
    assert isinstance(frame, pl.DataFrame)
    expected = frame.select(where.polars.fill_null(False)).to_series().to_list()
    for compiled in {native.COMPILED, False}:
        truths = EntryTruths()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "COMPILED", compiled)
            found = [*truths.true_rows(data.slice(0, half), where), *truths.true_rows(data.slice(half), where)]
        assert found == expected


@pytest.mark.parametrize(
    ("text", "codable"),
    [
        ("i > 3 and s == 'a'", "is"),
        ("i > 3 and i + j < 9", ""),
        ("(i > 3 or not (s == 'a' and j is None)) and f < j", "is"),
        ("coalesce(i, 0) > 0 and coalesce(s, 'b') == 'b'", "is"),
        ("b and i in [1]", "bi"),
    ],
)
def test_columns_that_are_read_alone_may_be_codes(text: str, codable: str):
    schema = pa.schema(KINDS)
    assert codable_columns(bind_where(text, schema)) == set(codable)


def test_the_key_and_columns_that_another_condition_reads_together_are_values():
    schema = pa.schema(KINDS)
    where = bind_where("i > 1 and s == 'a' and f > 0", schema)
    sample = bind_sample(Sample(fraction=0.5, where="f < j", key=("s",)), schema)
    assert RowFilter(where=where).coded(1000) == {"i", "s", "f"}
    assert RowFilter(where=where, sample=sample).coded(1000) == {"i"}
    assert RowFilter(where=where, sample=sample, decide=False).coded(1000) == {"i", "s", "f"}
    assert RowFilter(where=where, sample=sample, decide=False, weigh=True).coded(1000) == {"i", "s"}
