"""Run a block's task, and return a failure as a value.

Runs in: Dask workers, and threads of a feeder whose cluster is not up yet. Unlike an exception that goes through the
scheduler, the value says where the failure happened, and never pickles a library's exception.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from feedline.blocks.block_encoder import HandOver
from feedline.blocks.compute import run_block
from feedline.blocks.jobs import UnknownJobError
from feedline.blocks.request import BlockRequest, BlockResult, Job, PackedRequest
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
from feedline.service.monitoring.block_counts import BLOCK_COUNTS

if TYPE_CHECKING:
    from distributed import Future


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first rows of a block that is still computed."""

    parts: tuple[Rows, ...]


# None: lost with its worker, or with the scheduler.
Outcome: TypeAlias = BlockResult | BlockFailure | FirstRows | None
Arrived: TypeAlias = Callable[[str, Outcome], None]  # takes the key and the outcome, in any thread
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
    """The address of this thread's Dask worker; "" where the thread is the feeder's own."""
    from distributed import get_worker  # noqa: PLC0415 -- a feeder computes its first blocks before it loads Dask

    try:
        return str(get_worker().address)
    except ValueError:
        return ""


def _kind(error: BaseException) -> Kind:
    if isinstance(error, DataError | TableChangedError | CorruptFileError):
        return "data"
    if isinstance(error, ClusterError | ImportError):
        return "unfit"
    if isinstance(error, UnknownJobError):
        return "unknown"
    return "transient" if isinstance(error, OSError) else "other"
