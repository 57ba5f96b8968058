"""Find workers that are unfit: those that fail a check, and those that cannot read what this process reads.

Runs in: the process that computes on a cluster; `WorkerRead` in Dask workers.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from feedline.blocks.reach import Reach, check_table, check_work_dir, unreadable, unreadable_error
from feedline.errors import CorruptFileError, StoreError, TableError
from feedline.service.dispatch.attempts import worker_address

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

_CHECK_S = 30.0  # time for all workers to answer a check


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
    try:
        workers = sorted(route) or None
        answers = client.sync(
            client._run, check, argument, workers=workers, on_error="return", callback_timeout=_CHECK_S
        )
    except OSError:  # the scheduler or a worker does not answer: each task checks again
        return {}, False
    errors = {worker: error for worker, error in answers.items() if isinstance(error, Exception)}
    unfit = {worker: error for worker, error in errors.items() if not isinstance(error, OSError)}
    return unfit, len(errors) == len(answers)


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
