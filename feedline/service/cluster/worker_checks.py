"""Find workers that are unfit: those that fail a check, and those that cannot read what this process reads.

Runs in: the process that computes on a cluster; `WorkerRead` in Dask workers.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from feedline.blocks.environment import Reach, check_table, check_work_dir, unreadable, unreadable_error
from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, StoreError, TableError
from feedline.service.cluster.attempts import worker_address

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

# How long an answer to a check is waited for, each time that it is asked for: 30 s in all. Dask asks over connections
# that it keeps, and a half-open one carries no answer; the next question takes another.
_ANSWERS_S = (4.0, 8.0, 18.0)


def check_workers(
    client: Client,
    check: Callable[[Any], None],
    argument: Any,
    exclude: Callable[[str, str], None],
    route: Collection[str] = (),
) -> None:
    """Run a check on all workers; those that fail it are excluded. Raises an error of the check if all fail.

    route: the workers that are asked instead, unless none of them passes.
    """
    unfit, all_failed = _failures(client, check, argument, route)
    if route and all_failed:
        unfit, all_failed = _failures(client, check, argument)
    if unfit and all_failed:
        raise next(iter(unfit.values()))
    for worker, error in unfit.items():
        exclude(worker, str(error))


def check_reach(client: Client, reach: Reach, exclude: Callable[[str, str], None], route: Collection[str] = ()) -> None:
    """Check that workers can read the table, unless this process cannot read it either. Raises ClusterError if none
    can; logs a warning for workers that lack `work_dir` only."""
    if unreadable(reach.fragment) is not None:
        return
    check_workers(client, check_table, reach, exclude, route)
    for worker, error in _failures(client, check_work_dir, reach, route)[0].items():
        logger.warning("worker %s: %s", worker, error)


def _failures(
    client: Client, check: Callable[[Any], None], argument: Any, route: Collection[str] = ()
) -> tuple[dict[str, Exception], bool]:
    """Run a check on all workers, or those of a route; its errors by worker, and whether no worker has passed it.

    A worker that does not answer is not among the errors: it is about to leave.
    """
    answers = client.sync(_answers, client, check, argument, sorted(route))
    if answers is None:  # each task checks again
        return {}, False
    errors = {worker: error for worker, error in answers.items() if isinstance(error, Exception)}
    unfit = {worker: error for worker, error in errors.items() if not isinstance(error, OSError)}
    return unfit, len(errors) == len(answers)


async def _answers(
    client: Client, check: Callable[[Any], None], argument: Any, workers: list[str]
) -> dict[str, Any] | None:
    """What workers (none: all) answer to a check, or their errors; None if none of them answers in time.

    All are asked with one message. If one does not answer that, each is asked by itself, and silent ones again until
    another has passed.
    """
    import asyncio  # noqa: PLC0415 -- as Dask has, when there is a client; a feeder's start does without

    first_s, *further_s = _ANSWERS_S
    scheduler: Any = client.scheduler
    try:
        asked = client.run(check, argument, workers=workers or None, on_error="return")
        return dict(await asyncio.wait_for(asked, first_s))
    except OSError:
        pass
    try:
        silent = list(workers or await asyncio.wait_for(scheduler.ncores(), first_s))
    except OSError:  # the scheduler does not answer
        return None
    answers: dict[str, Any] = {}
    for limit_s in further_s:
        asks = [
            asyncio.wait_for(client.run(check, argument, workers=[worker], on_error="return"), limit_s)
            for worker in silent
        ]
        for answer in await asyncio.gather(*asks, return_exceptions=True):
            if isinstance(answer, dict):
                answers |= answer
        silent = [worker for worker in silent if worker not in answers]
        if not silent or any(not isinstance(answer, Exception) for answer in answers.values()):
            break
    return answers or None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unread:
    """A worker could not read a file that it should: it is not there, has changed, or access is denied."""

    worker: str
    host: str
    message: str


@dataclass(frozen=True, slots=True)
class WorkerRead:
    """A function of one argument that reads files, as workers run it: a refusal becomes a value that says where."""

    function: Callable[[Any], Any]

    def __call__(self, argument: Any) -> Any:
        try:
            return self.function(argument)
        except (CorruptFileError, StoreError):
            raise  # the same on every worker, or the store's
        except TableError as error:
            return _Unread(worker=worker_address(), host=platform.node(), message=str(error))


def read_again(
    function: Callable[[Any], Any],
    arguments: Sequence[Any],
    results: Iterable[Any],
    leave_out: Callable[[str, str], bool],
) -> Iterator[Any]:
    """The results of `WorkerRead`, with those that a worker could not read computed here.

    leave_out: takes a worker's address and the reason; whether other workers are left. Raises the error of this
    process where it cannot read the file either, ClusterError where no worker is left that can.
    """
    for argument, result in zip(arguments, results, strict=True):
        if not isinstance(result, _Unread):
            yield result
            continue
        own = function(argument)
        error = unreadable_error(f"worker {result.worker} on {result.host}", platform.node(), result.message)
        if not leave_out(result.worker, str(error)):
            raise error
        yield own
