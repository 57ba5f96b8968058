"""Make room in the ring when the trainer holds every slot: collect garbage, request more slots, or give up.

Runs in: the trainer. The caller runs the garbage collector and reports the feeder's answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from feedline.errors import RingError
from feedline.loader.ring.slots import RingReader
from feedline.loader.wire.ring_messages import GrowRing, RingFull

logger = logging.getLogger(__name__)


class Room:
    """The pending request for more slots, and the feeder's refusal."""

    def __init__(self) -> None:
        self._pending = False
        self._refusal: RingFull | None = None
        self._warned = False
        self._warned_cycles = False

    def reset(self) -> None:
        """Forget the last stream's request and refusal."""
        self._pending, self._refusal = False, None

    def record_growth(self) -> None:
        """The feeder added slots."""
        self._pending = False

    def record_refusal(self, refusal: RingFull) -> None:
        """The feeder has no memory for more slots."""
        self._pending, self._refusal = False, refusal

    def is_exhausted(self, reader: RingReader) -> bool:
        """Whether the trainer holds every slot and no request for more is pending.

        Raises RingError if the feeder refused to add slots.
        """
        refusal, self._refusal = self._refusal, None
        if not reader.slots or reader.held_slots < reader.slots:
            return False
        if refusal is not None:
            why = f" ({refusal.why})" if refusal.why else ""
            raise RingError(
                f"the ring has no room for another batch: got {reader.held_slots} batches held by the trainer in "
                f"{refusal.nbytes:,} bytes, expected at most {refusal.limit:,} bytes{why}. Drop "
                f"batches, keep batch.clone(), or raise memory in pipeline.yaml"
            )
        return not self._pending

    def request_slots(self, reader: RingReader, send: Callable[[object], None]) -> None:
        """Request more slots if a garbage collection, which the caller just ran, freed none."""
        if reader.held_slots < reader.slots:
            if not self._warned_cycles:
                self._warned_cycles = True
                logger.warning(
                    "reference cycles held batches until a garbage collection, which takes tenths of a second: look "
                    "for objects of the training loop that refer to a batch and to each other"
                )
            return
        if not self._warned:
            self._warned = True
            logger.warning(
                "the trainer holds all %s batches of the ring: adding slots. Keep batch.clone() of batches that "
                "outlive a few steps",
                reader.slots,
            )
        self._pending = True
        send(GrowRing())
