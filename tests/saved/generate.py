"""Write the place that `test_saved` goes on with: a small table, and what version 0.1.0 saved of runs and fits on it.

Run once, by the code of commit d4b59f9 (0.1.0, before its release; Polars 2.1.0, pyarrow 26.0.1, numpy 2.4.6):

    PYTHONPATH=<a checkout of that commit> python tests/saved/generate.py

A later version must go on with these files as they are, so they are not made again to please it: a state or fit that is
refused after a change of the package is what the test is for. Where a change has to refuse some of them, take those out
and say so in the changelog.

Snapshots, fits and golden vectors record where the table lies and snapshots digest its files' times, so the place is
always `PLACE`, and files of the table get their times from `set_times`. No op of the pipelines computes anything that
processors round differently, so checksums hold everywhere.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feedline import Pipeline
from feedline.golden import check
from feedline.loader.batch import Batch, Sparse
from feedline.spec import load_spec

HERE = Path(__file__).parent
PLACE = Path("/tmp/feedline-saved-0.1.0")
LATER = "ds=2026-01-03"  # the day that came after the states of the first two
BEFORE, STEP = 3, 5  # steps that were delivered before the rebase, and before the other states
FEW = 4  # batches whose checksums are kept
_TIME_NS = 1_767_000_000_000_000_000
_ROWS, _GROUP_ROWS = 120, 40

PLAIN: dict[str, Any] = {
    "version": 1,
    "name": "plain",
    "work_dir": "plain",
    "source": {
        "table": "table",
        "where": 'price >= 5.0 and word != "w3"',
        "sample": {"fraction": 0.5, "where": "clicked == 0", "key": "user", "seed": 7},
        "split_rows": 80,
    },
    "features": {
        "dense": {
            "price": [{"clip": {"min": 6, "max": 90}}],
            "count": [{"fill_null": -1}],
            "weight": {"column": "sample_weight"},
        },
        "categorical": {"user": [{"modulo": 1000}], "word": [{"hash_bucket": 50}, {"fill_null": 0}]},
        "sparse": {"history": [{"first_x": 3}], "words": [{"hash_bucket": 20}]},
        "label": {"clicked": []},
        "extra": ["request", "ts", "ds"],
    },
    "batch": {"size": 16, "tail": "partial"},
    "shuffle": {"seed": 11, "window_rows": 96},
    "cluster": {"threads": 1},
}
FITTED: dict[str, Any] = {
    "version": 1,
    "name": "fitted",
    "work_dir": "fitted",
    "source": {"table": "table", "split_rows": 80},
    "features": {
        "dense": {
            "price": [{"fill_null": 0}, "standardize"],
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
    "batch": {"size": 32, "tail": "pad"},
    "shuffle": {"seed": 5, "by": "user"},
    "lanes": 2,
    "cluster": {"threads": 1},
}


def digests(batch: Batch) -> dict[str, list[Any]]:
    """Of every tensor of a batch, and of every extra, its dtype, shape and the SHA-256 of its bytes."""
    found = {"dense": batch.dense, "labels": batch.labels, "categorical": batch.categorical, "valid": batch.valid}
    for name, value in [*batch.sparse.items(), *batch.extra.items()]:
        parts = (
            {f"{name}.{part}": getattr(value, part) for part in Sparse.__slots__}
            if isinstance(value, Sparse)
            else {name: value}
        )
        found |= {part: tensor for part, tensor in parts.items() if tensor is not None}
    return {name: _digest(value) for name, value in found.items()}


def set_times(place: Path) -> None:
    """Give the table's files the times that they had."""
    for file in (place / "table").rglob("*.parquet"):
        os.utime(file, ns=(_TIME_NS, _TIME_NS))


def _digest(value: Any) -> list[Any]:
    if isinstance(value, pa.Array):
        content, shape = repr(value.to_pylist()).encode(), [len(value)]
        return [str(value.type), shape, hashlib.sha256(content).hexdigest()]
    array = value.numpy()
    return [str(array.dtype), list(array.shape), hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()]


