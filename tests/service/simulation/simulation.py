"""A training in virtual time: the real dataset, client, feeder loop, deliveries and pool, and faults drawn from a seed.

A run has one or two ranks, whose trainers read some epochs, and feeders of their own, of their host, or both one after
the other. Played are: processes and what starts them, results of blocks, Dask's scheduler, and the threads that write
slots. Invariants, checked in every run:

- each trainer gets each batch of the plan at its position, byte by byte, wherever it resumes, and the bytes of a batch
  that it holds do not change;
- a run ends, in bounded virtual time; only a block that fails wherever it is computed ends it with an error, which the
  trainer gets at the first step that needs the block, after all steps before it (or where it has begun since);
- nothing stays behind: slots, blocks in flight, tasks, processes, descriptors.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pipelines import image
from prepared_plan import EPOCHS, FORMS, prepared
from simulated_workers import BROKEN, Computing, Scheduler, SimulatedWorkers, Spawner
from virtual_time import Killed, Process, World, replaced

from feedline.commands import feed
from feedline.config.cluster_section import ClusterSpec
from feedline.errors import DataError, FeederError
from feedline.loader import dataset as dataset_module
from feedline.loader import dataset_stats
from feedline.loader.dataset import FeedlineDataset
from feedline.loader.ring import channel as channel_module
from feedline.loader.ring import client, feeder_connection, feeder_source, slots
from feedline.loader.ring.channel import Channel, ChannelClosedError, pair
from feedline.loader.ring.feeder_source import HostFeeder
from feedline.loader.ring.launch import FeederAccess, FeederDeaths
from feedline.loader.wire.facts import FeederFacts, Hello
from feedline.loader.wire.ring_messages import FeederLeaving, Welcome
from feedline.native import ring as native_ring
from feedline.native import rows as native_rows
from feedline.planning.plan import Plan
from feedline.service.cluster import cluster as cluster_module
from feedline.service.cluster import local_tasks, open_cluster
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.open_cluster import LocalCluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.feeder import (
    block_work,
    delivery,
    feeder,
    planner,
    quality_monitor,
    slot_writers,
    trainer_session,
    trainer_streams,
)
from feedline.service.feeder.feeder import Feeder
from feedline.service.feeder.planner import Planner
from feedline.service.feeder.trainer_session import SessionSetup, TrainerSession
from feedline.service.pool import block_pool, block_process

# Without faults, no batch takes longer; each fault may add its time, and what recovering from it takes.
_PATIENCE_S, _FAULT_S = 100.0, 60.0
_RUN_S = 20_000.0
_MOST_STEPS = 40  # of a trainer that goes back: after these it goes to the end
_QUIET_S = 10.0
_WAIT_S = 0.02
_FIRST_RANK_S = 60.0
FREE_BYTES = 1 << 34


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a seed decides about a run before it begins. backend: what computes blocks."""

    form: str
    ranks: int
    epochs: int
    backend: str  # threads, pool, pool later, workers
    on_host: bool  # the ranks share a feeder
    processes: int
    threads: int
    faults: int
    horizon_s: float
    step_s: float
    block_s: float
    slow_share: float
    flaky_share: float
    pause_share: float
    write_s: float
    poisoned: bool
    moves: bool  # trainers go back, skip, and start again by themselves

    @classmethod
    def draw(cls, world: World) -> Case:
        pick = world.random
        return cls(
            form=pick.choice(sorted(FORMS)),
            ranks=pick.choice((1, 1, 1, 2)),
            epochs=pick.choice((1, 1, 1, 2, 2, EPOCHS)),
            backend=pick.choice(("threads", "pool", "pool", "pool later", "workers", "workers")),
            on_host=pick.random() < 0.5,
            processes=pick.randint(1, 3),
            threads=pick.randint(1, 2),
            faults=pick.choice((0, 1, 2, 3, 6)),
            horizon_s=pick.choice((0.3, 3.0, 20.0)),
            step_s=pick.choice((0.0, 0.01, 0.2)),
            block_s=pick.choice((0.001, 0.05, 0.8)),
            slow_share=pick.choice((0.0, 0.0, 0.03)),
            flaky_share=pick.choice((0.0, 0.0, 0.1)),
            pause_share=pick.choice((0.0, 0.02, 0.2)),
            write_s=pick.choice((0.0, 0.0, 0.002, 0.1)),
            poisoned=pick.random() < 0.08,
            moves=pick.random() < 0.6,
        )


