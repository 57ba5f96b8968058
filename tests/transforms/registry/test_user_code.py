"""User functions compute what they declare, only with permission, and from the same source everywhere."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator
from own_modules import own_modules
from user_module import FRAME, SOURCE, TABLE, folder_of_functions, made, python, values

from feedline import Pipeline
from feedline.config import load_spec, parse_spec
from feedline.config.features import FeatureSpec, OpCall
from feedline.errors import ClusterError, DataError, SpecError
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest
from feedline.serving.golden_check import check
from feedline.transforms.catalogue import op_schema
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.compile.describe import chains
from feedline.transforms.registry import function_code, user_functions
from feedline.transforms.registry.op import OpError
from feedline.transforms.registry.user_code import bind, functions_of
from feedline.transforms.registry.user_functions import RequiredFunction, check_functions

assert isinstance(FRAME, pl.DataFrame)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[str]:
    """A folder with the module of functions; what was imported from it is forgotten afterwards."""
    with folder_of_functions(tmp_path) as path:
        yield path


@pytest.mark.parametrize(
    ("function", "declared", "columns", "dtype", "expected"),
    [
        ("scaled", {}, ["price"], pl.Float32(), [1.0, 2.0, 4.0]),
        ("scaled", {"parameters": {"by": 2.0}}, ["cost"], pl.Float32(), [1.0, None, 4.0]),
        ("plain", {"gives": "float32", "parameters": {"by": 3}}, ["price"], pl.Float32(), [3.0, 6.0, 12.0]),
        ("total", {"gives": "float32"}, ["price", "cost"], pl.Float32(), [3.0, None, 12.0]),
        ("lengths", {"gives": "int64"}, ["items"], pl.Int64(), [3, 0, None]),
        ("doubled", {"gives": "float32", "form": "numpy"}, ["price"], pl.Float32(), [2.0, 4.0, 8.0]),
        ("doubled", {"gives": "int64", "form": "numpy"}, ["items"], pl.List(pl.Int64()), [[2, 4, 6], [], None]),
        ("ratio", {"gives": "float32", "form": "numpy"}, ["price", "price"], pl.Float32(), [1.0, 1.0, 1.0]),
        ("upper", {"gives": "string", "form": "arrow"}, ["word"], pl.String(), ["A", None, "BC"]),
        (
            "tails",
            {"gives": "list<int64>", "form": "arrow", "parameters": {"n": 2}},
            ["items"],
            pl.List(pl.Int64()),
            [[1, 2], [], None],
        ),
    ],
)
def test_every_form(
    folder: str, function: str, declared: dict[str, Any], columns: list[str], dtype: pl.DataType, expected: list[Any]
) -> None:
    found = values(python(folder, function, **declared), *columns)
    assert (found.dtype, found.to_list()) == (dtype, expected)


@pytest.mark.parametrize(
    ("function", "declared", "column", "words"),
    [
        ("shorter", {"gives": "float32", "form": "numpy"}, "price", "must return a value for each row: got 2 for 3"),
        ("doubled", {"gives": "float64", "form": "numpy"}, "price", "must return float64: got float32. Cast it there"),
        ("doubled", {"gives": "float32", "form": "numpy"}, "cost", "holds a null: got 1 nulls in 3 values"),
        ("matrix", {"gives": "float32", "form": "numpy"}, "price", "a numpy array of one dimension: got 2 dimensions"),
        ("number", {"gives": "float32", "form": "numpy"}, "price", "a numpy array of one dimension: got int"),
        ("broken", {"gives": "float32", "form": "numpy"}, "price", "my_features:broken raised KeyError: 'boom'"),
        ("upper", {"gives": "int64", "form": "arrow"}, "word", "must return int64: got string"),
        ("number", {"gives": "int64", "form": "arrow"}, "word", "must return an Arrow array: got int"),
    ],
)
def test_results_of_functions_are_checked_at_every_call(
    folder: str, function: str, declared: dict[str, Any], column: str, words: str
) -> None:
    compiled = compile_features([made(python(folder, function, **declared), column)], TABLE.schema)
    with pytest.raises(DataError) as caught:
        compiled.apply(FRAME)
    assert str(caught.value).startswith(
        f"feature 'made' of column '{column}' cannot be computed (python my_features:{function}): "
    )
    assert words in str(caught.value)


def test_a_numpy_function_does_not_write_into_its_input(folder: str) -> None:
    (Path(folder) / "my_features.py").write_text("def f(values):\n    values += 1\n    return values\n")
    compiled = compile_features([made(python(folder, "f", gives="float32", form="numpy"), "price")], TABLE.schema)
    with pytest.raises(DataError, match="read-only"):
        compiled.apply(FRAME)


def test_the_fingerprint_covers_everything_that_decides_values(folder: str) -> None:
    def fingerprint(call: OpCall) -> str:
        return compile_features([made(call, "price")], TABLE.schema).fingerprint

    base = python(folder, "plain", gives="float32", parameters={"by": 2})
    prints = {
        fingerprint(base),
        fingerprint(python(folder, "plain", gives="float32", parameters={"by": 3})),
        fingerprint(python(folder, "plain", gives="float32", parameters={"by": 2}, version=2)),
    }
    assert len(prints) == 3
    assert fingerprint(base) == fingerprint(python(folder, "plain", gives="float32", parameters={"by": 2}, version=1))
    source = Path(folder) / "my_features.py"
    source.write_text(SOURCE.replace("return x * by", "return by * x"))
    function_code.forget_code()  # as in a new process
    del sys.modules["my_features"]
    assert fingerprint(base) not in prints


def test_numbers_that_are_not_finite_are_parameters_of_their_own(folder: str) -> None:
    calls = [
        OpCall(
            op="python", arguments=f'{{"function":"my_features:plain","gives":"float32","parameters":{{"by":{by}}}}}'
        )
        for by in ("Infinity", "-Infinity", "NaN", "null", "[NaN]", "[null]")
    ]
    identities = {bind(replace(call, code=folder)).identity for call in calls}
    assert len(identities) == len(calls)


def test_fits_and_fingerprints_cover_modules_that_the_function_imports(folder: str) -> None:
    def names(helper: str) -> tuple[str, str]:
        (Path(folder) / "my_helper.py").write_text(helper)
        (Path(folder) / "my_features.py").write_text("from my_helper import BY\ndef f(x): return x * BY\n")
        with own_modules(Path(folder)):
            call = python(folder, "f", gives="float32")
            feature = FeatureSpec(name="x", group="dense", column="price", ops=(call, OpCall(op="standardize")))
            compiled = compile_features([feature], TABLE.schema)
            return compiled.fingerprint, compiled.missing_fits[0].key

    one, again, other = names("BY = 2.0"), names("BY = 2.0"), names("BY = 3.0")
    assert one == again
    assert one[0] != other[0]
    assert one[1] != other[1]


def test_threads_may_call_it(folder: str) -> None:
    compiled = compile_features([made(python(folder, "doubled", gives="float32", form="numpy"), "price")], TABLE.schema)
    with ThreadPoolExecutor(4) as pool:
        assert {tuple(frame.to_series()) for frame in pool.map(compiled.apply, [FRAME] * 40)} == {(2.0, 4.0, 8.0)}


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package whose ops are called scaled and log1p."""
    points = [
        importlib.metadata.EntryPoint(name, "my_features:scaled", user_functions.ENTRY_POINTS)
        for name in ("scaled", "log1p")
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    user_functions.entry_points.cache_clear()
    yield
    user_functions.entry_points.cache_clear()


@pytest.mark.usefixtures("offered")
def test_an_entry_point_is_an_op(folder: str) -> None:
    scaled = OpCall(op="scaled", arguments='{"by": 2.0}', code=folder)
    assert values(scaled, "price").to_list() == [0.5, 1.0, 2.0]
    assert values(OpCall(op="scaled", code=folder), "price").to_list() == [1.0, 2.0, 4.0]
    own = values(OpCall(op="log1p", code=folder), "price")
    np.testing.assert_allclose(own.to_numpy(), np.log1p([1, 2, 4]), rtol=1e-6)
    with pytest.raises(OpError, match=r"scaled runs Python code, which needs `allow_code: true`"):
        values(OpCall(op="scaled"), "price")
    with pytest.raises(OpError, match=r"scaled takes parameters by name: write \{scaled: \{NAME: value\}\}"):
        values(OpCall(op="scaled", arguments='{"": 2.0}', code=folder), "price")
    [chain] = chains([made(scaled, "price")], TABLE.schema)
    assert chain.text() == "price: float32 → scaled (my_features:scaled) → float32 → extra float32"
    [need] = functions_of([made(scaled, "price"), made(scaled, "cost")])
    assert (need.op, need.function) == ("scaled", "my_features:scaled")
    check_functions([need])
    user_functions.entry_points.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "entry_points", lambda group: [])
        with pytest.raises(ClusterError, match="has no package that provides my_features:scaled as 'scaled'"):
            check_functions([need])
        user_functions.entry_points.cache_clear()


