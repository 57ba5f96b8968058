"""Trainers without rings, whose feeder is a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.commands import feed
from feedline.config import load_spec
from feedline.loader.ring.channel import Channel, pair
from feedline.loader.wire.facts import Hello
from feedline.loader.wire.ring_messages import BeginStream, EpochDone, FeederFailure, PlanAnswer, PlanRequest
from feedline.native.ring import FREE, Arrival
from feedline.service.feeder.feeder import Feeder

BATCH = 100

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


def write_pipeline(folder: Path, *, steps: int) -> Path:
    """A pipeline and its table, which has rows for so many steps of one rank."""
    rng = np.random.default_rng(0)
    rows = BATCH * steps
    columns = {
        "price": rng.random(rows).astype(np.float32),
        "item": rng.integers(0, 9, rows),
        "history": pa.array([[1, 2]] * rows),
        "clicked": rng.integers(0, 2, rows),
    }
    (folder / "table").mkdir()
    pq.write_table(pa.table(columns), folder / "table" / "part.parquet", row_group_size=BATCH)
    (folder / "pipeline.yaml").write_text(PIPELINE)
    return folder / "pipeline.yaml"


class Trainer:
    """The trainer's end of a session, without a ring: it frees each slot as soon as it is announced."""

    def __init__(self, channel: Channel, *, rank: int = 0, world_size: int = 1) -> None:
        self.channel = channel
        self._epoch = self._stream = 0
        channel.send_message(PlanRequest(number=1, hello=Hello(rank=rank, world_size=world_size)))
        assert isinstance(self._receive()[1], PlanAnswer)

    def begin(self, *, last: bool, epoch: int | None = None, step: int = 0) -> None:
        """Ask for the batches of an epoch (default: the next one) from a step on."""
        self._stream += 1
        self._epoch = self._epoch if epoch is None else epoch
        begin = BeginStream(stream=self._stream, epoch=self._epoch, step=step, last=last, seen=None)
        self.channel.send_message(begin)

    def read(self) -> list[int]:
        """The steps of the epoch that was asked for, as they are announced; other messages are skipped, and batches of
        earlier streams freed."""
        steps: list[int] = []
        while (arrival := self._receive())[:2] != (b"E", self._stream):
            if arrival[0] == b"R":
                _, stream, generation, slot, _, epoch, step, _ = arrival
                self.channel.send(FREE.pack(b"F", generation, slot))
                if stream == self._stream:
                    assert epoch == self._epoch
                    steps.append(step)
        self.channel.send_message(EpochDone(epoch=self._epoch))
        self._epoch += 1
        return steps

    def _receive(self) -> Arrival:
        arrival = self.channel.receive()
        if arrival[0] == b"J":
            _, message, descriptor = arrival
            assert not isinstance(message, FeederFailure), message
            if descriptor is not None:
                descriptor.close()
        return arrival


@contextmanager
def trainers_of(path: Path, ranks: int = 1, *, with_status: bool = False) -> Iterator[list[Trainer]]:
    """A trainer per rank, of one feeder with its Dask cluster. What a feeder's end does to its process is left out.
    with_status: the feeder gathers its status."""
    task = feed.FeederTask(ranks=range(ranks), world_size=ranks, local_ranks=ranks, cores=1)
    request = feed.FeedRequest(spec=load_spec(path), task=task)
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name in ("stop_waiting", "ignore_sigterm"):
            patch.setattr(feed, name, lambda: None)
        sessions = stack.enter_context(feed.open_sessions(request))
        feeder = Feeder(sessions.cluster, status=sessions.status if with_status else None)
        channels = []
        for rank in range(ranks):
            ours, theirs = pair()
            channels.append(ours)
            feeder.add(sessions.open(Channel(theirs), rank=rank, wake=feeder.wake))
        thread = threading.Thread(target=lambda: feeder.serve(until=lambda: not feeder.sessions))
        thread.start()
        try:
            yield [Trainer(channel, rank=rank, world_size=ranks) for rank, channel in enumerate(channels)]
        finally:
            for channel in channels:
                channel.close()
            thread.join()
