"""Functions of users are imported only with leave, from their own folder, with the source that was planned."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from user_module import TABLE, folder_of_functions, made, python, values

from feedline.errors import ClusterError, SpecError
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.registry.op import OpError
from feedline.transforms.registry.user_code import functions_of
from feedline.transforms.registry.user_functions import RequiredFunction, check_functions, load_function


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[str]:
    """A folder with the module of functions; what was imported from it is forgotten afterwards."""
    with folder_of_functions(tmp_path) as path:
        yield path


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
        ("plain", {"gives": "date32", "parameters": {"by": 2}}, ["price"], "must give a number, bool, string or"),
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
        ("plain", {"form": "rows", "gives": "int64"}, ["price"], "python.form must be 'expression', 'numpy' or"),
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


def test_a_worker_with_another_source_is_refused(folder: str) -> None:
    [need] = functions_of([made(python(folder, "scaled"), "price")])
    check_functions([need])
    other = RequiredFunction(op=need.op, function=need.function, folder=folder, source="0" * 64)
    with pytest.raises(ClusterError, match=r"a worker on .* has another source of my_features:scaled: got \w{12}, "):
        check_functions([other])
    lacking = RequiredFunction(op="python", function="not_there:f", folder="", source="")
    with pytest.raises(ClusterError, match=r"a worker on .* cannot call not_there:f: the module 'not_there' cannot be"):
        check_functions([lacking])