@pytest.mark.usefixtures("offered")
def test_an_entry_point_is_in_the_json_schema() -> None:
    schema = Draft202012Validator(op_schema())
    assert all(map(schema.is_valid, ["scaled", {"scaled": {"by": 2.0}}, "log1p"]))
    assert not any(map(schema.is_valid, ["scalde", {"scaled": 2.0}, {"log1p": {"by": 2.0}}]))


def test_the_error_of_an_unknown_op_lists_the_ops(folder: str) -> None:
    with pytest.raises(OpError, match="unknown op: got 'lgo1p'"):
        values(OpCall(op="lgo1p", code=folder), "price")


PIPELINE = """\
version: 1
name: own
work_dir: work
allow_code: true
source: {table: table}
features:
  dense:
    price: [{python: {function: "my_features:careful", form: numpy, gives: float32}}]
    scaled: {column: price, ops: [{python: "my_features:scaled"}]}
batch: {size: 2}
shuffle: off
"""


@pytest.fixture
def pipeline(folder: str) -> Path:
    (Path(folder) / "table").mkdir()
    prices = pa.table({"price": pa.array([0.0, 1.0, 2.0, 2.0], pa.float32())})
    pq.write_table(prices, Path(folder) / "table" / "a.parquet", row_group_size=2)
    file = Path(folder) / "pipeline.yaml"
    file.write_text(PIPELINE)
    return file


