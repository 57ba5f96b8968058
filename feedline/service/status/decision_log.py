"""Keep the last decisions of a feeder beside its log: about its window, workers and cache, and its cluster's losses.

Runs in: the feeder. Decisions are lines of the log; a handler of their loggers keeps the last ones.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Literal

from feedline.loader.wire.run_status import FeederDecision
from feedline.service.status.shown_text import shown_text

_KEPT = 50
_TOPICS: dict[str, Literal["window", "workers", "cache", "cluster"]] = {
    "feedline.window": "window",
    "feedline.scaling": "workers",
    "feedline.cache": "cache",
    "feedline.service.cluster": "cluster",  # of all its modules, which log warnings only
}


class DecisionLog(logging.Handler):
    """The last decisions that were logged, from `begin` to `close`."""

    def __init__(self) -> None:
        super().__init__()
        self._last: deque[FeederDecision] = deque(maxlen=_KEPT)

    def begin(self) -> None:
        """Keep what is logged from now on."""
        for name in _TOPICS:
            logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line. Logging calls this."""
        topic = next(topic for name, topic in _TOPICS.items() if f"{record.name}.".startswith(f"{name}."))
        self._last.append(FeederDecision(at_s=record.created, topic=topic, text=shown_text(record.getMessage())))

    def last(self) -> tuple[FeederDecision, ...]:
        """The decisions, the newest last."""
        return tuple(self._last)

    def close(self) -> None:
        """Keep nothing more."""
        for name in _TOPICS:
            logging.getLogger(name).removeHandler(self)
        super().close()
