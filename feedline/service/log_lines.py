"""The lines that feeder, worker and scheduler write to standard error: each with its time and level.

Runs in: these three processes, once at their start.
"""

from __future__ import annotations

import logging

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def write_log_lines(*, level: int = logging.WARNING) -> None:
    """Write warnings of everybody, and what Feedline says from `level` on.

    Dask's client says that it gives up a scheduler, as an error, while the feeder goes on and connects again: the
    feeder says both itself.
    """
    logging.basicConfig(format=_FORMAT, level=logging.WARNING)
    logging.getLogger("distributed").setLevel(logging.WARNING)
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    logging.getLogger("feedline").setLevel(level)
