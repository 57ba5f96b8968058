"""The shapes of the floor benchmark's tables: their columns, and the pipeline that Feedline runs over them.

`lists` is the click table of `feedline generate clicks`; `shape_tables` writes the others. What the other loaders do
with a row of a shape is in `numpy_workload` and `polars_workload`, which must say the same as the pipelines here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LABEL = "clicked"
CLIP, MODULUS, FIRST, BUCKETS = 1000.0, 1_000_003, 20, 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """Which rows are delivered: those of some days' partitions in which an integer column exceeds a value."""

    days: tuple[str, ...]
    column: str
    above: int

    @property
    def where(self) -> str:
        """The filter as pipeline.yaml says it."""
        days = ", ".join(json.dumps(day) for day in self.days)
        return f"ds in [{days}] and {self.column} > {self.above}"

    def files(self, files: Sequence[str]) -> list[str]:
        """The files of these partitions."""
        return [file for file in files if any(f"/ds={day}/" in file for day in self.days)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A table's columns by the tensor that they become: `dense`, `ids` (categorical) and `lists` (sparse).

    features: the section of pipeline.yaml (None: that of `clicks_pipeline`). rows, group_rows: rows of the table and of
    a row group by default; tiny_rows: of the table as a test, at most; file_groups: row groups of a file. hashed: the
    ids are hashes, each loader's own. pool_in_polars: the thread pool computes expressions, and not in numpy. clicks:
    the table is a generated click table. filter: the rows that are delivered (None: all).
    """

    name: str
    dense: tuple[str, ...]
    ids: tuple[str, ...]
    lists: tuple[str, ...]
    features: Mapping[str, object] | None
    rows: int
    group_rows: int
    file_groups: int
    tiny_rows: int = 20_000
    hashed: bool = False
    pool_in_polars: bool = False
    clicks: bool = False
    filter: RowFilter | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [*self.dense, *self.ids, *self.lists, LABEL]

    def pipeline(self, table: str, *, batch_size: int, work_dir: str) -> str:
        """Return the pipeline.yaml, with default settings except for a tail that leaves out no row."""
        if self.features is None:
            from feedline.workbench.generate.generate import clicks_pipeline  # imports Dask, which no loader needs

            return clicks_pipeline(table, batch_size=batch_size, tail="partial", work_dir=work_dir)
        source = {"table": table} if self.filter is None else {"table": table, "where": self.filter.where}
        pipeline = {
            "version": 1,
            "name": self.name,
            "work_dir": work_dir,
            "source": source,
            "features": self.features,
            "batch": {"size": batch_size, "tail": "partial"},
        }
        return json.dumps(pipeline, indent=1)


def _names(prefix: str, count: int) -> tuple[str, ...]:
    return tuple(f"{prefix}_{k}" for k in range(count))


_SHAPES = (
    Shape(
        name="lists",
        dense=_names("dense", 13),
        ids=_names("id", 26),
        lists=_names("hist", 6),
        features=None,
        rows=5_000_000,
        group_rows=65_536,
        file_groups=4,
        pool_in_polars=True,
        clicks=True,
    ),
    Shape(
        name="short",
        dense=_names("dense", 13),
        ids=_names("id", 26),
        lists=_names("hist", 6),
        features={
            "dense": {"dense_{0..12}": [{"fill_null": 0}, {"clip": {"min": 0, "max": CLIP}}, "log1p"]},
            "categorical": {"id_{0..25}": [{"modulo": MODULUS}]},
            "sparse": {"hist_{0..5}": [{"first_x": FIRST}]},
            "label": {LABEL: []},
        },
        rows=1_400_000,
        group_rows=65_536,
        file_groups=4,
        pool_in_polars=True,
        clicks=True,
        filter=RowFilter(days=("2026-01-02", "2026-01-04"), column="id_1", above=0),
    ),
    Shape(
        name="wide",
        dense=_names("dense", 504),
        ids=(),
        lists=_names("hist", 42),
        features={
            "dense": {"dense_{0..503}": [{"fill_null": 0}]},
            "sparse": {"hist_{0..41}": [{"first_x": FIRST}, {"modulo": MODULUS}]},
            "label": {LABEL: []},
        },
        rows=400_000,
        group_rows=20_000,
        file_groups=2,
        tiny_rows=5_000,
    ),
    Shape(
        name="strings",
        dense=_names("int", 13),
        ids=_names("str", 26),
        lists=(),
        features={
            "dense": {
                "int_0": [{"fill_null": 0}],
                "int_{1..12}": [{"fill_null": 0}, {"cast": "float32"}, "log1p"],
            },
            "categorical": {"str_{0..25}": [{"hash_bucket": BUCKETS}]},
            "label": {LABEL: []},
        },
        rows=5_000_000,
        group_rows=65_536,
        file_groups=4,
        hashed=True,
    ),
    Shape(
        name="flat",
        dense=_names("dense", 2),
        ids=_names("id", 9),
        lists=(),
        features={
            "dense": {"dense_{0..1}": []},
            "categorical": {"id_{0..8}": []},
            "label": {LABEL: []},
        },
        rows=20_000_000,
        group_rows=1_000_000,
        file_groups=2,
    ),
)
SHAPES = {shape.name: shape for shape in _SHAPES}
