"""The rare messages between a feeder and its trainer, as frozen values with a JSON form.

Runs in: both. Pure. What is sent for each batch is a packed struct (`channel.py`), a hello and its answer are
`loader/facts.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from feedline.loader.facts import checked_fields


class _Message:
    """A message with the `type` of its class."""

    __slots__: tuple[str, ...] = ()
    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        return {"type": self.kind, **{name: getattr(self, name) for name in self.__slots__}}

    @classmethod
    def from_json(cls, message: object) -> Self:
        return cls(**checked_fields(cls, message))


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginStream(_Message):
    """`begin`: the trainer's next stream starts at this step; `last` if no other epoch follows.

    seen: the `EpochCounts` of a dead feeder that delivered the epoch's steps before this one, as text. node: the NUMA
    node of the trainer's GPU (None: any).
    """

    kind: ClassVar[str] = "begin"

    stream: int
    epoch: int
    step: int
    last: bool
    seen: str | None
    node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewGeneration(_Message):
    """`map`: a generation of the ring, whose memfd comes with the message."""

    kind: ClassVar[str] = "map"

    generation: int
    slots: int
    slot_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RingFull(_Message):
    """`full`: the feeder cannot add slots to a ring of `nbytes`. limit: its most bytes. why: set if memory is short."""

    kind: ClassVar[str] = "full"

    nbytes: int
    limit: int
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederFailure(_Message):
    """`error`: the error that ended the feeder, by class name. number: of the hello it served, 0 before the first."""

    kind: ClassVar[str] = "error"

    name: str
    message: str
    number: int = 0
