"""Keep a connection to a Dask scheduler that may go away and come back.

Runs in: every process that computes on a cluster. Dask's client looks for a lost scheduler for ten seconds, then
closes. From then on a thread tries to connect, with growing pauses, while the process uses the results it has. While
the scheduler is away, functions neither block nor raise, unless their docstring says so. Questions to the scheduler are
asked on the event loop of Dask's client: one that is stopped keeps its connections open and answers none.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import itertools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import Future as Handle
from typing import Any, TypeVar

from distributed import Client, Future
from distributed.client import ClosedClientError

from feedline.errors import ClusterError
from feedline.service.cluster.outage import OutageTimer, waits
from feedline.service.cluster.task_places import TaskPlaces, ask_places
from feedline.service.dask_patches.deployments import worker_totals
from feedline.service.refused_connection import check_scheduler_host

logger = logging.getLogger(__name__)

_EVERY_S = 5.0
# Rounds are counted, not seconds: a process that was suspended finds its answers waiting when it goes on.
_ROUND_S, _ROUNDS = 2.5, 5
_SUBSCRIBED_S = 0.05  # time for the subscription to overtake the call, so that one round is enough
_TOPIC = "feedline-echo"  # of all clients: a scheduler keeps topics for good


class SchedulerEcho:
    """Asks for echoes, and breaks the connections of a client that gets none: it then connects again by itself.

    An echo takes both connections of the client: it subscribes to a topic through the stream of tasks, asks for an
    event by a call, and expects the event from the stream (docs/decisions/0025-half-open-connections.md).
    """

    def __init__(self) -> None:
        self._asking: Handle[None] | None = None
        self._numbers = itertools.count()

    def look(self, client: Client) -> None:
        """Ask for an echo some seconds after the last one. Never blocks."""
        if self._asking is None or self._asking.done():
            loop: Any = client.loop
            self._asking = asyncio.run_coroutine_threadsafe(self._ask(client), loop.asyncio_loop)

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self, client: Client) -> None:
        await asyncio.sleep(_EVERY_S)
        stream = client.scheduler_comm
        if stream is not None and not await self._is_heard(client) and stream is client.scheduler_comm:
            logger.warning(
                "the Dask scheduler at %s has not answered for %.0f s, although its connection is open: connecting "
                "again",
                _address_of(client),
                _ROUND_S * _ROUNDS,
            )
            sever(client)

    async def _is_heard(self, client: Client) -> bool:
        """Whether an echo arrives. True if the connection breaks meanwhile, which the client notices itself."""
        scheduler: Any = client.scheduler
        message, heard = f"{client.id} {next(self._numbers)}", asyncio.Event()

        def hear(event: tuple[float, str]) -> None:
            if event[1] == message:
                heard.set()

        client.subscribe_topic(_TOPIC, hear)
        try:
            await asyncio.sleep(_SUBSCRIBED_S)
            for _ in range(_ROUNDS):
                try:
                    async with asyncio.timeout(_ROUND_S):
                        await scheduler.log_event(topic=_TOPIC, msg=message)
                        await heard.wait()
                        return True
                except TimeoutError:
                    continue
        except OSError:
            return True
        else:
            return False
        finally:
            if heard.is_set() and client.status == "running":  # else the subscription ends with the connection
                client.unsubscribe_topic(_TOPIC)


def sever(client: Client) -> None:
    """Break all connections to the scheduler, on the client's event loop."""
    client.rpc.remove(_address_of(client))
    stream = client.scheduler_comm
    if stream is not None:
        stream.comm.abort()


def _address_of(client: Client) -> str:
    scheduler: Any = client.scheduler
    return str(scheduler.address)


