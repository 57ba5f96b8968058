"""Show the progress of a command in one line on a terminal: phase, done and total, rate, estimated time left.

Runs in: the process of the command, with a thread that redraws the line. Lines go to standard error, so that standard
output holds the result alone. Elsewhere than on a terminal, progress is not shown: docs/decisions/0078.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO, Self

from feedline.progress import Progress, on_progress

_REDRAW_S = 0.2  # also before the first: a command that ends sooner shows nothing
_WINDOW_S = 10.0  # of the rate: long enough to smooth uneven tasks, short enough to show a change
_LEAST_S = 0.5  # between the reports that give a rate
_WIDTH = 80  # columns of a terminal that does not tell
_CLEAR = "\033[K"  # from the cursor to the end of the line


class ProgressLine:
    """The progress line of one command. A `with` block shows what the work inside it reports, and clears the line."""

    def __init__(self, out: IO[str] | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._out = out or sys.stderr
        self._now_s = now_s
        self._on_terminal = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._pace = PhasePace()
        self._progress: Progress | None = None
        self._open = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(on_progress(self.show))
        if self._on_terminal:
            redrawing = threading.Thread(target=self._redraw, name="feedline-progress", daemon=True)
            redrawing.start()
            self._stack.callback(redrawing.join)
            self._stack.callback(self._ended.set)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._stack.close()
        finally:
            self.clear()

    def show(self, progress: Progress) -> None:
        """Show this progress from the next redraw on."""
        with self._lock:
            self._pace.add(progress, self._now_s())
            self._progress = progress

    def draw(self) -> None:
        """Draw the line now, on a terminal."""
        with self._lock:
            if self._on_terminal and self._progress is not None:
                rate, left_s = self._pace.rate, self._pace.left_s(self._now_s())
                text = progress_text(self._progress, rate, left_s, width=_width(self._out) - 1)
                self._write(f"\r{text}{_CLEAR}\r")
                self._open = True

    def note(self, text: str) -> None:
        """Write a line that stays, wherever standard error goes."""
        self.clear()
        self._write(f"{text}\n")

    def clear(self) -> None:
        """Clear the line, with what the terminal wrote over it, such as ^C."""
        with self._lock:
            if self._open:
                self._write(f"\r{_CLEAR}")
                self._open = False

    def _redraw(self) -> None:
        while not self._ended.wait(_REDRAW_S):
            self.draw()

    def _write(self, text: str) -> None:
        print(text, end="", file=self._out, flush=True)


class PhasePace:
    """The recent rate of a phase. A new phase starts afresh, without what its first report says is done."""

    def __init__(self) -> None:
        self._history: deque[tuple[float, Progress]] = deque()

    def add(self, progress: Progress, now_s: float) -> None:
        """Add a report at a time in seconds."""
        history = self._history
        if history and (history[-1][1].phase != progress.phase or history[-1][1].done > progress.done):
            history.clear()
        history.append((now_s, progress))
        while len(history) > 2 and now_s - history[1][0] >= _WINDOW_S:
            history.popleft()

    @property
    def rate(self) -> float:
        """Units per second between the reports of about the last `_WINDOW_S`; 0 if unknown."""
        if not self._history:
            return 0.0
        (began_s, first), (ended_s, last) = self._history[0], self._history[-1]
        return (last.done - first.done) / (ended_s - began_s) if ended_s - began_s >= _LEAST_S else 0.0

    def left_s(self, now_s: float) -> float | None:
        """Estimated seconds to the end of the phase; None if unknown."""
        rate = self.rate
        if rate <= 0:
            return None
        ended_s, last = self._history[-1]
        return None if last.total is None else max((last.total - last.done) / rate - (now_s - ended_s), 0.0)


def progress_text(progress: Progress, rate: float, left_s: float | None, *, width: int) -> str:
    """Render progress within a width: `counting: 1,000 of 2,000 rows (50%), 120 rows/s, ETA 0:08`, or less of it."""
    share = "" if not progress.total else f"{min(progress.done / progress.total, 1):.0%}"
    speed = f", {progress.rate(rate)}" if rate > 0 and progress.unit != "s" else ""
    eta = "" if left_s is None else f", ETA {format_duration(left_s)}"
    full = progress.text() + (f" ({share})" if share else "")
    short = f"{progress.phase}: {share or progress.amount()}"
    texts = [full + speed + eta, full + eta, short + eta, short]
    return next((text for text in texts if len(text) <= width), short[: max(width, 0)])


def format_duration(seconds: float | None) -> str:
    """Render seconds: `0:42`, `1:02:03`, `3d 4h`; `-` for None."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if days:
        return f"{days:,}d {hours % 24}h"
    return f"{hours}:{minutes % 60:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def _width(out: IO[str]) -> int:
    """The columns of the terminal, at this moment."""
    try:
        return os.get_terminal_size(out.fileno()).columns or _WIDTH
    except (OSError, ValueError):  # not a terminal after all, as in tests
        return _WIDTH
