"""Does an error about a value name the row of the file it stands in, whatever was left out before that row?"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from pipelines import furnished
from warehouse_samples import write

from feedline import Pipeline, Table
from feedline.errors import DataError
from feedline.expressions import bind_where
from feedline.warehouse.reading.fragment import Fragment, fragment_at, pack_mask
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.reading.row_position import kept_mask, row_in_file, with_row_position
from feedline.warehouse.reading.sample import Sample, bind_sample
from feedline.warehouse.selection.select import screen_rows, select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot

ROWS, GROUP = 100, 24


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """One file whose column `row` says which row it is."""
    x = [None if row % 7 == 3 else row % 10 for row in range(ROWS)]
    held = pa.table({"x": pa.array(x, pa.int64()), "row": range(ROWS)})
    return take_snapshot(write(tmp_path_factory.mktemp("places"), {"k=1/f.parquet": held}, row_group_size=GROUP))


def fragment_with(snapshot: Snapshot, rows: np.ndarray, left_out: list[np.ndarray] | None) -> Fragment:
    groups = np.arange(len(rows))
    fragment = fragment_at(snapshot, 0, groups, rows)
    if left_out is None:
        return fragment
    bits = tuple(pack_mask(mask[:count]) for mask, count in zip(left_out, rows.tolist(), strict=True) if count)
    return Fragment(**{**{name: getattr(fragment, name) for name in Fragment.__dataclass_fields__}, "excluded": bits})


@examples(20, by_day=5)
@given(
    st.sampled_from([None, "x > 4", "x is None", "k == 1", "row >= 30 and x != 2"]),
    st.sampled_from([None, {"fraction": 0.5}, {"fraction": 0.3, "where": "x < 5"}, {"fraction": 0.4, "key": "row"}]),
    st.booleans(),
    st.integers(1, 40),
    st.sampled_from([["row"], ["row", "sample_weight"], ["row", "k"]]),
)
def test_rows_are_found_again(
    table: Snapshot, text: str | None, asked: dict[str, Any] | None, masked: bool, chunk_rows: int, columns: list[str]
):
    where = None if text is None else bind_where(text, table.schema)
    sample = None if asked is None else bind_sample(Sample.of(asked), table.schema)
    if sample is None:
        columns = [name for name in columns if name != "sample_weight"]
    schema = table.schema if sample is None else table.schema.append(pa.field("sample_weight", pa.float32()))
    selection = select_rows(table, where, sample=sample, work_dir=f"{table.uri}/work")
    random = np.random.default_rng(chunk_rows)
    masks = [random.random(GROUP) < 0.3 for _ in selection.rows] if masked else None
    fragment = fragment_with(table, selection.rows, masks)
    request = ReadRequest(columns, schema, where, sample=sample, chunk_rows=chunk_rows)
    for chunk in read_fragment(fragment, request):
        for start, stop in ((0, chunk.frame.height), (chunk.frame.height // 2, chunk.frame.height)):
            part = chunk.part(start, stop)
            for row in {0, (stop - start) // 2, stop - start - 1}:
                assert row_in_file(part, row, request) == part.frame["row"][row]


def test_an_error_about_chunks_laid_end_to_end(table: Snapshot):
    where = bind_where("x > 4", table.schema)
    fragment = fragment_with(table, select_rows(table, where, work_dir=f"{table.uri}/work").rows, None)
    request = ReadRequest(["row"], table.schema, where)
    chunks = list(read_fragment(fragment, request))
    rows = pl.concat([chunk.frame for chunk in chunks])["row"].to_list()
    for row in range(len(rows)):
        error = with_row_position(DataError("wrong").at(row), chunks, request)
        assert str(error).startswith("wrong (file ")
        assert str(error).endswith(f"k=1/f.parquet, row group {rows[row] // GROUP}, row {rows[row]})")
    assert str(with_row_position(DataError("wrong"), chunks, request)).endswith("f.parquet, row group 0)")


def test_a_file_that_is_gone_by_then(tmp_path: Path):
    snapshot = take_snapshot(write(tmp_path, {"f.parquet": pa.table({"x": [1, 2]})}))
    [chunk] = read_fragment(fragment_with(snapshot, np.array([2]), None), ReadRequest(["x"], snapshot.schema))
    (tmp_path / "f.parquet").unlink()
    assert str(with_row_position(DataError("wrong").at(1), [chunk], ReadRequest((), snapshot.schema))).endswith(
        "f.parquet, row group 0)"
    )


FEATURES: dict[str, Any] = {"dense": {"x": [], "n": {"column": "text", "ops": [{"cast": "float32"}]}}}
BAD = 7_531  # a row of the file


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": None}, r"feature 'x' holds a null: got 1 nulls in [\d,]+ rows, expected none"),
        ({"text": "1.5?"}, r"feature 'n' of column 'text' cannot be computed \(cast\): .*1\.5\?"),
    ],
    ids=["a null in the batch", "a strict cast in the pass"],
)
@pytest.mark.parametrize(
    "settings",
    [
        {"shuffle": "off"},
        {"source": {"where": "row % 3 == 1"}, "shuffle": {"window_rows": 700}},
        {"source": {"sample": {"fraction": 0.5, "where": "row != 7531"}, "where": "row > 100"}, "lanes": 3},
    ],
    ids=["as it comes", "filtered and shuffled", "sampled in lanes"],
)
def test_errors_of_a_run_name_the_row(tmp_path: Path, changes: dict[str, Any], words: str, settings: dict[str, Any]):
    columns: dict[str, list[Any]] = {"x": [0.5] * 9000, "text": ["1.5"] * 9000, "row": list(range(9000))}
    for name, value in changes.items():
        columns[name][BAD] = value
    (tmp_path / "table").mkdir()
    # without statistics: nulls that footers tell of are said before the first batch
    pq.write_table(pa.table(columns), tmp_path / "table" / "f.parquet", row_group_size=1000, write_statistics=False)
    with furnished(tmp_path, tmp_path / "table") as place:
        rules = {**settings, "source": {"split_rows": 2000, **settings.get("source", {})}}
        path = place.write(features=FEATURES, batch={"size": 100, "tail": "partial"}, **rules)
        with pytest.raises(DataError) as caught:
            list(Pipeline.from_yaml(path).batches())
        assert re.search(words, str(caught.value))
        assert str(caught.value).endswith(f"f.parquet, row group {BAD // 1000}, row {BAD})")


def test_transform_names_the_row_of_its_input(tmp_path: Path):
    with furnished(tmp_path, tmp_path) as place:
        pipeline = Pipeline.from_yaml(place.write(features=FEATURES))
    given_rows = pa.table({"x": [0.5, 1.5, None], "text": ["1", "2", "x"]})
    with pytest.raises(DataError, match=r"feature 'n' of column 'text' .* \(row 2\)$"):
        pipeline.transform(given_rows)
    with pytest.raises(DataError, match=r"feature 'x' holds a null: got 1 nulls in 1 rows.* \(row 0\)$"):
        pipeline.transform(given_rows.slice(2).set_column(1, "text", pa.array(["1"])))


@pytest.mark.parametrize("where", [None, "x > 50", "row >= 100", "row < 50", "x > 20 and ds == 1"])
@pytest.mark.parametrize(
    "sample", [None, {"fraction": 0.5}, {"fraction": 0.5, "key": ["x"]}, {"fraction": 0.3, "where": "x < 70"}]
)
def test_the_mask_is_of_the_rows_that_are_read(tmp_path: Path, where: str | None, sample: dict[str, Any] | None):
    x = np.random.default_rng(1).integers(0, 100, 300)
    (tmp_path / "ds=1").mkdir()
    pq.write_table(pa.table({"row": np.arange(300), "x": x}), tmp_path / "ds=1" / "a.parquet", row_group_size=100)
    snapshot = Table(str(tmp_path)).snapshot()
    schema = snapshot.schema
    bound = None if where is None else bind_where(where, schema)
    chosen = Sample.of(sample)
    bound_sample = None if chosen is None else bind_sample(chosen, schema)
    selection = screen_rows(snapshot, bound, sample=bound_sample)
    for group in range(3):
        if not selection.rows[group]:
            continue
        fragment = selection.fragment(snapshot, np.array([group]))
        request = ReadRequest(["row"], schema, bound, sample=bound_sample)
        read = [chunk.frame for chunk in read_fragment(fragment, request)]
        rows = pl.concat(read)["row"].to_numpy() if read else np.zeros(0, np.int64)
        mask = kept_mask(fragment, request)
        assert len(mask) == 100
        assert np.array_equal(np.flatnonzero(mask) + 100 * group, rows)


def test_excluded_rows_are_not_kept(tmp_path: Path):
    pq.write_table(pa.table({"row": np.arange(10)}), tmp_path / "a.parquet")
    snapshot = Table(str(tmp_path)).snapshot()
    where = bind_where("row != 3", snapshot.schema)
    fragment = fragment_at(snapshot, 0, np.array([0]), np.array([9]))
    mask = kept_mask(
        replace(fragment, excluded=(pack_mask(np.arange(9) == 4),)), ReadRequest((), snapshot.schema, where)
    )
    assert np.flatnonzero(~mask).tolist() == [3, 5]
