"""Run `python -m feedline` and the program `feedline`."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import NoReturn

# Imports allocate half a million objects that stay: with Python's threshold of 700, the garbage collector would
# traverse them again and again, for a fifth of the time to a feeder's first batch.
_COLLECT_AFTER = 50_000
_REWRITE = ("build", "columns", "delete", "optimize")  # they fill and free the same memory for each part of a table


def main() -> NoReturn:
    """Run the command that the arguments name; a feeder and its workers, for which a trainer waits, without the command
    line."""
    _open_closed_streams()
    if sys.argv[1:2] == ["feed"]:
        gc.disable()  # `main` enables it
        from feedline.commands import feed  # noqa: PLC0415 -- without typer and rich: 0.1 s

        feed.main(sys.argv[2:])
    if sys.argv[1:2] == ["block-worker"]:
        gc.disable()
        from feedline.commands import block_worker  # noqa: PLC0415 -- as for a feeder

        block_worker.main(sys.argv[2:])
    if sys.argv[1:2] and sys.argv[1] in _REWRITE:
        from feedline.resources.allocators import keep_freed_memory  # noqa: PLC0415 -- for these commands alone
        from feedline.resources.cgroups import available_cores  # noqa: PLC0415 -- as the line before

        keep_freed_memory(available_cores())
    gc.set_threshold(_COLLECT_AFTER)
    try:
        from feedline import cli  # noqa: PLC0415 -- not for feeders
    except KeyboardInterrupt:  # no traceback of an import
        sys.exit(128 + signal.SIGINT)
    cli.main()


def _open_closed_streams() -> None:
    """Open the null device for standard streams that are closed (`>&-`), so that no file, pipe or socket gets their
    numbers, and what is printed does not end up there."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 -- open until the end
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    main()
