"""The feeder's loop: serve the sessions of all its trainers in one thread.

The loop sleeps until a trainer sends something, a block finishes (an eventfd), a trainer connects or dies. Then each
session that has something to do fills one slot per round. Messages that find no room in a trainer's socket wait there,
and delay no other. An error ends the session that it belongs to; the others continue.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from feedline.errors import FeedlineError
from feedline.loader.ring.channel import Channel, ChannelClosedError
from feedline.loader.wire.run_status import FeederStatus
from feedline.resources.allocators import use_huge_pages
from feedline.service.cluster.cluster import Cluster
from feedline.service.feeder.trainer_session import TrainerSession
from feedline.service.worker_demand import Demand

logger = logging.getLogger(__name__)

# How often a feeder checks its cluster.
_TICK_S = 1.0


class Door(Protocol):
    """A listening socket. fileno: -1 while it is closed. accept: the session of a trainer that connected, if any."""

    def fileno(self) -> int: ...
    def accept(self) -> TrainerSession | None: ...


class StatusKeeper(Protocol):
    """Gathers the feeder's status, about once a second and when a session ends."""

    @property
    def status(self) -> FeederStatus: ...
    def look(self, sessions: Sequence[TrainerSession]) -> None: ...
    def end(self, session: TrainerSession, error: Exception | None) -> None: ...


