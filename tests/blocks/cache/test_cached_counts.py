"""Is what quality counts of a part of kept columns what it counts of these rows alone?"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.blocks.block_encoder import RowCounts
from feedline.blocks.cache.cached_features import facts_of, facts_of_part, quality_of, split_columns, with_row_counts
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.loader.encoding.quality import Observer
from feedline.transforms.values.lookup_counts import RowLookups
from feedline.warehouse.cache.cache_folder import CachedColumn

SCHEMA = BatchSchema(
    (
        SlotColumn(name="price", group="dense", dtype="float32", arrow="float", offset=0, on_nonfinite="zero"),
        SlotColumn(name="item", group="categorical", dtype="int64", arrow="int64", offset=0, lookups=2),
        SlotColumn(name="history", group="sparse", dtype="int64", arrow="int64", offset=0, lookups=1),
        SlotColumn(name="times", group="sparse", dtype="float32", arrow="float", offset=1),
        SlotColumn(
            name="bought", group="sparse", dtype="int64", arrow="int64", offset=2, weighted=True, on_nonfinite="zero"
        ),
    )
)
FLOATS = st.sampled_from([0.0, -0.0, 1.5, -2.25, float("nan"), float("inf"), float("-inf")])
COUNTS = st.integers(0, 1) | st.integers(0, 300) | st.integers(0, 70_000)


class FixedCounts(RowCounts):
    """Counts of rows that are given."""

    def __init__(self, nulls: np.ndarray[Any, Any], lookups: dict[str, list[RowLookups]]) -> None:
        super().__init__()
        self._null_rows, self._of_rows = nulls, lookups

    def nulls(self, name: str) -> np.ndarray[Any, Any] | None:
        return self._null_rows if name == "item" and self._null_rows.any() else None

    def lookups(self, name: str) -> list[RowLookups]:
        return self._of_rows.get(name, [])


def columns_of(rows: list[dict[str, Any]]) -> dict[str, CachedColumn]:
    """Columns of rows, and what is counted of them: nulls of `item`, lookups of `item` and `history`."""
    frame = pl.DataFrame(
        {
            "price": pl.Series([row["price"] for row in rows], dtype=pl.Float32),
            "item": pl.Series([row["item"] for row in rows], dtype=pl.Int64),
            "history": pl.Series([row["ids"] for row in rows], dtype=pl.List(pl.Int64)),
            "times": pl.Series([row["times"] for row in rows], dtype=pl.List(pl.Float32)),
            "bought": pl.DataFrame(
                {
                    "values": pl.Series([range(len(row["times"])) for row in rows], dtype=pl.List(pl.Int64)),
                    "weights": pl.Series([row["times"] for row in rows], dtype=pl.List(pl.Float32)),
                }
            ).to_struct(),
        }
    )
    raw = BatchSchema(tuple(SlotColumn(**(fields_of(column) | {"on_nonfinite": "keep"})) for column in SCHEMA))
    observer = Observer(raw, [()] * len(raw))
    observer.count_rows(frame)
    encoded = encode(frame, raw, observer)
    of_rows = {
        "item": [tuple(np.array([row["asked"][key][n] for row in rows]) for n in range(2)) for key in range(2)],
        "history": [(np.array([len(row["ids"]) for row in rows]), np.array([row["missed"] for row in rows]))],
    }
    for name, lookups in of_rows.items():
        observer.count_lookups(name, [(int(asked.sum()), int(missed.sum())) for asked, missed in lookups])
    nulls = np.array([row["null"] for row in rows])
    quality = observer.quality()
    quality.counts[0, 1] = nulls.sum()
    counts = FixedCounts(nulls, of_rows)  # type: ignore[arg-type]
    columns = split_columns(encoded, raw, facts_of(quality, raw))
    return {name: with_row_counts(column, name, counts) for name, column in columns.items()}


def fields_of(column: SlotColumn) -> dict[str, Any]:
    return {name: getattr(column, name) for name in SlotColumn.__dataclass_fields__}


ROW = st.fixed_dictionaries(
    {
        "price": FLOATS,
        "item": st.integers(-300, 300),
        "ids": st.lists(st.integers(0, 2**40), max_size=3),
        "times": st.lists(FLOATS, max_size=3),
        "null": st.booleans(),
        "asked": st.lists(st.tuples(COUNTS, COUNTS), min_size=2, max_size=2),
        "missed": COUNTS,
    }
)


@given(st.data())
@examples(150)
def test_counts_of_a_part_are_those_of_its_rows_alone(data: st.DataObject) -> None:
    """However often each stands for a row of the table."""
    rows = data.draw(st.lists(ROW, min_size=1, max_size=24))
    columns = columns_of(rows)
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    times = data.draw(st.lists(st.integers(1, 3), min_size=stop - start, max_size=stop - start))
    repeats = data.draw(st.sampled_from([None, np.array(times, np.int64)]))
    expanded = [
        row
        for row, often in zip(rows[start:stop], [1] * len(times) if repeats is None else times, strict=True)
        for _ in range(often)
    ]
    part = facts_of_part(columns, SCHEMA, start, stop, repeats)
    found = quality_of({name: CachedColumn({}, facts) for name, facts in part.items()}, SCHEMA, len(expanded))
    assert found.to_bytes() == quality_of(columns_of(expanded), SCHEMA, len(expanded)).to_bytes()


@pytest.mark.parametrize(
    ("counts", "size"), [([1, 1, 1], 0), ([0, 1, 1] * 8, 3), ([2, 255, 0], 3), ([256, 0, 1], 6), ([1, 0, 2], 0)]
)
def test_counts_of_rows_take_few_bytes(counts: list[int], size: int) -> None:
    """None where all rows have the same, or as many as values."""
    row = {"price": 0.0, "item": 1, "times": [], "null": False, "asked": [(1, 0), (1, 0)]}
    rows = [{**row, "ids": [0] * length, "missed": count} for length, count in zip([1, 0, 2] * 8, counts, strict=False)]
    column = columns_of(rows)["history"]
    kept = [array for name, array in column.arrays.items() if name not in ("offsets", "values", "codes", "table")]
    assert sum(array.nbytes for array in kept) == size
    assert json.loads(json.dumps(column.facts)) == column.facts
