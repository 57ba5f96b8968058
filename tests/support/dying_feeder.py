"""A feeder that is killed, once, in the middle of what it does with a cache. Put it into FEEDLINE_COMMAND.

FEEDLINE_COMMAND="python dying_feeder.py computing|writing|naming|evicting MARKER"

MARKER: a path; the feeder that creates it is killed. *computing*: with the flight of a row group; *writing*: with half
of a file written; *naming*: before the file gets its name; *evicting*: with one of several files removed.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from feedline.__main__ import main
from feedline.warehouse.cache import eviction, flights

_AT = 3  # of such moments, the one at which it dies


def die_at(moment: str, marker: str) -> None:
    """Be killed at the third such moment, unless another feeder was."""
    times = itertools.count(1)

    def reached(last_act: Callable[[], object] = lambda: None) -> None:
        if next(times) != _AT:
            return
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        last_act()
        os.kill(os.getpid(), signal.SIGKILL)

    note, writev, utime, remove_file = flights._note, os.writev, os.utime, eviction.remove_file

    def noting(number: int, size: int) -> None:
        note(number, size)
        if size == flights._WORKS:
            reached()

    def writing(number: int, views: Sequence[memoryview]) -> int:
        reached(lambda: writev(number, [*views[:-1], views[-1][: len(views[-1]) // 2]]))
        return writev(number, views)

    def naming(*arguments: Any, **options: Any) -> None:
        utime(*arguments, **options)
        reached()

    def evicting(path: str) -> bool:
        removed = remove_file(path)
        reached()
        return removed

    match moment:
        case "computing":
            flights._note = noting
        case "writing":
            os.writev = writing
        case "naming":
            os.utime = naming
        case "evicting":
            eviction.remove_file = evicting


if __name__ == "__main__":
    die_at(*sys.argv[1:3])
    del sys.argv[1:3]
    main()
