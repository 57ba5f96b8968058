"""Write the files that `test_saved` loads: a small table, and what a run and a fit on it saved.

    PYTHONPATH=tests:tests/support python -m saved.generate

A later version must load them as they are: they are not written again to please a change. A change that has to refuse
some of them raises the constant of their format, writes them again, and says so in the changelog.

Snapshots, fits, golden vectors and cache entries record where the table lies and the times of its files, so the files
have a fixed directory below /tmp, and those of the table get their times from `set_times`. No op of the pipeline
computes anything that processors round differently, so checksums hold everywhere.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from saved.facts import first_batches, op_fingerprints, served_facts

from feedline import Pipeline
from feedline.config import load_spec
from feedline.loader.state import state_of
from feedline.serving.golden_check import check

FILES = Path(__file__).parent
PLACE = Path("/tmp/feedline-saved")  # where the files were written, and are loaded
STEP = 3
_TIME_NS = 1_767_000_000_000_000_000
_DAYS = ("2026-01-01", "2026-01-02")
_ROWS, _GROUP_ROWS = 120, 60

PIPELINE: dict[str, Any] = {
    "version": 1,
    "name": "saved",
    "work_dir": "work",
    "source": {"table": "table", "where": "price >= 5.0", "split_rows": 60},
    "features": {
        "dense": {
            "price": [{"fill_null": 0}, "standardize"],
            "scaled": {"column": "price", "ops": ["fill_median", "min_max"]},
            "mean": {"column": "count", "ops": ["fill_mean"]},
            "encoded": {
                "op": {"target_encoding": {"target": "clicked", "folds": 3, "fold_by": "request", "smoothing": 4}},
                "inputs": ["item"],
            },
            "cost": {
                "column": "item",
                "ops": [{"join_external": {"table": "items.parquet", "on": "item", "take": "cost", "missing": 0}}],
            },
        },
        "categorical": {
            "item": [{"vocabulary": {"min_count": 2, "oov_buckets": 3, "name": "items"}}],
            "word": [{"vocabulary": {"max_size": 5}}],
            "bucket": {"column": "price", "ops": [{"quantile_bucketize": 4}, {"fill_null": 4}]},
        },
        "sparse": {"history": [{"first_x": 4}, {"vocabulary": {"name": "items", "min_count": 2, "oov_buckets": 3}}]},
        "label": {"clicked": []},
        "extra": ["request"],
    },
    "fit": {"where": "price < 80"},
    "batch": {"size": 16, "tail": "pad"},
    "shuffle": {"seed": 5, "by": "user"},
    "lanes": 2,
    "cluster": {"threads": 1},
    "memory": "64MiB",
    "cache": {"dir": "cache", "mode": "features"},
}


def set_times(place: Path) -> None:
    """Give the files of the table the times that they had."""
    for file in (place / "table").rglob("*.parquet"):
        os.utime(file, ns=(_TIME_NS, _TIME_NS))


def _write_table(place: Path) -> None:
    source = np.random.default_rng(26)
    for number, day in enumerate(_DAYS):
        folder = place / "table" / f"ds={day}"
        folder.mkdir(parents=True)
        price = (source.integers(0, 4000, _ROWS) / 40).tolist()
        columns = {
            "request": [f"r{number * _ROWS + row:05d}" for row in range(_ROWS)],
            "user": pa.array(np.sort(source.integers(0, 60, _ROWS)) * 7919),
            "item": pa.array(source.zipf(1.5, _ROWS).clip(max=80)),
            "word": [None if word == 0 else f"w{word}" for word in source.integers(0, 9, _ROWS)],
            "price": [None if row % 13 == 5 else value for row, value in enumerate(price)],
            "count": pa.array([None if row % 11 == 3 else row % 7 for row in range(_ROWS)], pa.int32()),
            "history": pa.array(
                [source.zipf(1.5, count).clip(max=80).tolist() for count in source.integers(0, 6, _ROWS)],
                pa.list_(pa.int64()),
            ),
            "ts": [
                datetime.datetime.fromisoformat(f"{day}T10:00:00") + datetime.timedelta(seconds=7 * row)
                for row in range(_ROWS)
            ],
            "clicked": pa.array((source.random(_ROWS) < 0.3).astype(np.int8)),
        }
        pq.write_table(pa.table(columns), folder / "0.parquet", row_group_size=_GROUP_ROWS, compression="zstd")
    items = pa.table({"item": np.arange(1, 60), "cost": np.arange(1, 60) * 0.25})
    pq.write_table(items, place / "items.parquet")
    set_times(place)


def write() -> None:
    """Write the files, and what is expected of them, a line per fact."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    path = PLACE / "saved.yaml"
    path.write_text(json.dumps(PIPELINE, indent=1))
    _write_table(PLACE)
    report = Pipeline.from_yaml(path).fit()
    checked = check(load_spec(path, {}))
    assert checked.passed
    pipeline = Pipeline.from_yaml(path)
    plan = pipeline.complete_plan()
    expected: dict[str, Any] = {
        "plan": plan.fingerprint,
        "features": plan.features_fingerprint,
        "snapshot": plan.source.snapshot.id,
        "rows": plan.facts().rows,
        "environment": plan.source.job.environment,
        "state": state_of(plan.facts(), 0, STEP),
        "manifest": report.manifest,
        "golden": [checked.rows, checked.features],
        "served": served_facts(pipeline),
        "first": first_batches(pipeline, plan, 0),
        "after": first_batches(pipeline, plan, STEP),
    }
    for _ in pipeline.batches(plan=plan):  # which fills the cache
        pass
    with tempfile.TemporaryDirectory() as folder:
        expected["ops"] = op_fingerprints(Path(folder))
    shutil.rmtree(PLACE / "work" / "rows", ignore_errors=True)
    shutil.rmtree(FILES / "place", ignore_errors=True)
    shutil.copytree(PLACE, FILES / "place", ignore=shutil.ignore_patterns("*.lock", "locks"))
    lines = [f"{json.dumps(name)}: {json.dumps(fact)}" for name, fact in expected.items()]
    (FILES / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    shutil.rmtree(PLACE)


if __name__ == "__main__":
    write()
