"""End a command with its exit status, and print its error.

Runs in: the process of the command. Exit status: 0 done, 1 a job failed, 2 wrong input, 130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from feedline.errors import FeedlineError, PlanError, SpecError, StateError, TableNotFoundError

_WRONG_INPUT = (SpecError, PlanError, StateError, TableNotFoundError)


class Stop:
    """Set by a signal; `status` is the exit status that goes with it (130, 143)."""

    def __init__(self) -> None:
        self.status: int | None = None

    def __call__(self) -> bool:
        return self.status is not None

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        previous = {number: signal.signal(number, self._set) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # sent to a whole job, they are meant for its trainers
            previous[number] = signal.signal(number, signal.SIG_IGN)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _set(self, number: int, _frame: object) -> None:
        self.status = 128 + number


def end_with(app: Callable[[], object], *, at_once: bool = False) -> NoReturn:
    """Run a command-line program and end the process with its exit status.

    at_once: leave its memory to the kernel, after the functions that were registered for the end. The interpreter would
    take its modules apart first, while a trainer waits.
    """
    status = status_of(app)
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and not status:
            status = _fail(_output_error(error), 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the interpreter would flush again and print an error
    if at_once:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    gc.freeze()  # spares the final collection half a million imported objects: 0.4 s of CPU time
    sys.exit(status)


def status_of(app: Callable[[], object]) -> int:
    """Run a program, print its error, and return the exit status."""
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except _WRONG_INPUT as error:
        return _fail(error, 2)
    except FeedlineError as error:
        return _fail(error, 1)
    except BrokenPipeError:  # the reader of the output has closed it
        return 0
    except OSError as error:
        if not _is_output_lost():
            raise
        return _fail(_output_error(error), 1)
    return 0


def _is_output_lost() -> bool:
    """Whether standard output takes nothing more, such as on a full disk; if it does, it gets an empty line."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return False  # no file, as in a notebook
    try:
        os.write(descriptor, b"\n")
    except OSError:
        return True
    return False


def _output_error(error: OSError) -> FeedlineError:
    return FeedlineError(
        f"standard output cannot be written: {error.strerror}. Free space where it leads to, or send it elsewhere"
    )


@contextmanager
def exit_on_signals(on_interrupt: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Make SIGTERM unwind the stack as Ctrl-C does, and end the program with the status of either.

    on_interrupt: called after Ctrl-C, when the body has ended.
    """
    received: list[int] = []

    def end(number: int, _frame: object) -> None:
        received.append(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_IGN)  # a second one must not interrupt the shutdown
        raise SystemExit(128 + number)

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, end)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's job in the background ignores it
        before[signal.SIGINT] = signal.signal(signal.SIGINT, end)
    try:
        yield
    except BaseException as error:
        # Polars panics where a signal ends Python code that it has called
        number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else next(iter(received), None)
        if number is None:
            raise
        if number == signal.SIGINT:
            on_interrupt()
        raise SystemExit(128 + number) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _fail(error: FeedlineError, status: int) -> int:
    from rich.console import Console  # noqa: PLC0415 -- 30 ms that a feeder does not need

    message = str(error).replace("[", r"\[")
    Console(stderr=True).print(f"[red]error:[/red] {message}", highlight=False, soft_wrap=True)
    return status