class Simulation:
    """One run of a seed."""

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed, limit_s=_RUN_S)
        self.case = case = Case.draw(world)
        world.pause_share = case.pause_share
        world.note(str(case))
        self.plan = prepared(case.form)
        self.computing = Computing(
            world=world,
            plan=self.plan,
            block_s=case.block_s,
            slow_share=case.slow_share,
            flaky_share=case.flaky_share,
            poisoned=self._draw_poison() if case.poisoned else None,
        )
        self.scheduler = Scheduler(self.computing, max(2, case.processes), threads=1)
        self.trainers = [Trainer(self, rank) for rank in range(case.ranks)]
        self.feeders: list[FeederProcess] = []
        self.host = Host(self)
        self.free_bytes = FREE_BYTES

    def _draw_poison(self) -> tuple[int, int]:
        blocks = list(self.plan.plan.schedule(0).blocks_of(range(2)))
        block = self.world.random.choice(blocks)
        return block.lane, block.index

    def run(self) -> None:
        world = self.world
        try:
            for trainer in self.trainers:
                world.at(world.random.uniform(0, 0.5), f"rank {trainer.rank} starts", trainer.start)
            for _ in range(self.case.faults):
                world.at(world.random.uniform(0, self.case.horizon_s), "a fault", Faults(self).strike)
            world.run(lambda: all(trainer.is_done for trainer in self.trainers))
            # A feeder of a host may wait for its next rank.
            world.run(lambda: not any(each.process.is_alive for each in self.feeders))
        finally:
            world.end()
        self._check_end()

    def _check_end(self) -> None:
        for each in self.feeders:
            each.check()

    # -- what is replaced ---------------------------------------------------------------------------------------------

    def changes(self) -> list[tuple[Any, str, Any]]:
        world = self.world
        stand_ins = world.stand_ins()
        plan, source = self.plan, FeederAccess(command=None, host=None)  # type: ignore[arg-type]
        where = {
            "time": (
                *(client, feeder_connection, feeder_source, dataset_module, dataset_stats, feeder, trainer_session),
                *(planner, delivery, quality_monitor, cluster_module, open_cluster, feed),
            ),
            "select": (channel_module, feeder_connection, feeder, block_pool, block_process),
            "threading": (planner, block_work, block_process),
            "queue": (planner,),
            "ThreadPoolExecutor": (local_tasks,),
        }
        access = FeederAccess(command=None, host=SimpleNamespace(name="host")) if self.case.on_host else source  # type: ignore[arg-type]
        nothing = lambda *_, **__: None  # noqa: E731 -- of many signatures
        return [
            *((module, name, stand_ins[name]) for name, modules in where.items() for module in modules),
            (trainer_streams, "Delivery", partial(delivery.Delivery, clock=world.clock_s)),
            (trainer_session, "available_memory_bytes", lambda: self.free_bytes),
            (slots, "available_memory_bytes", lambda: self.free_bytes),
            (slot_writers, "_queue", lambda connection, wake: SlotQueue(world, self.case.write_s, connection, wake)),
            (channel_module, "native", Interrupted(world)),
            (feeder, "use_huge_pages", nothing),
            (local_tasks, "attempt_block", self._attempt),
            (block_pool, "ImportingSpawner", lambda run: self._spawner_here()),
            (client, "gc", SimpleNamespace(collect=nothing)),
            (feeder_source, "OwnFeeder", self._own_feeder),
            (feeder_source, "attach", lambda launch, reported, unless: self.host.attach(unless)),
            (feeder_source.FeederSource, "close", nothing),
            (dataset_module, "load_spec", lambda path, overrides: plan.spec),
            (dataset_module, "feeder_access", lambda spec, ranks, group: access),
            (dataset_module, "print_ranks", nothing),
        ]

    def _attempt(self, job: Any, request: Any, key: str, packed: bool, hand_over: Any) -> Any:
        """In a thread of a feeder."""
        rows, take = (0, None) if hand_over is None else (hand_over.rows, hand_over.take)
        sleep = self.world.sleep
        return self.computing.outcome(job, request, key, packed=packed, first_rows=rows, on_part=take, wait=sleep)

    def _spawner_here(self) -> Spawner:
        assert self.world.current is not None
        return self._spawner(self.world.current.process)

    def _spawner(self, process: Process) -> Spawner:
        spawner = Spawner(self.computing, process)
        next(each for each in self.feeders if each.process is process).spawners.append(spawner)
        return spawner

    def _own_feeder(self, _command: Any, *, restarts: int) -> OwnFeeder:
        assert self.world.current is not None
        return OwnFeeder(self, self.world.current.process)

    def sessions(self, rank: int) -> list[TrainerSession]:
        loops = [each.loop for each in self.feeders if each.process.is_alive and each.loop is not None]
        return [session for loop in loops for session in loop.sessions if session.global_rank == rank]


