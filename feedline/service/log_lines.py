"""The lines that feeder, worker and scheduler write to standard error: each with its time and level.

Runs in: these three processes, from their start on. Their event loops log, and must not wait for whoever reads: a pager
that is paused, a collector that hangs.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import sys
import threading
from collections import deque

_FORMAT = "%(asctime)s %(levelname)s %(message)s"
# Loggers to which Dask's configuration gives handlers of their own, and so another form.
_DASKS = ("distributed", "distributed.client", "distributed.gc", "bokeh", "tornado", "tornado.application")
# Lines that wait for a reader. At the end of the process the last ones get some seconds.
_MOST_LINES, _LAST_S = 10_000, 2.0


def write_log_lines(*, level: int = logging.WARNING) -> None:
    """Write warnings of everybody, and what Feedline says from `level` on."""
    lines = logging.NullHandler() if sys.stderr is None else LineWriter(sys.stderr.fileno())
    logging.basicConfig(format=_FORMAT, level=logging.WARNING, handlers=[lines])
    for name in _DASKS:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.getLogger("distributed").setLevel(logging.WARNING)
    drop_echoes()
    logging.getLogger("feedline").setLevel(level)


class LineWriter(logging.Handler):
    """Writes lines to a descriptor: at once where that takes them, else from a thread."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._at_once_bytes = sys.maxsize if is_file else select.PIPE_BUF  # for which a pipe that is ready has room
        self._waiting: deque[bytes] = deque()
        self._dropped = 0
        self._changed = threading.Condition(self.lock)
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or have the thread write it. Logging calls this, with the lock."""
        try:
            line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        except Exception:
            self.handleError(record)
            return
        if len(self._waiting) >= _MOST_LINES:
            self._dropped += 1
            return
        if self._dropped:
            line = f"({self._dropped:,} lines of this log are gone)\n".encode() + line
            self._dropped = 0
        if rest := line if self._waiting else self._write(line, 0):
            self._waiting.append(rest)
            self._changed.notify_all()
            if self._thread is None or not self._thread.is_alive():  # a forked process has no thread
                self._thread = threading.Thread(target=self._write_waiting, name="feedline-lines", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Wait until all lines are written, for at most two seconds. Logging calls this at the end of the process."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, _LAST_S)

    def _write(self, line: bytes, wait_ms: int | None) -> bytes:
        """Write as long as the descriptor is ready within this time (None: without a limit); returns the rest."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        while line and poll.poll(wait_ms):
            try:
                line = line[os.write(self._descriptor, line[: self._at_once_bytes]) :]
            except OSError:  # nobody reads any more, or the disk is full
                return b""
        return line

    def _write_waiting(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                line = self._waiting[0]
            self._write(line, None)
            with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()


_ECHOES = ("Failed to communicate with scheduler during heartbeat.", "failed during get data with %s -> %s")


def drop_echoes() -> None:
    """Drop what Dask logs of a worker whose scheduler is gone, which closes, and of a result whose receiver hangs up:
    these have lines of their own, the second one in the receiver's log, unless that has ended."""
    for name in ("distributed.worker", "distributed.worker.state_machine"):
        logging.getLogger(name).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Not a heartbeat or the sending of a result that failed, with their tracebacks, nor a task that the worker
    cancelled as it closed."""
    text = str(record.msg)
    is_cancelled = text.startswith("Async instruction for <Task cancelled ") and text.endswith("with CancelledError")
    return not (is_cancelled or text in _ECHOES)
