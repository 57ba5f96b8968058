"""What computes a feeder's blocks: the interface of its two back ends, and what they share.

Runs in: the feeder. The back ends are threads of this process, and the workers of a Dask cluster that was started here
or is named by its address; `open_cluster` has both, and chooses. Connecting imports Dask (0.45 s of CPU time), so a
feeder connects in a thread beside its plan.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from feedline.blocks.environment import Environment, Reach, environment_at
from feedline.blocks.request import Job
from feedline.resources.instructions import choose_cpu
from feedline.service.cluster.attempts import Arrived
from feedline.service.cluster.fair_share import FairShare, priority
from feedline.service.cluster.local_tasks import LocalTask, LocalTasks
from feedline.service.cluster.outage import waits
from feedline.service.cluster.request import ClusterRequest
from feedline.service.cluster.task_places import TaskPlaces
from feedline.service.monitoring.finished_block import ObserveBlock
from feedline.transforms.registry.user_functions import RequiredFunction

if TYPE_CHECKING:
    from distributed import Client

    from feedline.service.cluster.dask_cluster import DaskCluster
    from feedline.service.cluster.result_fetcher import FetchedTask
    from feedline.service.cluster.scheduler_connection import SchedulerConnection

_REQUEST_S, _REQUEST_BYTES = 1.0, 16_384  # until a request has arrived whose connection has
_WAITING = 16


class ReservedPort:
    """The port of a dashboard before its cluster is up: a free one of loopback that no other process gets before its
    server listens on it.

    The feeder's loop accepts its connections like those of trainers. They are held until the cluster listens on the
    port itself, and are then asked to repeat their request, which it answers.

    Linux lets two sockets of one user bind a port, while neither listens, if both say SO_REUSEADDR, as tornado's do.
    wanted: called when somebody connects before; None: nobody can.
    """

    def __init__(self, wanted: Callable[[], None] | None = None) -> None:
        self._wanted = wanted
        self._lock = threading.Lock()
        self._held: list[socket.socket] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]
        if wanted is not None:
            self._socket.listen(_WAITING)
            self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> None:
        """Hold the connections that wait."""
        with self._lock:
            held = self._hold()
        if held and self._wanted is not None:
            self._wanted()

    def _hold(self) -> int:
        count = len(self._held)
        with contextlib.suppress(OSError):  # none is left, or the socket is closed
            while True:
                self._held.append(self._socket.accept()[0])
        return len(self._held) - count

    def release(self) -> None:
        with self._lock:
            if self._wanted is not None:
                self._hold()
                with contextlib.suppress(OSError):  # closed before
                    self._socket.shutdown(socket.SHUT_RDWR)  # a thread that polls it would keep it listening
            self._socket.close()

    def redirect(self) -> None:
        """Have those whose connections are held repeat their requests."""
        with self._lock:
            held, self._held = self._held, []
        for connection in held:
            with contextlib.closing(connection), contextlib.suppress(OSError, IndexError):
                connection.settimeout(_REQUEST_S)
                head = b""
                while b"\r\n\r\n" not in head and len(head) < _REQUEST_BYTES:
                    received = connection.recv(_REQUEST_BYTES)
                    if not received:
                        break
                    head += received
                path = head.split()[1]
                answer = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: %b\r\nContent-Length: 0\r\n"
                connection.sendall(answer % path + b"Connection: close\r\n\r\n")

    def close(self) -> None:
        self.release()
        with self._lock:
            for connection in self._held:
                connection.close()
            self._held = []


# How long a feeder that ends waits for a start that has not ended (default: until it has). The search for a scheduler
# that does not answer ends with the process; its own processes start soon.
_GIVE_UP_S = {"scheduler": 1.0, "provider": 30.0}

BlockTask: TypeAlias = "FetchedTask | LocalTask"


class Cluster(ABC):
    """The pipeline's cluster, which is connected to, and started unless its spec names a scheduler. Its workers are
    checked before their first task.

    packed: whether results leave a worker's process. door: where a dashboard is asked for that is not up. share: of a
    cluster with other jobs. trainers: that the feeder serves. on_block: called with each block that has arrived.
    """

    packed: ClassVar[bool]

    def __init__(self, request: ClusterRequest) -> None:
        self.trainers = 1
        self.on_block: ObserveBlock | None = None
        self.share = FairShare()
        self._request, self._spec, early = request, request.spec, request.early
        self._cpu = choose_cpu(self._spec.cpu, shared=self._spec.is_elsewhere)
        self._tasks = None if self.packed else LocalTasks(request.threads)
        asked = self.connect if early and not self.packed else None  # processes start at once
        self._port = ReservedPort(asked) if self._spec.dashboard and not self._spec.is_elsewhere else None
        self.door = None if asked is None else self._port
        self._dask: Future[DaskCluster] = Future()
        self._start: threading.Thread | None = None
        self._unchecked = early
        if not early:
            self._connect()
            self._dask.result()
        elif self.packed:
            self.connect()

    def _open(self) -> DaskCluster:
        """Import Dask, release the port, and connect to the Dask cluster, or start it."""
        from feedline.service.cluster.dask_cluster import open_dask  # noqa: PLC0415 -- imports Dask

        if self._port is not None:
            self._port.release()
        port = 0 if self._port is None else self._port.number
        return open_dask(self._request, cpu=self._cpu, share=self.share, dashboard_port=port, tasks=self._tasks)

    @property
    def owns_processes(self) -> bool:
        """Whether workers are processes that end with the cluster, whatever they do."""
        return self._spec.kind == "processes"

    @abstractmethod
    def threads(self) -> int:
        """This job's part of the threads of all workers, as of a few seconds ago; at least 1, also without workers."""

    @abstractmethod
    def eligible_workers(self, *, beyond_route: bool = False) -> frozenset[str] | None:
        """The workers that may get blocks: of the route, if it has any; else all that are not excluded (None: all)."""

    @abstractmethod
    def exclude(self, worker: str, why: str) -> None:
        """Give a worker's host no blocks for a while; logs the first time."""

    @abstractmethod
    def check_workers(self, code: Sequence[RequiredFunction] = ()) -> None:
        """Wait for a worker, and check that workers have our versions and the user's functions. Raises ClusterError if
        there is no worker, or no fit one."""

    def _check_once(self) -> None:
        if self._unchecked:
            self.check_workers(self._request.code)

    @abstractmethod
    def check_job(self, job: Job, reach: Reach | None = None) -> None:
        """Send a job to the route's workers, which check that they can compute it. Raises ClusterError if none can.

        reach: what workers on other hosts must read; unchecked if this process cannot read it either.
        """

    @abstractmethod
    def map(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
        """function(argument) for each argument, in order, on the cluster; repeated if the scheduler is lost."""

    def start(
        self, function: Callable[..., Any], *args: Any, key: str, arrived: Arrived, first_rows: int = 0, **options: Any
    ) -> BlockTask | None:
        """Start a task; None if the scheduler does not answer. arrived: called once, in any thread, with the key and
        the outcome; by plain threads before that with the `first_rows` of a block, about, and further ones. options:
        of `Client.submit`; plain threads need none of them."""
        return self._connected.start(function, *args, key=key, arrived=arrived, **options)

    def connect(self) -> None:
        if self._start is None and not self._dask.done():
            if self._spec.provider is not None:  # some classes cannot be imported in another thread than the main one
                from feedline.service.cluster.provider import load_provider  # noqa: PLC0415 -- imports Dask

                load_provider(self._spec.provider)
            self._start = threading.Thread(target=self._connect, name="feedline-cluster", daemon=True)
            self._start.start()

    def _connect(self) -> None:
        try:
            dask = self._open()
        except BaseException as error:
            if self._port is not None:
                self._port.close()
            self._dask.set_exception(error)
            return
        self._dask.set_result(dask)
        if self._port is not None:
            self._port.redirect()

    @cached_property
    @waits
    def _connected(self) -> DaskCluster:
        self.connect()
        return self._dask.result()

    @property
    def _asked(self) -> SchedulerConnection | None:
        """The connection to the scheduler; None while blocks are computed without one."""
        return self.connection

    @property
    def connection(self) -> SchedulerConnection:
        return self._connected.connection

    @property
    def client(self) -> Client:
        return self.connection.client

    @property
    def dask(self) -> DaskCluster | None:
        """The Dask cluster, if it is up: for reports to its scheduler."""
        return self._dask.result() if self._dask.done() and self._dask.exception() is None else None

    @property
    def number(self) -> int:
        return 0 if (asked := self._asked) is None else asked.number

    @property
    def environment(self) -> Environment:
        """The environment that every worker must have, so that blocks have the same bytes on each."""
        return environment_at(self._cpu)

    @property
    def dashboard(self) -> str | None:
        """The address of Dask's dashboard, or None; it answers when the cluster is up, which asking for it starts. That
        of a scheduler elsewhere is known once it is connected to."""
        if self._port is not None:
            return f"http://127.0.0.1:{self._port.number}/status"
        return None if self.dask is None else self.dask.dashboard

    def now_s(self) -> float:
        """The scheduler's clock, which compares the blocks of all jobs; seconds since 1970."""
        return self.share.now_s(time.monotonic(), time.time())

    def threads_per_trainer(self) -> int:
        """The threads that each of the feeder's trainers can count on: their equal share, rounded up."""
        return -(-self.threads() // self.trainers)

    def cores_per_trainer(self) -> float:
        """The cores of the workers' hosts that each of the feeder's trainers can count on; 0: unknown."""
        return 0.0

    @property
    def fixed_window(self) -> int | None:
        return self._spec.window

    def members(self) -> frozenset[str]:
        """The addresses of all workers, as of a few seconds ago."""
        return frozenset() if (asked := self._asked) is None else asked.members()

    def places_of(
        self, keys: Collection[str], among: frozenset[str] | None = None, *, stacks: bool
    ) -> Future[TaskPlaces | None]:
        """Where tasks are, once it is known; see `SchedulerConnection.places_of`."""
        if (asked := self._asked) is not None and keys:
            return asked.places_of(keys, among, stacks=stacks)
        nowhere: Future[TaskPlaces | None] = Future()
        nowhere.set_result(TaskPlaces({}, {}))
        return nowhere

    def alive(self) -> bool:
        return (asked := self._asked) is None or asked.alive()

    def preferences(self) -> dict[str, Any]:
        """Dask options of tasks that are not blocks: not on excluded workers, after the blocks that are due by now."""
        eligible = self.eligible_workers(beyond_route=True)
        workers = {} if eligible is None else {"workers": sorted(eligible), "allow_other_workers": True}
        return {"priority": priority(self.now_s()), **workers}

    def look(self, *, waiting: bool) -> None:
        if self._dask.done():  # else it is being connected to, in a time of its own
            self._connected.look(waiting=waiting)

    def on_close(self, call: Callable[[], None]) -> None:
        """Call `call` after the cluster was closed and its own workers have ended."""
        self._connected.on_close(call)

    def close(self) -> None:
        """Close the connection, and the cluster if it was started here; tasks in threads of this process end before."""
        if self._start is not None:
            self._start.join(_GIVE_UP_S.get(self._spec.kind))
        if self.dask is not None:
            self.dask.close()
        if self._port is not None:
            self._port.close()
