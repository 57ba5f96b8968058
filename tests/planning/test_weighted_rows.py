"""How often an epoch draws from each row group: in proportion to the weights of the rows that it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.errors import SpecError
from feedline.planning.source_plan import fingerprint_facts
from feedline.planning.weighted_rows import DRAWS_VERSION, RowWeights
from feedline.warehouse.reading.row_weights import EXACT


def pipeline_of(folder: Path, **changes: Any) -> Pipeline:
    rng = np.random.default_rng(0)
    rows = {"x": rng.integers(0, 9, 1000), "weight": rng.integers(0, 50, 1000)}
    pq.write_table(pa.table(rows), folder / "t.parquet", row_group_size=100)
    spec = {
        "version": 1,
        "name": "weights",
        "work_dir": str(folder / "work"),
        "source": {"table": str(folder / "t.parquet"), "where": "x > 2"},
        "features": {"dense": {"x": []}},
        "batch": {"size": 10},
        "shuffle": {"weights": "weight"},
    }
    return Pipeline.from_dict({**spec, **changes})


def test_row_groups_are_drawn_by_the_weights_of_their_kept_rows(tmp_path: Path):
    plan = pipeline_of(tmp_path).plan()
    weights = plan.source.weights
    assert weights is not None
    sums = duckdb.sql(
        f"select sum(weight) from read_parquet('{tmp_path}/t.parquet', file_row_number=true) where x > 2 "
        "group by file_row_number // 100 order by file_row_number // 100"
    ).fetchall()
    assert weights.quanta.tolist() == [total for (total,) in sums]
    assert weights.rows == plan.source.selection.rows.sum() < 1000
    for epoch in range(3):
        draws = plan.source.remaining_rows(epoch)
        assert draws.sum() == weights.rows
        assert (np.abs(draws - weights.quanta / weights.quanta.sum() * weights.rows) < 1).all()
    assert plan.source.columns == ("x", "weight")  # one file, read once for both


def test_epochs_round_differently():
    exponents = np.zeros(3, np.int64)
    weights = RowWeights(column="w", quanta=np.array([1, 1, 1]), exponents=exponents, precision=EXACT, rows=4, seed=0)
    assert len({tuple(weights.draws_in(epoch).tolist()) for epoch in range(20)}) == 3
    assert weights.draws_in(7) is weights.draws_in(7)


@pytest.mark.parametrize("unit", [1e-20, 1e250])
def test_row_groups_are_drawn_by_weights_of_any_scale(tmp_path: Path, unit: float):
    rng = np.random.default_rng(1)
    weight = rng.random(1000) ** 2 * unit * np.repeat(10.0 ** np.arange(-5, 5), 100)
    weight[300:400] = 0
    pipeline = pipeline_of(tmp_path)
    pq.write_table(pa.table({"x": np.full(1000, 5), "weight": weight}), tmp_path / "t.parquet", row_group_size=100)
    plan = pipeline.plan()
    assert plan.source.weights is not None
    assert plan.source.weights.precision > 20
    expected = weight.reshape(10, 100).sum(axis=1) / weight.sum() * 1000
    for epoch in range(3):
        draws = plan.source.remaining_rows(epoch)
        assert draws.sum() == 1000
        assert (np.abs(draws - expected) < 1 + 1e-6).all()
    sums = np.array([float(each) for each in plan.source.weights.sums])
    assert np.allclose(sums / sums.sum(), expected / 1000, rtol=1e-12)


def test_states_of_earlier_draws_are_of_another_plan(tmp_path: Path):
    facts = fingerprint_facts(pipeline_of(tmp_path).plan().source)
    assert facts["weights"] == ["weight", DRAWS_VERSION]


def test_the_weight_of_a_sample_is_no_column(tmp_path: Path):
    source = {"table": str(tmp_path / "t.parquet"), "sample": {"fraction": 0.5}}
    with pytest.raises(SpecError, match=r"shuffle\.weights cannot be sample_weight, which source.sample generates"):
        pipeline_of(tmp_path, source=source, shuffle={"weights": "sample_weight"}).plan()
