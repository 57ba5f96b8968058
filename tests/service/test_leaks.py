"""The feeder keeps nothing of epochs that are over: objects and bytes, counted in this process."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipelines import eventually

from feedline.commands import feed
from feedline.loader.facts import Hello
from feedline.loader.ring.channel import FREE, Arrival, Channel, pair
from feedline.loader.ring.feeder_connection import PROTOCOL
from feedline.loader.ring.messages import BeginStream
from feedline.service.feeder import Feeder
from feedline.version import VERSION

STEPS = 3
WARM, MEASURED = 120, 60  # epochs; Dask's logs of its last 100 messages fill up meanwhile
# In all of them. A group of tasks that is kept, with all that it refers to, is 10 objects and 14 KB.
OBJECTS = 4 * MEASURED  # the logged messages hold more or fewer tasks
BYTES = 3000 * MEASURED  # 400 of them in Dask's cache of parsed keys, which is cleared every 1,000 tasks

PIPELINE = """
version: 1
name: leaks
work_dir: work
source: {table: table}
features:
  dense: {price: []}
  categorical: {item: []}
  sparse: {history: []}
  label: {clicked: []}
batch: {size: 100}
cluster: {threads: 1, dashboard: false}
"""


class Trainer:
    """The trainer's end of a session, without a ring: it frees each slot as soon as it is announced."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._epoch = 0
        versions = {"protocol": PROTOCOL, "feedline": VERSION, "number": 1}
        channel.send_json({"type": "hello", **versions, **Hello(rank=0, world_size=1).to_json()})
        assert self._receive()[1]["type"] == "facts"

    def run(self, epochs: int) -> None:
        """Read epochs, after the last of which the feeder has nothing to do."""
        for number in range(epochs):
            assert self._read_epoch(last=number == epochs - 1) == STEPS

    def _read_epoch(self, *, last: bool) -> int:
        begin = BeginStream(stream=self._epoch + 1, epoch=self._epoch, step=0, last=last, seen=None)
        self._channel.send_json(begin.to_json())
        steps = 0
        while (arrival := self._receive())[0] != b"E":
            if arrival[0] == b"R":
                _, _, generation, slot, *_ = arrival
                self._channel.send(FREE.pack(b"F", generation, slot))
                steps += 1
        self._channel.send_json({"type": "epoch_done", "epoch": self._epoch})
        self._epoch += 1
        return steps

    def _receive(self) -> Arrival:
        arrival = self._channel.receive()
        assert arrival is not None
        if arrival[0] == b"J":
            _, message, descriptor = arrival
            assert message["type"] != "error", message
            if descriptor is not None:
                descriptor.close()
        return arrival


@contextmanager
def trainer_of(path: Path) -> Iterator[Trainer]:
    """A trainer whose feeder is a thread of this process, with its Dask cluster."""
    ours, theirs = pair()
    request = feed.FeedRequest(path=str(path), overrides={}, ranks=[0], world_size=1, local_ranks=1)
    with feed._sessions(request) as sessions:
        feeder = Feeder(sessions.cluster)
        feeder.add(sessions.open(Channel(theirs), rank=0, wake=feeder.wake))
        thread = threading.Thread(target=lambda: feeder.serve(until=lambda: not feeder.sessions))
        thread.start()
        try:
            yield Trainer(ours)
        finally:
            ours.close()
            thread.join()


def objects() -> Counter[str]:
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects())


@pytest.fixture(autouse=True)
def _process_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the end of a feeder does to its process is not done to this one."""
    monkeypatch.setattr(feed, "stop_waiting", lambda: None)
    monkeypatch.setattr(feed, "ignore_sigterm", lambda: None)


def test_epochs_leave_no_objects_behind(tmp_path: Path):
    rng = np.random.default_rng(0)
    rows = 100 * STEPS
    columns = {
        "price": rng.random(rows).astype(np.float32),
        "item": rng.integers(0, 9, rows),
        "history": pa.array([[1, 2]] * rows),
        "clicked": rng.integers(0, 2, rows),
    }
    (tmp_path / "table").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "table" / "part.parquet", row_group_size=100)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    with trainer_of(tmp_path / "pipeline.yaml") as trainer:
        tracemalloc.start()
        try:
            objects()  # whose own first call leaves some
            trainer.run(WARM)
            before, bytes_before = objects(), tracemalloc.get_traced_memory()[0]
            trainer.run(MEASURED)
            # what the last epoch's tasks leave is released soon
            assert eventually(lambda: (objects() - before).total() < OBJECTS, within_s=10), (
                objects() - before
            ).most_common(10)
            assert tracemalloc.get_traced_memory()[0] - bytes_before < BYTES
        finally:
            tracemalloc.stop()