# -- faults -----------------------------------------------------------------------------------------------------------


class Faults:
    """What machines do to a run."""

    def __init__(self, simulation: Simulation) -> None:
        self._all = simulation

    def strike(self) -> None:
        kinds = ("kill_feeder", "kill_feeder", "kill_worker", "kill_worker", "kill_trainer", "stop", "stop")
        kind = self._all.world.random.choice((*kinds, "scheduler", "refuse", "zygote", "clock", "memory"))
        self._all.computing.grace_s += _FAULT_S
        getattr(self, f"_{kind}")()

    def _kill_feeder(self) -> None:
        living = [each for each in self._all.feeders if each.process.is_alive]
        if living and self._all.host.may_die:
            victim = self._all.world.random.choice(living)
            if victim.may_die():
                self._all.world.kill(victim.process)

    def _kill_worker(self) -> None:
        world = self._all.world
        if self._all.case.backend == "workers":
            self._all.scheduler.leave()
            return
        workers = [each for feeder in self._all.feeders for spawner in feeder.spawners for each in spawner.living()]
        if workers:
            victim = world.random.choice(workers)
            if self._all.computing.may_die([victim.pid]):
                world.kill(victim)

    def _kill_trainer(self) -> None:
        living = [each for each in self._all.trainers if each.process is not None and each.process.is_alive]
        if living:
            self._all.world.random.choice(living).kill()

    def _stop(self) -> None:
        world = self._all.world
        processes = [each.process for each in self._all.feeders] + [each.process for each in self._all.trainers]
        processes += [each for one in self._all.feeders for spawner in one.spawners for each in spawner.living()]
        living = [each for each in processes if each is not None and each.is_alive]
        if living:
            seconds = world.random.choice((0.1, 1.0, 40.0)) * world.random.uniform(0.5, 1)
            self._all.computing.grace_s += seconds
            world.suspend(world.random.choice(living), seconds)

    def _scheduler(self) -> None:
        if self._all.case.backend == "workers" and self._all.scheduler.is_up:
            away_s = self._all.world.random.choice((0.1, 3.0, 40.0))
            self._all.computing.grace_s += away_s
            self._all.scheduler.restart(away_s)

    def _refuse(self) -> None:
        """No process can be forked for a while, beside those that there are."""
        for each in self._all.feeders:
            for spawner in each.spawners:
                spawner.refusals = 2 if spawner.living() else 0

    def _zygote(self) -> None:
        for each in self._all.feeders:
            for spawner in each.spawners[:1]:
                spawner.is_alive = False

    def _clock(self) -> None:
        self._all.world.wall_offset_s += self._all.world.random.uniform(-7200, 7200)

    def _memory(self) -> None:
        """Free memory is short for some seconds."""
        self._all.free_bytes = 1 << 28

        def free() -> None:
            self._all.free_bytes = FREE_BYTES

        self._all.world.at(self._all.world.random.uniform(1, 20), "memory is free", free)


