"""Make room in the ring when the trainer holds every slot: collect its cycles, ask for more slots, or give up.

Runs in: the trainer. Its caller collects the garbage and reports an answer of the feeder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from feedline.errors import RingError
from feedline.loader.ring.slots import RingReader

logger = logging.getLogger(__name__)


class Room:
    """What was asked of the feeder, and what it answered."""

    def __init__(self) -> None:
        self._asked = False
        self._refused: dict[str, Any] | None = None
        self._warned = False
        self._warned_cycles = False

    def forget(self) -> None:
        """Another stream begins: what was asked for the last one does not count."""
        self._asked, self._refused = False, None

    def granted(self) -> None:
        """The feeder added slots."""
        self._asked = False

    def refused(self, message: dict[str, Any]) -> None:
        """The feeder has no memory for more slots."""
        self._asked, self._refused = False, message

    def is_wanted(self, reader: RingReader) -> bool:
        """Whether only the trainer can go on, by letting a batch go or by asking for slots.

        Raises RingError where the feeder could not add any.
        """
        full, self._refused = self._refused, None
        if not reader.slots or reader.held < reader.slots:
            return False
        if full is not None:
            why = f" ({full['why']})" if "why" in full else ""
            raise RingError(
                f"the ring has no room for another batch: got {reader.held} batches held by the trainer in "
                f"{full['nbytes']:,} bytes, expected at most {full['limit']:,} bytes{why}. Let batches go, keep "
                f"batch.clone(), or raise memory in pipeline.yaml"
            )
        return not self._asked

    def make(self, reader: RingReader, send: Callable[[dict[str, Any]], None]) -> None:
        """The garbage collector ran: where that freed no slot, ask for more slots."""
        if reader.held < reader.slots:
            if not self._warned_cycles:
                self._warned_cycles = True
                logger.warning(
                    "batches were held by reference cycles until a garbage collection, which costs tenths of a second: "
                    "see what refers to a batch and to itself in the training loop"
                )
            return
        if not self._warned:
            self._warned = True
            logger.warning(
                "the trainer holds all %s batches of the ring: adding slots. Keep batch.clone() where a batch shall "
                "outlive a few steps",
                reader.slots,
            )
        self._asked = True
        send({"type": "grow"})
