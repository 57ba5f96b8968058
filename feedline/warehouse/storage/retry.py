"""Repeat an operation on a store that fails for a moment, within a deadline and a budget that all threads share.

Runs in every process that reads or writes a store. `with_retries` wraps whole operations (a listing, the opening of a
file with its footer, one row group's bytes, a stored file), each of which is repeatable and hands nothing out before it
has succeeded. Local file systems are not retried: their failures are final. Pauses grow at random (`tenacity`'s full
jitter) up to a cap, and when the next one would pass the deadline the operation fails with a StoreError that names the
file, the attempts, the seconds and the store's last message.

All threads of a process share one budget of retries, a token bucket: a retry takes a token, after throttling two; time
and successes give them back. A store that fails for everybody is so asked a few times a second by a process, however
many threads wait, while a single hiccup among successes is repeated at once.

The AWS SDK's own retries are off: their quota (100 retries) is never refilled under pyarrow, so its behaviour would
change in the life of a process, and both layers would multiply (see `locations`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import pyarrow.fs as pafs
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from feedline.errors import StoreError
from feedline.warehouse.storage.faults import Outlook, explain_errors, label, last_words, outlook
from feedline.warehouse.storage.parallel import stopping

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long one operation is tried: the first pause is up to `first_s`, each next one up to twice as long, none is
    longer than `longest_s`, and none passes `deadline_s`."""

    first_s: float = 0.2  # a few round trips: broken connections and single server errors are over at once
    longest_s: float = 20.0  # S3 scales a prefix up in minutes; asking more often only adds load
    deadline_s: float = 120.0  # failovers and scaling take a minute; a training job gives up later than a person would


POLICY = RetryPolicy()


class Budget:
    """Retries that a process may spend; `take` may be called before there are tokens, and returns how long to wait."""

    # At the start: every thread of a large host may meet a hiccup at the same moment.
    CAPACITY = 64.0
    # What a store that is down sees of a process: about four requests a second, and two while it throttles.
    PER_SECOND = 4.0
    PER_SUCCESS = 0.1  # one retry in ten requests may go on for ever: a store that fails more often is not well
    COST: ClassVar = {Outlook.TRANSIENT: 1.0, Outlook.THROTTLED: 2.0}

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._level = self.CAPACITY
        self._seen_s = clock()

    def succeeded(self) -> None:
        """An operation succeeded."""
        if self._level < self.CAPACITY:  # without the lock: nothing is owed on a good day
            with self._lock:
                self._level = min(self.CAPACITY, self._level + self.PER_SUCCESS)

    def take(self, kind: Outlook) -> float:
        """Pay for a retry: the seconds until its tokens will be there."""
        with self._lock:
            self._refill()
            self._level -= self.COST[kind]
            return max(0.0, -self._level / self.PER_SECOND)

    def give_back(self, kind: Outlook) -> None:
        """The retry will not be made."""
        with self._lock:
            self._level = min(self.CAPACITY, self._level + self.COST[kind])

    def _refill(self) -> None:
        now_s = self._clock()
        self._level = min(self.CAPACITY, self._level + (now_s - self._seen_s) * self.PER_SECOND)
        self._seen_s = now_s


budget = Budget()


def is_local(filesystem: pafs.FileSystem) -> bool:
    """Whether this is a file system of the machine's own, whose failures are final."""
    return bool(filesystem.type_name == "local")


def with_retries(
    operation: Callable[[], T],
    filesystem: pafs.FileSystem,
    name: str,
    *,
    row_group: int | None = None,
    listed: bool = False,
    doing: str = "read",
) -> T:
    """The operation's result, after as many attempts as patience and budget allow where the store is remote.

    `name`, `row_group`, `listed` and `doing` as in `faults.explain_errors`; a remote operation must only move bytes.
    Raises StoreError where the store kept failing, else what `explain_errors` makes of a final failure; on a local file
    system whatever the operation raises.
    """
    if is_local(filesystem):
        return operation()
    with explain_errors(name, row_group=row_group, listed=listed, fetching=True, doing=doing):
        return retry_transient(operation, label(name, row_group), doing)


def retry_transient(operation: Callable[[], T], where: str, doing: str) -> T:
    """`with_retries` without `explain_errors`: a final failure is raised as it is."""
    try:
        result = operation()
    except Exception as error:
        if outlook(error) is Outlook.FINAL:
            raise
        first = error
    else:
        budget.succeeded()
        return result
    return _again(operation, first, where, doing, POLICY)


def _again(operation: Callable[[], T], first: Exception, where: str, doing: str, patience: RetryPolicy) -> T:
    """Repeat what failed once; the exception of the first attempt counts as that of this `Retrying`'s first."""
    started_s = time.monotonic()
    attempts = _Attempts(first)
    exponential = wait_random_exponential(multiplier=patience.first_s, max=patience.longest_s)

    def pause(state: RetryCallState) -> float:
        return max(exponential(state), budget.take(outlook(_failure(state))))

    def hopeless(state: RetryCallState) -> bool:
        over = time.monotonic() - started_s + state.upcoming_sleep > patience.deadline_s
        if over:
            budget.give_back(outlook(_failure(state)))
        return over

    def give_up(state: RetryCallState) -> T:
        seconds_s, error = time.monotonic() - started_s, _failure(state)
        raise StoreError(
            f"{where} could not be {doing}: gave up after {state.attempt_number} attempts in {seconds_s:.1f} s. "
            f"The store's last message: {last_words(error)}. Try again when the store is well"
        ) from error

    def wait(seconds_s: float) -> None:
        if stopping().wait(seconds_s):  # signals interrupt it in the main thread
            raise StoreError(f"{where} could not be {doing}: the work ended while it waited to try again")

    def say(state: RetryCallState) -> None:
        logger.log(
            logging.WARNING if state.upcoming_sleep > 1 else logging.INFO,
            "%s could not be %s (attempt %d); again in %.1f s: %s",
            *(where, doing, state.attempt_number, state.upcoming_sleep, last_words(_failure(state))),
        )

    retrying = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, Exception) and outlook(error) is not Outlook.FINAL),
        wait=pause,
        stop=hopeless,
        before_sleep=say,
        sleep=wait,
        retry_error_callback=give_up,
    )
    result: T = retrying(attempts.call, operation)
    budget.succeeded()
    return result


class _Attempts:
    """The operation's attempts, the first of which has been made already."""

    def __init__(self, first: Exception) -> None:
        self._first: Exception | None = first

    def call(self, operation: Callable[[], T]) -> T:
        if (first := self._first) is not None:
            self._first = None
            raise first
        return operation()


def _failure(state: RetryCallState) -> BaseException:
    error = None if state.outcome is None else state.outcome.exception()
    assert error is not None  # tenacity asks only after a failure
    return error
