"""Which failures are retried, how often, within which budget, and how waiting ends."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from types import SimpleNamespace

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from processes import running
from s3_store import KEYS

from feedline.errors import CorruptFileError, DataError, StoreError, TableError
from feedline.warehouse.storage import retry
from feedline.warehouse.storage.faults import Outlook, ShortBodyError, outlook
from feedline.warehouse.storage.parallel import in_threads
from feedline.warehouse.storage.retry import Budget, RetryPolicy, with_retries

ANYWHERE = pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem("memory")))
RESET = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
AWS = "When reading key 'k' in bucket 'b': AWS Error {} during GetObject operation: x"


class AnswerError(Exception):
    """As raised by libraries under fsspec: not an OSError, and with a status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class ServerDisconnectedError(Exception):
    """Named as aiohttp's."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(AWS.format("SLOW_DOWN")), Outlook.THROTTLED),
        (OSError(AWS.format("UNKNOWN (HTTP status 503)")), Outlook.THROTTLED),
        (OSError(AWS.format("UNKNOWN (HTTP status 429)")), Outlook.THROTTLED),
        (OSError(AWS.format("INTERNAL_FAILURE")), Outlook.TRANSIENT),
        (OSError(AWS.format("UNKNOWN (HTTP status 500)")), Outlook.TRANSIENT),
        (OSError(AWS.format("UNKNOWN (HTTP status 504)")), Outlook.TRANSIENT),
        (OSError(AWS.format("UNKNOWN (HTTP status -1)")), Outlook.TRANSIENT),
        (OSError(AWS.format("NETWORK_CONNECTION") + " curlCode: 56, Recv failure"), Outlook.TRANSIENT),
        (OSError(AWS.format("NETWORK_CONNECTION") + " curlCode: 28, Timeout was reached"), Outlook.TRANSIENT),
        (OSError(AWS.format("NETWORK_CONNECTION") + " curlCode: 6, Could not resolve hostname"), Outlook.FINAL),
        (OSError(AWS.format("NETWORK_CONNECTION") + " curlCode: 60, SSL peer certificate"), Outlook.FINAL),
        (OSError(AWS.format("ACCESS_DENIED")), Outlook.FINAL),
        (OSError(AWS.format("NO_SUCH_BUCKET")), Outlook.FINAL),
        (OSError(AWS.format("INVALID_ACCESS_KEY_ID")), Outlook.FINAL),
        (OSError(AWS.format("UNKNOWN (HTTP status 400)")), Outlook.FINAL),
        (OSError("google::cloud::Status(UNAVAILABLE: try again)"), Outlook.TRANSIENT),
        (OSError("google::cloud::Status(RESOURCE_EXHAUSTED: slow down)"), Outlook.THROTTLED),
        (OSError("google::cloud::Status(PERMISSION_DENIED: no)"), Outlook.FINAL),
        (OSError("GetProperties failed Azure Error: [ServerBusy] 503 The server is busy"), Outlook.THROTTLED),
        (OSError("GetProperties failed Azure Error: [] 500 Internal"), Outlook.TRANSIENT),
        (OSError("GetProperties failed Azure Error: [AuthenticationFailed] 403 no"), Outlook.FINAL),
        (OSError("ReadAt failed. Azure Error: [] Error when reading body stream."), Outlook.TRANSIENT),
        (OSError("Azure Error: [] Fail to get a new connection. Couldn't connect to server"), Outlook.TRANSIENT),
        (OSError("Azure Error: [] Fail to get a new connection. Couldn't resolve host name"), Outlook.FINAL),
        (OSError("Azure Error: [] SSL peer certificate or SSH remote key was not OK"), Outlook.FINAL),
        (RESET, Outlook.TRANSIENT),
        (OSError(errno.ETIMEDOUT, "timed out"), Outlook.TRANSIENT),
        (OSError(errno.EIO, "Input/output error"), Outlook.TRANSIENT),
        (OSError(errno.ESTALE, "Stale file handle"), Outlook.TRANSIENT),
        (OSError(errno.ENOSPC, "No space left on device"), Outlook.FINAL),
        (OSError("Corrupt snappy compressed data."), Outlook.FINAL),
        (TimeoutError(), Outlook.TRANSIENT),
        (ShortBodyError("short"), Outlook.TRANSIENT),
        (AnswerError(502), Outlook.TRANSIENT),
        (AnswerError(429), Outlook.THROTTLED),
        (AnswerError(404), Outlook.FINAL),
        (ServerDisconnectedError(), Outlook.TRANSIENT),
        (FileNotFoundError(errno.ENOENT, "gone"), Outlook.FINAL),
        (PermissionError(errno.EACCES, "no"), Outlook.FINAL),
        (pa.ArrowInvalid("bad"), Outlook.FINAL),
        (DataError("x"), Outlook.FINAL),
    ],
    ids=lambda value: str(value)[-60:],
)
def test_failures_are_final_transient_or_throttled(error: Exception, expected: Outlook) -> None:
    assert outlook(error) is expected


class Failing:
    """Raises its errors one after the other, then returns the number of calls."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "POLICY", RetryPolicy(first_s=0.001, longest_s=0.01, deadline_s=20))
    monkeypatch.setattr(retry, "budget", Budget())


def test_an_operation_is_repeated_until_it_succeeds() -> None:
    assert with_retries(Failing(), ANYWHERE, "x") == 1
    assert with_retries(Failing(*[RESET] * 7), ANYWHERE, "x") == 8
    assert with_retries(Failing(RESET, OSError(AWS.format("SLOW_DOWN")), ShortBodyError("x")), ANYWHERE, "x") == 4


