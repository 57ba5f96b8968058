"""The lines that feeder, worker and scheduler write to standard error: each with its time and level.

Runs in: these three processes, once at their start.
"""

from __future__ import annotations

import logging

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def write_log_lines(*, level: int = logging.WARNING) -> None:
    """Write warnings of everybody, and what Feedline says from `level` on."""
    logging.basicConfig(format=_FORMAT, level=logging.WARNING)
    dask = logging.getLogger("distributed")
    dask.setLevel(logging.WARNING)
    dask.handlers.clear()  # of another form: its lines get that of all others
    dask.propagate = True
    logging.getLogger("distributed.worker").addFilter(_is_news)
    logging.getLogger("feedline").setLevel(level)


def _is_news(record: logging.LogRecord) -> bool:
    """Not a heartbeat that failed: the worker says itself that its scheduler is gone, and nothing else is wrong."""
    return record.msg != "Failed to communicate with scheduler during heartbeat."
