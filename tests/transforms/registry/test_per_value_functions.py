"""Functions that declare `per_value` get the elements of lists, and declare it in one place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from own_modules import own_modules

from feedline.config.features import FeatureSpec, OpCall
from feedline.errors import DataError
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.registry.op import OpError

SOURCE = """
import pyarrow as pa
import pyarrow.compute as pc
import polars as pl
from feedline import user_op

def halved(x):
    return (x / 2).cast(pl.Float32)

def characters(x):
    return pc.cast(pc.utf8_length(x), pa.int64())

def parity(x):
    return x % 2

@user_op(gives="float32", per_value=True)
def declared(x):
    return halved(x)
"""
FRAME = pl.DataFrame(
    {
        "number": [1, None, 4],
        "numbers": [[3, None], None, []],
        "words": [["a", "Zürich"], [], None],
        "odd": [[3, 2], [], [1]],
    },
    schema={"number": pl.Int64, "numbers": pl.List(pl.Int64), "words": pl.List(pl.String), "odd": pl.List(pl.Int64)},
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "value_functions.py").write_text(SOURCE)
    with own_modules(tmp_path):
        yield str(tmp_path)


def compiled(folder: str, column: str, function: str, **declared: Any) -> CompiledFeatures:
    arguments = json.dumps({"function": f"value_functions:{function}", **declared})
    call = OpCall(op="python", arguments=arguments, path=("features", "extra", "made", 0), code=folder)
    feature = FeatureSpec(name="made", group="extra", column=column, ops=(call,), path=("features", "extra", "made"))
    return compile_features([feature], FRAME.to_arrow().schema)


@pytest.mark.parametrize(
    ("function", "column", "declared", "expected"),
    [
        ("halved", "number", {"gives": "float32"}, [0.5, None, 2.0]),
        ("halved", "numbers", {"gives": "float32"}, [[1.5, None], None, []]),
        ("characters", "words", {"gives": "int64", "form": "arrow"}, [[1, 6], [], None]),
        ("parity", "odd", {"gives": "int64", "form": "numpy"}, [[1, 0], [], [1]]),
    ],
)
def test_functions_of_one_value_take_the_elements_of_lists(
    folder: str, function: str, column: str, declared: dict[str, Any], expected: list[Any]
):
    found = compiled(folder, column, function, per_value=True, **declared)
    assert found.apply(FRAME)["made"].to_list() == expected
    assert found.outputs[0].kind.endswith("list") == column.endswith(("s", "odd"))


def test_what_takes_lists_without_per_value_takes_them_whole(folder: str):
    with pytest.raises(DataError, match=r"has no kernel matching input types \(large_list"):
        compiled(folder, "words", "characters", gives="int64", form="arrow").apply(FRAME)


def test_a_function_of_one_value_gives_no_list(folder: str):
    with pytest.raises(OpError, match="characters must give one value for each, as it is per_value: got 'list"):
        compiled(folder, "words", "characters", gives="list<int64>", form="arrow", per_value=True)


@pytest.mark.parametrize("per_value", [True, False])
def test_per_value_is_declared_in_one_place(folder: str, per_value: bool):
    assert compiled(folder, "numbers", "declared").apply(FRAME)["made"].to_list() == [[1.5, None], None, []]
    with pytest.raises(OpError, match=r"got per_value in pipeline\.yaml, too"):
        compiled(folder, "numbers", "declared", per_value=per_value)


def test_fingerprints_hold_per_value_where_it_is_declared(folder: str):
    without, false, true = (
        compiled(folder, "number", "halved", gives="float32", **declared).fingerprint
        for declared in ({}, {"per_value": False}, {"per_value": True})
    )
    assert without == false
    assert without != true
