"""Run a block's task, and return a failure as a value.

Runs in: Dask workers, worker processes of a feeder, and its threads. Unlike an exception that goes through the
scheduler, the value says where the failure happened, and never pickles a library's exception.
"""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from feedline.blocks.block_encoder import HandOver
from feedline.blocks.compute import run_block
from feedline.blocks.jobs import UnknownJobError
from feedline.blocks.request import BlockRequest, BlockResult, Job, PackedRequest
from feedline.dataclass import dataclass
from feedline.errors import (
    ClusterError,
    CorruptFileError,
    DataError,
    FeedlineError,
    TableChangedError,
    noted_message,
)
from feedline.loader.encoding.shuffled_rows import Rows
from feedline.service.cluster.blame import BlockFailure, Kind
from feedline.service.cluster.shared_results import seat_at
from feedline.service.monitoring.block_counts import BLOCK_COUNTS
from feedline.service.pool.block_process import serve_seats
from feedline.transforms.registry.user_functions import keep_pandas_out

if TYPE_CHECKING:
    from distributed import Future


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first rows of a block that is still computed."""

    parts: tuple[Rows, ...]


# None: lost with its worker, or with the scheduler.
Outcome: TypeAlias = BlockResult | BlockFailure | FirstRows | None
Arrived: TypeAlias = Callable[[str, Outcome], None]  # takes the key and the outcome, in any thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A block's task. arrived: called once, in any thread, with the key and the outcome, unless the task is released;
    on this host before that, too, with all `FirstRows` so far. first_rows: that the first part has, about (0: none is
    handed over). priority: Dask's, higher first. workers: that may compute it (None: all)."""

    job: Job | str
    request: BlockRequest
    key: str
    arrived: Arrived
    first_rows: int = 0
    priority: int = 0
    workers: Collection[str] | None = None


# `Client.submit` with its options; None if the scheduler does not answer.
Submit: TypeAlias = "Callable[..., Future[Any] | None]"


def attempt_block(
    job: Job | str,
    request: BlockRequest | PackedRequest,
    key: str,
    packed: bool,
    hand_over: HandOver | None = None,
) -> BlockResult | BlockFailure:
    """The result of `run_block`, or its exception as a value: the same with and without handing parts over."""
    request = request.unpack() if isinstance(request, PackedRequest) else request
    BLOCK_COUNTS.begin()
    try:
        result = _run(job, request, key, packed, hand_over)
    except Exception as error:
        failure = failure_of(error, worker_address())
        BLOCK_COUNTS.fail(failure.kind)
        return failure
    except BaseException:
        BLOCK_COUNTS.fail("killed")
        raise
    BLOCK_COUNTS.end(result)
    return result


def attempt_task(
    job: Job | str, request: BlockRequest | PackedRequest, key: str, feeder: bytes | None
) -> BlockResult | BlockFailure:
    """`attempt_block` on a Dask worker, which also hands the result over in shared memory, if it runs on the host of
    the feeder with this address."""
    seat = None if feeder is None else seat_at(feeder)
    outcome = attempt_block(job, request, key, seat is None)
    if seat is not None and isinstance(outcome, BlockResult):
        seat.hand_over(outcome)
    return outcome


def _run(job: Job | str, request: BlockRequest, key: str, packed: bool, hand_over: HandOver | None) -> BlockResult:
    if hand_over is not None:
        with contextlib.suppress(FeedlineError):  # of rows that are wrong in several ways, the first part tells another
            return run_block(job, request, key, packed, hand_over)
    return run_block(job, request, key, packed)


def failure_of(error: BaseException, worker: str, host: str | None = None) -> BlockFailure:
    """An error as a value. `host`: of the worker (default: this host)."""
    return BlockFailure(
        kind=_kind(error),
        ours=isinstance(error, FeedlineError),
        name=type(error).__name__,
        message=noted_message(error),
        worker=worker,
        host=platform.node() if host is None else host,
    )


def worker_address() -> str:
    """The address of this thread's Dask worker; "" in other threads."""
    if (distributed := sys.modules.get("distributed")) is None:
        return ""
    try:
        return str(distributed.get_worker().address)
    except ValueError:
        return ""


def serve_blocks(descriptors: Sequence[int]) -> None:
    """What a worker process of a feeder runs. descriptors: of its seats."""
    serve_seats(compute_block, descriptors)


def compute_block(
    job: Job | str, request: BlockRequest, key: str, first_rows: int, send_part: Callable[[Rows], None] | None
) -> BlockResult | BlockFailure:
    """`attempt_block` in a worker process of a feeder. send_part: hands over parts, the first of about `first_rows`."""
    if isinstance(job, Job):
        keep_pandas_out(job.code)
    hand_over = None if send_part is None else HandOver(first_rows, send_part)
    return attempt_block(job, request, key, False, hand_over)


def _kind(error: BaseException) -> Kind:
    if isinstance(error, DataError | TableChangedError | CorruptFileError):
        return "data"
    if isinstance(error, ClusterError | ImportError):
        return "unfit"
    if isinstance(error, UnknownJobError):
        return "unknown"
    return "transient" if isinstance(error, OSError) else "other"
