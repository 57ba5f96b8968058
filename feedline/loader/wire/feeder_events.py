"""What a feeder of `feedline run` tells it, as lines on its standard output.

Runs in: the feeder, and the process of `feedline run`. Pure; no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from feedline.loader.wire.facts import FeederStats, PlanFacts

# The other lines on that output are the libraries'.
EVENT_PREFIX = '{"wire": '


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederEvent:
    """An event of a rank of a feeder of `feedline run`, or the feeder's death, which the supervisor detects.

    ready: it waits for a trainer (dashboard, pid). refused: another feeder serves the rank (error). trainer: one
    attached (pid). plan: the plan is ready. stats: progress. left: the trainer left (error, stats, quality, as bytes).
    died: the feeder of these ranks died (status).
    """

    type: Literal["ready", "refused", "trainer", "plan", "stats", "left", "died"]
    rank: int | None
    dashboard: str | None = None
    pid: int | None = None
    plan: PlanFacts | None = None
    stats: FeederStats | None = None
    quality: bytes | None = None
    error: str | None = None
    status: int | None = None