def test_final_failures_are_not_repeated() -> None:
    denied = Failing(RESET, OSError(AWS.format("ACCESS_DENIED")), RESET)
    with pytest.raises(TableError, match=r"^x, row group 3 may not be read: the store denies it"):
        with_retries(denied, ANYWHERE, "x", row_group=3)
    assert denied.calls == 2
    gone = Failing(RESET, FileNotFoundError(errno.ENOENT, "No such file"))
    with pytest.raises(FileNotFoundError):
        with_retries(gone, pafs.LocalFileSystem(), "x")
    assert gone.calls == 2, "a local path may lie on a mount"
    for interruption in (KeyboardInterrupt(), SystemExit()):
        with pytest.raises(type(interruption)):
            with_retries(Failing(interruption), ANYWHERE, "x")


def test_giving_up_names_file_attempts_seconds_and_the_last_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "POLICY", RetryPolicy(first_s=0.01, longest_s=0.05, deadline_s=0.3))
    operation = Failing(*[OSError(AWS.format("INTERNAL_FAILURE"))] * 10**4)
    start_s = time.monotonic()
    with pytest.raises(StoreError) as caught:
        with_retries(operation, ANYWHERE, "s3://b/f", verb="written")
    assert time.monotonic() - start_s < 5
    text = str(caught.value)
    assert text.startswith(f"s3://b/f could not be written: gave up after {operation.calls} attempts in 0.")
    assert "INTERNAL_FAILURE during GetObject operation: x" in text
    assert isinstance(caught.value, TableError)
    assert isinstance(caught.value, OSError)
    assert not isinstance(caught.value, CorruptFileError)


def test_no_pause_ends_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]

    class Event:
        def wait(self, pause_s: float) -> bool:
            now_s[0] += pause_s
            return False

    monkeypatch.setattr(retry, "POLICY", RetryPolicy(first_s=1, longest_s=50, deadline_s=100))
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(retry, "stop_event", Event)
    monkeypatch.setattr(retry, "budget", Budget(lambda: now_s[0]))
    with pytest.raises(StoreError, match="gave up after"):
        with_retries(Failing(*[RESET] * 10**4), ANYWHERE, "s3://b/f")
    assert 50 <= now_s[0] <= 100, "a retry that begins later would not be asked for"


def test_the_budget_of_retries() -> None:
    now_s = [0.0]
    budget = Budget(lambda: now_s[0])
    free = int(Budget.CAPACITY)
    assert [budget.take(Outlook.TRANSIENT) for _ in range(free)] == [0.0] * free
    assert budget.take(Outlook.TRANSIENT) == pytest.approx(1 / Budget.PER_SECOND)
    assert budget.take(Outlook.THROTTLED) == pytest.approx(3 / Budget.PER_SECOND)  # throttling costs twice as much
    budget.refund(Outlook.THROTTLED)
    now_s[0] += 2 / Budget.PER_SECOND  # time gives tokens back
    assert budget.take(Outlook.TRANSIENT) == 0.0
    for _ in range(round(1 / Budget.PER_SUCCESS)):  # so do successes
        budget.record_success()
    assert budget.take(Outlook.TRANSIENT) == pytest.approx(0.0)
    now_s[0] += 10**6  # but never more than there were at first
    assert [budget.take(Outlook.TRANSIENT) for _ in range(free)] == [0.0] * free
    assert budget.take(Outlook.TRANSIENT) > 0


def test_threads_share_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is down gets few requests, however many threads wait for it; each ends in bounded time."""
    monkeypatch.setattr(retry, "POLICY", RetryPolicy(first_s=0.001, longest_s=0.001, deadline_s=1))
    calls = []

    def down() -> None:
        calls.append(time.monotonic())
        raise OSError(AWS.format("SLOW_DOWN"))

    def attempt(_: int) -> str:
        try:
            with_retries(down, ANYWHERE, "x")
        except StoreError as error:
            return str(error)
        return ""

    start_s = time.monotonic()
    messages = list(in_threads(attempt, range(16), threads=16))
    assert all("gave up after" in message for message in messages)
    assert time.monotonic() - start_s < 10
    assert len(calls) <= 16 + Budget.CAPACITY / Budget.COST[Outlook.THROTTLED] + 10 * Budget.PER_SECOND


WAITING = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from feedline import Table
from feedline.warehouse.storage import retry
waits = threading.Event()
retry.POLICY = retry.RetryPolicy(first_s=10**5, longest_s=10**5, deadline_s=10**6)
retry.logger.log = lambda *_: (print("waits", flush=True), waits.set())
def read():
    Table("s3://b/t?endpoint_override=127.0.0.1:1&scheme=http&region=x").snapshot()
if sys.argv[1] == "main":
    read()
waiting = ThreadPoolExecutor(1).submit(read)
waits.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["main", pytest.param("pool", marks=pytest.mark.nightly)])
def test_ctrl_c_and_the_end_of_the_process_end_the_waiting(where: str) -> None:
    with running(sys.executable, "-c", WAITING, where, env={**os.environ, **KEYS}) as program:
        program.line("waits")
        if where == "main":
            program.send(signal.SIGINT)
        assert program.wait(30) == (-signal.SIGINT if where == "main" else 0)
        assert ("KeyboardInterrupt" in program.text) == (where == "main")
