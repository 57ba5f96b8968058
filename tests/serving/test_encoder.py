"""Serving gives the bytes of training for rows in any form, and refuses wrong rows."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline import Pipeline
from feedline.config import load_spec
from feedline.errors import DataError, SpecError
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.row_arrays import Encoded
from feedline.serving.encoder import Serving

FEATURES: dict[str, Any] = {
    "dense": {"price": [{"fill_null": 0}, "log1p"], "vector": [], "size": {"expr": 'user["size"]', "ops": []}},
    "categorical": {"item": [{"hash_bucket": 1000}], "word": [{"hash_bucket": 50}]},
    "sparse": {"ids": [{"first_x": 3}, {"modulo": 10}], "pairs": [], "scores": []},
    "label": {"clicked": []},
}
USER = pa.struct([("size", pa.int16()), ("age", pa.int8())])
SCHEMA = pa.schema(
    {
        "price": pa.float32(),
        "vector": pa.list_(pa.float32(), 2),
        "user": USER,
        "item": pa.int32(),
        "word": pa.string(),
        "ids": pa.list_(pa.int64()),
        "pairs": pa.list_(pa.struct([("id", pa.int64()), ("weight", pa.float32())])),
        "scores": pa.list_(pa.float32()),
    }
)
ROWS: dict[str, list[Any]] = {
    "price": [0.1, None, 2.5, 1e9],
    "vector": [[0.5, 1.0], [2.0, 3.0], [-1.0, 0.0], [0.1, 0.2]],
    "user": [{"size": 3, "age": 1}, {"size": -4, "age": None}, {"size": 5, "age": 2}, {"size": 0, "age": 0}],
    "item": [1, -5, 2**31 - 1, 0],
    "word": ["a", "", "Zürich", "a name of more than twelve bytes"],
    "ids": [[1, 12, 23, 34], [], None, [-1]],
    "pairs": [[{"id": 5, "weight": 0.5}], None, [], [{"id": 7, "weight": 2.0}, {"id": 8, "weight": 0.1}]],
    "scores": [[0.1], [], None, [1.5, 2.5]],
}
TABLE = pa.table(ROWS, schema=SCHEMA)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("p") / "p.yaml"
    document = {"version": 1, "name": "p", "source": {"table": "none"}, "features": FEATURES, "batch": {"size": 8}}
    path.write_text(json.dumps(document))
    return path


def arrays(encoded: Encoded) -> dict[str, Any]:
    found: dict[str, Any] = {"dense": encoded.dense, "categorical": encoded.categorical}
    for name, held in encoded.sparse.items():
        found |= {f"{name} values": held.values, f"{name} offsets": held.offsets, f"{name} lengths": held.lengths}
        if held.weights is not None:
            found[f"{name} weights"] = held.weights
    return found


def same_bits(one: Encoded, other: Encoded) -> bool:
    left, right = arrays(one), arrays(other)
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype
        and left[name].shape == right[name].shape
        and np.ascontiguousarray(left[name]).tobytes() == np.ascontiguousarray(right[name]).tobytes()
        for name in left
    )


def trained(path: Path) -> Serving:
    return Serving(load_spec(path, {}), types=SCHEMA)


def test_rows_come_in_any_container(path: Path):
    pipeline = Pipeline.from_yaml(path)
    expected = pipeline.transform(TABLE)
    assert expected.rows == 4
    assert expected.names["dense"] == ("price", "vector", "size")
    frame = pl.from_arrow(TABLE)
    halves = pa.concat_tables([TABLE[:1], TABLE[1:]])
    columns = {name: TABLE[name] for name in SCHEMA.names}
    series = {name: frame[name] for name in SCHEMA.names}
    for given_rows in (TABLE.combine_chunks().to_batches()[0], frame, halves, columns, series):
        assert same_bits(pipeline.transform(given_rows), expected)


def test_rows_come_in_any_python_form(path: Path):
    """Each form is compared with an Arrow table of the same values."""
    serving, rows = trained(path), TABLE.to_pylist()
    expected = serving.transform(TABLE)
    frame = pl.from_arrow(TABLE)
    assert isinstance(frame, pl.DataFrame)
    given: list[Any] = [rows, tuple(rows), frame.lazy(), TABLE.to_pandas(), TABLE.to_pandas(types_mapper=pd.ArrowDtype)]
    given.append(frame.to_pandas(use_pyarrow_extension_array=False))
    given.append(_Stream(TABLE))
    given.append({name: TABLE.to_pandas()[name] for name in SCHEMA.names})
    for one in given:
        assert same_bits(serving.transform(one), expected)
    for place, row in enumerate(rows):
        alone = serving.transform(TABLE[place : place + 1])
        assert same_bits(serving.transform(row), alone)
        arrays = {name: np.array(value) if name == "vector" else value for name, value in row.items()}
        assert same_bits(serving.transform(arrays), alone)
        assert same_bits(serving.transform([row]), alone)
    assert same_bits(serving.transform([]), serving.transform(TABLE[:0]))
    with pytest.raises(DataError, match="an empty list has no columns"):
        Pipeline.from_yaml(path).transform([])


class _Stream:
    """A table of another library, which exports the Arrow C stream interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_pandas_writes_integers_with_holes_as_floats(path: Path):
    serving = trained(path)
    frame = TABLE.to_pandas()
    holes = frame.assign(item=frame["item"].astype(float)).drop(columns=["price"])
    holes["price"] = [0.1, np.nan, 2.5, 1e9]
    assert same_bits(serving.transform(holes), serving.transform(TABLE))
    with pytest.raises(DataError, match="column 'item' holds values of another type: expected int32"):
        serving.transform(holes.assign(item=[0.5, 1, 2, 3]))
    with pytest.raises(DataError, match="a pandas frame has a column twice: got 'item'"):
        serving.transform(pd.concat([frame, frame[["item"]]], axis=1))


