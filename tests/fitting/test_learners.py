"""Fits of every op on the same rows in other files and orders give bit-identical artifacts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.artifacts.store import load_manifest
from feedline.transforms.ops import OPS

RANDOM = np.random.default_rng(0)
ROWS = 1_200
ENCODING = {"target_encoding": {"target": "y", "fold_by": "row"}}
FEATURES: dict[str, Any] = {
    "dense": {
        "standard": {"column": "x", "ops": ["standardize"]},
        "ranged": {"column": "x", "ops": ["min_max"]},
        "middle": {"column": "x", "ops": ["fill_median"]},
        "mean": {"column": "x", "ops": ["fill_mean"]},
        "cut": {"column": "x", "ops": [{"quantile_bucketize": 8}, "standardize"]},
        "rate": {"column": "shop", "ops": [ENCODING]},
        "price": {"column": "shop", "ops": [{"group_statistics": {"stats": ["mean", "std"], "of": "x"}}]},
    },
    "categorical": {
        "id": {"column": "shop", "ops": ["vocabulary"]},
        "name": {"column": "word", "ops": [{"vocabulary": {"min_count": 2}}]},
    },
    "sparse": {
        "ids": {"column": "seen", "ops": [{"vocabulary": {"name": "seen", "max_size": 50}}]},
        "rates": {"column": "seen", "ops": [ENCODING]},
    },
    "label": {"y": []},
}
FRAME = pl.DataFrame(
    {
        "row": RANDOM.permutation(ROWS),
        # of very different sizes, so that sums of floats would depend on their order
        "x": pl.Series(np.exp(RANDOM.normal(0, 12, ROWS))).set(pl.Series(RANDOM.random(ROWS) < 0.1), None),
        "shop": pl.Series(RANDOM.integers(0, 120, ROWS)).set(pl.Series(RANDOM.random(ROWS) < 0.1), None),
        "word": [f"w{number}" for number in RANDOM.geometric(0.01, ROWS)],
        "seen": [RANDOM.geometric(0.01, size).tolist() for size in RANDOM.integers(0, 5, ROWS)],
        "y": RANDOM.integers(0, 2, ROWS),
    }
)


def test_every_op_that_learns_is_here():
    here = json.dumps(FEATURES)
    missing = [name for name, op in OPS.items() if op.learns is not None and f'"{name}"' not in here]
    assert not missing, f"add a feature with each of {missing}"


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small tasks and chunks."""
    monkeypatch.setattr("feedline.fitting.fit_tasks._MIN_TASK_ROWS", 300)
    monkeypatch.setattr("feedline.fitting.observe.OBSERVE_ROWS", 120)


def fitted(folder: Path, table: pa.Table, files: int, row_group_rows: int, **changes: Any) -> dict[str, str]:
    """The digest of every fit's artifact, by key."""
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(ROWS), files)):
        chunk = table.slice(int(part[0]), len(part))
        pq.write_table(chunk, folder / f"{number}.parquet", row_group_size=row_group_rows)
    document = {"version": 1, "name": "t", "source": {"table": "*.parquet"}, "features": FEATURES, "batch": {"size": 8}}
    fit = {"golden": "none", **changes.pop("fit", {})}
    (folder / "p.yaml").write_text(json.dumps({**document, **changes, "fit": fit}))
    report = Pipeline.from_yaml(folder / "p.yaml").fit()
    assert report.manifest is not None
    assert report.passes == 2
    return {key: fit.digest for key, fit in load_manifest(report.folder, report.manifest).fits.items()}


@pytest.mark.usefixtures("tight")
def test_fits_do_not_depend_on_order_tasks_threads_and_memory(tmp_path: Path):
    whole = fitted(tmp_path / "whole", FRAME.to_arrow(), 1, ROWS, cluster={"threads": 1})
    shuffled = FRAME.sample(fraction=1, shuffle=True, seed=3).to_arrow()
    pieces = fitted(tmp_path / "pieces", shuffled, 5, 97, cluster={"threads": 3})
    spilled = fitted(tmp_path / "spilled", FRAME.reverse().to_arrow(), 2, 411, fit={"memory": "20kB"})
    assert whole == pieces
    assert whole == spilled
