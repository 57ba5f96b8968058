"""Compute blocks in worker processes of this host, which start as there is work for them.

Runs in: the feeder, whose loop waits for `fileno` and then calls `advance`: no thread stands between. A call goes to an
idle seat, else to a process that is started for it, else it waits behind one that is computed, so that no seat pauses
between two. The calls of a process that dies are made again by others; the one that it computed fails with "killed".
"""

from __future__ import annotations

import logging
import os
import platform
import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import Any

from feedline.blocks.jobs import find_job
from feedline.blocks.request import BlockRequest, Job
from feedline.dataclass import dataclass
from feedline.errors import ClusterError
from feedline.service.pool.block_process import PART, SeatRequest
from feedline.service.pool.segments import LOST, Reader
from feedline.service.pool.spawner import ImportingSpawner, Run, Spawner

logger = logging.getLogger(__name__)

# Calls of a seat: the one that it computes, and the next one.
_DEPTH = 2
# The zygote hears of a worker's end a little later than its connections close.
_STATUS_MS = 200


@dataclass(slots=True, kw_only=True)
class BlockCall:
    """A block to compute. parts: rows of the first part that is handed over before the result (0: none is). among: the
    processes that may compute it (None: all). is_wanted: whether it is still to be computed. on_part, on_result: take
    what comes; on_death: why its process died instead, and that process."""

    key: str
    job: Job | str
    request: BlockRequest
    parts: int
    among: Collection[str] | None
    is_wanted: Callable[[], bool]
    on_part: Callable[[Any], None]
    on_result: Callable[[Any], None]
    on_death: Callable[[str, str], None]


@dataclass(slots=True, eq=False)
class _Process:
    pid: int
    seats: list[_Seat] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"process {self.pid}"


@dataclass(slots=True, eq=False)
class _Seat:
    process: _Process
    connection: socket.socket
    reader: Reader
    calls: deque[BlockCall] = field(default_factory=deque)  # the first one is computed
    jobs: set[str] = field(default_factory=set)  # digests of those that it was sent
    unsent: bytes = b""
    inline: str | None = None


