"""The features of the regression that `init --check` compares with, against the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from feedline.workbench.begin.baseline import _examples

ROWS = 90
RNG = np.random.default_rng(7)


def test_ids_are_taken_one_by_one_and_lists_as_means(tmp_path: Path):
    lists = [RNG.integers(0, 5, size).tolist() for size in RNG.integers(0, 4, ROWS)]
    x, item, label = RNG.normal(size=ROWS).astype(np.float32), RNG.integers(0, 6, ROWS), RNG.integers(0, 2, ROWS)
    pq.write_table(pa.table({"x": x, "item": item, "tags": lists, "label": label}), tmp_path / "t.parquet")
    document = {
        "version": 1,
        "name": "baseline",
        "source": {"table": "t.parquet"},
        "features": {
            "dense": {"x": []},
            "categorical": {"item": [{"modulo": 6}]},
            "sparse": {"tags": [{"modulo": 5}]},
            "label": {"label": []},
        },
        "batch": {"size": 40},
        "shuffle": "off",
    }
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(document))
    features, labels = _examples(tmp_path / "pipeline.yaml", {"shuffle": "off"}, "label")
    means = [[row.count(each) / max(len(row), 1) for each in range(5)] for row in lists]
    expected = np.hstack([x[:, None], item[:, None] == np.arange(6), np.array(means)])
    np.testing.assert_allclose(features.toarray(), expected, rtol=1e-6)
    np.testing.assert_array_equal(labels, label)