def check_scheduler(client: Client, address: str) -> None:
    """Raise ClusterError where the certificate names other hosts, or the scheduler has another version of Dask.

    A scheduler that is lost meanwhile is looked for later, and checked then.
    """
    connection: Any = client.scheduler_comm
    if connection is not None:
        check_scheduler_host(address, connection.comm.extra_info.get("peercert") or {})
    scheduler: Any = client.scheduler
    try:
        versions: Mapping[str, Any] = client.sync(scheduler.versions, callback_timeout=_ANSWER_S)
    except (OSError, TimeoutError):
        return
    theirs, ours = versions.get("packages", {}).get("distributed"), importlib.metadata.version("distributed")
    if theirs != ours:
        raise ClusterError(
            f"the scheduler at {address} has another distributed: got {theirs}, expected {ours} as in the feeder. "
            f"Install the same versions of dask and distributed everywhere"
        )


T = TypeVar("T")

# A cluster without workers is said to be so after this time: those of a scheduler that is back follow it.
_EMPTY_S = 5.0
_FAILED_S = 3.0  # another worker, or a second attempt, may succeed where the first one has failed
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_ANSWER_S = 5.0  # a scheduler that takes longer has not answered
_MEMBERS_S = 2.0  # how long the list of workers counts as new
_LOOK_S = 1.0  # between checks while waiting for the cluster


def _no_worker(address: str, wait_s: float, provider: str | None, failure: str | None) -> ClusterError:
    """The error for a cluster without workers. provider: the class that starts them (None: nobody does). failure: why
    the worker that this process started did not start."""
    remedy = f"Start one (feedline worker {address}{' and its --tls files' * address.startswith('tls:')})"
    if failure is not None:
        return ClusterError(
            f"the Dask cluster has no worker: got none at {address}, as its own did not start: {failure}. Look at the "
            "limits of processes (ulimit -n, -u) and at free space"
        )
    if provider is not None:
        remedy = f"{provider} was asked for them: look at its queue, quota and logs of workers"
    return ClusterError(
        f"the Dask cluster has no worker: got none in {wait_s:g} s at {address}. {remedy}, or raise cluster.wait_s"
    )


