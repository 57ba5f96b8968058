"""A table some of whose rows are bad, the pipeline that says so, and DuckDB's answer to which they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feedline import Pipeline
from feedline.fitting.row_check import RowReport

FEATURES: dict[str, Any] = {
    "dense": {
        "price": {"column": "price", "on_nonfinite": "error", "expect": {"min": ">= -4"}},
        "age": {"expr": 'age.cast("float32")'},
        "place": {"column": "place", "ops": [{"vector": 3}]},
    },
    "categorical": {"word": {"column": "word", "ops": [{"hash_bucket": 50}], "expect": {"null_rate": "<= 0"}}},
    "sparse": {"history": {"column": "history", "expect": {"list_length_max": "<= 6"}}},
    "label": {"clicked": []},
    "extra": ["id"],
}
# By feature and reason, which rows DuckDB finds.
REASONS = {
    ("price", "holds a value that is not finite"): "not isfinite(price)",
    ("price", "expected min >= -4"): "isfinite(price) and price < -4",
    ("age", "cannot be computed (no ops)"): "age is not null and try_cast(age as float) is null",
    ("age", "holds a null"): "age is null",
    ("place", "cannot be computed (vector)"): "len(place) != 3",
    ("word", "expected null_rate <= 0"): "word is null",
    ("word", "holds a null"): "word is null",
    ("history", "holds a null"): "len(list_filter(history, lambda x: x is null)) > 0",
    ("history", "expected list_length_max <= 6"): "len(history) > 6",
    ("clicked", "holds a null"): "clicked is null",
}


class BadTable:
    """A table `t` of partitions `ds=0 …` below a folder, each of two files of several row groups."""

    def __init__(self, folder: Path, days: int = 2, share: float = 0.01) -> None:
        self.folder, self.table = folder, folder / "t"
        for day in range(days):
            self.write(day, 0, share)
            self.write(day, 1, 0 if day else share)

    def write(self, day: int, number: int, share: float, rows: int = 400) -> None:
        """Write a file. share: of the rows that have each of the faults; none has the same place in all files."""
        rng = np.random.default_rng(10 * day + number)

        def bad() -> Any:
            return rng.random(rows) < share

        price = rng.normal(20, 4, rows).astype(np.float32)
        price[bad()], price[bad()], price[bad()] = np.nan, -np.inf, -4.25
        price[rng.random(rows) < 0.05] = -4  # meets its bound
        age = np.array([str(value) for value in rng.integers(1, 90, rows)], object)
        age[bad()], age[bad()] = "n/a", None
        for row in np.flatnonzero(bad()).tolist():
            age[row] = f"unknown {row}"
        history = [[int(x) for x in rng.integers(0, 99, n)] for n in rng.integers(0, 7, rows)]
        for row in np.flatnonzero(bad()).tolist():
            history[row] = [1, None]
        for row in np.flatnonzero(bad()).tolist():
            history[row] = list(range(7))
        places = [[1.0, 2.0] if wrong else [1.0, 2.0, float(row)] for row, wrong in enumerate(bad().tolist())]
        words = [None if wrong else f"w{row % 40}" for row, wrong in enumerate(bad().tolist())]
        clicked = [None if wrong else row % 2 for row, wrong in enumerate(bad().tolist())]
        content = {
            "id": pa.array(np.arange(rows) + rows * (2 * day + number) + 100_000 * day, pa.int64()),
            "price": price,
            "age": pa.array(age.tolist(), pa.string()),
            "place": pa.array(places, pa.list_(pa.float32())),
            "word": pa.array(words, pa.string()),
            "history": pa.array(history, pa.list_(pa.int64())),
            "clicked": pa.array(clicked, pa.int8()),
        }
        path = self.table / f"ds={day}" / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(content), path, row_group_size=150)

    def spec(self, **changes: Any) -> dict[str, Any]:
        source = {"table": str(self.table), "where": "id % 7 != 3", **changes.pop("source", {})}
        return {
            "version": 1,
            "name": "bad",
            "work_dir": str(self.folder / "work"),
            "source": source,
            "features": FEATURES,
            "batch": {"size": 16},
            "lanes": 2,
            "shuffle": {"seed": 3, "window_rows": 200},
            **changes,
        }

    def pipeline(self, **changes: Any) -> Pipeline:
        return Pipeline.from_dict(self.spec(**changes))

    def check(self, pipeline: Pipeline | None = None, **options: Any) -> RowReport:
        """Check the rows in threads of this process."""
        return (pipeline or self.pipeline()).check_rows(**{"max_share": 0.5, "out": self.exclusion, **options})

    @property
    def exclusion(self) -> Path:
        return self.folder / "bad.exclusion"

    def excluding(self, **changes: Any) -> Pipeline:
        """The pipeline with the exclusion that `check` wrote."""
        source = {"exclude": str(self.exclusion), **changes.pop("source", {})}
        return self.pipeline(source=source, **changes)

    def ids(self, condition: str, where: str = "id % 7 != 3") -> list[int]:
        """DuckDB: the ids of the rows that the filter keeps and for which a condition holds."""
        query = f"select id from read_parquet('{self.table}/*/*.parquet', hive_partitioning = true) "
        found = duckdb.sql(f"{query} where ({where}) and ({condition}) order by id").fetchall()
        return [row for (row,) in found]

    def bad_ids(self) -> list[int]:
        return self.ids(" or ".join(f"({each})" for each in REASONS.values()))

    def good_ids(self) -> list[int]:
        return sorted(set(self.ids("true")) - set(self.bad_ids()))
