"""The rare messages between a feeder and its trainer, by their kind.

Runs in: both. Pure. What is sent for each batch is a packed struct (`ring/channel.py`).
"""

from __future__ import annotations

from typing import Any

from feedline.dataclass import dataclass
from feedline.loader.wire.facts import FeederFacts, Hello, PlanFacts
from feedline.progress import Progress
from feedline.version import VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A trainer requests a plan. number: of its requests, which answers and errors repeat. feedline: its version.
    watched: about once a second, the feeder sends the `Progress` of planning."""

    number: int
    hello: Hello
    watched: bool = False
    feedline: str = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginStream:
    """The trainer's next stream starts at this step; `last` if no other epoch follows.

    seen: the `EpochCounts` of a dead feeder that delivered the epoch's steps before this one. node: the NUMA node of
    the trainer's GPU (None: any).
    """

    stream: int
    epoch: int
    step: int
    last: bool
    seen: bytes | None
    node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowRing:
    """The trainer holds every slot: the ring needs more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StallReport:
    """The trainer has waited so long for batches since it last said so."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochDone:
    """The trainer has taken the last batch of an epoch."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnose:
    """The trainer asks what its next batch waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """A feeder of `feedline run`, or of this host's ranks, takes this trainer. pid: the feeder's process."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederBusy:
    """The host's feeder serves another trainer of this rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederLeaving:
    """The host's feeder ends: the trainer should find another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """The facts of the plan that the request with this number asked for, and of the feeder."""

    number: int
    plan: PlanFacts
    feeder: FeederFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class NewGeneration:
    """A generation of the ring, whose memfd comes with the message."""

    generation: int
    slots: int
    slot_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredGeneration:
    """No more slots of this generation are announced."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RingFull:
    """The feeder cannot add slots to a ring of `nbytes`. limit: its most bytes. why: set if memory is short."""

    nbytes: int
    limit: int
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWarnings:
    """Warnings about the rows of the epoch that ends."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The feeder's answer to `Diagnose`."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederFailure:
    """The error that ended the feeder, by class name. number: of the request it served, 0 before the first."""

    name: str
    message: str
    number: int = 0


FROM_TRAINER: dict[str, type[Any]] = {
    "hello": PlanRequest,
    "begin": BeginStream,
    "grow": GrowRing,
    "stalled": StallReport,
    "epoch_done": EpochDone,
    "diagnose": Diagnose,
}
FROM_FEEDER: dict[str, type[Any]] = {
    "welcome": Welcome,
    "busy": FeederBusy,
    "leaving": FeederLeaving,
    "progress": Progress,
    "facts": PlanAnswer,
    "map": NewGeneration,
    "retire": RetiredGeneration,
    "full": RingFull,
    "warnings": DataWarnings,
    "diagnosis": Diagnosis,
    "error": FeederFailure,
}
MESSAGES = FROM_TRAINER | FROM_FEEDER
KINDS = {cls: kind for kind, cls in MESSAGES.items()}