class SchedulerConnection:
    """The current client of a scheduler. `number` counts clients: futures of earlier ones are lost. lost, regained:
    how often the scheduler was gone, and back.

    connect: creates a client; raises ClusterError if no scheduler answers. returns: whether a lost one may come back.
    provider: the class that starts workers. failure: why the last worker that this process started has not started,
    if that was so many seconds ago.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        *,
        address: Callable[[], str],
        wait_s: float,
        returns: bool,
        provider: str | None = None,
        failure: Callable[[float], str | None] = lambda for_s: None,
    ) -> None:
        self._connect = connect
        self._address = address
        self._wait_s = wait_s
        self._returns = returns
        self._provider = provider
        self._failure = failure
        self._clock = time.monotonic
        self._outage = OutageTimer(wait_s)
        self._lost_s: float | None = None  # since when there has been no scheduler, or no worker
        self._empty_s: float | None = None  # when there last was a worker, or a scheduler that might have one
        self._said_empty = False
        self._echo = SchedulerEcho()
        self._refusal: ClusterError | None = None  # of the last attempt to find a lost scheduler
        self._search: threading.Thread | None = None
        self._closed = threading.Event()
        self._members: frozenset[str] = frozenset()
        self._members_s = float("-inf")  # when they were asked for last
        self._answered_s = float("-inf")  # when those that answered last were asked for
        self._over_s: float | None = None  # since when there has been no worker for longer than `wait_s`
        self._identity: Mapping[str, Any] = {}  # where Dask's client keeps none
        self._asking: Handle[None] | None = None
        self.number = self.lost = self.regained = 0
        self.client = connect()
        self.refresh_members()

    def look(self, *, waiting: bool) -> None:
        """Check scheduler and workers, and search for a lost scheduler. Called about once a second; never blocks.

        waiting: whether a caller waits for results. Raises ClusterError after waiting for `cluster.wait_s` without a
        scheduler, or without a worker.
        """
        now_s = self._clock()
        if not self.alive():
            if not self._returns:
                raise ClusterError("the Dask cluster in this process stopped. Start the feeder again")
            verdict = self._outage.look(now_s, "scheduler", waiting=waiting)
            if verdict == "new":
                self._lost_s = now_s
                self.lost += 1
                logger.warning("the Dask scheduler at %s is gone; waiting for it", self._address())
            elif verdict == "over":
                raise self._not_found()
            if self._search is None or not self._search.is_alive():
                self._search = threading.Thread(target=self._find_scheduler, name="feedline-search", daemon=True)
                self._search.start()
            return
        if self._lost_s is not None:
            lost_s, self._lost_s = self._lost_s, None
            self.regained += 1
            self._empty_s = None  # its workers come after it
            logger.warning("the Dask scheduler at %s is back after %.0f s", self._address(), now_s - lost_s)
        if self._returns:
            self._echo.look(self.client)
        workers = self.workers()
        if not workers or workers != len(self._members):
            self._ask_members()
        if waiting and not workers and self._failure(_FAILED_S):
            raise self._no_worker()
        verdict = self._outage.look(now_s, None if workers else "worker", waiting=waiting)
        self._say_whether_empty(verdict == "whole", now_s)
        self._over_s = None if verdict != "over" else now_s if self._over_s is None else self._over_s
        if self._over_s is None or self._members:
            return
        # Totals, and earlier answers, do not have a worker that has just come.
        if self._answered_s >= self._over_s or now_s - self._over_s > _ANSWER_S:
            raise self._no_worker()

    def _say_whether_empty(self, has_workers: bool, now_s: float) -> None:
        """Say that there is no worker once that has lasted, since they follow a scheduler that is back; and its end."""
        since_s = now_s if self._empty_s is None else self._empty_s
        self._empty_s = now_s if has_workers else since_s
        if has_workers and self._said_empty:
            self._said_empty = False
            logger.warning("the Dask cluster at %s has workers after %.0f s", self._address(), now_s - since_s)
        elif not has_workers and not self._said_empty and now_s - since_s >= _EMPTY_S:
            self._said_empty = True
            logger.warning("the Dask cluster at %s has no worker; waiting for one", self._address())

    def _not_found(self) -> ClusterError:
        if self._refusal is not None:
            return ClusterError(f"no Dask scheduler for {self._wait_s:g} s (cluster.wait_s): {self._refusal}")
        return ClusterError(
            f"no Dask scheduler answers at {self._address()}: got none for {self._wait_s:g} s. Start one "
            "(feedline scheduler), correct cluster.scheduler, or raise cluster.wait_s"
        )

    def alive(self) -> bool:
        connection = self.client.scheduler_comm
        return self.client.status == "running" and connection is not None and not connection.comm.closed()

    def submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any] | None:
        """`Client.submit`; None if the scheduler does not answer."""
        if not self.alive():
            return None
        try:
            return self.client.submit(function, *arguments, **options)
        except ClosedClientError:  # lost since the check above
            return None

    def workers(self) -> int:
        return int(self._totals().get("n_workers", 0))

    def threads(self) -> int:
        """The threads of all workers, as of a few seconds ago; at least 1, also before workers have started."""
        return max(1, int(self._totals().get("total_threads", 0)))

    def members(self) -> frozenset[str]:
        """The addresses of all workers, as of a few seconds ago; empty if there is no scheduler. Of workers that came
        and left in equal numbers, the next call knows."""
        if self._clock() - self._members_s > _MEMBERS_S:
            self._ask_members()
        return self._members if self.alive() else frozenset()

    def refresh_members(self) -> None:
        """Ask for the workers, and wait for the answer: not in the feeder's loop."""
        if (asking := self._ask_members()) is not None:
            with contextlib.suppress(CancelledError, TimeoutError):
                asking.result(2 * _ANSWER_S)

    def places_of(
        self, keys: Collection[str], among: frozenset[str] | None = None, *, stacks: bool
    ) -> Handle[TaskPlaces | None]:
        """Where tasks are; see `ask_places`. None if the scheduler does not answer, which is known after 5 s."""
        workers = None if among is None else sorted(among & self.members())
        return self._ask(_in_time(ask_places(self.client.scheduler, keys, workers, stacks=stacks)))

    def _ask_members(self) -> Handle[None] | None:
        """Ask for the workers, unless that is being asked already; None without a scheduler."""
        if not self.alive():
            return None
        if self._asking is None or self._asking.done():
            self._members_s = self._clock()
            self._asking = self._ask(self._update_members(self.client, self._members_s))
        return self._asking

    async def _update_members(self, client: Client, asked_s: float) -> None:
        scheduler: Any = client.scheduler
        members = await _in_time(scheduler.ncores())
        if members is not None and client is self.client:
            self._members, self._answered_s = frozenset(members), asked_s
        if worker_totals(client) is None:
            self._identity = await _in_time(scheduler.identity(n_workers=0)) or {}

    def _ask(self, question: Coroutine[Any, Any, T]) -> Handle[T]:
        """Ask the scheduler on the loop of its client. Cancelled if there is none, or if it is lost meanwhile."""
        loop: Any = self.client.loop
        if self.alive():
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                return asyncio.run_coroutine_threadsafe(question, loop.asyncio_loop)
        question.close()
        unasked: Handle[T] = Handle()
        unasked.cancel()
        return unasked

    def close(self) -> None:
        self._closed.set()
        self._echo.close()
        _close(self.client)

    def _totals(self) -> Mapping[str, Any]:
        totals = worker_totals(self.client)
        if totals is None:
            self.members()  # which asks for both
            return self._identity
        return totals

    def gather(self, futures: Sequence[Future[Any]]) -> Sequence[Any]:
        """Wait for results. Raises a task's error, CancelledError if they are lost, ClusterError after `wait_s`."""
        client, client_number = self.client, self.number
        loop: Any = client.loop
        gathering = asyncio.run_coroutine_threadsafe(client.gather(futures, asynchronous=True), loop.asyncio_loop)
        while self.number == client_number:
            try:
                results: Sequence[Any] = gathering.result(_LOOK_S)
            except TimeoutError:
                if gathering.done():  # raised by the task
                    raise
                self.look(waiting=True)
            except AttributeError:
                if client.scheduler is not None:  # raised by the task; a client that closes meanwhile has none to ask
                    raise
                break
            else:
                return results
        raise CancelledError

    @waits
    def await_scheduler(self) -> None:
        """Wait until the scheduler answers. Raises ClusterError after `wait_s`."""
        while not self.alive():
            self.look(waiting=True)
            self._closed.wait(_FIRST_PAUSE_S)

    @waits
    def await_workers(self) -> None:
        """Wait until there is a worker. Raises ClusterError after `wait_s`, or where its own do not start."""
        until_s = self._clock() + self._wait_s
        while (left_s := until_s - self._clock()) > 0 and not self._failure(_FAILED_S):
            with contextlib.suppress(TimeoutError):
                return self.client.wait_for_workers(1, timeout=min(_LOOK_S, left_s))
        raise self._no_worker()

    def _no_worker(self) -> ClusterError:
        return _no_worker(self._address(), self._wait_s, self._provider, self._failure(0.0))

    def _find_scheduler(self) -> None:
        """Replace the client once it has given up reconnecting. Runs in a thread."""
        pause_s = _FIRST_PAUSE_S
        while not self._closed.wait(pause_s) and not self.alive():
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            if self.client.status != "closed":
                continue
            try:
                client = self._connect()
            except ClusterError as error:
                self._refusal = error
                continue
            self._refusal = None
            old, self.client = self.client, client
            self._asking = None
            self.refresh_members()
            self.number += 1
            _close(old)
            if self._closed.is_set():
                _close(client)
            return


async def _in_time(answer: Awaitable[T]) -> T | None:
    """The scheduler's answer; None if it does not come in time."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await answer
    except (OSError, TimeoutError, ClosedClientError):
        return None


def _close(client: Client) -> None:
    with contextlib.suppress(TimeoutError, OSError, RuntimeError):
        client.close(timeout=2)
