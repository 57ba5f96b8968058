"""A trainer and workers that come and go, simulated event by event around the policies that scale them.

The workers compute blocks in plan order, a window of them ahead; each block is some steps. Counts are taken once a
second, as a feeder does, and the policy's number of workers comes `start_s` later.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from feedline.service.autoscale import LoadMeter, ScalingDecision, ScalingSample, TrainerLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is simulated. step_s: the trainer's own seconds per step at a time (infinite: stopped). block_s: seconds of
    a block by its index and the worker's number. most_blocks_per_s: of the store (None: no limit)."""

    seconds: float
    step_s: Callable[[float], float]
    block_s: Callable[[int, int], float]
    steps_per_block: int = 1
    start_s: float = 2.0
    most_blocks_per_s: float | None = None
    workers: int = 1


@dataclass(slots=True)
class Course:
    """What happened. changes: time and number of workers wanted. stalls: time at which a wait ended, and its length."""

    changes: list[tuple[float, int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    stalls: list[tuple[float, float]] = field(default_factory=list)
    worker_s: float = 0.0
    steps: int = 0

    @property
    def workers(self) -> int:
        """The last number of workers."""
        return self.changes[-1][1]

    def settled_s(self, since_s: float = 0.0) -> float:
        """Seconds from a time on until the last change."""
        return max([0.0, *(at_s - since_s for at_s, _ in self.changes)])

    def stalled_s(self, start_s: float = 0.0, end_s: float = float("inf")) -> float:
        """Seconds of waiting between two times."""
        return sum(length for at_s, length in self.stalls if start_s <= at_s < end_s)

    def between(self, start_s: float, end_s: float) -> list[int]:
        """The numbers of workers wanted at a time and by the changes until another."""
        before = [workers for at_s, workers in self.changes if at_s <= start_s][-1:]
        return before + [workers for at_s, workers in self.changes if start_s < at_s < end_s]


class ScalingPolicy(Protocol):
    """Decides once a second how many workers there should be."""

    def decide(self, sample: ScalingSample) -> ScalingDecision: ...


class Simulation:
    """One run of a scene under a policy."""

    def __init__(self, scene: Scene, policy: ScalingPolicy) -> None:
        self._scene, self._policy = scene, policy
        self._events: list[tuple[float, int, Callable[..., None], Sequence[Any]]] = []
        self._order = itertools.count()
        self._now_s = 0.0
        self._meter = LoadMeter()
        self._workers: dict[int, bool] = {}  # number: whether it computes
        self._leaving: set[int] = set()
        self._names = itertools.count()
        self._coming = 0
        self._wanted = scene.workers
        self._next_block = 0
        self._done: set[int] = set()
        self._busy_s = self._stalled_s = 0.0
        self._recent: list[float] = []
        self._step = 0
        self._asks_since_s: float | None = None
        self._store_free_s = 0.0
        self._counted = 0
        self.course = Course(changes=[(0.0, scene.workers)])

    def run(self) -> Course:
        """Simulate it to its end."""
        for _ in range(self._scene.workers):
            self._arrive()
        self._at(0.0, self._ask)
        self._at(1.0, self._tick)
        while self._events:
            at_s, _, call, arguments = heapq.heappop(self._events)
            if at_s > self._scene.seconds:
                break
            self.course.worker_s += (at_s - self._now_s) * (len(self._workers) + self._coming)
            self._now_s = at_s
            call(*arguments)
        self.course.steps = self._step
        return self.course

    def _at(self, at_s: float, call: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), call, arguments))

    # -- workers --------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        self._workers[next(self._names)] = False
        self._dispatch()

    def _join(self) -> None:
        if self._coming:
            self._coming -= 1
            self._arrive()

    def _scale(self) -> None:
        have = len(self._workers) - len(self._leaving) + self._coming
        for _ in range(self._wanted - have):
            self._coming += 1
            self._at(self._now_s + self._scene.start_s, self._join)
        for _ in range(have - self._wanted):
            if self._coming:
                self._coming -= 1
                continue
            self._leaving.add(max(set(self._workers) - self._leaving))
        self._dispatch()

    def _dispatch(self) -> None:
        for name in [name for name in self._leaving if not self._workers[name]]:
            self._leaving.remove(name)
            del self._workers[name]
        window = self._step // self._scene.steps_per_block + 2 * max(1, len(self._workers)) + 1
        for name in sorted(self._workers):
            if not self._workers[name] and name not in self._leaving and self._next_block < window:
                self._workers[name] = True
                taken_s = self._scene.block_s(self._next_block, name)
                end_s = self._now_s + taken_s
                if self._scene.most_blocks_per_s is not None:
                    end_s = max(end_s, self._store_free_s + 1 / self._scene.most_blocks_per_s)
                    self._store_free_s = end_s
                self._at(end_s, self._finish, name, self._next_block, end_s - self._now_s)
                self._next_block += 1

    def _finish(self, name: int, block: int, taken_s: float) -> None:
        self._workers[name] = False
        self._done.add(block)
        self._busy_s += taken_s
        self._recent = [*self._recent[-30:], taken_s]
        if self._asks_since_s is not None:
            self._ask()
        self._dispatch()

    # -- the trainer ----------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """The trainer asks for a step, or goes on waiting for it."""
        if self._step // self._scene.steps_per_block not in self._done:
            self._asks_since_s = self._now_s if self._asks_since_s is None else self._asks_since_s
            return
        if self._asks_since_s is not None and self._step:
            waited_s = self._now_s - self._asks_since_s
            self._stalled_s += waited_s
            self.course.stalls.append((self._now_s, waited_s))
        self._asks_since_s = None
        self._step += 1
        self._train()
        self._dispatch()

    def _train(self) -> None:
        step_s = self._scene.step_s(self._now_s)
        if step_s == float("inf"):
            self._at(self._now_s + 1.0, self._train)
        else:
            self._at(self._now_s + step_s, self._ask)

    # -- the feeder -----------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        here = len(self._workers) - len(self._leaving)
        if here != self._counted:
            self._counted = here
            self._meter.restart()
        ready = 0
        while ready < 4 and (self._step + ready) // self._scene.steps_per_block in self._done:
            ready += 1
        load = TrainerLoad(
            steps=self._step,
            blocks=len(self._done),
            busy_s=self._busy_s,
            stalled_s=self._stalled_s,
            starved=ready == 0,
            blocks_per_step=1 / self._scene.steps_per_block,
            block_s=sorted(self._recent)[len(self._recent) // 2] if self._recent else 0.0,
            ready=ready + 1,
            in_flight=self._next_block - len(self._done),
        )
        sample = ScalingSample(
            now_s=self._now_s, load=self._meter.observe({0: load}, self._now_s), workers=here, threads_per_worker=1
        )
        decision = self._policy.decide(sample)
        if decision.workers != self._wanted:
            self._wanted = decision.workers
            self.course.changes.append((self._now_s, decision.workers))
            self.course.reasons.append(decision.reason or "")
            self._scale()
        self._at(self._now_s + 1.0, self._tick)


def simulate(scene: Scene, policy: ScalingPolicy) -> Course:
    """What a policy does with a scene."""
    return Simulation(scene, policy).run()
