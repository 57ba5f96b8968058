"""What a first batch need not wait for, a feeder does not import before it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import FeedlineDataset

# Each takes 5 ms to a second: libraries of other processes and of commands, and what few pipelines call.
NOT_NEEDED = {
    *("asyncio", "bokeh", "concurrent.futures.process", "dask", "distributed", "fsspec", "jinja2", "multiprocessing"),
    *("opentelemetry", "pandas.core", "prometheus_client", "pyarrow.dataset", "rich", "tenacity", "torch", "yaml"),
    *("typer", "zarr", "feedline.cli", "feedline.fitting", "feedline.loader.dataset", "feedline.materialize"),
    *("feedline.pipeline", "feedline.serving", "feedline.workbench"),
    *(
        "feedline.service.page.live_page",
        "feedline.transforms.ops.group_statistics",
        "feedline.transforms.ops.vocabulary",
    ),
}


@pytest.mark.parametrize("start", ["of a new table", "with its snapshot"])
def test_a_first_batch_waits_for_no_import_that_it_does_not_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
):
    rows = range(1_000)
    for number in range(3):
        columns = {"price": pa.array([row / 7 for row in rows], pa.float32()), "item": pa.array(rows, pa.int64())}
        folder = tmp_path / "table" / f"ds=2026-01-0{number + 1}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({**columns, "name": [f"name {row % 9}" for row in rows]}), folder / "part.parquet")
    pipeline = {
        "version": 1,
        "name": "small",
        "work_dir": str(tmp_path / "work"),
        "source": {"table": str(tmp_path / "table"), "where": 'ds >= "2026-01-02" and item < 900'},
        "features": {
            "dense": {"price": [{"fill_null": 0}, "log1p"]},
            "categorical": {"item": [{"modulo": 100}], "name": [{"hash_bucket": 1000}]},
        },
        "batch": {"size": 100},
    }
    (tmp_path / "pipeline.yaml").write_text(json.dumps(pipeline))
    if start == "with its snapshot":
        with FeedlineDataset(tmp_path / "pipeline.yaml") as dataset:
            len(dataset)
    monkeypatch.setenv("FEEDLINE_COMMAND", f"{sys.executable} -X importtime -P -m feedline")
    with FeedlineDataset(tmp_path / "pipeline.yaml") as dataset:
        batch = next(iter(dataset))
        assert len(batch["item"]) == 100
        imported = set(re.findall(r"^import time:.*\| +(\S+)$", Path(dataset.facts["log"]).read_text(), re.MULTILINE))
    assert {"polars", "feedline.commands.feed", "feedline.transforms.ops.dense"} <= imported
    assert {name for name in NOT_NEEDED if any(f"{each}.".startswith(f"{name}.") for each in imported)} == set()
