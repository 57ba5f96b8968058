"""A trainer takes a batch that waits in the ring, its tensors, and its end, with few calls: each takes microseconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from call_counts import calls_of
from pipelines import Place, eventually, furnished

from feedline import Batch, FeedlineDataset
from feedline.native import ring

pytestmark = pytest.mark.skipif(not ring.COMPILED, reason="installed without a compiler: Python makes the calls")
BATCHES = 24
# Half of those before receiving, leases and reports were compiled: 13 for `next()`, 13 for the end of a batch.
MOST = 13


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


def take_tensors(batch: Batch) -> None:
    """Make every tensor."""
    batch.dense, batch.categorical, batch.labels  # noqa: B018
    batch.sparse  # noqa: B018


def test_a_waiting_batch_takes_few_calls(place: Place):
    path = place.write(batch={"size": 64})
    with FeedlineDataset(path) as dataset:
        iterator = iter(dataset)
        held = [next(iterator)]
        connection = dataset._feed._connection
        channel = connection._channel
        assert channel is not None
        calls: list[int] = []
        of_tensors = 0
        for _ in range(BATCHES):
            assert eventually(lambda: bool(connection.queue) or channel.await_packet(0))
            taken = calls_of(lambda: held.append(next(iterator)))
            of_tensors += calls_of(lambda: take_tensors(held[1]))
            calls.append(taken + calls_of(lambda: held.__delitem__(0)))
        lists = len(held[0].sparse)
    own = 2 * calls_of(lambda: held.append(held[0]))
    assert median(calls) - own <= MOST, "reports come with some"
    assert lists > 0
    assert of_tensors <= (22 + 6 * lists) * BATCHES, "none of them for header and placement"
