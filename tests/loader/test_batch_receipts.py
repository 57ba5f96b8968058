"""A receipt names the position, the reader, what the digest covers and the digest."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from answers import plan_facts

from feedline import Pipeline
from feedline.loader.batch import digest_of
from feedline.loader.batch_receipts import receipt_of
from feedline.loader.launcher import RankInfo
from feedline.loader.state import state_of
from feedline.service.verify.receipts import Receipt


def test_a_receipt_names_its_reader_and_the_features_of_a_column_group(tmp_path: Path):
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [3.0, 4.0]}), tmp_path / "t.parquet")
    document = {"version": 1, "name": "p", "work_dir": str(tmp_path / "w"), "batch": {"size": 2}}
    pipeline = Pipeline.from_dict(
        {**document, "source": {"table": str(tmp_path / "t.parquet")}, "features": {"dense": {"x": [], "y": []}}}
    )
    ranks = RankInfo(rank=1, world_size=2, local_ranks=1, source="", trainer=5, trainers=8)
    whole, [group] = next(pipeline.batches()), pipeline.batches(features=["y"])
    state = state_of(plan_facts(), 0, 0)
    receipts = [receipt_of(whole, state, ranks, ()), receipt_of(group, state, ranks, ("y",))]
    assert "column_group" not in receipts[0]
    assert receipts[1]["column_group"] == ["y"]
    assert [each["digest"] for each in receipts] == [digest_of(whole), digest_of(group)]
    assert receipts[0]["digest"] != receipts[1]["digest"]
    for message, names in zip(receipts, [(), ("y",)], strict=True):
        receipt = Receipt.from_json(message)
        assert (receipt.rank, receipt.world_size, receipt.trainer, receipt.rows) == (1, 2, 5, 2)
        assert (receipt.epoch, receipt.step, receipt.column_group) == (0, 0, names)
