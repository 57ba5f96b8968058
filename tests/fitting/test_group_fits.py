"""Statistics of groups in pipelines: fitted on a table, spilled, out of fold in batches, whole in serving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from fit_in_memory import fit_frames

from feedline import Pipeline
from feedline.errors import FeedlineError
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.learning.learner import InMemoryArtifacts

RANDOM = np.random.default_rng(0)
ROWS = 900
FRAME = pl.DataFrame(
    {
        "request": RANDOM.permutation(ROWS),
        "shop": pl.Series(RANDOM.integers(0, 30, ROWS)).set(pl.Series(RANDOM.random(ROWS) < 0.1), None),
        "country": [["de", "us"][one] for one in RANDOM.integers(0, 2, ROWS)],
        "price": RANDOM.gamma(2, 20, ROWS),
        "seen": [RANDOM.integers(0, 30, size).tolist() for size in RANDOM.integers(0, 5, ROWS)],
        "clicked": RANDOM.integers(0, 2, ROWS),
    }
)
ENCODING = {"target_encoding": {"target": "clicked", "fold_by": "request", "smoothing": 3}}
FEATURES = {
    "dense": {
        "rate": {"op": ENCODING, "inputs": ["shop", "country"]},
        "prices": {
            "column": "shop",
            "ops": [{"group_statistics": {"stats": ["mean", "std", "max"], "of": "price"}}, {"fill_null": 0}],
        },
        "rows": {"column": "country", "ops": [{"group_statistics": "count"}, "log1p"]},
    },
    "sparse": {"rates": {"column": "seen", "ops": [ENCODING]}},
    "label": {"clicked": []},
}


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    for part in range(3):
        pq.write_table(FRAME[300 * part : 300 * part + 300].to_arrow(), tmp_path / f"{part}.parquet", row_group_size=70)
    document = {
        "version": 1,
        "name": "groups",
        "source": {"table": "*.parquet", "split_rows": 100},
        "features": FEATURES,
        "batch": {"size": 100},
        "shuffle": "off",
    }
    path = tmp_path / "p.yaml"
    path.write_text(json.dumps(document))
    return path


def expected(path: Path, rows: pl.DataFrame, *, out_of_fold: bool) -> pl.DataFrame:
    """Fit in memory."""
    features = Pipeline.from_yaml(path).spec.features
    fits = fit_frames(features, FRAME.to_arrow().schema, [FRAME])
    known = InMemoryArtifacts(artifacts=fits.artifacts, out_of_fold=out_of_fold)
    return compile_features(features, FRAME.to_arrow().schema, known).apply(rows)


def dense(frame: pl.DataFrame) -> Any:
    return np.column_stack([frame["rate"].to_numpy(), np.array(frame["prices"].to_list()), frame["rows"].to_numpy()])


def test_training_is_out_of_fold_and_serving_is_whole(pipeline: Path):
    fitted = Pipeline.from_yaml(pipeline)
    with pytest.raises(FeedlineError, match="feedline fit"):
        next(fitted.batches())
    fitted.fit()
    batches = list(Pipeline.from_yaml(pipeline).batches())
    assert len(batches) == 9
    training, whole = (expected(pipeline, FRAME, out_of_fold=leaving) for leaving in (True, False))
    np.testing.assert_array_equal(np.concatenate([batch.dense for batch in batches]), dense(training))
    found = np.concatenate([batch.sparse["rates"].values for batch in batches])
    np.testing.assert_array_equal(found, training["rates"].explode(empty_as_null=False).to_numpy())
    serving = FRAME.select("country", "shop", "seen")
    served = Pipeline.from_yaml(pipeline).transform(serving.to_arrow())
    np.testing.assert_array_equal(served.dense, dense(whole))
    assert not np.array_equal(dense(whole), dense(training))
    evaluation = Pipeline.from_yaml(pipeline, set={"fit.out_of_fold": False})
    np.testing.assert_array_equal(np.concatenate([batch.dense for batch in evaluation.batches()]), dense(whole))


def test_unknown_keys_are_counted(pipeline: Path):
    """In lists, too; null is a key like others."""
    features = Pipeline.from_yaml(pipeline).spec.features
    known = fit_frames(features, FRAME.to_arrow().schema, [FRAME])
    rows = FRAME[:3].with_columns(shop=pl.Series([1, None, 77]), seen=pl.Series([[1, 99], [], [98]]))
    for out_of_fold in (False, True):
        compiled = compile_features(
            features, FRAME.to_arrow().schema, InMemoryArtifacts(artifacts=known.artifacts, out_of_fold=out_of_fold)
        )
        _, counts = compiled.apply_counting(rows)
        assert counts == {"rate": [(3, 1)], "prices": [(3, 1)], "rows": [(3, 0)], "rates": [(3, 2)]}
