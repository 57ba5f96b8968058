"""Positions in an expression's text, and how an error shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_WIDTH = 120  # characters of a line that an error shows around its position


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` to `stop` (excluded) of an expression's text."""

    start: int
    stop: int

    def to(self, other: Span) -> Span:
        """From the start of this one to the end of the other."""
        return Span(self.start, max(self.stop, other.stop))


class Fault(Exception):  # noqa: N818  it becomes an ExpressionError once the text is known
    """An error at a position in the text."""

    def __init__(self, message: str, span: Span) -> None:
        super().__init__(message)
        self.message = message
        self.span = span


class SourceText:
    """An expression's text as Python reads it: between brackets, so that line ends do not matter."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.wrapped = "(" + re.sub(r"\r\n?", "\n", text) + "\n)"
        self._lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def offset(self, row: int, column: int) -> int:
        """The character of the text at a row (from 1) and column (from 0, in characters) of `wrapped`."""
        return min(self._starts[min(row, len(self._starts)) - 1] + column - (row == 1), len(self.text))

    def offset_of_byte(self, row: int, column: int) -> int:
        """As `offset`, the column counted in UTF-8 bytes, as `ast` does."""
        if row > len(self._lines):
            return len(self.text)
        line = self._lines[row - 1]
        column -= row == 1
        characters = column if line.isascii() else len(line.encode()[:column].decode(errors="ignore"))
        return min(self._starts[row - 1] + characters, len(self.text))


def render(text: str, fault: Fault) -> str:
    """The fault's message, then the line that it points at, with carets under the span."""
    start = min(fault.span.start, len(text))
    left = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
    line = re.split(r"[\r\n]", text[left:], maxsplit=1)[0]
    at = start - left
    width = max(1, min(fault.span.stop - start, len(line) - at))
    first = max(0, at - _LINE_WIDTH // 2)
    shown = "".join(c if c.isprintable() else "\ufffd" for c in line[first : first + _LINE_WIDTH])
    prefix = "…" if first else ""
    suffix = "…" if first + _LINE_WIDTH < len(line) else ""
    pad = " " * (len(prefix) + at - first)
    carets = "^" * max(1, min(width, _LINE_WIDTH - (at - first)))
    return f"{fault.message}\n  {prefix}{shown}{suffix}\n  {pad}{carets}"