# -- feeders ----------------------------------------------------------------------------------------------------------


class FeederProcess:
    """A feeder's process: its loop is the real one."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self._all = simulation
        self.process = process = simulation.world.process(f"feeder {number}")
        self.spawners: list[Spawner] = []
        self.loop: Feeder | None = None
        self.cluster: Cluster | None = None
        self.ended: list[TrainerSession] = []
        self.has_ended_in_order = False
        simulation.feeders.append(self)
        process.on_end.append(self._kill_workers)

    def _kill_workers(self) -> None:
        for spawner in self.spawners:
            for worker in spawner.living():
                self._all.world.kill(worker)

    def may_die(self) -> bool:
        """Whether its death is one of which trainers recover: blocks that its workers compute have attempts left, and a
        batch has come since the last death."""
        loop = self.loop
        return loop is not None and bool(loop.sessions) and all(each.counters.batches for each in loop.sessions)

    def serve_trainer(self, connection: Any, rank: int) -> None:
        """Be a feeder of one rank."""
        channel = Channel(connection)

        def begin(loop: Feeder) -> Callable[[], bool]:
            loop.add(self._open(channel, rank=rank, wake=loop.wake))
            return lambda: not loop.sessions

        self._serve(begin, [])

    def serve_host(self, listener: Listener) -> None:
        """Be the feeder of a host's ranks."""
        own: Any = SimpleNamespace(add=lambda pid: None)
        door = feed._HostDoor(listener, SimpleNamespace(open=self._open), own)  # type: ignore[arg-type]
        began_s = self._all.world.now_s

        def begin(loop: Feeder) -> Callable[[], bool]:
            door.feeder = loop
            deadline_s = began_s + _FIRST_RANK_S
            return lambda: not loop.sessions and (door.has_served or self._all.world.now_s > deadline_s)

        try:
            self._serve(begin, [door], then=listener.stop)
        finally:
            listener.close()

    def _serve(self, begin: Callable[[Feeder], Callable[[], bool]], doors: list[Any], then: Any = None) -> None:
        world = self._all.world
        world.sleep(world.random.uniform(0, 0.4))  # imports
        self.cluster = self._open_cluster()
        self._planner = Planner(self._resolve, job="j" * 64, now_s=world.clock_s)
        try:
            self.loop = Feeder(self.cluster, doors=doors, on_end=lambda session, error: self.ended.append(session))
            self.loop.serve(until=begin(self.loop))
            if then is not None:
                then()
            self.has_ended_in_order = True
        finally:
            with contextlib.suppress(Killed):
                self._planner.close()
            self._close_cluster()
            self.process.is_alive = False
            world.note(f"{self.process.name} ends")

    def _close_cluster(self) -> None:
        assert self.cluster is not None
        try:
            self.cluster.close()
        except Killed:
            pool = getattr(self.cluster, "_pool", None)
            if pool is not None:
                pool.close()

    def _resolve(self, hello: Hello, _start: Any, _plans: Any) -> Plan:
        world = self._all.world
        world.sleep(world.random.choice((0.001, 0.3)))
        return self._all.plan.resolve(hello)

    def _open_cluster(self) -> Cluster:
        case = self._all.case
        if case.backend == "workers":
            spec = ClusterSpec(scheduler="tcp://127.0.0.1:1", dashboard=False)
            return SimulatedWorkers(ClusterRequest(spec, threads=1), self._all.scheduler)
        spawner = None if case.backend == "threads" else self._all._spawner(self.process)
        request = ClusterRequest(
            ClusterSpec(dashboard=False),
            threads=case.processes * case.threads,
            spawner=spawner,
            processes=case.processes,
            threads_first=case.backend == "pool later",
        )
        return LocalCluster(request)

    def _open(
        self, channel: Channel, *, rank: int | None, wake: Any, admit: Any = lambda hello: True
    ) -> TrainerSession:
        assert self.cluster is not None
        self.process.sockets.append(channel._socket)
        about = FeederFacts(imports_s=0.0, log=None, dashboard=None, live_page=None, feeder=self.process.pid)
        setup = SessionSetup(
            cluster=self.cluster,
            planner=self._planner,
            world_size=self._all.case.ranks,
            memory_bytes=64 << 20,
            about=about,
        )
        return TrainerSession(channel, setup, rank=rank, wake=wake, admit=admit)

    def check(self) -> None:
        """Nothing is left of what it did."""
        if not self.has_ended_in_order:
            return
        for session in self.ended:
            source = session.streams._source
            assert source is None or source[2].in_flight == 0, f"{source[2].in_flight} blocks stay in flight"
            assert not session._ring._generations
        if isinstance(self.cluster, LocalCluster):
            assert not self.cluster._tasks._entries, "tasks are held"


