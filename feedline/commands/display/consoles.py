"""The console that a command prints on.

Runs in: the process of the command.
"""

from __future__ import annotations

import sys

from rich.console import Console

PIPED_WIDTH = 200  # columns in a file or a pipe, where nothing should be cut off


def console_on(*, stderr: bool = False) -> Console:
    """The console on standard output or error: as wide as the terminal, and wide where there is none."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else PIPED_WIDTH)
