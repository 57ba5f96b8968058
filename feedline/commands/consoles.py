"""The console that a command prints on, and how it prints facts and lines.

Runs in: the process of the command.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any, TextIO, cast

from rich.console import Console, RenderableType

_PADDING = re.compile(r"[ \t]+$", re.MULTILINE)
PIPED_WIDTH = 200  # columns in a file or a pipe, where nothing should be cut off


class _Unpadded:
    """A stream that gets lines without the spaces that fill tables up to a width."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_PADDING.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console_on(*, stderr: bool = False) -> Console:
    """The console on standard output or error: as wide as the terminal; wide, and without padding, where there is
    none."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(stderr=stderr)
    return Console(file=cast("TextIO", _Unpadded(stream)), width=PIPED_WIDTH)


def print_facts(
    facts: Any, render: Callable[[Any], RenderableType], *, as_json: bool, highlight: bool | None = None
) -> None:
    """Print facts on standard output: as one JSON document, or rendered for people."""
    if as_json:
        print(json.dumps(facts))
    else:
        console_on().print(render(facts), highlight=highlight)


def say(console: Console, text: str) -> None:
    """Print a text as it is: without markup and colors, its lines not broken."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
