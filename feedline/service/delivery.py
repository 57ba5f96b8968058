"""How do blocks get computed ahead of the trainer, and no further? A bounded window of Dask tasks in plan order.

Runs in: the feeder. `pump` submits, callbacks of Dask's threads file results and wake the feeder, `get` hands a
block's rows over, `drop` forgets it. A task that was lost with its worker is run again by Dask; one that was lost with
the scheduler, or killed its workers, is submitted again under a new key (an error sticks to its key).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from distributed import Future
from distributed.scheduler import KilledWorker

from feedline.errors import ClusterError, FeedlineError
from feedline.loader.encode import EncodedRows
from feedline.loader.layout import SlotLayout
from feedline.loader.quality import Quality
from feedline.loader.schedule import Block
from feedline.service.cluster import Cluster
from feedline.service.tasks import BlockRequest, BlockResult, Job, run_block, unpack

_ATTEMPTS = 4


@dataclass(slots=True)
class _Work:
    block: Block
    request: BlockRequest
    attempt: int = 0
    future: Future[Any] | None = None
    rows: tuple[EncodedRows, ...] | None = None
    nbytes: int = 0
    quality: Quality | None = None


@dataclass(slots=True)
class DeliveryStats:
    """Sums over finished blocks."""

    blocks: int = 0
    nbytes_read: int = 0
    nbytes_encoded: int = 0
    read_s: float = 0.0
    transform_s: float = 0.0
    encode_s: float = 0.0
    resubmitted: int = 0


class Delivery:
    """The blocks of one stream (a rank's lanes from a step on)."""

    def __init__(
        self,
        cluster: Cluster,
        job: Job,
        layout: SlotLayout,
        *,
        name: str,
        blocks: Iterator[Block],
        request: Callable[[Block], BlockRequest],
        window_blocks: int,
        window_bytes: int,
        wake: Callable[[], None],
        stats: DeliveryStats,
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._job_digest = hashlib.blake2b(repr(job).encode()).digest()
        self._layout = layout
        self._name = name
        self._blocks = blocks
        self._request = request
        self._window_blocks = window_blocks
        self._window_bytes = window_bytes
        self._wake = wake
        self._next: Block | None = next(blocks, None)
        self._work: dict[tuple[int, int], _Work] = {}
        self._largest = 0
        self._submitted = 0
        self._closed = False
        self._connection = cluster.connection.number
        self._lost: list[_Work] = []  # with the scheduler, while it did not answer
        self._lock = threading.Lock()
        self._finished: list[tuple[_Work, Future[Any], BlockResult | BaseException | None]] = []
        self.stats = stats

    @property
    def in_flight(self) -> int:
        return len(self._work)

    def pump(self, step: int) -> None:
        """Submit blocks while the window has room, and whatever `step` needs in any case."""
        self.look()
        while self._next is not None and (self._room() or self._next.first_step <= step):
            block, self._next = self._next, next(self._blocks, None)
            work = _Work(block, self._request(block))
            self._work[block.lane, block.index] = work
            self._submit(work)

    def get(self, lane: int, index: int) -> tuple[EncodedRows, ...] | None:
        """The block's rows, or None while it is being computed. Raises what its task raised."""
        self._collect()
        return self._work[lane, index].rows

    def drop(self, step: int) -> list[tuple[Block, Quality]]:
        """Forget the blocks that no step after `step` needs; returns what was counted of them."""
        done = [place for place, work in self._work.items() if work.block.last_step <= step]
        dropped = [self._work.pop(place) for place in done]
        return [(work.block, work.quality) for work in dropped if work.quality is not None]

    def look(self) -> None:
        """Take what has finished, and submit again what was lost with the scheduler, once that is back. Called every
        second or so."""
        self._collect()
        if not self._cluster.alive():
            return
        if self._connection != self._cluster.connection.number:
            self._connection = self._cluster.connection.number
            lost = [work for work in self._work.values() if work.rows is None]
        else:
            lost = self._lost
        self._lost = []
        for work in lost:
            self._again(work)

    def close(self) -> None:
        with self._lock:  # from here on nobody is woken
            self._closed = True
        for work in self._work.values():
            if work.future is not None:
                work.future.release()
        self._work.clear()

    def _room(self) -> bool:
        blocks = len(self._work)
        if not self._largest:
            return blocks < self._cluster.threads()  # nobody knows yet how large a block is
        return blocks < self._window_blocks and (blocks + 1) * self._largest <= self._window_bytes

    def _submit(self, work: _Work) -> None:
        block = work.block
        digest = hashlib.blake2b(self._job_digest + repr(work.request).encode(), digest_size=8).hexdigest()
        place = f"{self._name}-l{block.lane}-b{block.index}"
        key = f"feedline-block-{place}-{digest}-a{work.attempt}-{'p' if self._cluster.packed else 'r'}"
        self._submitted += 1
        work.future = future = self._cluster.submit(
            run_block, self._job, work.request, key, self._cluster.packed, key=key, priority=-self._submitted
        )
        if future is None:
            self._lost.append(work)
            return
        future.add_done_callback(lambda done: self._file(work, done))

    def _file(self, work: _Work, future: Future[Any]) -> None:
        """Runs in a thread of Dask's: fetch the result and wake the feeder."""
        if self._closed:
            return
        outcome: BlockResult | BaseException | None = None
        try:
            if future.status == "finished":
                outcome = future.result()
            elif future.status == "error":
                outcome = future.exception()
        except BaseException as error:  # whatever it is, the feeder's own thread has to deal with it
            outcome = error
        with self._lock:
            if not self._closed:
                self._finished.append((work, future, outcome))
                self._wake()

    def _collect(self) -> None:
        with self._lock:
            finished, self._finished = self._finished, []
        for work, future, outcome in finished:
            if work.future is not future:
                continue  # of an attempt that was given up
            if isinstance(outcome, BlockResult):
                self._keep(work, outcome)
            elif isinstance(outcome, FeedlineError):
                raise outcome
            elif work.attempt + 1 >= _ATTEMPTS:
                raise ClusterError(
                    f"block {future.key} failed {_ATTEMPTS} times: {outcome or future.status}"
                ) from outcome
            elif outcome is None or isinstance(outcome, KilledWorker | OSError | TimeoutError) or _cancelled(outcome):
                self._again(work)
            else:
                raise ClusterError(f"block {future.key} failed: {type(outcome).__name__}: {outcome}") from outcome

    def _keep(self, work: _Work, result: BlockResult) -> None:
        assert work.future is not None
        if result.key != work.future.key or result.rows != work.request.rows:
            raise ClusterError(
                f"a block has another identity: got {result.key} with {result.rows} rows, expected {work.future.key} "
                f"with {work.request.rows}"
            )
        work.rows = unpack(self._layout, result)
        work.nbytes = result.nbytes
        work.quality = result.quality
        work.future.release()
        work.future = None
        self._largest = max(self._largest, result.nbytes)
        stats = self.stats
        stats.blocks += 1
        stats.nbytes_read += result.nbytes_read
        stats.nbytes_encoded += result.nbytes
        stats.read_s += result.read_s
        stats.transform_s += result.transform_s
        stats.encode_s += result.encode_s

    def _again(self, work: _Work) -> None:
        work.attempt += 1
        self.stats.resubmitted += 1
        self._submit(work)


def _cancelled(error: BaseException) -> bool:
    return type(error).__name__ in ("CancelledError", "FutureCancelledError", "FuturesCancelledError")