def test_a_pipeline_with_functions(pipeline: Path) -> None:
    batches = list(Pipeline.from_yaml(pipeline).batches())
    assert [batch.dense.tolist() for batch in batches] == [[[0.0, 0.0], [1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]]
    encoded = Pipeline.from_yaml(pipeline).transform(pa.table({"price": pa.array([1.5], pa.float32())}))
    assert encoded.dense.tolist() == [[1.5, 1.5]]


def test_ops_learn_from_results_of_functions(pipeline: Path) -> None:
    ops = [{"python": "my_features:scaled"}, "standardize"]
    given = Pipeline.from_yaml(pipeline, {"features.dense": {"scaled": {"column": "price", "ops": ops}}})
    given.fit()
    [first, second] = given.batches()
    whole = np.array([0.0, 1.0, 2.0, 2.0])
    found = [*first.dense[:, 0].tolist(), *second.dense[:, 0].tolist()]
    np.testing.assert_allclose(found, (whole - whole.mean()) / whole.std(), rtol=1e-6)
    proved = check(given.spec)
    assert proved.rows > 0
    assert proved.passed


def test_without_allow_code_the_error_has_its_place(pipeline: Path) -> None:
    with pytest.raises(SpecError) as caught:
        Pipeline.from_yaml(pipeline, set={"allow_code": False}).plan()
    assert "pipeline.yaml:8:13: features.dense.price[0]: price: [python my_features:careful]: python runs" in str(
        caught.value
    )


def test_a_function_that_raises_names_file_and_row_group(pipeline: Path) -> None:
    prices = pa.table({"price": pa.array([0.0, 1.0, 2.0, 3.0], pa.float32())})
    pq.write_table(prices, pipeline.parent / "table" / "a.parquet", row_group_size=2)
    with pytest.raises(DataError) as caught:
        list(Pipeline.from_yaml(pipeline).batches())
    message = str(caught.value)
    assert "feature 'price' cannot be computed (python my_features:careful): " in message
    assert "my_features:careful raised ValueError: more than 2" in message
    assert "a.parquet, row group 1, row 3)" in message


def test_worker_processes_are_checked_before_the_first_block(pipeline: Path) -> None:
    spec = load_spec(pipeline, {"cluster": {"workers": 1, "threads": 1}})
    needed = functions_of(spec.features)
    assert {need.function for need in needed} == {"my_features:careful", "my_features:scaled"}
    cluster = open_cluster(ClusterRequest(spec.cluster, threads=1))
    try:
        cluster.check_workers(needed)
        (pipeline.parent / "only_here.py").write_text("def f(x):\n    return x\n")
        gone = RequiredFunction(op="python", function="only_here:f", folder="/nowhere", source="")
        with pytest.raises(ClusterError, match="cannot call only_here:f: the module 'only_here' cannot be imported"):
            cluster.check_workers([gone])
    finally:
        cluster.close()


PAGE = (Path(__file__).resolve().parents[3] / "docs" / "user-code.md").read_text(encoding="utf-8")


def test_examples_of_the_page_work(tmp_path: Path) -> None:
    (tmp_path / "my_features.py").write_text("".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)))
    table = pa.table({"price": pa.array([3.0], pa.float32()), "cost": pa.array([1.0], pa.float32())})
    found = []
    for block in [
        *re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL),
        'allow_code: true\nfeatures: {dense: {price: [{python: "my_features:in_units"}]}}\n',
    ]:
        text = f"version: 1\nname: page\nsource: {{table: t}}\nbatch: {{size: 1}}\n{block}"
        found.append(Pipeline(parse_spec(text, base_dir=tmp_path)).transform(table).dense.tolist())
    assert found == [[[1.5]], [[2.0]], [[3.0]]]