class BlockPool:
    """run: what `spawner` has each process run. processes: the most; threads: of each. has_computed: whether a result
    has come. All calls come from one thread."""

    def __init__(self, spawner: Spawner, run: Run, *, processes: int, threads: int = 1) -> None:
        self._spawner, self._run = spawner, run
        self._most, self._threads = processes, threads
        self._epoll = select.epoll()
        self._again = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # more processes are to be started
        self._epoll.register(self._again, select.EPOLLIN)
        self._processes: list[_Process] = []
        self._seats: dict[int, _Seat] = {}  # by descriptor
        self._queue: deque[BlockCall] = deque()
        self._statuses: dict[int, int] = {}  # of processes that have ended, by pid
        self._is_closed = False
        self.has_computed = False

    def fileno(self) -> int:
        return self._epoll.fileno()

    def members(self) -> frozenset[str]:
        """The names of the processes."""
        return frozenset(process.name for process in self._processes)

    def places_of(self, keys: Collection[str]) -> Mapping[str, str]:
        """The processes that compute blocks, or will do so next."""
        calls = [(call.key, seat.process.name) for seat in self._seats.values() for call in seat.calls]
        return {key: name for key, name in calls if key in keys}

    def start(self, call: BlockCall) -> None:
        """Compute a block. Raises ClusterError if no process can be started for it."""
        self._queue.append(call)
        self._assign()

    def advance(self) -> None:
        """Take what has come, and give seats their next calls. Raises ClusterError."""
        for descriptor, event in self._epoll.poll(0):
            if descriptor == self._again:
                os.eventfd_read(self._again)
                continue
            seat = self._seats.get(descriptor)
            if seat is None:  # of a process that was found dead in this round
                continue
            if event & select.EPOLLOUT:
                self._flush(seat)
            if event & ~select.EPOLLOUT:
                self._receive(seat)
        self._assign()

    def end(self, name: str) -> None:
        """Kill a process; others make its calls."""
        for process in [each for each in self._processes if each.name == name]:
            self._spawner.kill(process.pid)

    def close(self) -> None:
        self._is_closed = True
        self._queue.clear()
        for process in self._processes:
            self._spawner.kill(process.pid)  # nobody waits for what it computes
            self._part(process)
        self._processes.clear()
        self._epoll.close()
        os.close(self._again)
        self._spawner.close()

    # -- requests -------------------------------------------------------------------------------------------------

    def _assign(self) -> None:
        """Give seats calls. One process is started at most: a fork takes milliseconds, and the loop waits."""
        may_spawn = True
        while self._queue and not self._is_closed:
            call = self._queue[0]
            if not call.is_wanted():
                self._queue.popleft()
                continue
            started = len(self._processes)
            seat = self._seat_for(call, may_spawn=may_spawn)
            if seat is None:
                return
            may_spawn &= started == len(self._processes)
            self._queue.popleft()
            self._send(seat, call)

    def _seat_for(self, call: BlockCall, *, may_spawn: bool) -> _Seat | None:
        seats = [seat for seat in self._seats.values() if call.among is None or seat.process.name in call.among]
        seat = min(seats or self._seats.values(), key=lambda each: len(each.calls), default=None)
        if seat is not None and not seat.calls:
            return seat
        if len(self._processes) < self._most:
            if not may_spawn:
                os.eventfd_write(self._again, 1)
                return None
            return self._spawn()
        return seat if seat is not None and len(seat.calls) < _DEPTH else None

    def _spawn(self) -> _Seat | None:
        """The first seat of a new process; None if none can be started beside those that there are. Raises ClusterError
        if there are none."""
        try:
            pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(self._threads)]
        except OSError as error:
            self._do_without(ClusterError(f"a worker process cannot be started: {error}"))
            return None
        try:
            pid = self._start_process([theirs.fileno() for _, theirs in pairs])
        except ClusterError as error:
            for ours, _ in pairs:
                ours.close()
            self._do_without(error)
            return None
        finally:
            for _, theirs in pairs:
                theirs.close()
        process = _Process(pid)
        for ours, _ in pairs:
            ours.setblocking(False)
            seat = _Seat(process, ours, Reader(ours))
            process.seats.append(seat)
            self._seats[ours.fileno()] = seat
            self._epoll.register(ours, select.EPOLLIN)
        self._processes.append(process)
        return process.seats[0]

    def _start_process(self, descriptors: Sequence[int]) -> int:
        try:
            return self._spawner.spawn(descriptors, threads=self._threads)
        except ClusterError as error:
            if self._spawner.is_alive:
                raise
            logger.warning("%s. From now on, each worker process imports for itself", error)
            self._spawner.close()
            self._spawner = ImportingSpawner(self._run)
            return self._spawner.spawn(descriptors, threads=self._threads)

    def _do_without(self, error: ClusterError) -> None:
        if not self._processes:
            raise error
        logger.warning("%s: %d compute", error, len(self._processes))
        self._most = len(self._processes)

    def _send(self, seat: _Seat, call: BlockCall) -> None:
        job = find_job(call.job)
        released = [seat.reader.released.pop() for _ in range(len(seat.reader.released))]  # finalizers append to it
        request = SeatRequest(
            arguments=(job.digest if job.digest in seat.jobs else job, call.request, call.key),
            parts=call.parts,
            released=released,
            inline=seat.inline,
        )
        seat.jobs.add(job.digest)
        seat.calls.append(call)
        seat.unsent += request.pack()
        self._flush(seat)

    def _flush(self, seat: _Seat) -> None:
        had_rest = False
        while seat.unsent:
            try:
                seat.unsent = seat.unsent[seat.connection.send(seat.unsent, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                had_rest = True
                break
            except OSError:  # `_receive` finds the end of the connection
                seat.unsent = b""
        self._epoll.modify(seat.connection, select.EPOLLIN | (select.EPOLLOUT if had_rest else 0))

    # -- results --------------------------------------------------------------------------------------------------

    def _receive(self, seat: _Seat) -> None:
        try:
            while (arrival := seat.reader.receive()) is not None:
                kind, value = arrival
                if value is LOST and seat.inline is None:
                    seat.inline = seat.reader.refused
                    logger.warning(
                        "a worker process sends blocks through its socket, not shared memory: %s", seat.inline
                    )
                if kind == PART:
                    if value is not LOST:
                        seat.calls[0].on_part(value)
                    continue
                call = seat.calls.popleft()
                if value is LOST:
                    self._queue.appendleft(call)
                else:
                    self.has_computed = True
                    call.on_result(value)
        except EOFError:
            self._bury(seat.process)

    def _bury(self, process: _Process) -> None:
        """A process is dead: its calls are made by others, but for those that it computed."""
        self._processes.remove(process)
        lost = [(*seat.calls,) for seat in process.seats]
        self._part(process)
        self._queue.extendleft(reversed([call for calls in lost for call in calls[1:]]))
        why = _why(self._status(process.pid))
        for call in [calls[0] for calls in lost if calls]:
            call.on_death(process.name, why)

    def _part(self, process: _Process) -> None:
        for seat in process.seats:
            descriptor = seat.connection.fileno()
            self._epoll.unregister(descriptor)
            del self._seats[descriptor]
            seat.reader.close()

    def _status(self, pid: int) -> int | None:
        """The exit status of a process. One report may hold those of several, which are kept for their turn."""
        poll = select.poll()
        poll.register(self._spawner.fileno(), select.POLLIN)
        while pid not in self._statuses and poll.poll(_STATUS_MS):
            if not (ended := self._spawner.ended()):
                break
            self._statuses.update(ended)
        return self._statuses.pop(pid, None)


def _why(status: int | None) -> str:
    on = f"a worker process on {platform.node()}"
    if status is not None and status < 0:
        memory = " (is its memory limited?)" if status == -signal.SIGKILL else ""
        return f"{on} was killed by {signal.Signals(-status).name}{memory}"
    code = "" if status is None else f" with exit status {status}"
    return f"{on} ended{code} while it computed the block"
