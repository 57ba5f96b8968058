"""User functions compute what they declare, only with permission, and from the same source everywhere."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from json_validator import Validator
from own_modules import own_modules

import feedline
from feedline import Pipeline
from feedline.errors import ClusterError, DataError, SpecError
from feedline.service.cluster.cluster import Cluster
from feedline.serving.golden_check import check
from feedline.spec import load_spec, parse_spec
from feedline.spec.features import FeatureInput, FeatureSpec, OpCall
from feedline.transforms.catalogue import op_schema
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.compile.describe import chains
from feedline.transforms.registry import user_functions
from feedline.transforms.registry.op import OpError
from feedline.transforms.registry.user_code import functions_of
from feedline.transforms.registry.user_functions import RequiredFunction, check_functions, load_function

SOURCE = '''
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from feedline import user_op

@user_op(gives="float32", version=3)
def scaled(x, *, by=1.0):
    """In units of `by`."""
    return (x / by).cast(pl.Float32)

def plain(x, by):
    return x * by

def total(x, y):
    return x + y

def lengths(x):
    return x.list.len().cast(pl.Int64)

def doubled(values):
    return values * 2

def ratio(values, others):
    return (values / others).astype(np.float32)

def upper(array):
    return pc.utf8_upper(array)

def tails(array, *, n):
    return pc.list_slice(array, 0, n)

def centred(x):
    return x - x.mean()

def shifted(x):
    return x.shift(1)

def other(x):
    return pl.col("cost")

def constant(x):
    return pl.lit(1.0)

def inside(x):
    return x.list.eval(pl.element().map_batches(lambda s: s, return_dtype=pl.Int64)).list.sum()

def missing(x):
    return x["nothing"]

def shorter(values):
    return values[1:]

def matrix(values):
    return values.reshape(-1, 1)

def number(values):
    return 1

def broken(values):
    raise KeyError("boom")

def careful(values):
    if (values > 2).any():
        raise ValueError("more than 2")
    return values

here = 5
'''
TABLE = pa.table(
    {
        "price": pa.array([1.0, 2.0, 4.0], pa.float32()),
        "cost": pa.array([2.0, None, 8.0], pa.float32()),
        "word": pa.array(["a", None, "bc"]),
        "items": pa.array([[1, 2, 3], [], None], pa.list_(pa.int64())),
    }
)
FRAME = pl.from_arrow(TABLE)
assert isinstance(FRAME, pl.DataFrame)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[str]:
    """A folder with the module of functions; what was imported from it is forgotten afterwards."""
    (tmp_path / "my_features.py").write_text(SOURCE)
    with own_modules(tmp_path):
        yield str(tmp_path)


def python(folder: str | None, function: str, **declared: Any) -> OpCall:
    arguments = json.dumps({"function": f"my_features:{function}", **declared})
    return OpCall(op="python", arguments=arguments, path=("features", "extra", "made", 0), code=folder)


def made(call: OpCall, *columns: str) -> FeatureSpec:
    if len(columns) > 1:
        inputs = tuple(FeatureInput(column=column) for column in columns)
        return FeatureSpec(name="made", group="extra", op=call, inputs=inputs)
    return FeatureSpec(name="made", group="extra", column=columns[0], ops=(call,))


def values(call: OpCall, *columns: str) -> pl.Series:
    return compile_features([made(call, *columns)], TABLE.schema).apply(FRAME).to_series()


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
    ("function", "declared", "columns", "words"),
    [
        ("plain", {}, ["price"], "my_features:plain has no declared type: write gives"),
        (
            "scaled",
            {"gives": "float32"},
            ["price"],
            "is declared by user_op in its module: got gives in pipeline.yaml, too",
        ),
        ("scaled", {"parameters": {"bye": 1}}, ["price"], "got an unexpected keyword argument 'bye'"),
        ("plain", {"gives": "float32"}, ["price"], "missing a required argument: 'by'"),
        ("total", {"gives": "float32"}, ["price"], "cannot be called with 1 input: missing a required argument: 'y'"),
        ("plain", {"gives": "float64", "parameters": {"by": 2}}, ["price"], "must give float64: got float32"),
        ("plain", {"gives": "flaot32", "parameters": {"by": 2}}, ["price"], "'flaot32' is not the name of a type"),
        (
            "plain",
            {"gives": "date32", "parameters": {"by": 2}},
            ["price"],
            "must give a number, bool, string or",
        ),
        ("centred", {"gives": "float32"}, ["price"], "must compute each row from that row alone: got"),
        ("shifted", {"gives": "float32"}, ["price"], "must compute each row from that row alone: got"),
        ("constant", {"gives": "float64"}, ["price"], "must compute each row from that row alone: got"),
        ("inside", {"gives": "int64"}, ["items"], "Write `form: arrow` for parts that cannot be checked"),
        ("other", {"gives": "float32"}, ["price"], "may read its inputs only: got the column 'cost'"),
        ("missing", {"gives": "float32"}, ["price"], "my_features:missing raised TypeError: 'Expr' object is not"),
        ("number", {"gives": "float32"}, ["price"], "must return a Polars expression: got int"),
        ("total", {"gives": "float32"}, ["price", "items"], "my_features:total"),
        (
            "nothing",
            {"gives": "float32"},
            ["price"],
            "my_features:nothing is not a function: got nothing of that name in",
        ),
        ("here", {"gives": "float32"}, ["price"], "my_features:here is not a function: got a int in"),
        ("doubled", {"gives": "string", "form": "numpy"}, ["price"], "must give a number or boolean"),
        ("doubled", {"gives": "string", "form": "numpy"}, ["word"], "takes numpy arrays of numbers or booleans"),
        ("ratio", {"gives": "int64", "form": "numpy"}, ["price", "items"], "takes numpy arrays of numbers"),
        (
            "plain",
            {"form": "rows", "gives": "int64"},
            ["price"],
            "python.form must be 'expression', 'numpy' or",
        ),
        ("plain", {"source": "x", "gives": "int64"}, ["price"], "unknown parameter of python: got 'source'"),
        ("plain", {"version": 0, "gives": "int64"}, ["price"], "python.version must be"),
    ],
)
def test_functions_that_do_not_fit_are_refused_before_anything_runs(
    folder: str, function: str, declared: dict[str, Any], columns: list[str], words: str
) -> None:
    with pytest.raises(OpError, match=r"made: \[python my_features:") as caught:
        compile_features([made(python(folder, function, **declared), *columns)], TABLE.schema)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("function", "declared", "column", "words"),
    [
        (
            "shorter",
            {"gives": "float32", "form": "numpy"},
            "price",
            "must return a value for each row: got 2 for 3",
        ),
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


def test_without_leave_nothing_is_imported(folder: str) -> None:
    with pytest.raises(OpError, match="python runs Python code, which needs `allow_code: true`"):
        compile_features([made(python(None, "scaled"), "price")], TABLE.schema)
    assert "my_features" not in sys.modules


def test_the_folder_is_last_on_the_path_and_only_while_importing(folder: str) -> None:
    before = list(sys.path)
    (Path(folder) / "json.py").write_text("raise RuntimeError")
    values(python(folder, "scaled"), "price")
    assert sys.path == before
    assert load_function("json:loads", folder).function is json.loads


def test_two_folders_do_not_share_a_module_of_one_name(folder: str, tmp_path: Path) -> None:
    load_function("my_features:scaled", folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "my_features.py").write_text("def scaled(x):\n    return x\n")
    with pytest.raises(SpecError, match=r"'my_features' was imported from .*: got another .*other, but"):
        load_function("my_features:scaled", str(tmp_path / "other"))
    load_function("my_features:scaled", folder)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere:f", "the module 'nowhere' cannot be imported: got ModuleNotFoundError: No module named 'nowhere'"),
        ("failing:f", "the module 'failing' cannot be imported: got ZeroDivisionError: division by zero"),
        ("my_features", "a function is named module:function: got 'my_features'"),
        ("my_features:", "a function is named module:function"),
        ("../x:f", "a function is named module:function"),
    ],
)
def test_modules_that_cannot_be_had(folder: str, name: str, words: str) -> None:
    (Path(folder) / "failing.py").write_text("1 / 0\n")
    with pytest.raises(SpecError) as caught:
        load_function(name, folder)
    assert words in str(caught.value)


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
    user_functions._sources.clear()  # as in a new process
    del sys.modules["my_features"]
    assert fingerprint(base) not in prints


def test_unpickling_compiles_again(folder: str) -> None:
    compiled = compile_features([made(python(folder, "scaled"), "price")], TABLE.schema)
    again = pickle.loads(pickle.dumps(compiled))
    assert again.fingerprint == compiled.fingerprint
    assert again.apply(FRAME).equals(compiled.apply(FRAME))


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
    user_functions._entry_points.cache_clear()
    yield
    user_functions._entry_points.cache_clear()


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
    user_functions._entry_points.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "entry_points", lambda group: [])
        with pytest.raises(ClusterError, match="has no package that provides my_features:scaled as 'scaled'"):
            check_functions([need])
        user_functions._entry_points.cache_clear()


@pytest.mark.usefixtures("offered")
def test_an_entry_point_is_in_the_json_schema() -> None:
    schema = Validator(op_schema())
    assert all(map(schema.valid, ["scaled", {"scaled": {"by": 2.0}}, "log1p"]))
    assert not any(map(schema.valid, ["scalde", {"scaled": 2.0}, {"log1p": {"by": 2.0}}]))


def test_the_error_of_an_unknown_op_lists_the_ops(folder: str) -> None:
    with pytest.raises(OpError, match="unknown op: got 'lgo1p'"):
        values(OpCall(op="lgo1p", code=folder), "price")


def test_a_worker_with_another_source_is_refused(folder: str) -> None:
    [need] = functions_of([made(python(folder, "scaled"), "price")])
    check_functions([need])
    other = RequiredFunction(op=need.op, function=need.function, folder=folder, source="0" * 64)
    with pytest.raises(ClusterError, match=r"a worker on .* has another source of my_features:scaled: got \w{12}, "):
        check_functions([other])
    lacking = RequiredFunction(op="python", function="not_there:f", folder="", source="")
    with pytest.raises(ClusterError, match=r"a worker on .* cannot call not_there:f: the module 'not_there' cannot be"):
        check_functions([lacking])


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
    cluster = Cluster(spec.cluster, threads=1)
    try:
        cluster.check_workers(needed)
        (pipeline.parent / "only_here.py").write_text("def f(x):\n    return x\n")
        gone = RequiredFunction(op="python", function="only_here:f", folder="/nowhere", source="")
        with pytest.raises(ClusterError, match="cannot call only_here:f: the module 'only_here' cannot be imported"):
            cluster.check_workers([gone])
    finally:
        cluster.close()


def test_declaring_costs_no_library() -> None:
    code = "import sys, feedline; feedline.user_op; print(sorted({'polars', 'pyarrow', 'numpy'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
    assert callable(feedline.user_op)


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
