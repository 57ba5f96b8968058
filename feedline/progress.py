"""Report the progress of long work to whoever shows it: a command's line on a terminal, else the log.

Runs in any process. Work reports in the thread that began it, after each of its tasks, and knows nothing of displays:
it is handed no callback. Without a listener, a phase that lasts writes a line to the log every few seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias, TypeVar

from feedline.dataclass import dataclass

logger = logging.getLogger(__name__)

LOG_S = 5.0  # between two lines of the log, and before the first of a phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a phase ("counting"): `done` of `total` units ("rows"). total: None if unknown."""

    phase: str
    done: int
    total: int | None
    unit: str

    def text(self) -> str:
        """The progress as a phrase: `counting: 1,000 of 2,000 rows`."""
        return f"{self.phase}: {self.amount()}"

    def amount(self) -> str:
        """The amount alone: `1,000 of 2,000 rows`."""
        if self.unit == "bytes":
            return _size(self.done) if self.total is None else f"{_size(self.done)} of {_size(self.total)}"
        done = f"{self.done:,}" if self.total is None else f"{self.done:,} of {self.total:,}"
        return f"{done} {self.unit}"

    def rate(self, per_s: float) -> str:
        """A rate in the same units: `1,200 rows/s`."""
        if self.unit == "bytes":
            return f"{_size(per_s)}/s"
        return f"{per_s:,.0f} {self.unit}/s" if per_s >= _WHOLE else f"{per_s:.1f} {self.unit}/s"


_WHOLE = 10  # units per second from which a rate needs no decimal


def _size(nbytes: float) -> str:
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:,.1f} MB"


T = TypeVar("T")
ProgressListener: TypeAlias = Callable[[Progress], object]
_listener: ContextVar[ProgressListener | None] = ContextVar("feedline_progress_listener", default=None)


@contextmanager
def on_progress(listener: ProgressListener) -> Iterator[None]:
    """Call `listener` with the progress of all work that this thread does inside the block. What it raises ends the
    work."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


def report_progress(phase: str, done: int, total: int | None, unit: str) -> None:
    """Report the progress of a phase: to the listener of `on_progress`, or else to the log.

    Report 0 (or what is resumed) as the phase begins, and `total` at its end.
    """
    listener = _listener.get() or log_progress
    listener(Progress(phase=phase, done=done, total=total, unit=unit))


def log_progress(progress: Progress) -> None:
    """Write progress to the log, every few seconds of a phase."""
    if logger.isEnabledFor(logging.INFO) and _log_pace.is_due(progress.phase, time.monotonic()):
        logger.info("%s", progress.text())


def track(results: Iterable[T], phase: str, sizes: Sequence[int], unit: str) -> Iterator[T]:
    """Pass results on as they come, and report progress. sizes: of each, in `unit`s."""
    done, total = 0, sum(sizes)
    report_progress(phase, done, total, unit)
    for result, size in zip(results, sizes, strict=True):
        done += size
        report_progress(phase, done, total, unit)
        yield result


class _LogPace(threading.local):
    """When the log of this thread is due for a line."""

    phase = ""
    next_s = 0.0

    def is_due(self, phase: str, now_s: float) -> bool:
        if phase == self.phase and now_s < self.next_s:
            return False
        due = phase == self.phase
        self.phase, self.next_s = phase, now_s + LOG_S
        return due


_log_pace = _LogPace()