def test_rows_of_lists_alone(tmp_path: Path):
    """A dict of lists holds columns for any types of training; a list of one dict is one row."""
    path = tmp_path / "p.yaml"
    features = {"sparse": {"ids": [], "scores": []}}
    document = {"version": 1, "name": "p", "source": {"table": "none"}, "features": features, "batch": {"size": 8}}
    path.write_text(json.dumps(document))
    row = {"ids": [1, 2], "scores": [0.5]}
    serving = Serving(load_spec(path, {}), types=pa.schema([SCHEMA.field("ids"), SCHEMA.field("scores")]))
    expected = serving.transform({"ids": [[1, 2]], "scores": [[0.5]]})
    assert same_bits(serving.transform([row]), expected)
    assert expected.sparse["ids"].values.tolist() == [1, 2]
    with pytest.raises(DataError, match=r"write one row of lists as \[row\]"):
        serving.transform(row)


def test_encoded_rows_have_the_interface_of_a_batch(path: Path):
    """Names, shapes, types and values; the tensors are copies of the arrays."""
    encoded = Pipeline.from_yaml(path).transform(TABLE)
    batch = encoded.to_batch()
    assert batch.schema is encoded.schema
    assert (batch.rows, len(batch)) == (encoded.rows, len(encoded)) == (4, 4)
    for name in ("dense", "categorical", "labels", "valid"):
        tensor, array = getattr(batch, name), getattr(encoded, name)
        assert (tensor.numpy().dtype, tuple(tensor.shape)) == (array.dtype, array.shape)
        assert np.array_equal(tensor.numpy(), array)
    assert list(batch.sparse) == list(encoded.sparse)
    assert dict(batch.extra) == encoded.extra == {}
    assert list(batch.to_dict()) == list(encoded.to_dict()) == [column.name for column in encoded.schema]
    for column in encoded.schema:
        given, made = encoded[column.name], batch[column.name]
        if column.group != "sparse":
            assert np.array_equal(made.numpy(), given)
            assert given.shape == tuple(made.shape)
            continue
        assert len(given) == len(made) == 4
        for name in ("values", "lengths", "offsets"):
            assert np.array_equal(getattr(made, name).numpy(), getattr(given, name))
            assert getattr(made, name).numpy().dtype == getattr(given, name).dtype
        assert (given.weights is None) == (made.weights is None)
        assert given.weights is None or np.array_equal(made.weights.numpy(), given.weights)
    for holder in (encoded, batch):
        with pytest.raises(KeyError, match=r"no feature 'prize'.*expected one of price"):
            holder["prize"]
    assert Pipeline.from_yaml(path).transform(TABLE[:0]).to_batch().rows == 0


