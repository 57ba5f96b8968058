"""Ask a scheduler where tasks are: which worker has each, and in which calls it is.

Runs in: every process that computes on a cluster, on the event loop of Dask's client. Imports no Dask: a feeder knows
the answer's type before it connects.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from feedline.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class TaskPlaces:
    """workers: that run tasks, or hold their results, by key; without the tasks that wait for a worker. stacks: the
    calls of running ones, by key, the innermost last."""

    workers: Mapping[str, str]
    stacks: Mapping[str, Sequence[str]]


async def ask_places(
    scheduler: Any, keys: Collection[str], workers: Collection[str] | None, *, stacks: bool
) -> TaskPlaces:
    """Where tasks are. workers: that may run them (None: all); the answer names every task of each. stacks: with their
    calls; none if one of the tasks has ended meanwhile."""
    try:
        processing = await scheduler.processing(workers=workers)
    except KeyError:  # of the scheduler, for a worker that has just left
        processing = await scheduler.processing(workers=None)
    asked = set(keys)
    places = {key: worker for worker, running in processing.items() for key in running if key in asked}
    holders = await scheduler.who_has(keys=sorted(asked - set(places)))
    places |= {key: addresses[0] for key, addresses in holders.items() if addresses}
    calls: dict[str, Sequence[str]] = {}
    if stacks and places:
        with contextlib.suppress(KeyError):  # of the scheduler, for the first task that it does not know
            answer = await scheduler.call_stack(keys=sorted(places))
            calls = {str(key): stack for tasks in answer.values() for key, stack in tasks.items()}
    return TaskPlaces(places, calls)


def answer_of(asked: Future[TaskPlaces | None]) -> TaskPlaces | None:
    """The answer that is there; None if the scheduler did not answer, or its client has closed."""
    return None if asked.cancelled() else asked.result()
