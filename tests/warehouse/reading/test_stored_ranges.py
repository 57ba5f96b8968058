"""The ranges of row groups hold the column chunks that a run reads of them, and no others that are far."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Table
from feedline.expressions import bind_where
from feedline.warehouse.reading.row_filter import RowFilter
from feedline.warehouse.reading.stored_ranges import stored_ranges
from feedline.warehouse.selection.fragments import plan_fragments
from feedline.warehouse.selection.select import screen_rows

ROWS = 200_000  # of a row group: columns of 1.6 MB, which are holes too large to read


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of two row groups, with columns of integers and a struct of two."""
    path = tmp_path_factory.mktemp("stored") / "table" / "0.parquet"
    path.parent.mkdir()
    names, rng = ["a", "b", "c", "x", "y"], np.random.default_rng(0)
    columns = {name: pa.array(rng.integers(0, 2**60, 2 * ROWS)) for name in names}
    columns["a"] = pa.array(np.arange(2 * ROWS))
    fields = [columns.pop("x"), columns.pop("y")]
    columns["s"] = pa.StructArray.from_arrays(fields, ["x", "y"])
    pq.write_table(pa.table(columns), path, row_group_size=ROWS, compression="none", use_dictionary=False)
    return path


@pytest.mark.parametrize(
    ("columns", "where", "leaves"),
    [
        (["b"], None, [{"b"}, {"b"}]),
        (["b", "s"], None, [{"b", "s.x", "s.y"}] * 2),
        (['s["y"]'], None, [{"s.y"}, {"s.y"}]),
        (["c"], f"b > {2**59}", [{"b", "c"}, {"b", "c"}]),
        (["c"], f"a >= {ROWS}", [{"c"}]),  # of the second one, whose statistics prove it
        (["c"], "a > 10", [{"a", "c"}, {"c"}]),
    ],
)
def test_ranges_are_the_column_chunks_that_are_read(
    table: Path, columns: list[str], where: str | None, leaves: list[set[str]]
) -> None:
    snapshot = Table(str(table.parent)).snapshot()
    bound = None if where is None else bind_where(where, snapshot.schema)
    selection = screen_rows(snapshot, bound)
    [fragment] = plan_fragments(snapshot, selection, 10 * ROWS)
    with fragment.open() as file:
        found = stored_ranges(file, fragment, columns, RowFilter(where=bound), snapshot.schema)
    metadata = pq.read_metadata(table)
    groups = [metadata.row_group(index) for index in fragment.row_groups]
    assert len(groups) == len(leaves)
    needed = [
        (chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size)
        for group, names in zip(groups, leaves, strict=True)
        for chunk in map(group.column, range(group.num_columns))
        if chunk.path_in_schema in names
    ]
    assert all(any(start <= low and high <= stop for start, stop in found) for low, high in needed)
    total = sum(high - low for low, high in needed)
    assert total <= sum(stop - start for start, stop in found) <= total + 100 * len(needed)
