"""Show the progress of a command in one line, overwritten on a terminal, elsewhere printed every few seconds.

Runs in: the process of the command. Lines go to standard error, unless a command chooses another stream.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import IO, Self

_REDRAW_S = 0.2
LINE_S = 5.0  # between lines that cannot be overwritten


class ProgressLine:
    """The progress line of one command; a `with` block clears it at its end."""

    def __init__(self, out: IO[str] | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._out = out or sys.stderr
        self._now_s = now_s
        self._next_s = now_s() + LINE_S
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def show(self, text: str, *, last: bool = False) -> None:
        """Show the text if the interval has passed; on a terminal, the `last` one of its kind at once."""
        terminal = self._out.isatty()
        if self._now_s() >= self._next_s or (terminal and last):
            self._write(text, end="\r" if terminal else "\n")
            self._open = terminal
            self._next_s = self._now_s() + (_REDRAW_S if terminal else LINE_S)

    def note(self, text: str) -> None:
        """Write a line that stays."""
        self.close()
        self._write(text, end="\n")
        self._next_s = self._now_s() + (_REDRAW_S if self._out.isatty() else LINE_S)

    def close(self) -> None:
        """Clear the line on a terminal."""
        if self._open:
            self._write("\033[K", end="")
            self._open = False

    def _write(self, text: str, *, end: str) -> None:
        print(text, end=end, file=self._out, flush=True)
