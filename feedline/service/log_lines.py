"""The lines that feeder, worker and scheduler write to standard error: each with its time and level.

Runs in: these three processes, once at their start.
"""

from __future__ import annotations

import logging

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def write_log_lines(*, level: int = logging.WARNING) -> None:
    """Write warnings of everybody, and what Feedline says from `level` on."""
    logging.basicConfig(format=_FORMAT, level=logging.WARNING)
    logging.getLogger("distributed").setLevel(logging.WARNING)
    logging.getLogger("feedline").setLevel(level)
