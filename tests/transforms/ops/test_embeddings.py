"""embedding, and the arrays behind it: what zarr itself reads, in bounded memory, by however many threads."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from zarr_arrays import DATA, FORMS, WIDTH, N, made

from feedline.artifacts.external import read_external
from feedline.config.features import OpCall
from feedline.errors import DataError, SpecError
from feedline.transforms.ops import embeddings, resolve
from feedline.transforms.registry.op import OpContext, OpError
from feedline.transforms.values.kinds import Value


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arrays")
    for name, options in FORMS.items():
        made(folder / name, **options)
    return folder


# -- the op -------------------------------------------------------------------------------------------------------


def embedded(folder: Path, arguments: dict[str, Any], column: pl.Series) -> pl.Series:
    bound = resolve(OpCall(op="embedding", arguments=json.dumps(arguments)))
    assert bound.op.reads is not None
    context = OpContext(artifact=read_external(bound.op.reads(bound.parameters), str(folder)))
    value = bound.apply(Value(expr=pl.col("c"), dtype=column.dtype), context)
    assert value.lookup is not None
    frame = pl.DataFrame({"c": column}).lazy().with_columns(value.lookup.ids)
    found = frame.select(value.expr).collect(engine="in-memory").to_series()
    assert found.dtype == value.dtype == pl.Array(pl.Float32, WIDTH)
    return found


ROWS = st.one_of(st.none(), st.integers(-2, N + 1), st.sampled_from([-(2**63), 2**63 - 1]))


@examples(60)
@given(st.lists(ROWS, max_size=30), st.sampled_from(["compressed", "bare", "bare, one chunk"]))
def test_ids_are_rows(arrays: Path, ids: list[int | None], form: str):
    expected = [DATA[row].tolist() if row is not None and 0 <= row < N else [0.0] * WIDTH for row in ids]
    series = pl.Series(ids, dtype=pl.Int64)
    assert embedded(arrays, {"array": form}, series).to_list() == expected
    assert embedded(arrays, {"array": form}, series[3:]).to_list() == expected[3:]


@examples(60)
@given(st.lists(st.one_of(st.none(), st.lists(ROWS, max_size=9)), max_size=12), st.sampled_from(["mean", "sum"]))
def test_lists_are_pooled(arrays: Path, lists: list[Any], pooling: str):
    expected = []
    for row in lists:
        known = [DATA[place].astype(np.float64) for place in row or () if place is not None and 0 <= place < N]
        total = np.sum(known, axis=0) if known else np.zeros(WIDTH)
        expected.append(total / max(len(known), 1) if pooling == "mean" else total)
    series = pl.Series(lists, dtype=pl.List(pl.Int64))
    found = embedded(arrays, {"array": "bare", "pooling": pooling}, series)
    np.testing.assert_allclose(found.to_numpy(), np.array(expected).reshape(-1, WIDTH), rtol=1e-6)


def test_parts_of_a_column_match_the_whole(arrays: Path, monkeypatch: pytest.MonkeyPatch):
    random = np.random.default_rng(3)
    lists = pl.Series([random.integers(0, N, random.integers(0, 9)).tolist() for _ in range(200)])
    arguments = {"array": "compressed", "pooling": "mean"}
    whole = embedded(arrays, arguments, lists).to_list()
    cuts = [0, 1, 8, 64, 200]
    assert [row for i, j in pairwise(cuts) for row in embedded(arrays, arguments, lists[i:j]).to_list()] == whole
    monkeypatch.setattr(embeddings, "_POOLED_VALUES", 7 * WIDTH)
    assert embedded(arrays, arguments, lists).to_list() == whole


@pytest.mark.parametrize("named", ["numbers", "words"])
def test_ids_that_name_rows(arrays: Path, tmp_path: Path, named: str):
    numbers = np.random.default_rng(4).permutation(10 * N)[:N] - 50
    held: list[Any] = [None if place == 3 else number for place, number in enumerate(numbers.tolist())]
    held = held if named == "numbers" else [None if number is None else f"w{number}" for number in held]
    pq.write_table(pa.table({"id": held}), tmp_path / "ids.parquet")
    asked = [*held[:20], "none" if named == "words" else 10**9, None]
    expected = [DATA[place].tolist() if key is not None else [0.0] * WIDTH for place, key in enumerate(held[:20])]
    arguments = {"array": str(arrays / "bare"), "ids": "ids.parquet"}
    found = embedded(tmp_path, arguments, pl.Series(asked))
    assert found.to_list() == [*expected, [0.0] * WIDTH, [0.0] * WIDTH]
    if named == "numbers":
        zarr.create_array(store=str(tmp_path / "ids"), shape=(N,), chunks=(64,), dtype="i4")[:] = numbers
        found = embedded(tmp_path, {**arguments, "ids": "ids"}, pl.Series(numbers[::-1].astype(np.int16)))
        assert np.array_equal(found.to_numpy(), DATA[::-1])


def test_a_missing_id_may_be_an_error(arrays: Path):
    arguments = {"array": "bare", "missing": "error"}
    assert embedded(arrays, arguments, pl.Series([1, 2])).to_list() == DATA[1:3].tolist()
    with pytest.raises(DataError, match=r"bare has no row for an id: got 1000\. Write `missing: zero`"):
        embedded(arrays, arguments, pl.Series([1, 1000]))
    with pytest.raises(DataError, match="got None"):
        embedded(arrays, {**arguments, "pooling": "sum"}, pl.Series([[1], [2, None]]))


@pytest.mark.parametrize(
    ("arguments", "column", "message"),
    [
        (
            {"array": "bare"},
            pl.Series([[1]]),
            "embedding: a list of ids needs pooling: got integer list. Write `pooling: mean`",
        ),
        ({"array": "bare", "pooling": "sum"}, pl.Series([1]), "pooling needs lists: got integer. Leave pooling out"),
        ({"array": "bare"}, pl.Series(["a"]), "without ids, an id is a row.s number: got strings"),
        ({"array": "bare"}, pl.Series([0.5]), "embedding takes integers or strings, or lists of them: got float"),
        ({"array": "bare", "pooling": "max"}, pl.Series([[1]]), "pooling must be 'mean' or 'sum'"),
        ({"array": "bare", "ids": "ids.parquet"}, pl.Series(["a"]), "keys must be integers or strings on both sides"),
        (
            {"array": "bare", "ids": "twice.parquet"},
            pl.Series([1]),
            "has 1 keys in several rows: got id 5 in rows 0 and 1",
        ),
    ],
)
def test_wrong_inputs_are_refused(arrays: Path, arguments: dict[str, Any], column: pl.Series, message: str):
    pq.write_table(pa.table({"id": range(N)}), arrays / "ids.parquet")
    pq.write_table(pa.table({"id": [5, 5, *range(6, N + 4)]}), arrays / "twice.parquet")
    with pytest.raises(OpError, match=message):
        embedded(arrays, arguments, column)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"array": "nothing"},
            "nothing is not a zarr array: got nothing there, expected a folder with zarr.json or .zarray",
        ),
        ({"array": "short.parquet"}, "short.parquet is not a zarr array: got a file"),
        ({"array": "."}, "is not a zarr array: got a folder without zarr.json or .zarray. Name the array's folder"),
        ({"array": "group"}, "group is a zarr group, expected an array. Name one of the arrays in it"),
        (
            {"array": "flat"},
            r"flat holds no vectors: got float32 of shape \(5,\), expected numbers of shape \[ids, width\]",
        ),
        ({"array": "dates"}, "dates holds no vectors: got datetime64"),
        ({"array": "broken"}, "broken is not a readable zarr array"),
        (
            {"array": "compressed", "max_memory": 1000},
            "chunks larger than max_memory: got 1,536 bytes for 64 rows, expected",
        ),
        ({"array": "bare", "ids": "short.parquet"}, "and its ids do not belong together: got 3 ids, expected 1,000"),
        ({"array": "bare", "ids": "short.parquet", "ids_column": "di"}, "short.parquet has no column 'di'. It has id"),
        ({"array": "bare", "ids": "none.parquet"}, "none.parquet does not exist"),
        (
            {"array": "bare", "ids": "compressed"},
            r"compressed holds no ids: got float32 of shape \(1000, 6\), expected int",
        ),
        (
            {"array": "bare", "ids": "long", "max_memory": 100},
            "long is larger than max_memory: got 8,000 bytes or more",
        ),
    ],
)
def test_unreadable_arrays_are_refused(arrays: Path, arguments: dict[str, Any], message: str):
    if not (arrays / "group").exists():
        zarr.create_group(str(arrays / "group")).create_array("a", shape=(5, 2), dtype="f4")
        zarr.create_array(store=str(arrays / "flat"), shape=(5,), dtype="f4")
        zarr.create_array(store=str(arrays / "long"), shape=(N,), dtype="i8")[:] = np.arange(N)
        zarr.create_array(store=str(arrays / "dates"), shape=(5, 2), dtype="M8[s]", zarr_format=2)
        pq.write_table(pa.table({"id": [1, 2, 3]}), arrays / "short.parquet")
        (arrays / "broken").mkdir()
        (arrays / "broken" / "zarr.json").write_text("{}")
    with pytest.raises(SpecError, match=message):
        embedded(arrays, arguments, pl.Series([1]))
