"""End a command with its exit status, and say what went wrong.

Runs in: the process of the command. Exit status: 0 done, 1 a job failed, 2 wrong input, 130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from rich.console import Console

from feedline.errors import FeedlineError, PlanError, SpecError, StateError, TableNotFoundError

_errors = Console(stderr=True)
_WRONG_INPUT = (SpecError, PlanError, StateError, TableNotFoundError)


def end_with(app: Callable[[], object]) -> NoReturn:
    """Run a program of commands and end the process with its exit status."""
    status = status_of(app)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the interpreter would flush once more, and complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    gc.freeze()  # spares the last collection half a million objects of imports: 0.4 s of CPU time per command
    sys.exit(status)


def status_of(app: Callable[[], object]) -> int:
    """Run it, say what went wrong, and return the exit status."""
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except _WRONG_INPUT as error:
        return _fail(error, 2)
    except FeedlineError as error:
        return _fail(error, 1)
    except BrokenPipeError:  # the reader of our output had enough
        return 0
    return 0


def _fail(error: FeedlineError, status: int) -> int:
    text = str(error).replace("[", r"\[")
    _errors.print(f"[red]error:[/red] {text}", highlight=False, soft_wrap=True)
    return status