def _table() -> None:
    source = np.random.default_rng(26)
    request = 0
    for day, parts in (("2026-01-01", 2), ("2026-01-02", 2), (LATER.removeprefix("ds="), 1)):
        folder = PLACE / "table" / f"ds={day}"
        folder.mkdir(parents=True)
        for part in range(parts):
            user = np.sort(source.integers(0, 60, _ROWS))
            price = (source.integers(0, 4000, _ROWS) / 40).tolist()
            columns = {
                "request": [f"r{request + row:05d}" for row in range(_ROWS)],
                "user": pa.array(user * 7919),
                "item": pa.array(source.zipf(1.5, _ROWS).clip(max=80)),
                "word": [None if one == 0 else f"w{one}" for one in source.integers(0, 9, _ROWS)],
                "price": [None if row % 13 == 5 else value for row, value in enumerate(price)],
                "count": pa.array([None if row % 11 == 3 else row % 7 for row in range(_ROWS)], pa.int32()),
                "history": pa.array(
                    [source.zipf(1.5, count).clip(max=80).tolist() for count in source.integers(0, 6, _ROWS)],
                    pa.list_(pa.int64()),
                ),
                "words": [
                    [f"w{one}" for one in source.integers(0, 9, count)] if count else None
                    for count in source.integers(0, 4, _ROWS)
                ],
                "ts": [
                    datetime.datetime.fromisoformat(f"{day}T10:00:00") + datetime.timedelta(seconds=7 * row)
                    for row in range(_ROWS)
                ],
                "clicked": pa.array((source.random(_ROWS) < 0.3).astype(np.int8)),
            }
            pq.write_table(
                pa.table(columns), folder / f"part-{part}.parquet", row_group_size=_GROUP_ROWS, compression="zstd"
            )
            request += _ROWS
    items = pa.table({"item": np.arange(1, 60), "cost": np.arange(1, 60) * 0.25})
    pq.write_table(items, PLACE / "items.parquet")


def _run(name: str) -> dict[str, Any]:
    """What a run begins with, its state after some steps, and the first batches of both."""
    pipeline = Pipeline.from_yaml(PLACE / f"{name}.yaml")
    plan = pipeline.plan_for(_state(pipeline, STEP))
    return {
        "plan": plan.fingerprint,
        "features": plan.features.fingerprint,
        "snapshot": plan.snapshot.id,
        "rows": int(plan.selection.rows.sum()),
        "state": _state(pipeline, STEP),
        "first": _batches(pipeline, plan, 0),
        "after": _batches(pipeline, plan, STEP),
    }


def _state(pipeline: Pipeline, step: int) -> dict[str, Any]:
    facts = pipeline.plan().facts()
    named = {key: facts[key] for key in ("snapshot", "plan", "features", "seed", "lanes", "batch_size")}
    return {"version": 1, **named, "epoch": 0, "step": step}


def _batches(pipeline: Pipeline, plan: Any, step: int) -> list[dict[str, list[Any]]]:
    few = zip(range(FEW), pipeline.batches(step=step, plan=plan), strict=False)
    return [digests(batch) for _, batch in few]


def _rebase(pipeline: Pipeline) -> dict[str, Any]:
    """A state of the first two days, rebased on three."""
    before = _state(pipeline, BEFORE)
    shutil.move(PLACE / LATER, PLACE / "table" / LATER)
    set_times(PLACE)
    plan = pipeline.rebase(before)
    state = plan.state_after(before)
    return {
        "before": before,
        "plan": plan.fingerprint,
        "snapshot": plan.snapshot_name,
        "state": state,
        "after": _batches(pipeline, plan, state["step"]),
    }


def main() -> None:
    """Write the place, and what has to be found there."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    _table()
    for document in (PLAIN, FITTED):
        (PLACE / f"{document['name']}.yaml").write_text(json.dumps(document, indent=1))
    shutil.move(PLACE / "table" / LATER, PLACE / LATER)
    set_times(PLACE)
    expected = {"plain": _run("plain")}
    expected["rebased"] = _rebase(Pipeline.from_yaml(PLACE / "plain.yaml"))
    Pipeline.from_yaml(PLACE / "fitted.yaml").fit()
    expected["fitted"] = _run("fitted")
    assert check(load_spec(PLACE / "fitted.yaml", {})).passed
    shutil.rmtree(HERE / "place", ignore_errors=True)
    shutil.copytree(PLACE, HERE / "place", ignore=shutil.ignore_patterns("*.lock"))
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    shutil.rmtree(PLACE)


if __name__ == "__main__":
    main()
