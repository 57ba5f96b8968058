"""Golden rows are the first of splits spread over the table, as far as every feature accepts them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from recorded_vectors import ROWS, recorded, written

from feedline.errors import DataError
from feedline.planning.table_features import artifact_set_key
from feedline.serving.encoder import Serving
from feedline.serving.golden_check import ROWS_OF_SPLIT, load_golden, rows_that_encode


def test_rows_are_the_first_of_each_split(path: Path, folder: str):
    _, _, made = recorded(path)
    expected = [row for part in range(3) for row in range(80 * part, 80 * part + ROWS_OF_SPLIT)]
    names = made.rows.schema.names
    assert made.rows.equals(ROWS.take(pa.array(expected)).select(names))


def test_rows_pass_the_filter_of_training(path: Path, folder: str):
    _, _, made = recorded(path, **{"source.where": "number >= 100 and item > 0"})
    assert 0 < made.rows.num_rows < 3 * ROWS_OF_SPLIT
    assert min(made.rows["item"].to_pylist()) > 0


def test_rows_that_a_feature_refuses_are_left_out(tmp_path: Path, table: Path, folder: str):
    price = [{"fill_null": 0}]
    _, _, made = recorded(written(tmp_path, table, dense={"price": price, "scores": [{"vector": 2}]}))
    assert made.rows.num_rows == 3 * ROWS_OF_SPLIT // 4
    assert {len(row) for row in made.rows["scores"].to_pylist()} == {2}
    spec, _, made = recorded(written(tmp_path, table, dense={"price": price, "scores": [{"vector": 5}]}))
    assert made is None
    assert load_golden(folder, artifact_set_key(spec), Serving(spec).features) is None


@pytest.mark.parametrize("bad", [[], [0], [2, 3], [0, 1, 2, 3]])
def test_rows_are_tried_together_and_then_one_by_one(bad: list[int]):
    rows = pa.table({"x": [0, 1, 2, 3]})
    asked: list[int] = []

    def encode(part: pa.Table) -> None:
        asked.append(part.num_rows)
        if set(bad) & set(part["x"].to_pylist()):
            raise DataError("no")

    assert rows_that_encode(rows, encode)["x"].to_pylist() == [row for row in range(4) if row not in bad]
    assert asked == ([4, 1, 1, 1, 1] if bad else [4])


def test_other_errors_than_those_of_values_are_raised():
    def encode(part: pa.Table) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        rows_that_encode(pa.table({"x": [1]}), encode)
    assert rows_that_encode(pa.table({"x": pa.array([], pa.int64())}), encode).num_rows == 0
