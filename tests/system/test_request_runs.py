"""Training on exploded requests with real feeders: killed, resumed, and rebased onto a rewritten table."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipelines import Place, furnished, image, oracle

from feedline import FeedlineDataset

REQUESTS = 400


def requests(first: int, count: int) -> pa.Table:
    rng = np.random.default_rng(first)
    lengths = rng.integers(0, 8, count)
    lists = [list(range(length)) for length in lengths.tolist()]
    numbers = [[(first + request) * 10 + n for n in each] for request, each in enumerate(lists)]
    return pa.table(
        {
            "request": np.arange(first, first + count),
            "age": rng.random(count).astype("f4"),
            "history": [list(range(n)) for n in rng.integers(0, 5, count).tolist()],
            "position": pa.array(lists, pa.list_(pa.int64())),
            "clicked": pa.array([[n % 2 for n in each] for each in lists], pa.list_(pa.int8())),
            "id": pa.array(numbers, pa.list_(pa.int64())),
        }
    )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    for part in range(4):
        folder = tmp_path / "t" / f"ds={part}"
        folder.mkdir(parents=True)
        pq.write_table(requests(part * REQUESTS, REQUESTS), folder / "0.parquet", row_group_size=50)
    (tmp_path / "place").mkdir()
    with furnished(tmp_path / "place", tmp_path / "t") as place:
        yield place


def pipeline(place: Place) -> Path:
    features: dict[str, Any] = {
        "dense": {"age": []},
        "sparse": {"history": []},
        "label": {"clicked": []},
        "extra": ["id"],
    }
    source = {"table": str(place.table), "explode": ["position", "clicked", "id"], "row_key": ["id"], "split_rows": 300}
    return place.write(
        source=source,
        features=features,
        batch={"size": 64, "tail": "partial"},
        shuffle={"by": "request", "window_rows": 600},
        dedup={"user": {"columns": ["age", "history"]}},
        lanes=2,
    )


def ids(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch.extra["id"][batch.valid].tolist()]


def test_a_killed_feeder_and_another_day_change_nothing(place: Place):
    path = pipeline(place)
    expected = oracle(path)
    with FeedlineDataset(path) as dataset:
        assert len(dataset) == len(expected) > 20
        iterator = iter(dataset)
        found = [image(batch) for batch in islice(iterator, 5)]
        os.kill(dataset.facts["feeder"], signal.SIGKILL)
        found += [image(batch) for batch in islice(iterator, 6)]
        state = dataset.state_dict()
    with FeedlineDataset(path) as dataset:
        dataset.load_state_dict(state)
        found += [image(batch) for batch in dataset]
    assert found == expected


def test_a_rebase_after_requests_were_rewritten(place: Place):
    path = pipeline(place)
    with FeedlineDataset(path) as dataset:
        before = ids(islice(dataset, len(dataset) // 2))
        state = dataset.state_dict()
        file = place.table / "ds=1" / "0.parquet"
        table = pq.read_table(file, partitioning=None)
        order = np.random.default_rng(0).permutation(table.num_rows)[:-20]  # 20 requests are gone
        pq.write_table(table.take(pa.array(order)), file, row_group_size=77)
        dataset.load_state_dict(state, snapshot="rebase")
        after = ids(dataset)
    stored = [pq.read_table(each, columns=["id"], partitioning=None)["id"] for each in place.table.rglob("*.parquet")]
    left = {id for column in stored for each in column.to_pylist() for id in each}
    assert len(after) == len(set(after))
    assert set(after) == left - set(before)
