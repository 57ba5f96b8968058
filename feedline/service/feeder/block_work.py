"""The work on one block: the attempts at it, its result, and the description of a block that is missing.

Runs in: the feeder. Pure, but for a thread that opens a file to find out whether it can be read here.
"""

from __future__ import annotations

import hashlib
import platform
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import field

from feedline.blocks.environment import unreadable, unreadable_error
from feedline.blocks.request import BlockRequest, Job
from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, FeedlineError, StoreError, TableError
from feedline.loader.encoding.quality import Quality
from feedline.loader.encoding.shuffled_rows import Rows
from feedline.planning.schedule import Block
from feedline.service.cluster.blame import BlockFailure
from feedline.service.cluster.cluster import BlockTask
from feedline.service.cluster.task_places import TaskPlaces, answer_of

_FILES, _BLOCKS, _FRAMES = 3, 4, 4  # shown
_RETRIES = ("tenacity", "storage/retry")


@dataclass(slots=True)
class BlockAttempt:
    """One task. workers: those that may run it (None: all). slow: the worker on which an earlier attempt is late, where
    other blocks were computed meanwhile."""

    key: str
    task: BlockTask
    submitted_s: float
    workers: frozenset[str] | None
    slow: str = ""


@dataclass(slots=True)
class BlockWork:
    """A block that was submitted, until it is dropped."""

    block: Block
    job: Job
    request: BlockRequest
    attempts: list[BlockAttempt] = field(default_factory=list)
    submissions: int = 0
    failures: list[BlockFailure] = field(default_factory=list)
    due_s: float = 0.0  # when it may be submitted again after a failure
    hedged: bool = False
    rows: tuple[Rows, ...] | None = None
    first: tuple[Rows, ...] | None = None  # its first rows, while the rest is computed
    quality: Quality | None = None
    error: Exception | None = None  # why all attempts failed; raised for the step that needs the block
    held: BlockTask | None = None  # the task of `rows`, which trainers of the same lanes share until it is dropped

    def late_s(self, now_s: float) -> float:
        """Seconds that its only attempt has taken so far; 0 if it was hedged."""
        return 0.0 if self.hedged or len(self.attempts) != 1 else now_s - self.attempts[0].submitted_s

    def is_outside(self, route: frozenset[str]) -> bool:
        """Whether an attempt may only run on workers none of which is in the route."""
        return any(each.workers is not None and each.workers.isdisjoint(route) for each in self.attempts)

    def hold(self, attempt: BlockAttempt) -> None:
        self.attempts.remove(attempt)
        self.held = attempt.task

    def release(self) -> None:
        held, self.held = self.held, None
        if held is not None:
            held.cancel()

    def result(self) -> tuple[Rows, ...] | None:
        """Its rows; its first ones, or None, while it is computed. Raises its error."""
        if self.error is not None:
            raise self.error
        return self.first if self.rows is None else self.rows

    def give_up(self, error: FeedlineError, *, packed: bool, wake: Callable[[], None]) -> None:
        """Give the block up with an error. Whether this process can read what workers (packed: processes) cannot is
        found out in a thread, which calls `wake`: a mount may not answer."""
        if not (packed and is_unreadable(error)):
            self.error = error
            return

        def explain() -> None:
            self.error = explain_block_error(self, error)
            wake()

        threading.Thread(target=explain, name="feedline-explain", daemon=True).start()

    def fail(self, outcome: BlockFailure | None) -> BlockFailure | None:
        """Keep an attempt's failure, and return it; None where it is not the fault of the block or its worker."""
        if outcome is None or outcome.kind == "unknown":
            return None
        self.failures.append(outcome)
        return outcome


@dataclass(frozen=True, slots=True)
class MissingBlocks:
    """Blocks that a step waits for. places: where they are, as soon as the scheduler has said so."""

    works: Sequence[BlockWork]
    places: Future[TaskPlaces | None]
    clock: Callable[[], float]

    def describe(self) -> str:
        """What they wait for, once their places are known: a few lines for each of the first."""
        works = [work for work in self.works if work.rows is None]
        return describe_missing(works, answer_of(self.places), self.clock())


def is_unreadable(error: FeedlineError) -> bool:
    """Whether workers could not read a file, for a reason that may be theirs alone."""
    return isinstance(error, TableError) and not isinstance(error, CorruptFileError | StoreError)


def explain_block_error(work: BlockWork, error: FeedlineError) -> FeedlineError:
    """The error of a block that workers cannot read, or one about them if this process reads its files. Opens them."""
    if any(unreadable(piece.fragment) is not None for piece in work.request.pieces):
        return error
    workers = ", ".join(f"{failure.worker} on {failure.host}" for failure in work.failures)
    return unreadable_error(f"every worker that was tried ({workers})", platform.node(), str(error))


def block_name(name: str, work: BlockWork) -> str:
    """The block's name in keys and messages. name: that of its stream."""
    return f"{name}-l{work.block.lane}-b{work.block.index}"


def block_key(name: str, work: BlockWork, *, packed: bool) -> str:
    """The key of the next attempt, which names all that its bytes depend on."""
    digest = hashlib.blake2b(f"{work.job.digest} {work.request!r}".encode(), digest_size=8).hexdigest()
    return f"feedline-block-{block_name(name, work)}-{digest}-a{work.submissions}-{'p' if packed else 'r'}"


def describe_missing(works: Sequence[BlockWork], places: TaskPlaces | None, now_s: float) -> str:
    """Blocks that a step waits for, a few lines each. places: of their attempts (None: the scheduler does not say)."""
    lines = [_describe(work, places, now_s) for work in works[:_BLOCKS]]
    more = [f"and {len(works) - _BLOCKS} more blocks"] if len(works) > _BLOCKS else []
    return "\n".join([*lines, *more])


def _describe(work: BlockWork, places: TaskPlaces | None, now_s: float) -> str:
    paths = list(dict.fromkeys(piece.fragment.path for piece in work.request.pieces))
    files = ", ".join(paths[:_FILES]) + (f" and {len(paths) - _FILES} more" if paths[_FILES:] else "")
    lines = [f"block {work.block.index} of lane {work.block.lane} ({files}) is missing"]
    if not work.attempts:
        lines.append("  it waits for the Dask scheduler")
    for attempt in work.attempts:
        if places is None:
            where = "where to is not known: the Dask scheduler does not answer"
        else:
            worker = places.workers.get(attempt.key)
            where = "waiting for a free worker" if worker is None else f"on {worker}"
        lines.append(f"  submitted {now_s - attempt.submitted_s:.0f} s ago, {where}")
        stack = () if places is None else places.stacks.get(attempt.key, ())
        if any(word in call for call in stack for word in _RETRIES):
            lines.append("  its worker retries a request to the store")
        lines += [f"    {' '.join(call.split())}" for call in stack[-_FRAMES:]]
    lines += [f"  an earlier attempt failed: {failure}" for failure in work.failures]
    return "\n".join(lines)
