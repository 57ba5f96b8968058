"""Run real, blocking code of several processes in one process, in virtual time and in an order drawn from a seed.

An actor is a thread of a simulated process. Exactly one actor runs at a time, until it waits: then the simulation draws
the next one among those whose condition holds. Time passes only where nobody can run, and a little with every turn. So
a seed decides everything, and the log of two runs of a seed is the same.

The code under test waits through what `select`, `time`, `threading` and `queue` of its modules are replaced by: see
`stand_ins`. Descriptors are real: a condition is a poll of them that does not wait.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import itertools
import queue
import random
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

# Virtual seconds of a turn, so that a loop that spins reaches the end of its time.
_TURN_S = 20e-6
_MOST_TURNS = 20_000  # a run takes hundreds
# Wall clock at the start; monotonic clocks start at 1000.
_WALL_S = 1.7e9


class Killed(BaseException):
    """The process of this thread is dead: nothing but `finally` still runs."""


class StuckError(AssertionError):
    """Nobody can run, or nobody gets on: a hang."""


@dataclass(eq=False)
class Process:
    """A simulated process. resumes_s: until when it is stopped. sockets: which its death closes. on_end: what its
    death does besides, by whatever it dies."""

    name: str
    pid: int
    resumes_s: float = 0.0
    is_alive: bool = True
    sockets: list[Any] = field(default_factory=list)
    on_end: list[Callable[[], None]] = field(default_factory=list)


@dataclass(eq=False)
class Actor:
    """A thread of a process. ready: what it waits for; until_s: the longest that it does so (None: for good)."""

    process: Process
    name: str
    thread: threading.Thread | None = None
    turn: threading.Lock = field(default_factory=threading.Lock)
    ready: Callable[[], Any] | None = None
    until_s: float | None = None
    is_killed: bool = False
    has_ended: bool = False


class World:
    """One run. pause_share: of the points at which a running actor may be interrupted, those at which it is."""

    def __init__(self, seed: int, *, limit_s: float) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.now_s = 1000.0
        self.wall_offset_s = 0.0
        self.turns = 0
        self.pause_share = 0.0
        self._notes: list[tuple[float, str, str]] = []
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self._limit_s = self.now_s + limit_s
        self._events: list[tuple[float, int, str, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._main = threading.Lock()
        self._main.acquire()
        self._failure: BaseException | None = None
        self._until: Callable[[], bool] = lambda: True

    # -- what the code under test sees --------------------------------------------------------------------------------

    def clock_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return _WALL_S + self.now_s + self.wall_offset_s

    def wait(self, ready: Callable[[], Any], seconds: float | None = None) -> bool:
        """Let others run until the condition holds; False after so many seconds."""
        actor = self.current
        assert actor is not None, "only actors wait"
        if actor.is_killed:
            raise Killed
        actor.ready, actor.until_s = ready, None if seconds is None else self.now_s + max(0.0, seconds)
        self.current = None
        following = self._advance(in_actor=True)
        if following is not actor:
            (self._main if following is None else following.turn).release()
            actor.turn.acquire()
        actor.ready = None
        if actor.is_killed:
            raise Killed
        return bool(ready())

    def sleep(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)

    def pause(self) -> None:
        """A point at which others may run."""
        actor = self.current
        if actor is not None and threading.get_ident() == (actor.thread and actor.thread.ident):
            if actor.is_killed:
                raise Killed
            if self.random.random() < self.pause_share:
                self.wait(lambda: True)

    def note(self, text: str) -> None:
        """A line of the log."""
        name = "-" if self.current is None else self.current.name
        self._notes.append((self.now_s, name, text))

    @property
    def log(self) -> list[str]:
        return [f"{now_s - 1000:.6f} {name}: {text}" for now_s, name, text in self._notes]

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.log).encode()).hexdigest()[:16]

    # -- processes and events -----------------------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        return Process(name, next(self._numbers) + 1000)

    def start(
        self, process: Process, name: str, run: Callable[[], None], unless: Callable[[], None] = lambda: None
    ) -> Actor:
        """A further thread of a process. unless: called instead where it is killed before its first turn."""
        actor = Actor(process, name)
        actor.turn.acquire()

        def body() -> None:
            actor.turn.acquire()
            try:
                (unless if actor.is_killed else run)()
            except Killed:
                pass
            except BaseException as error:
                if self._failure is None:
                    self._failure = error
            finally:
                actor.has_ended = True
                self._main.release()

        actor.ready = lambda: True
        actor.thread = threading.Thread(target=body, name=name, daemon=True)
        actor.thread.start()
        self.actors.append(actor)
        return actor

    def kill(self, process: Process) -> None:
        """SIGKILL: its sockets end, and none of its threads runs any further."""
        if not process.is_alive:
            return
        self.note(f"{process.name} is killed")
        process.is_alive = False
        for each in process.sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for actor in self.actors:
            actor.is_killed |= actor.process is process
        for act in process.on_end:
            act()

    def suspend(self, process: Process, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        self.note(f"{process.name} is stopped for {seconds:.3f} s")
        process.resumes_s = max(process.resumes_s, self.now_s + seconds)

    def at(self, seconds: float, name: str, act: Callable[[], None]) -> None:
        """Do something so many seconds from now."""
        heapq.heappush(self._events, (self.now_s + seconds, next(self._numbers), name, act))

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool]) -> None:
        """Let actors take turns until the condition holds. Raises what an actor raises, and StuckError."""
        self._until = until
        while (actor := self._advance(in_actor=False)) is not None:
            self._resume(actor)
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Kill what is left, so that no thread stays."""
        self._events.clear()
        self._until = lambda: True
        for process in {id(each.process): each.process for each in self.actors}.values():
            self.kill(process)
        for actor in self.actors:
            while not actor.has_ended:
                self._resume(actor)
            assert actor.thread is not None
            actor.thread.join()

    def _advance(self, *, in_actor: bool) -> Actor | None:
        """Begin the next actor's turn, in the thread of the last one: switches of threads cost more than most turns.

        Returns None if the run has ended, and in an actor where an event is due, since those are of no actor's thread.
        """
        try:
            while self._failure is None and not self._until():
                if in_actor and self._events and self._events[0][0] <= self.now_s:
                    return None
                if (actor := self._turn()) is not None:
                    self.current = actor
                    actor.until_s = None
                    return actor
        except BaseException as error:  # of an event or a condition: it is the run's
            self._failure = error
        return None

    def _turn(self) -> Actor | None:
        """The actor that runs next; None where only time has passed."""
        self.turns += 1
        if self.turns > _MOST_TURNS:
            raise StuckError(f"the run has not ended after {self.turns} turns, {self.now_s - 1000:.3f} virtual seconds")
        if self.now_s > self._limit_s:
            raise StuckError(f"the run has not ended after {self._limit_s - 1000:.0f} virtual seconds")
        while self._events and self._events[0][0] <= self.now_s:
            _, _, name, act = heapq.heappop(self._events)
            self.note(name)
            act()
        self.actors = [each for each in self.actors if not each.has_ended or self._join(each)]
        dead = next((each for each in self.actors if each.is_killed), None)
        if dead is not None:
            return dead
        able = [each for each in self.actors if each.process.resumes_s <= self.now_s and self._can_run(each)]
        if able:
            actor = able[0] if len(able) == 1 else self.random.choice(able)
            self.now_s += _TURN_S
            self.note(f"{actor.name} runs")
            return actor
        times = [self._events[0][0]] if self._events else []
        for each in self.actors:
            if each.process.resumes_s > self.now_s and self._can_run(each):
                times.append(each.process.resumes_s)
            elif each.until_s is not None:
                times.append(max(each.until_s, each.process.resumes_s))
        if not times:
            waiting = ", ".join(each.name for each in self.actors)
            raise StuckError(f"nobody can run any more: {waiting} wait for each other")
        self.now_s = max(self.now_s, min(times))
        return None

    def _join(self, actor: Actor) -> bool:
        assert actor.thread is not None
        actor.thread.join()
        return False

    def _can_run(self, actor: Actor) -> bool:
        if actor.until_s is not None and actor.until_s <= self.now_s:
            return True
        return actor.ready is not None and bool(actor.ready())

    def _resume(self, actor: Actor) -> None:
        """Let an actor run, and those after it, until one ends or only the main thread can go on."""
        self.current = actor
        actor.until_s = None
        actor.turn.release()
        self._main.acquire()
        self.current = None

    # -- what modules get instead of select, time, threading, queue ---------------------------------------------------

    def stand_ins(self) -> dict[str, Any]:
        """By the name of the module that each stands for."""
        world = self

        class Poll:
            """Of `select.poll`."""

            def __init__(self) -> None:
                self._poll = select.poll()
                self.register, self.modify = self._poll.register, self._poll.modify
                self.unregister = self._poll.unregister

            def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
                if timeout_ms is not None and timeout_ms <= 0:
                    world.pause()
                else:
                    seconds = None if timeout_ms is None else timeout_ms / 1000
                    world.wait(lambda: self._poll.poll(0), seconds)
                return self._poll.poll(0)

        class Thread:
            """Of `threading.Thread`: a further actor of the process that starts it."""

            def __init__(self, target: Any, name: str, args: Sequence[Any] = (), daemon: bool = True) -> None:
                self._run, self._name = lambda: target(*args), name
                self._actor: Actor | None = None

            def start(self) -> None:
                assert world.current is not None
                process = world.current.process
                self._actor = world.start(process, f"{process.name}/{self._name}", self._run)

            def join(self, timeout: float | None = None) -> None:
                actor = self._actor
                assert actor is not None
                world.wait(lambda: actor.has_ended, timeout)

            @property
            def ident(self) -> int | None:
                return None if self._actor is None or self._actor.thread is None else self._actor.thread.ident

        class SimpleQueue:
            """Of `queue.SimpleQueue`."""

            def __init__(self) -> None:
                self._items: deque[Any] = deque()
                self.put = self._items.append

            def get(self, timeout: float | None = None) -> Any:
                world.wait(lambda: self._items, timeout)
                if not self._items:
                    raise queue.Empty
                return self._items.popleft()

        class ThreadPoolExecutor:
            """Of `concurrent.futures`: its threads end with their process, or `shutdown`."""

            def __init__(self, threads: int, thread_name_prefix: str) -> None:
                self._tasks: deque[Callable[[], None]] = deque()
                self._is_shut = False
                self._threads = [Thread(self._work, f"{thread_name_prefix}-{number}") for number in range(threads)]
                for each in self._threads:
                    each.start()

            def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
                self._tasks.append(lambda: function(*arguments))
                return Future()

            def shutdown(self, wait: bool, cancel_futures: bool) -> None:
                assert wait
                assert cancel_futures
                self._is_shut = True
                self._tasks.clear()
                for each in self._threads:
                    each.join()

            def _work(self) -> None:
                while True:
                    world.wait(lambda: self._tasks or self._is_shut)
                    if self._is_shut:
                        return
                    self._tasks.popleft()()

        constants = {name: value for name, value in vars(select).items() if name.isupper()}
        now = {"monotonic": world.clock_s, "perf_counter": world.clock_s, "time": world.wall_s}
        lock = {"Lock": threading.Lock, "get_ident": threading.get_ident}
        return {
            "select": SimpleNamespace(poll=Poll, epoll=select.epoll, **constants),
            "time": SimpleNamespace(**now, thread_time=lambda: 0.0, sleep=world.sleep),
            "threading": SimpleNamespace(Thread=Thread, **lock),
            "queue": SimpleNamespace(SimpleQueue=SimpleQueue, Empty=queue.Empty),
            "ThreadPoolExecutor": ThreadPoolExecutor,
        }


class SeatSocket(socket.socket):
    """A blocking stream socket of an actor, whose waits are the simulation's."""

    world: World

    def recv_into(self, *arguments: Any) -> int:
        self.world.wait(lambda: _can(self, select.POLLIN))
        return super().recv_into(*arguments)

    def sendall(self, data: Any, *_: Any) -> None:
        view = memoryview(data).cast("B")
        while view:
            self.world.wait(lambda: _can(self, select.POLLOUT))
            view = view[self.send(view, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]


def _can(connection: socket.socket, event: int) -> bool:
    poll = select.poll()
    poll.register(connection, event)
    return bool(poll.poll(0))


@contextlib.contextmanager
def replaced(changes: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Attributes of modules and classes have other values in a `with` block."""
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)
