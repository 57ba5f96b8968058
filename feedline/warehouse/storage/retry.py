"""Retry operations on a store that fails transiently, within a deadline and a budget that all threads share.

Runs in every process that reads or writes a store. `with_retries` wraps whole operations, each of which is repeatable
and returns nothing before it has succeeded. Local paths may lie on a mount and are retried, too; what is final
(absence, denial, damage) is raised unchanged. Pauses grow exponentially with full jitter (`tenacity`) up to a cap. When
the next one would exceed the deadline, the operation fails with a StoreError that names the file, the attempts, the
seconds and the store's last message.

All threads share one budget of retries, a token bucket: a retry takes one token, after throttling two; time and
successes refill it. The AWS SDK's own retries are off (see `locations`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeVar

import pyarrow.fs as pafs

from feedline.dataclass import dataclass
from feedline.errors import StoreError
from feedline.warehouse.storage.faults import Outlook, explain_errors, label, outlook, safe_message
from feedline.warehouse.storage.parallel import stop_event

if TYPE_CHECKING:
    from tenacity import RetryCallState

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long one operation is retried: the first pause is up to `first_s`, each next one up to twice as long, none
    longer than `longest_s`, and none ends after `deadline_s`."""

    first_s: float = 0.2  # a few round trips: broken connections and single server errors pass at once
    longest_s: float = 20.0  # S3 scales a prefix up in minutes; more frequent requests only add load
    deadline_s: float = 120.0  # failovers and scaling take a minute; a training job is more patient than a person


POLICY = RetryPolicy()


class Budget:
    """A token bucket for the retries of a process; `take` borrows tokens that are not there yet."""

    # Full at the start: every thread of a large host may fail once at the same moment.
    CAPACITY = 64.0
    # A store that is down gets about four requests a second from a process, and two while it throttles.
    PER_SECOND = 4.0
    PER_SUCCESS = 0.1  # sustains one retry per ten requests: a store that fails more often is unhealthy
    COST: ClassVar = {Outlook.TRANSIENT: 1.0, Outlook.THROTTLED: 2.0}

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._level = self.CAPACITY
        self._updated_s = clock()

    def record_success(self) -> None:
        """Add the tokens that a successful operation earns."""
        if self._level < self.CAPACITY:  # checked without the lock: the bucket is usually full
            with self._lock:
                self._level = min(self.CAPACITY, self._level + self.PER_SUCCESS)

    def take(self, kind: Outlook) -> float:
        """Take the tokens of a retry; returns the seconds until they are available."""
        with self._lock:
            now_s = self._clock()
            self._level = min(self.CAPACITY, self._level + (now_s - self._updated_s) * self.PER_SECOND)
            self._updated_s = now_s
            self._level -= self.COST[kind]
            return max(0.0, -self._level / self.PER_SECOND)

    def refund(self, kind: Outlook) -> None:
        """Return the tokens of a retry that will not be made."""
        with self._lock:
            self._level = min(self.CAPACITY, self._level + self.COST[kind])


budget = Budget()


def is_local(filesystem: pafs.FileSystem) -> bool:
    """Whether these are paths of this machine, on its disks or on mounts."""
    return bool(filesystem.type_name == "local")


def with_retries(
    operation: Callable[[], T],
    filesystem: pafs.FileSystem,
    name: str,
    *,
    row_group: int | None = None,
    listed: bool = False,
    verb: str = "read",
) -> T:
    """Run an operation, retrying it as `POLICY` and the budget allow.

    `name`, `row_group`, `listed` and `verb` as in `faults.explain_errors`; a remote operation must only move bytes.
    Raises StoreError if the store keeps failing, else what `explain_errors` makes of a final failure; for local paths
    whatever the operation raises.
    """
    if is_local(filesystem):
        return retry_transient(operation, label(name, row_group), verb)
    with explain_errors(name, row_group=row_group, listed=listed, fetching=True, verb=verb):
        return retry_transient(operation, label(name, row_group), verb)


def retry_transient(operation: Callable[[], T], name: str, verb: str) -> T:
    """As `with_retries`, without `explain_errors`: a final failure is raised unchanged."""
    try:
        result = operation()
    except Exception as error:
        if outlook(error) is Outlook.FINAL:
            raise
        first_error = error
    else:
        budget.record_success()
        return result
    return _retry(operation, first_error, name, verb, POLICY)


def _retry(operation: Callable[[], T], first_error: Exception, name: str, verb: str, policy: RetryPolicy) -> T:
    """Retry an operation that failed once; `first_error` stands for the first attempt of tenacity's loop."""
    from tenacity import Retrying, retry_if_exception, wait_random_exponential  # noqa: PLC0415 -- 0.1 s, with asyncio

    start_s = time.monotonic()
    failures = [first_error]
    exponential = wait_random_exponential(multiplier=policy.first_s, max=policy.longest_s)

    def attempt() -> T:
        if failures:
            raise failures.pop()
        return operation()

    def pause_s(state: RetryCallState) -> float:
        return max(exponential(state), budget.take(outlook(_failure(state))))

    def is_past_deadline(state: RetryCallState) -> bool:
        over = time.monotonic() - start_s + state.upcoming_sleep > policy.deadline_s
        if over:
            budget.refund(outlook(_failure(state)))
        return over

    def give_up(state: RetryCallState) -> T:
        elapsed_s, error = time.monotonic() - start_s, _failure(state)
        raise StoreError(
            f"{name} could not be {verb}: gave up after {state.attempt_number} attempts in {elapsed_s:.1f} s. "
            f"The store's last message: {safe_message(error)}. Try again when the store is well"
        ) from error

    def sleep(seconds_s: float) -> None:
        if stop_event().wait(seconds_s):  # signals interrupt it in the main thread
            raise StoreError(f"{name} could not be {verb}: the work ended while it waited to try again")

    def log_pause(state: RetryCallState) -> None:
        logger.log(
            logging.WARNING if state.upcoming_sleep > 1 else logging.INFO,
            "%s could not be %s (attempt %d); again in %.1f s: %s",
            *(name, verb, state.attempt_number, state.upcoming_sleep, safe_message(_failure(state))),
        )

    retrying = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, Exception) and outlook(error) is not Outlook.FINAL),
        wait=pause_s,
        stop=is_past_deadline,
        before_sleep=log_pause,
        sleep=sleep,
        retry_error_callback=give_up,
    )
    result: T = retrying(attempt)
    budget.record_success()
    return result


def _failure(state: RetryCallState) -> BaseException:
    error = None if state.outcome is None else state.outcome.exception()
    assert error is not None  # tenacity calls its hooks only after a failure
    return error