class OwnFeeder:
    """A trainer's feeder, as the trainer sees its process."""

    def __init__(self, simulation: Simulation, trainer: Process) -> None:
        self._world = world = simulation.world
        self.channel, theirs = pair()
        rank = next(each.rank for each in simulation.trainers if each.process is trainer)
        feeder = FeederProcess(simulation, len(simulation.feeders))
        feeder.process.sockets.append(theirs)
        trainer.sockets.append(self.channel._socket)
        self._process, self.pid, self.log_path = feeder.process, 0, None
        feeder.process.on_end.append(theirs.close)
        world.start(feeder.process, feeder.process.name, lambda: feeder.serve_trainer(theirs, rank))

    def last_words(self) -> str:
        return "(none)"

    def end(self) -> None:
        """As of a process that ends with its connection, and is killed if it does not."""
        if not self._world.wait(lambda: not self._process.is_alive, 7.0):
            self._world.kill(self._process)


class Listener:
    """The socket of a host's feeder, and the connections that wait there."""

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()
        self._readable = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.is_open = True

    def fileno(self) -> int:
        return self._readable if self.is_open else -1

    def connect(self) -> Any:
        ours, theirs = pair()
        self.waiting.append(theirs)
        os.eventfd_write(self._readable, 1)
        return ours

    def accept(self) -> Channel | None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._readable)
        if not self.waiting:
            return None
        channel = Channel(self.waiting.popleft())
        if self.waiting:
            os.eventfd_write(self._readable, 1)
        with contextlib.suppress(ChannelClosedError):
            channel.post_message(Welcome(pid=0))
        return channel

    def stop(self) -> None:
        self.is_open = False
        while self.waiting:
            channel = Channel(self.waiting.popleft())
            with contextlib.suppress(ChannelClosedError):
                channel.post_message(FeederLeaving())
            channel.close()

    def close(self) -> None:
        self.is_open = False
        while self.waiting:
            self.waiting.popleft().close()
        if self._readable >= 0:
            os.close(self._readable)
            self._readable = -1


class Host:
    """Where the ranks of a host meet: the lock, the socket, and the record of deaths."""

    def __init__(self, simulation: Simulation) -> None:
        self._all = simulation
        self._feeder: FeederProcess | None = None
        self._listener: Listener | None = None
        self._deaths = FeederDeaths()
        self.had_batch = False

    @property
    def may_die(self) -> bool:
        """Whether another death does not make three without a batch."""
        return self._deaths.futile < 2

    def attach(self, unless: Callable[[], bool]) -> HostFeeder:
        world = self._all.world
        while True:
            feeder, listener = self._feeder, self._listener
            if feeder is None or not feeder.process.is_alive:
                self._start()
            elif listener is not None and listener.is_open:
                channel = listener.connect()
                assert world.current is not None
                world.current.process.sockets.append(channel._socket)
                return NamedFeeder(self, channel, feeder.process.name)
            if unless():
                raise FeederError("this feed is closed: expected an open one")
            world.sleep(_WAIT_S)

    def _start(self) -> None:
        if self._feeder is not None:
            self._deaths.add(had_batch=self.had_batch)
        self.had_batch = False
        self._listener = listener = Listener()
        self._feeder = feeder = FeederProcess(self._all, len(self._all.feeders))
        feeder.process.on_end.append(listener.close)
        self._all.world.start(feeder.process, feeder.process.name, lambda: feeder.serve_host(listener))


