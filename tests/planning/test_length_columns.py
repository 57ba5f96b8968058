"""Columns whose lengths decide are lists of the table, and plans with them are named by all that decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.blocks.request import Balance
from feedline.errors import SpecError

BUCKETS: dict[str, Any] = {"max_tokens": 16, "buckets": [2, 4], "length": "history"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("t")
    lists = pa.array([[1] * (row % 5) for row in range(80)], pa.list_(pa.int64()))
    pq.write_table(pa.table({"history": lists, "price": pa.array(range(80), pa.int64())}), folder / "a.parquet")
    return folder


def pipeline_of(folder: Path, batch: dict[str, Any], **changes: Any) -> Pipeline:
    document = {
        "version": 1,
        "name": "lengths",
        "work_dir": str(folder.parent / "work"),
        "source": {"table": str(folder), **changes.pop("source", {})},
        "features": {"dense": {"price": []}},
        "batch": batch,
        **changes,
    }
    return Pipeline.from_dict(document)


def test_the_column_is_read_though_no_feature_reads_it(folder: Path):
    plan = pipeline_of(folder, {"size": 8, "balance": {"column": "history", "max": 3}}).plan()
    assert plan.source.columns == ("price", "history")
    assert plan.source.job.order == Balance("history", 3)
    assert pipeline_of(folder, {"size": 8}).plan().source.columns == ("price",)


def test_rows_of_each_bucket_are_counted(folder: Path):
    plan = pipeline_of(folder, BUCKETS, source={"where": "price < 40"}).plan()
    assert plan.source.lengths is not None
    assert plan.source.lengths.rows.tolist() == [[24, 16]]
    assert plan.facts().bounds(1) == {8: 2, 4: 4}


@pytest.mark.parametrize("batch", [{"size": 8, "balance": "history"}, BUCKETS])
def test_whatever_decides_is_in_the_fingerprint(folder: Path, batch: dict[str, Any]):
    changed: list[dict[str, Any]] = [batch]
    if "balance" in batch:
        changed += [{"size": 8, "balance": {"column": "history", "max": most}} for most in (2, 3)] + [{"size": 8}]
    else:
        changed += [{**batch, **change} for change in ({"max_tokens": 20}, {"buckets": [3, 4]}, {"longer": "cap"})]
        changed.append({**{key: value for key, value in batch.items() if key != "length"}, "balance": "history"})
    prints = [pipeline_of(folder, each).plan().fingerprint for each in changed]
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"size": 8, "balance": "histroy"}, r"batch\.balance: column 'histroy' is not in the table.*'history'"),
        ({"size": 8, "balance": "price"}, r"batch\.balance: column 'price' has no lengths: got int64, expected lists"),
        ({**BUCKETS, "length": "price"}, r"batch\.length: column 'price' has no lengths: got int64, expected lists"),
        (
            {**BUCKETS, "buckets": [1, 3]},
            r"batch\.buckets: .* got 16 rows .* longer than 3 \(first: .*/a.parquet, row group 0\), the longest 4, ",
        ),
    ],
)
def test_other_columns_and_longer_lists_are_refused(folder: Path, batch: dict[str, Any], message: str):
    with pytest.raises(SpecError, match=message):
        pipeline_of(folder, batch).plan()


def test_longer_lists_may_be_capped(folder: Path):
    plan = pipeline_of(folder, {**BUCKETS, "buckets": [1, 3], "longer": "cap"}).plan()
    assert plan.source.lengths is not None
    assert plan.source.lengths.rows.tolist() == [[32, 48]]
