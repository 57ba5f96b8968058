"""The rare messages between a feeder and its trainer, as frozen values with a JSON form.

Runs in: both. Pure. What is sent for each batch is a packed struct (`channel.py`), a hello and its answer are
`loader/facts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from feedline.loader.facts import checked_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginStream:
    """`begin`: the trainer's next stream starts at this step; `last` if no other epoch follows.

    seen: the quality counts of a dead feeder that delivered the epoch's steps before this one.
    """

    stream: int
    epoch: int
    step: int
    last: bool
    seen: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        return _to_json("begin", self)

    @classmethod
    def from_json(cls, message: object) -> Self:
        return cls(**checked_fields(cls, message))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewGeneration:
    """`map`: a generation of the ring, whose memfd comes with the message."""

    generation: int
    slots: int
    slot_bytes: int

    def to_json(self) -> dict[str, Any]:
        return _to_json("map", self)

    @classmethod
    def from_json(cls, message: object) -> Self:
        return cls(**checked_fields(cls, message))


@dataclass(frozen=True, slots=True, kw_only=True)
class RingFull:
    """`full`: the feeder cannot add slots to a ring of `nbytes`. limit: its most bytes. why: set if memory is short."""

    nbytes: int
    limit: int
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return _to_json("full", self)

    @classmethod
    def from_json(cls, message: object) -> Self:
        return cls(**checked_fields(cls, message))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederFailure:
    """`error`: the error that ended the feeder, by class name. number: of the hello it served, 0 before the first."""

    name: str
    message: str
    number: int = 0

    def to_json(self) -> dict[str, Any]:
        return _to_json("error", self)

    @classmethod
    def from_json(cls, message: object) -> Self:
        return cls(**checked_fields(cls, message))


def _to_json(kind: str, message: Any) -> dict[str, Any]:
    return {"type": kind, **{each.name: getattr(message, each.name) for each in fields(message)}}
