"""A module of functions that users declare as ops, and the table that they are applied to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from own_modules import own_modules

from feedline.config.features import FeatureInput, FeatureSpec, OpCall
from feedline.transforms.compile.compiled import compile_features

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


@contextmanager
def folder_of_functions(tmp_path: Path) -> Iterator[str]:
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
