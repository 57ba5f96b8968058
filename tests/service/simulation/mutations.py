"""Faults put into the real code, each of which the simulation must find: what it would miss, it does not test.

python tests/service/simulation/mutations.py [NAME ...]     the first seed that finds each
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from simulation import run_seed
from virtual_time import replaced

from feedline.loader.ring.channel import Channel
from feedline.loader.ring.client import FeederClient
from feedline.loader.ring.slots import RingReader, RingWriter
from feedline.service.cluster.blame import Retry
from feedline.service.cluster.local_tasks import LocalTasks
from feedline.service.feeder import delivery
from feedline.service.feeder.block_work import BlockWork
from feedline.service.feeder.delivery import Delivery
from feedline.service.feeder.slot_writers import SlotWriters
from feedline.service.feeder.trainer_stream import TrainerStream
from feedline.service.feeder.trainer_streams import TrainerStreams
from feedline.service.feeder.window import Window
from feedline.service.pool.block_pool import BlockPool
from feedline.service.pool.segments import _Lease

Changes = Sequence[tuple[Any, str, Any]]
SEEDS = 200


def _nothing(*_: Any, **__: Any) -> None:
    """Of a function that is left out."""


def _lease_early(self: RingReader, ready: Any) -> Any:
    lease = _ring_lease(self, ready)
    self._channel.free(ready[2], ready[3])
    return lease


def _drop_keeping_slots(self: SlotWriters) -> None:
    self._queue.drop()
    self._writing.clear()


def _release_half(self: RingWriter, generation: int, slot: int) -> None:
    if slot:
        _ring_release(self, generation, slot)


def _bury_all(self: BlockPool, process: Any) -> None:
    for seat in process.seats:
        while len(seat.calls) > 1:
            seat.calls.pop()
    _pool_bury(self, process)


def _bury_silently(self: BlockPool, process: Any) -> None:
    for seat in process.seats:
        if seat.calls:
            seat.calls[0].on_death = _nothing
    _pool_bury(self, process)


def _begin_at_next(self: TrainerStreams) -> Any:
    begin = self._begin
    if begin is not None and begin.step and self._opening is not None:
        object.__setattr__(begin, "step", begin.step + 1)
    return _streams_open(self)


def _recover_one_back(self: FeederClient) -> None:
    if self._position is not None and self._position[1]:
        self._position = self._position[0], self._position[1] - 1
    _client_recover(self)


def _begin_with_any(self: TrainerStreams, begin: Any) -> None:
    for stream in list(self._ahead)[:1]:
        stream.epoch, stream.step = begin.epoch, begin.step
    _streams_begin(self, begin)


def _drop_without_count(self: Delivery, step: int) -> Any:
    before = self._window.in_flight
    dropped = _delivery_drop(self, step)
    self._window.in_flight = before
    return dropped


def _early_lease(self: Any, memory: Any, number: int, released: list[int]) -> None:
    _segment_lease(self, memory, number, released)
    released.append(number)


def _keep_any(self: Delivery, work: BlockWork, attempt: Any, result: Any, now_s: float) -> None:
    _delivery_keep(self, work, attempt, result, now_s)
    if work.rows and len(self._work) > 1:
        other = next(each for each in self._work.values() if each is not work)
        if other.rows is not None and other.rows[0].rows == work.rows[0].rows:
            work.rows = other.rows


def _steps_later(self: TrainerStream, step: int) -> Any:
    return _stream_drop_blocks(self, step + 1)


def _flush_losing(self: Channel) -> None:
    if len(self.unsent) > 1:
        self.unsent.pop()
    _channel_flush(self)


_ring_lease, _ring_release = RingReader.lease, RingWriter.release
_pool_bury, _streams_open, _streams_begin = BlockPool._bury, TrainerStreams.open, TrainerStreams.begin
_client_recover, _delivery_drop, _delivery_keep = FeederClient._recover, Delivery.drop, Delivery._keep
_segment_lease, _stream_drop_blocks, _channel_flush = _Lease.__init__, TrainerStream.drop_blocks, Channel.flush
_has_room = Window.has_room

MUTATIONS: dict[str, Changes] = {
    "a failed block is not computed again": [(Delivery, "_retry", _nothing)],
    "blocks that a scheduler forgot are not submitted again": [(Delivery, "_resubmit", _nothing)],
    "a block is tried where it failed": [(delivery, "decide_retry", lambda *_: Retry(workers=None))],
    "another block's rows are kept": [(Delivery, "_keep", _keep_any)],
    "blocks that are dropped stay in flight": [(Delivery, "drop", _drop_without_count)],
    "blocks are dropped a step early": [(TrainerStream, "drop_blocks", _steps_later)],
    "a task that has ended stays held": [(BlockWork, "release", _nothing)],
    "a task's entry stays": [(LocalTasks, "release", _nothing)],
    "a dead process's waiting calls are lost": [(BlockPool, "_bury", _bury_all)],
    "nobody hears of a process's death": [(BlockPool, "_bury", _bury_silently)],
    "a segment is free while a block uses it": [(_Lease, "__init__", _early_lease)],
    "a slot is free while the trainer reads it": [(RingReader, "lease", _lease_early)],
    "slots that were not announced are lost": [(SlotWriters, "drop", _drop_keeping_slots)],
    "a slot is never free again": [(RingWriter, "release", _release_half)],
    "the ring does not grow": [(RingWriter, "grow", _nothing)],
    "a report of free slots is lost": [(Channel, "flush", _flush_losing)],
    "a resumed stream begins a step later": [(TrainerStreams, "open", _begin_at_next)],
    "a stream that was computed ahead serves any step": [(TrainerStreams, "begin", _begin_with_any)],
    "another feeder continues a step too early": [(FeederClient, "_recover", _recover_one_back)],
}


def first_seed(changes: Changes, seeds: int = SEEDS) -> int | None:
    """The first seed that finds a mutation; None if none does."""
    with replaced(changes):
        for seed in range(seeds):
            try:
                run_seed(seed)
            except Exception:  # whatever it breaks
                return seed
    return None


def main() -> None:
    for name in sys.argv[1:] or MUTATIONS:
        print(f"{first_seed(MUTATIONS[name])}: {name}", flush=True)


if __name__ == "__main__":
    main()
