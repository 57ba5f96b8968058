"""The feeder's loop: serve a trainer's session until the trainer leaves.

Runs in: the feeder. One thread with one event loop over the trainer's messages, finished blocks (an eventfd) and the
trainer's death. Each round fills as many slots as there are rows and room for, then sleeps until the next event.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable

from feedline.errors import FeedlineError
from feedline.loader.facts import FeederFacts, Hello
from feedline.loader.ring.channel import Channel, ChannelClosedError
from feedline.planning.plan import Plan
from feedline.resources import use_huge_pages
from feedline.service.cluster.cluster import Cluster
from feedline.service.trainer_session import FeederCounters, TrainerSession

# Dask's dashboard takes 0.3 s of imports: it is loaded when the trainer is behind, or this long after it first waited.
_DASHBOARD_S = 5.0
# How often a feeder checks its cluster.
_TICK_S = 1.0


class TrainerGoneError(Exception):
    """The trainer closed its end or died."""


class Feeder:
    """Serves one trainer over one channel."""

    def __init__(
        self,
        channel: Channel,
        cluster: Cluster,
        resolve: Callable[[Hello], Plan],
        *,
        rank: int,
        world_size: int,
        memory_bytes: int,
        counters: FeederCounters,
        about: FeederFacts,
    ) -> None:
        self._cluster = cluster
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._look_due_s = self._dashboard_due_s = 0.0
        self._dashboard_requested = False
        self._started = False  # the first batch is out
        self.session = TrainerSession(
            channel,
            cluster,
            resolve,
            rank=rank,
            world_size=world_size,
            memory_bytes=memory_bytes,
            counters=counters,
            about=about,
            wake=self._wake,
        )

    def serve(self) -> None:
        """Serve until the trainer leaves. Raises FeedlineError, after sending it to the trainer."""
        session = self.session
        poll = select.poll()
        poll.register(session, select.POLLIN)
        poll.register(self._wake_fd, select.POLLIN)
        if session.trainer is not None:
            poll.register(session.trainer, select.POLLIN)
        try:
            while True:
                session.receive()
                self._look_after_cluster()
                if not session.advance():
                    self._sleep(poll)
                elif session.counters.batches and not self._started:
                    self._started = True
                    self._cluster.connect()
                    use_huge_pages(True)
        except (ChannelClosedError, TrainerGoneError):
            return
        except FeedlineError as error:
            session.send_error(type(error).__name__, str(error))
            raise
        except Exception as error:
            session.send_error("FeederError", f"the feeder failed: {type(error).__name__}: {error}")
            raise
        finally:
            session.close()
            os.close(self._wake_fd)

    def _sleep(self, poll: select.poll) -> None:
        start_s = time.perf_counter()
        events = dict(poll.poll(_TICK_S * 1000))
        self.session.count_wait(time.perf_counter() - start_s)
        if self._wake_fd in events:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
        if self.session.trainer in events:
            raise TrainerGoneError
        if self.session.awaits_slot or not (events or self.session.starved):
            self._load_dashboard()  # there is time now

    def _look_after_cluster(self) -> None:
        """Check the cluster and the blocks in flight, once a second."""
        now_s = time.monotonic()
        if now_s < self._look_due_s:
            return
        self._look_due_s = now_s + _TICK_S
        self._cluster.look(waiting=self.session.starved)
        self.session.look()
        if self.session.counters.batches or self.session.starved:
            self._dashboard_due_s = self._dashboard_due_s or now_s + _DASHBOARD_S
            if now_s > self._dashboard_due_s:
                self._load_dashboard()

    def _load_dashboard(self) -> None:
        if not self._dashboard_requested:
            self._dashboard_requested = True
            threading.Thread(target=self._cluster.load_dashboard, name="feedline-dashboard", daemon=True).start()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the last block may finish after the trainer left
            os.eventfd_write(self._wake_fd, 1)