class NamedFeeder(HostFeeder):
    """The connection of a rank to its host's feeder."""

    def __init__(self, host: Host, channel: Channel, name: str) -> None:
        self.channel, self.name, self.pid, self.log_path = channel, name, 0, None  # type: ignore[assignment]
        self._host = host

    def record_progress(self) -> None:
        self._host.had_batch = True

    def last_words(self) -> str:
        return "(none)"

    def end(self) -> None:
        """It serves other ranks."""


# -- trainers ---------------------------------------------------------------------------------------------------------


class Trainer:
    """A rank's trainer: what it does is drawn, what it must get is known. saved: its last checkpoint, which outlives
    its process."""

    def __init__(self, simulation: Simulation, rank: int) -> None:
        self._all, self.rank = simulation, rank
        self.process: Process | None = None
        self.is_done = False
        self.saved: dict[str, Any] | None = None
        self._steps = 0
        self._position = (0, 0)  # of the batch that must come next
        self._has_moved = False  # it has begun elsewhere, and got no batch since
        self._held: deque[tuple[Any, bytes]] = deque()
        self._steps_of = simulation.plan.facts.steps

    def start(self) -> None:
        world = self._all.world
        self.process = world.process(f"rank {self.rank}")
        world.start(self.process, f"rank {self.rank}", self._train)

    def kill(self) -> None:
        world, process = self._all.world, self.process
        assert process is not None
        world.kill(process)
        world.at(world.random.uniform(0, 3), f"rank {self.rank} starts again", self.start)

    def _train(self) -> None:
        process, dataset = self.process, None
        assert process is not None
        try:
            while True:
                dataset = FeedlineDataset(self._all.plan.path, rank=self.rank, world_size=self._all.case.ranks)
                again = self._read(dataset)
                dataset.close()
                self._all.world.note("it closes its dataset")
                if not again:
                    break
            self.is_done = True
        except DataError as error:
            self._check_error(error)
            self.is_done = True
        finally:
            self._held.clear()
            process.is_alive = False
            if dataset is not None:
                with contextlib.suppress(Killed):
                    dataset.close()

    def _check_error(self, error: DataError) -> None:
        """The error of the poisoned block comes at the first step that needs it."""
        poisoned, (epoch, step) = self._all.computing.poisoned, self._position
        self._all.world.note(f"it gets {error} before step {step} of epoch {epoch}")
        assert str(error) == BROKEN, error
        assert poisoned is not None, error
        if self._has_moved:
            return  # it is of where the trainer was before: the feeder has ended with it meanwhile
        schedule = self._all.plan.plan.schedule(epoch)
        share = 2 // self._all.case.ranks
        lanes = range(self.rank * share, (self.rank + 1) * share)
        drawn = [(cut.lane, cut.block) for lane in lanes for cut in schedule.cuts(lane, step)]
        assert poisoned in drawn, f"step {step} needs the blocks {drawn}, not {poisoned}"

    def _read(self, dataset: FeedlineDataset) -> bool:
        """Read to the end; True to start again with another dataset."""
        what, self._position, self._has_moved = "", (0, 0), False
        if self.saved is not None:
            dataset.load_state_dict(self.saved)
            self._position = self.saved["epoch"], self.saved["step"]
        while self._position[0] < self._all.case.epochs:
            what = self._read_epoch(dataset)
            self._has_moved = what == "iterate"
            if what == "again":
                return True
        self._let_go()
        if what == "end":  # else it has left slots unread
            self._check_quiet()
        return False

    def _read_epoch(self, dataset: FeedlineDataset) -> str:
        world = self._all.world
        iterator = iter(dataset)
        while True:
            asked_s = world.now_s
            grace_s = self._all.computing.grace_s
            batch = next(iterator, None)
            limit_s = _PATIENCE_S + 2 * self._all.computing.grace_s - grace_s
            assert world.now_s - asked_s < limit_s, f"a batch took {world.now_s - asked_s:.0f} virtual seconds"
            if batch is None:
                assert self._position[1] == self._steps_of, f"an epoch ended before step {self._position}"
                self._position = (self._position[0] + 1, 0)
                return "end"
            self._take(dataset, batch)
            del batch
            if self._all.case.step_s:
                world.sleep(self._all.case.step_s * world.random.uniform(0.5, 2))
            else:
                world.pause()
            if (move := self._move(dataset)) is not None:
                return move

    def _take(self, dataset: FeedlineDataset, batch: Any) -> None:
        """Compare a batch with the plan, and hold it for a while."""
        world, (epoch, step) = self._all.world, self._position
        content = image(batch)
        world.note(f"step {step} of epoch {epoch}, {len(content)} bytes")
        assert (batch.epoch, batch.step) == self._position, f"{(batch.epoch, batch.step)}, not {self._position}"
        expected = self._all.plan.images(self.rank, self._all.case.ranks, epoch)[step]
        assert content == expected, f"step {step} of epoch {epoch} has other bytes than planned"
        self._position, self._has_moved = (epoch, step + 1), False
        self._steps += 1
        self._held.append((batch, expected))
        for _ in range(world.random.choice((0, 1, 1, 1, 1, 4, len(self._held)))):
            self._drop()
        if world.random.random() < 0.2:
            self.saved = dataset.state_dict(after=batch)
        while len(self._held) > 12:
            self._drop()

    def _drop(self) -> None:
        if self._held:
            batch, expected = self._held.popleft()
            assert image(batch) == expected, f"the bytes of step {batch.step} changed while it was held"

    def _let_go(self) -> None:
        while self._held:
            self._drop()

    def _move(self, dataset: FeedlineDataset) -> str | None:
        """What a trainer does besides reading on."""
        world = self._all.world
        if not self._all.case.moves or self._steps > _MOST_STEPS or world.random.random() > 0.06:
            return None
        epoch, step = self._position
        match world.random.choice(("state", "epoch", "skip", "close", "long", "same")):
            case "state" if self.saved is not None:
                world.note("it loads its last state")
                dataset.load_state_dict(self.saved)
                self._position = self.saved["epoch"], self.saved["step"]
                return "iterate"
            case "epoch":
                epoch = world.random.randrange(self._all.case.epochs)
                world.note(f"it sets epoch {epoch}")
                dataset.set_epoch(epoch)
                self._position = epoch, 0
                return "iterate"
            case "skip":
                world.note("it leaves the epoch")
                self._position = epoch + 1, 0
                return "iterate"
            case "close":
                self.saved = dataset.state_dict()
                return "again"
            case "long":
                world.sleep(world.random.uniform(1, 40))
            case "same" if step < self._steps_of:
                world.note("it begins again where it is")
                dataset.load_state_dict(dataset.state_dict())
                return "iterate"
        return None

    def _check_quiet(self) -> None:
        """After the last batch, all slots are free again."""
        world = self._all.world

        def is_quiet() -> bool:
            rings = [each._ring for each in self._all.sessions(self.rank)]
            return all(ring.free_slots == ring.slots and len(ring._current) == len(ring._generations) for ring in rings)

        assert world.wait(is_quiet, _QUIET_S + self._all.computing.grace_s), "slots are not free after the last batch"