class Feeder:
    """Serves sessions. doors: where further trainers connect. on_end: called with a session that ended, and why (None:
    its trainer left). demand: decides how many workers they need (None: the cluster does not scale). status: gathers
    what pages and metrics show (None: nothing)."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        doors: Sequence[Door] = (),
        on_end: Callable[[TrainerSession, Exception | None], None] = lambda session, error: None,
        demand: Demand | None = None,
        status: StatusKeeper | None = None,
    ) -> None:
        self._cluster = cluster
        self._doors = doors
        self._on_end = on_end
        self._demand = demand
        self._status = status
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_woken = False  # nothing is written to it again before it is read
        self._thread = 0  # of the loop
        self._poll: select.poll | None = None  # made again when sessions come or go
        self._sources: dict[int, TrainerSession | Channel | Door | Cluster | None] = {}  # by descriptor
        self._crowded: set[TrainerSession] = set()  # whose sockets are polled for room, too
        self._slept_s = 0.0  # in all
        self._leaving: list[Channel] = []  # of sessions that ended, whose last messages are not out
        self._look_due_s = 0.0
        self._has_delivered = False
        self.sessions: list[TrainerSession] = []

    def wake(self) -> None:
        """End the loop's sleep. Any thread may call this."""
        if self._is_woken or threading.get_ident() == self._thread:
            return  # the loop looks at all sessions before it sleeps
        self._is_woken = True
        with contextlib.suppress(OSError):  # the last block may finish after the last trainer left
            os.eventfd_write(self._wake_fd, 1)

    def add(self, session: TrainerSession) -> None:
        self.sessions.append(session)
        self._count_trainers()

    def _count_trainers(self) -> None:
        self._cluster.trainers = max(1, len(self.sessions))
        self._poll = None

    def serve(self, *, until: Callable[[], bool]) -> None:
        """Serve until the condition holds, which is checked once a second and after every event."""
        self._thread = threading.get_ident()
        try:
            while not until():
                self._sleep()
                if time.monotonic() >= self._look_due_s:
                    self._look_after_cluster()
                for session in tuple(self.sessions):
                    if session.runnable:
                        session.counters.count_wait(self._slept_s, session.streams.current)
                        self._guard(session, session.advance)
                        self._watch_for_room(session)
                if not self._has_delivered and any(session.counters.batches for session in self.sessions):
                    self._has_delivered = True
                    use_huge_pages(True)
            while self._leaving:  # until their trainers have read why their sessions ended, or have left
                self._sleep()
        finally:
            if self._status is not None:
                self._status.look(self.sessions)
            for session in self.sessions:
                session.close()
            for channel in (*self._leaving, *(session.channel for session in self.sessions)):
                channel.close()
            os.close(self._wake_fd)

    # -- waiting --------------------------------------------------------------------------------------------------

    def _sleep(self) -> None:
        poll = self._poll or self._watch()
        for session in self.sessions:
            if session.runnable:
                events = poll.poll(0)
                break
        else:
            start_s = time.perf_counter()
            events = poll.poll(_TICK_S * 1000)
            self._slept_s += time.perf_counter() - start_s
        arrivals: list[Door] = []
        for descriptor, event in events:
            source = self._sources[descriptor]
            if source is None:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
                self._is_woken = False  # after that: a wake in between is not lost, since sessions are looked at next
            elif isinstance(source, TrainerSession):
                self._on_event(source, descriptor, event)
            elif isinstance(source, Cluster):
                self._guard_all(self._cluster.advance)
            elif isinstance(source, Channel):
                self._bid_farewell(source)
            else:
                arrivals.append(source)
        for door in arrivals:  # after trainers that left: one may have connected again
            if (newcomer := door.accept()) is not None:
                self.add(newcomer)
            self._poll = None

    def _on_event(self, session: TrainerSession, descriptor: int, event: int) -> None:
        if descriptor == session.trainer:
            self._end(session, None)
        elif descriptor == session.written:
            session.runnable = True
        else:
            if event & select.POLLOUT:
                self._guard(session, session.channel.deliver)
            if event & ~select.POLLOUT and session in self.sessions:
                self._guard(session, session.receive)
            self._watch_for_room(session)

    def _watch(self) -> select.poll:
        self._poll = poll = select.poll()
        self._sources = {self._wake_fd: None}
        for session in self.sessions:
            self._sources |= {session.channel.fileno(): session, session.written: session}
            if session.trainer is not None:
                self._sources[session.trainer] = session
        self._sources |= {door.fileno(): door for door in self._doors if door.fileno() >= 0}
        if (cluster := self._cluster.fileno()) >= 0:
            self._sources[cluster] = self._cluster
        for descriptor in self._sources:
            poll.register(descriptor, select.POLLIN)
        self._crowded = {session for session in self.sessions if session.channel.has_posted}
        for session in self._crowded:
            poll.modify(session.channel, select.POLLIN | select.POLLOUT)
        for channel in self._leaving:
            self._sources[channel.fileno()] = channel
            poll.register(channel, select.POLLOUT)
        return poll

    def _watch_for_room(self, session: TrainerSession) -> None:
        """Watch the session's socket for room if messages wait for some: a socket nearly always has some."""
        if session.channel.has_posted == (session in self._crowded) or self._poll is None:
            return
        self._crowded ^= {session}
        events = select.POLLIN | select.POLLOUT if session in self._crowded else select.POLLIN
        self._poll.modify(session.channel, events)

    def _look_after_cluster(self) -> None:
        """Check the cluster and the blocks in flight. Called once a second."""
        self._look_due_s = (now_s := time.monotonic()) + _TICK_S
        waiting = any(session.starved for session in self.sessions)
        self._guard_all(lambda: self._cluster.look(waiting=waiting))
        for session in tuple(self.sessions):
            session.counters.count_wait(self._slept_s, session.streams.current)
            self._guard(session, session.look)
        for session in self.sessions:
            self._watch_for_room(session)
        if self._demand is not None and (dask := self._cluster.dask) is not None:
            loads = {id(session): session.load() for session in self.sessions}
            dask.reporter.report = self._demand.look(loads, now_s, dask.size(), self._cluster.share.answer)
        if self._status is not None:
            self._status.look(self.sessions)

    def status(self) -> FeederStatus | None:
        """The status as of the last second, if it is gathered. Any thread may call this."""
        return None if self._status is None else self._status.status

    # -- ending ---------------------------------------------------------------------------------------------------

    def _guard(self, session: TrainerSession, act: Callable[[], None]) -> None:
        """Do something for a session; an error ends that session."""
        try:
            act()
        except ChannelClosedError:
            self._end(session, None)
        except Exception as error:
            self._fail(session, error)

    def _guard_all(self, act: Callable[[], None]) -> None:
        """Do something for the cluster, which all sessions need: an error ends them."""
        try:
            act()
        except FeedlineError as error:
            for session in tuple(self.sessions):
                self._fail(session, error)

    def _fail(self, session: TrainerSession, error: Exception) -> None:
        """End a session with an error, after sending it to the trainer."""
        if isinstance(error, FeedlineError):
            session.send_error(type(error).__name__, str(error))
        else:
            logger.error("the feeder failed", exc_info=error)
            session.send_error("FeederError", f"the feeder failed: {type(error).__name__}: {error}")
        self._end(session, error)

    def _end(self, session: TrainerSession, error: Exception | None) -> None:
        if session in self.sessions:
            self.sessions.remove(session)
            if self._status is not None:
                self._status.end(session, error)
            self._count_trainers()
            session.close()
            if error is None:
                session.channel.close()
            else:
                self._leaving.append(session.channel)
                self._bid_farewell(session.channel)
            self._on_end(session, error)

    def _bid_farewell(self, channel: Channel) -> None:
        """Send the last messages of a session that ended, as far as there is room, and then close its channel."""
        with contextlib.suppress(ChannelClosedError):
            channel.deliver()
            if channel.has_posted:
                return
        self._leaving.remove(channel)
        channel.close()
        self._poll = None
