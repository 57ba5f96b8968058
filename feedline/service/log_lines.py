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
    drop_echoes()
    logging.getLogger("feedline").setLevel(level)


def drop_echoes() -> None:
    """Drop what Dask logs of a worker whose scheduler is gone, which closes: that has a line of its own."""
    for name in ("distributed.worker", "distributed.worker.state_machine"):
        logging.getLogger(name).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Not a heartbeat that failed, with its traceback, nor a task that the worker cancelled as it closed."""
    text = str(record.msg)
    is_cancelled = text.startswith("Async instruction for <Task cancelled ") and text.endswith("with CancelledError")
    return text != "Failed to communicate with scheduler during heartbeat." and not is_cancelled
