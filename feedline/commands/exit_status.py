"""How does a command end: with which status, and which words?

Runs in: the process of the command. Exit status: 0 done, 1 a job failed, 2 wrong input, 130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from rich.console import Console

from feedline.errors import FeedlineError, PlanError, SpecError, StateError, TableNotFoundError

_errors = Console(stderr=True)
_WRONG_INPUT = (SpecError, PlanError, StateError, TableNotFoundError)
# A feeder makes few objects that live: collecting after every 700 of them (the default) only costs.
_GC_THRESHOLD = 50_000


def end_with(app: Callable[[], object]) -> NoReturn:
    """Run a program of commands and end the process.

    Leaves without tearing the interpreter down: everything that was started has been ended by then, and what is left
    (a last collection over a million objects, threads of three native libraries) costs 0.3 s and may only go wrong.
    """
    status = status_of(app)
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def status_of(app: Callable[[], object]) -> int:
    """Run it, say what went wrong, and return the exit status."""
    gc.freeze()  # what the imports made stays: no collection needs to look at it again
    gc.set_threshold(_GC_THRESHOLD)
    gc.enable()
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