def test_values_without_types_get_those_of_training(path: Path):
    numbers = {
        "price": np.array([0.1, np.nan, 2.5, 1e9]),  # float64
        "vector": np.array(ROWS["vector"]),  # two dimensions
        "item": np.array(ROWS["item"]),
    }
    valid = TABLE.set_column(0, SCHEMA.field(0), pa.array(numbers["price"].astype(np.float32)))
    assert same_bits(trained(path).transform({**ROWS, **numbers}), trained(path).transform(valid))
    assert same_bits(trained(path).transform(ROWS), trained(path).transform(TABLE))


OTHERS: dict[str, pa.DataType] = {
    "price": pa.float64(),
    "vector": pa.large_list(pa.float64()),
    "user": pa.struct([("other", pa.string()), ("size", pa.int64())]),
    "item": pa.uint64(),
    "word": pa.large_string(),
    "ids": pa.large_list(pa.int32()),
    "pairs": pa.large_list(pa.struct([("weight", pa.float64()), ("id", pa.int32())])),
    "scores": pa.list_(pa.float64()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_columns_of_other_types_become_those_of_training(path: Path, name: str):
    """A float64 rounds to the float32 that the table stores of the same number."""
    values = [None if value is not None and name == "item" and value < 0 else value for value in ROWS[name]]
    place = SCHEMA.get_field_index(name)
    values = [7 if name == "item" and value is None else value for value in values]
    expected = TABLE.set_column(place, SCHEMA.field(place), pa.array(values, SCHEMA.field(place).type))
    given_rows = TABLE.set_column(place, pa.field(name, OTHERS[name]), pa.array(values, OTHERS[name]))
    serving = trained(path)
    for rows in (given_rows, pl.from_arrow(given_rows), given_rows.to_batches()[0]):
        assert same_bits(serving.transform(rows), serving.transform(expected))


def test_without_recorded_types_the_logarithm_of_a_double_differs(path: Path):
    """The purpose of recorded types: a logarithm rounded afterwards differs in the last bit."""
    prices = np.random.default_rng(0).random(1000)
    rows = pa.table(
        {**{name: [ROWS[name][0]] * 1000 for name in SCHEMA.names}, "price": prices},
        schema=SCHEMA.set(0, pa.field("price", pa.float64())),
    )
    narrow = rows.set_column(0, SCHEMA.field(0), rows["price"].cast(pa.float32()))
    untold = Pipeline.from_yaml(path)
    assert (untold.transform(rows).dense[:, 0] != untold.transform(narrow).dense[:, 0]).any()
    assert same_bits(trained(path).transform(rows), trained(path).transform(narrow))


def test_source_where_does_not_drop_nulls_in_serving(path: Path):
    with pytest.raises(DataError) as caught:
        Serving(load_spec(path, {"features.dense": {"price": []}})).transform({**ROWS, "price": [None, 1.0, 2.0, 3.0]})
    words = "feature 'price' holds a null: got 1 nulls in 4 rows, expected none. Add fill_null to its ops (row 0)"
    assert str(caught.value) == words


def test_dictionaries_and_null_columns(path: Path):
    place = SCHEMA.get_field_index("word")
    coded = TABLE.set_column(place, "word", TABLE["word"].combine_chunks().dictionary_encode())
    serving = trained(path)
    assert same_bits(serving.transform(coded), serving.transform(TABLE))
    empty = TABLE.set_column(0, "price", pa.nulls(4))
    assert (serving.transform(empty).dense[:, 0] == 0).all()
    assert (serving.transform(pl.from_arrow(empty)).dense[:, 0] == 0).all()


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("item", pa.array([1, 2, 2**31, 4]), ["column 'item'", "got 2147483648, expected int32", "(row 2)"]),
        ("price", pa.array([0.0, 1e39, 2.0, 3.0]), ["column 'price'", "got 1e+39, expected float", "(row 1)"]),
        ("price", pa.array([0, 2**24 + 1, 2, 3]), ["column 'price'", "got 16777217, ", "(row 1)"]),
        ("vector", pa.array([[1.0, 2.0], [1.0], [1.0, 2.0], None]), ["column 'vector'", "got [1.0], ", "(row 1)"]),
        ("ids", pa.array([[1], [2**63], [], []], pa.list_(pa.uint64())), ["column 'ids'", "(row 1)"]),
        ("item", pa.array([1.0, 2.0, 3.0, 4.0]), ["column 'item' is of another type", "got double, expected int32"]),
        ("item", pa.array(["1", "2", "3", "4"], pa.large_string()), ["got large_string, expected int32"]),
        ("word", pa.array([1, 2, 3, 4]), ["got int64, expected string"]),
        ("word", pa.array([b"1", b"2", b"3", b"4"], pa.large_binary()), ["got large_binary, expected string"]),
        ("price", pa.array([True, False, True, True]), ["got bool, expected float"]),
        ("ids", pa.array([1, 2, 3, 4]), ["got int64, expected list<"]),
        ("scores", pa.array([[], [0.5], [1.0, -1e300], []]), ["column 'scores'", "got [1.0, -1e+300], ", "(row 2)"]),
        ("user", pa.array([{"age": 1}] * 4), ['the rows lack user["size"], which training had']),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_training_are_refused(path: Path, name: str, values: pa.Array, words: list[str]):
    rows = TABLE.set_column(SCHEMA.get_field_index(name), name, values)
    for given_rows in (rows, pl.from_arrow(rows)):
        with pytest.raises((DataError, SpecError)) as caught:
            trained(path).transform(given_rows)
        for word in words:
            assert word in str(caught.value)


def test_missing_columns_are_all_named(path: Path):
    rows = TABLE.drop_columns(["item", "price"])
    with pytest.raises(SpecError, match=r"'price'.*; the rows lack 2 of the 8 columns of training: price, item"):
        trained(path).transform(rows)
    with pytest.raises(SpecError, match="price: unknown column: got 'price'"):
        Pipeline.from_yaml(path).transform(rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (5, "transform takes rows: got int, expected Arrow, Polars or pandas"),
        ("abc", "transform takes rows: got str"),
        ([1, 2], "a list holds rows as dicts: got int as row 0"),
        ([{"price": 1.0}, {"price": 1.0, "item": 2}], "rows have different columns: got no 'item' in row 0"),
        ([{"price": 1.0, "item": 2}, {"price": 1.0}], "rows have different columns: got no 'item' in row 1"),
        ({"price": [1.0], "item": [1, 2]}, "different lengths: got 1 rows of 'price' and 2 of 'item'"),
        ({"price": "abc"}, "column 'price' holds values of another type: expected float"),
        ({"price": [1.0, 2.0], "item": 5}, r"single value \('item'\) is one row: got list for column 'price'"),
        ({"price": {1.0}}, "column 'price' is not a column: got set"),
        (
            {"ids": [1, 2], "scores": [0.5, 1.0]},
            r"'ids' holds values of another type.*write one row of lists as \[row\]",
        ),
        ({"price": np.zeros((1, 2, 3))}, "column 'price' has 3 dimensions"),
        ({"item": [2**31]}, "column 'item' holds values of another type: expected int32"),
        ({"item": ["x"]}, "column 'item' holds values of another type: expected int32"),
        ({"item": [1, "x"]}, "column 'item' holds values of another type"),
    ],
)
def test_other_values_than_rows_are_refused(path: Path, rows: Any, message: str):
    with pytest.raises(DataError, match=message):
        trained(path).transform(rows)


@pytest.fixture(scope="module")
def pipeline(path: Path) -> Pipeline:
    return Pipeline.from_yaml(path)


@examples(20)
@given(st.lists(st.integers(0, 60), max_size=5))
def test_parts_of_rows_give_the_features_of_the_whole(pipeline: Pipeline, cuts: list[int]):
    rows = pa.concat_tables([TABLE.slice(i % 4, 1) for i in range(60)])
    whole = pipeline.transform(rows)
    parts = [pipeline.transform(rows[a:b]) for a, b in pairwise(sorted({0, *cuts, 60}))]
    assert np.array_equal(np.concatenate([part.dense for part in parts]), whole.dense)
    assert np.array_equal(np.concatenate([part.categorical for part in parts]), whole.categorical)
    for name, held in whole.sparse.items():
        assert np.array_equal(np.concatenate([part.sparse[name].values for part in parts]), held.values)
        assert np.array_equal(np.concatenate([part.sparse[name].lengths for part in parts]), np.diff(held.offsets))
        if held.weights is not None:
            assert np.array_equal(np.concatenate([part.sparse[name].weights for part in parts]), held.weights)


@pytest.mark.parametrize("start", range(4))
def test_slices_of_vectors_with_nulls(tmp_path: Path, start: int):
    """Polars refuses fixed-size lists with nulls that are part of a longer array."""
    path = tmp_path / "v.yaml"
    features = {"dense": {"v": {"column": "vector", "ops": [{"pad": 2}, {"fill_null": 7}]}}}
    document = {"version": 1, "name": "v", "source": {"table": "none"}, "features": features, "batch": {"size": 8}}
    path.write_text(json.dumps(document))
    vectors = pa.array([[1.0, 2.0], None, [None, 3.0], [4.0, 5.0]], pa.list_(pa.float32(), 2))
    rows = pa.table({"vector": vectors})
    expected = np.array([[1, 2], [0, 0], [7, 3], [4, 5]], np.float32)
    for stop in range(start + 1, 5):
        for part in (rows[start:stop], rows.to_batches()[0].slice(start, stop - start)):
            assert np.array_equal(Pipeline.from_yaml(path).transform(part).dense, expected[start:stop])


def test_on_nonfinite_applies_in_serving(path: Path):
    rows = TABLE.set_column(0, SCHEMA.field(0), pa.array([0.0, np.inf, np.nan, 1.0], pa.float32()))
    price = "features.dense.price"
    made = {
        policy: {price: {"column": "price", "ops": ["log1p"], "on_nonfinite": policy}} for policy in ("zero", "error")
    }
    served = Pipeline.from_yaml(path, made["zero"]).transform(rows)
    assert served.dense[:, 0].tolist() == [0, 0, 0, np.log1p(np.float32(1))]
    with pytest.raises(DataError, match=r"feature 'price' .*\(row 1\)"):
        Pipeline.from_yaml(path, made["error"]).transform(rows)


def test_a_schema_is_compiled_once(path: Path, monkeypatch: pytest.MonkeyPatch):
    compiled: list[pa.Schema] = []
    original = Serving._compile_form

    def counted(self: Serving, schema: pa.Schema) -> Any:
        compiled.append(schema)
        return original(self, schema)

    monkeypatch.setattr(Serving, "_compile_form", counted)
    serving = trained(path)
    wide = TABLE.set_column(3, "item", TABLE["item"].cast(pa.int64()))
    for _ in range(3):
        for rows in (TABLE, TABLE.slice(1, 1), TABLE.replace_schema_metadata({"k": "v"}), pl.from_arrow(TABLE), wide):
            serving.transform(rows)
    assert len(compiled) == 3


def test_threads_with_different_schemas(path: Path):
    """Each thread uses the form of its schema: another form would fail, or give another log1p."""
    serving = trained(path)
    kinds = [
        TABLE,
        TABLE.set_column(0, "price", TABLE["price"].cast(pa.float64())),
        TABLE.set_column(3, "item", TABLE["item"].cast(pa.int64())),
        pl.from_arrow(TABLE),
    ]
    expected = trained(path).transform(TABLE)

    def serve(index: int) -> bool:
        return same_bits(serving.transform(kinds[index % 4]), expected)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(serve, range(200)))


def test_other_groups_can_be_encoded(path: Path):
    rows = TABLE.append_column("clicked", pa.array([True, False, True, False]))
    encoded, columns = Serving(load_spec(path, {}), groups=("dense", "label")).encode(rows)
    assert isinstance(encoded, EncodedRows)
    assert [column.name for column in columns] == ["price", "vector", "size", "clicked"]
    assert encoded.labels.tolist() == [[1.0], [0.0], [1.0], [0.0]]


@pytest.mark.nightly
def test_requests_are_measured(tmp_path: Path):
    benchmark = Path(__file__).resolve().parents[2] / "benchmarks" / "serving.py"
    command = [sys.executable, str(benchmark), "--tiny", "--json", str(tmp_path / "s.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seconds = json.loads((tmp_path / "s.json").read_text())["seconds"]
    assert len(seconds) == 4
    assert all(taken > 0 for found in seconds.values() for taken in found)
