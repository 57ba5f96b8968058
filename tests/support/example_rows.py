"""Rows on which to test an op, derived from its declared examples: the same shapes with other values.

Values come from a seeded random generator and from lists of difficult values, because frames long enough to have
blocks, tails and offsets are too long to be drawn value by value.
"""

from __future__ import annotations

import math
import random
import struct
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

from feedline.artifacts.external import read_external
from feedline.config.features import FeatureInput, FeatureSpec, OpCall
from feedline.expressions.types import INTEGER_RANGES, instance
from feedline.transforms.learning.learner import Artifact, InMemoryArtifacts, Reading
from feedline.transforms.ops import OPS, resolve
from feedline.transforms.registry.op import Example, Op

# Ops that require lists of a fixed length.
KEEPS_LENGTHS = {"vector", "weighted"}
TAKE_FEW = {"cast"}  # few random strings are numbers
WORDS = ("", "a", "b", "Zürich", "exactly8", "a text of more than twelve bytes", "\0", "🙂" * 9, "1", "-7")
FLOATS = (0.0, -0.0, 1.0, 0.5, -1.0, math.inf, -math.inf, math.nan, 1e-40, 3e38)


@dataclass(frozen=True)
class FolderArtifacts(InMemoryArtifacts):
    """Artifacts in memory, and artifacts that ops read from a folder."""

    folder: str = ""

    def read(self, reading: Reading) -> Artifact:
        return read_external(reading, self.folder)


def examples() -> list[tuple[Op, Example]]:
    """Every example of every op."""
    return [(op, example) for op in OPS.values() for example in op.examples]


def names_of(example: Example) -> list[str]:
    """Return the example's columns: values as c0, c1, …, then further columns of the fit, under their names."""
    bound = resolve(example.call)
    side_columns = [] if bound.op.learns is None else [*bound.op.learns.side_columns(bound.parameters).values()]
    return [*(f"c{place}" for place in range(len(example.columns) - len(side_columns))), *side_columns]


def feature_of(example: Example) -> FeatureSpec:
    """Return the example as a feature named `made`."""
    names = [name for name in names_of(example) if name.startswith("c") and name[1:].isdigit()]
    call: OpCall = example.call
    group = "sparse" if _gives_weights(example) else "extra"
    if len(names) == 1 and not OPS[call.op].inputs:
        return FeatureSpec(name="made", group=group, column=names[0], ops=(call,))
    return FeatureSpec(name="made", group=group, op=call, inputs=tuple(FeatureInput(column=name) for name in names))


def frame_of(example: Example, rows: int, seed: int) -> pl.DataFrame:
    """Return `rows` rows of the example's columns, each similar to one of its rows."""
    choose = random.Random(seed)
    count = len(example.columns[0][1])
    picked = [choose.randrange(count) for _ in range(rows)]
    keep = example.call.op in KEEPS_LENGTHS or len(example.columns) > 2  # lists beside lists: ids and their scores
    wild = example.call.op not in TAKE_FEW
    return pl.DataFrame(
        [
            pl.Series(name, [_like(choose, held[row], dtype, keep, wild) for row in picked], dtype=dtype)
            for name, (dtype, held) in zip(names_of(example), example.columns, strict=True)
        ]
    )


def write_outside(example: Example, folder: Path) -> None:
    """Write what the example's op reads as files below a folder."""
    bound = resolve(example.call)
    assert bound.op.reads is not None
    reading = bound.op.reads(bound.parameters)
    folder.mkdir(exist_ok=True)
    if reading.kind == "table":
        pq.write_table(pa.table({name: list(held) for name, held in example.outside.items()}), folder / reading.uri)
    elif not (folder / reading.uri).exists():
        rows = np.array(example.outside["array"], np.float32)
        zarr.create_array(store=str(folder / reading.uri), shape=rows.shape, chunks=rows.shape, dtype="f4")[:] = rows


def _gives_weights(example: Example) -> bool:
    return any(isinstance(row, list) and row and isinstance(row[0], dict) for row in example.result)


def _like(choose: random.Random, value: Any, dtype: pl.DataType, keep: bool, wild: bool) -> Any:
    """Return a value of the example, or a similar one."""
    if value is None or choose.random() < 0.2:
        return value
    if isinstance(dtype, pl.Array):
        return [_like(choose, item, instance(dtype.inner), keep, wild) for item in value]
    if isinstance(dtype, pl.Struct):
        return {
            field.name: _like(choose, value[field.name], instance(field.dtype), keep, wild) for field in dtype.fields
        }
    if isinstance(dtype, pl.List):
        if not keep and value and choose.random() < 0.5:
            value = [choose.choice(value) for _ in range(choose.choice((0, 1, 2, 3, 5, 9, 40)))]
        return [_like(choose, item, instance(dtype.inner), keep, wild) for item in value]
    return _scalar(choose, value, dtype) if wild else value


def _scalar(choose: random.Random, value: Any, dtype: pl.DataType) -> Any:
    if type(dtype) in INTEGER_RANGES:
        low, high = INTEGER_RANGES[type(dtype)]
        near = choose.randint(-3, 12)
        return choose.choice((value, near if low <= near else 0, choose.randint(low, high), low, high))
    if dtype == pl.Float32():
        drawn = struct.unpack("f", struct.pack("I", choose.getrandbits(32)))[0]
        return choose.choice((value, drawn, choose.choice(FLOATS), choose.gauss(0, 3)))
    if dtype.is_float():
        drawn = struct.unpack("d", struct.pack("Q", choose.getrandbits(64)))[0]
        return choose.choice((value, drawn, choose.choice(FLOATS), choose.gauss(0, 3)))
    if isinstance(dtype, pl.Decimal):
        return choose.choice((value, Decimal(choose.randint(-9, 9))))
    if dtype == pl.String():
        return choose.choice((value, choose.choice(WORDS)))
    if dtype == pl.Binary():
        return choose.choice((value, choose.choice(WORDS).encode()))
    if dtype == pl.Boolean():
        return choose.random() < 0.5
    if isinstance(dtype, pl.Datetime):
        return datetime(1990, 1, 1) + timedelta(seconds=choose.randrange(2 * 10**9))
    return value
