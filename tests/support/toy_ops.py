"""Ops that learn a sum, and how often each value occurs, for tests of fitting itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from feedline.errors import DataError
from feedline.transforms.learning.learner import Artifact, Learning, Parts
from feedline.transforms.ops import OPS
from feedline.transforms.registry.op import Parameters, example, op
from feedline.transforms.values.kinds import Value


def _flat(column: pl.Series) -> pl.Series:
    return column.explode() if isinstance(column.dtype, pl.List) else column


@dataclass(frozen=True)
class Total:
    """Learn count and sum of integers: a state of one row."""

    keys: tuple[str, ...] = ()

    def observe(self, columns: Sequence[pl.Series]) -> pl.DataFrame:
        flat = _flat(columns[0]).drop_nulls()
        return pl.DataFrame({"count": [flat.len()], "sum": [int(flat.sum())]})

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return pl.concat(states).sum()

    def finish(self, parts: Parts) -> Artifact:
        [state] = parts
        facts = state.row(0, named=True)
        if not facts["count"]:
            raise DataError("no value: got nulls only, expected at least one value")
        return Artifact(facts=facts)

    def blank(self) -> Artifact:
        return Artifact(facts={"count": 1, "sum": 0})

    def show(self, artifact: Artifact) -> dict[str, Any]:
        return {"mean": artifact.facts["sum"] / artifact.facts["count"]}


@dataclass(frozen=True)
class Counts:
    """Learn how often each value occurs, also in lists: a state of a row per value."""

    keys: tuple[str, ...] = ("value",)

    def observe(self, columns: Sequence[pl.Series]) -> pl.DataFrame:
        values = _flat(columns[0]).drop_nulls().alias("value")
        return values.to_frame().group_by("value").agg(pl.len().cast(pl.Int64).alias("count"))

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return pl.concat(states).group_by("value").agg(pl.col("count").sum())

    def finish(self, parts: Parts) -> Artifact:
        whole = pl.concat(list(parts)).sort("value")
        return Artifact(facts={"values": whole.height}, table=whole.to_arrow())

    def blank(self) -> Artifact:
        return Artifact(facts={"values": 0}, table=None)

    def show(self, artifact: Artifact) -> dict[str, Any]:
        return {"values": artifact.facts["values"]}


class Naming(Parameters):
    """Joins features."""

    name: str | None = None
    scale: int = 1


@contextmanager
def toy_ops() -> Iterator[None]:
    """Register the ops `minus_mean` and `occurrences` during a block."""
    before = dict(OPS)

    @op(
        takes={"integer"},
        gives="int64",
        parameters=Naming,
        examples=(example("minus_mean", None, pl.Int64(), [1], [1]),),
        learns=Learning(learner=lambda _, values: Total(), name=lambda parameters: parameters.name),
    )
    def minus_mean(x: Value, parameters: Naming, artifact: Artifact, _: Mapping[str, Value]) -> Value:
        """Subtract the mean, rounded down."""
        mean = artifact.facts["sum"] // artifact.facts["count"]
        return Value(expr=x.expr.cast(pl.Int64) - parameters.scale * mean, dtype=pl.Int64())

    @op(
        takes={"integer", "string"},
        lists="whole",
        gives="int64",
        parameters=Naming,
        examples=(example("occurrences", None, pl.Int64(), [1], [1]),),
        learns=Learning(learner=lambda _, values: Counts(), name=lambda parameters: parameters.name),
    )
    def occurrences(x: Value, _: Naming, artifact: Artifact, __: Mapping[str, Value]) -> Value:
        """Return how often each value occurs; 0 if never."""
        counts = pl.DataFrame({"value": [], "count": []}) if artifact.table is None else pl.from_arrow(artifact.table)
        assert isinstance(counts, pl.DataFrame)
        expr = x.expr if not isinstance(x.dtype, pl.List) else x.expr.list.first()
        known = expr.replace_strict(counts["value"], counts["count"], default=0, return_dtype=pl.Int64)
        return Value(expr=known.fill_null(0), dtype=pl.Int64())

    try:
        yield
    finally:
        OPS.clear()
        OPS.update(before)


FEATURES: dict[str, Any] = {
    "dense": {
        "a": {"column": "id_0", "ops": ["minus_mean"]},
        "two": {"column": "id_1", "ops": ["occurrences", "minus_mean"]},
    },
    "categorical": {
        "word": {"column": "str_0", "ops": ["occurrences"]},
        "first": {"column": "hist_0", "ops": ["occurrences"]},
    },
    "label": {"clicked": []},
}


def written(folder: Path, table: Path, **changes: Any) -> Path:
    """Write a pipeline.yaml of features that learn, with some keys changed; None removes a key."""
    document: dict[str, Any] = {
        "version": 1,
        "name": "toys",
        "work_dir": "work",
        "source": {"table": str(table)},
        "features": FEATURES,
        "batch": {"size": 256},
        "cluster": {"threads": 1, "dashboard": False},
        **changes,
    }
    if document.get("fit") != "auto":  # vectors are tested elsewhere, and read further columns
        document["fit"] = {"golden": "none", **document.get("fit", {})}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "p.yaml"
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))
    return path
