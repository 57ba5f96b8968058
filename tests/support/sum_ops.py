"""Ops that add what they learn: the sum of a column, of several, or of what was read; and rows to learn from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from feedline.config.features import FeatureSpec, OpCall
from feedline.errors import SpecError
from feedline.transforms.learning.learner import Artifact, Learning, Parts, Reading
from feedline.transforms.ops import OPS
from feedline.transforms.registry.op import Input, Parameters, example, op
from feedline.transforms.values.kinds import Value

SCHEMA = pa.schema(
    {
        "a": pa.int64(),
        "b": pa.int64(),
        "small": pa.int32(),
        "f": pa.float64(),
        "l": pa.list_(pa.int64()),
        "y": pa.int64(),
        "row": pa.int64(),
    }
)
FRAME = pl.DataFrame(
    {
        "a": [1, 2, None, 4],
        "b": [10, 20, 30, 40],
        "small": pl.Series([1, 1, 1, 1], dtype=pl.Int32),
        "f": [0.5, 1.5, 2.5, 3.5],
        "l": [[1, 2], [], None, [3]],
        "y": [0, 1, 1, 0],
        "row": [7, 8, 9, 10],
    }
)


@dataclass(frozen=True)
class Sum:
    """Learns the sum of integers, in lists too, and of a target beside them."""

    dtype: pl.DataType
    keys: tuple[str, ...] = ()

    def observe(self, columns: Sequence[pl.Series]) -> pl.DataFrame:
        first, *others = columns
        flat = first.explode() if isinstance(first.dtype, pl.List) else first
        return pl.DataFrame({"sum": [int(flat.sum())], "beside": [sum(int(other.sum()) for other in others)]})

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return pl.concat(states).sum()

    def finish(self, parts: Parts) -> Artifact:
        [state] = parts
        return Artifact(facts=state.row(0, named=True))

    def blank(self) -> Artifact:
        return Artifact(facts={"sum": 0, "beside": 0})

    def show(self, artifact: Artifact) -> dict[str, Any]:
        return dict(artifact.facts)


class PlusSum(Parameters):
    add: int | None = None
    name: str | None = None
    target: str | None = None


def _learner(parameters: PlusSum, values: Sequence[Value]) -> Sum | None:
    if parameters.add == 13:
        raise SpecError("13 is not added")
    return None if parameters.add is not None else Sum(values[0].dtype)


@contextmanager
def sum_ops() -> Iterator[None]:
    """Declare the ops as long as the context lasts."""
    before = dict(OPS)

    @op(
        takes={"integer"},
        gives="int64",
        parameters=PlusSum,
        examples=(example("plus_sum", 1, pl.Int64(), [1], [2]),),
        learns=Learning(
            learner=_learner,
            side_columns=lambda parameters: {"target": parameters.target, "row": "row"} if parameters.target else {},
            row_roles=lambda parameters: ("row",) if parameters.target else (),
            name=lambda parameters: parameters.name,
        ),
    )
    def plus_sum(x: Value, parameters: PlusSum, artifact: Artifact | None, side_values: Mapping[str, Value]) -> Value:
        """Adds the sum."""
        added = parameters.add if artifact is None else artifact.facts["sum"] + 1000 * artifact.facts["beside"]
        expr = x.expr.cast(pl.Int64) + added
        for value in side_values.values():
            expr = expr + value.expr * 1_000_000
        return Value(expr=expr, dtype=pl.Int64())

    @op(
        gives="int64",
        inputs=(Input(name="x", takes=frozenset({"integer"}), lists="never"),),
        repeats=True,
        examples=(example("plus_sums", None, pl.Int64(), [1], [2]),),
        learns=Learning(learner=lambda _, values: Sum(values[0].dtype)),
    )
    def plus_sums(
        values: Sequence[Value], _: Parameters, artifact: Artifact, side_values: Mapping[str, Value]
    ) -> Value:
        """Adds the sums."""
        total = artifact.facts["sum"] + artifact.facts["beside"]
        return Value(expr=pl.sum_horizontal(value.expr for value in values) + total, dtype=pl.Int64())

    @op(
        takes={"integer"},
        gives="int64",
        examples=(example("plus_read", None, pl.Int64(), [1], [2]),),
        reads=lambda _: Reading(kind="table", uri="dims.parquet"),
    )
    def plus_read(x: Value, _: Parameters, artifact: Artifact, side_values: Mapping[str, Value]) -> Value:
        """Adds what was read."""
        assert not side_values
        return Value(expr=x.expr + artifact.facts["read"], dtype=pl.Int64())

    try:
        yield
    finally:
        OPS.clear()
        OPS.update(before)


def feature(name: str, *ops: tuple[str, dict[str, Any]], group: str = "extra", **source: Any) -> FeatureSpec:
    calls = tuple(OpCall(op=name, arguments=json.dumps(arguments)) for name, arguments in ops)
    return FeatureSpec(name=name, group=group, ops=calls, **(source or {"column": "a"}))