# -- threads of the feeder that write slots, and preemption ------------------------------------------------------------


class SlotQueue:
    """As `native.SlotQueue`, with writers that take their virtual time, each its own."""

    seconds = cpu_seconds = 0.0

    def __init__(self, world: World, write_s: float, connection: int, wake: int) -> None:
        self._world, self._write_s = world, write_s
        self._connection, self._wake = connection, wake
        self._jobs: deque[dict[str, Any]] = deque()
        self._is_held = self._is_woken = False

    def write(self, target: NDArray[np.uint8], header: Any, gaps: Any, parts: Any, copies: Any, packet: bytes) -> None:
        job = {"state": "waiting", "packet": packet, "content": (target, header, gaps, parts, copies)}
        self._jobs.append(job)
        if not self._write_s or (len(self._jobs) == 1 and self._world.random.random() < 0.3):
            self._finish(job, is_thread=False)
        else:
            seconds = self._world.random.uniform(0, self._write_s)
            self._world.at(seconds, "a slot is written", lambda: self._finish(job, is_thread=True))

    def _finish(self, job: dict[str, Any], *, is_thread: bool) -> None:
        if job["state"] != "waiting":
            return
        native_rows.write_slot(*job["content"])
        job["state"] = "written"
        del job["content"]
        self._send(is_thread=is_thread)

    def _send(self, *, is_thread: bool) -> None:
        if not is_thread and not self._write_s:
            return  # `take` hands them to the caller
        unsent = list(itertools.takewhile(lambda job: job["state"] != "waiting", self._jobs))
        unsent = [job for job in unsent if job["state"] == "written"]
        if unsent and not self._is_held:
            try:
                self._send_packets(b"".join(job["packet"] for job in unsent))
            except BlockingIOError:
                self._is_held = True
            else:
                for job in unsent:
                    job["state"] = "sent"
        states = [job["state"] for job in self._jobs if job["state"] != "sent"]
        if not self._is_woken and (not states or (self._is_held and states[0] == "written")):
            self._is_woken = True
            os.eventfd_write(self._wake, 1)

    def _send_packets(self, packets: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            _send_to(self._connection, packets)

    def take(self) -> tuple[int, bytes, bool]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        self._is_woken = False
        count, packets = 0, b""
        while self._jobs and self._jobs[0]["state"] != "waiting":
            job = self._jobs.popleft()
            count += 1
            packets += job["packet"] if job["state"] == "written" else b""
        return count, packets, False

    def hold(self, is_held: bool) -> None:
        self._is_held = is_held
        if not is_held:
            self._send(is_thread=False)

    def wait(self) -> None:
        for job in tuple(self._jobs):
            self._finish(job, is_thread=True)

    def drop(self) -> int:
        sent = sum(job["state"] == "sent" for job in self._jobs)
        for job in self._jobs:
            job["state"] = "dropped"
        self._jobs.clear()
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        self._is_woken = False
        return sent


def _send_to(descriptor: int, packets: bytes) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.send(packets, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class Interrupted:
    """`native.ring`, as channels call it: before and after each packet, another process may run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.FORMS, self.flush, self.Books = native_ring.FORMS, native_ring.flush, native_ring.Books

    def receive(self, connection: Any, packet: bytearray, queue: Any) -> int:
        self._world.pause()
        return native_ring.receive(connection, packet, queue)

    def send(self, connection: Any, packet: bytes) -> bool:
        self._world.pause()
        return native_ring.send(connection, packet)


# -- running ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without log lines, and without garbage collections, whose times no seed decides."""
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def run_seed(seed: int) -> World:
    """Run a seed, and return its world, with its log. Raises AssertionError, with the seed, where an invariant is
    broken."""
    simulation = Simulation(seed)
    before = descriptors()
    try:
        with quiet(), replaced(simulation.changes()):
            simulation.run()
        if descriptors() != before:
            gc.collect()
            assert descriptors() == before, f"{descriptors() - before} descriptors stay open"
    except BaseException as error:
        error.add_note(f"seed {seed}; replay it with: python tests/service/simulation/simulate.py --seed {seed} -v")
        error.world = simulation.world  # type: ignore[attr-defined]
        raise
    return simulation.world
