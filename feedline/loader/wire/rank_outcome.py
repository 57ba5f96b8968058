"""What a rank publishes to the others in the store of torch.distributed.

Runs in: the trainer. Pure; no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutcome:
    """The fingerprints of a rank's plan and its state, or an error. The verdict is an error or empty."""

    snapshot: str | None = None
    lanes: int | None = None
    plan: str | None = None
    features: str | None = None
    state: Mapping[str, Any] | None = None
    data_rank: int | None = None
    data_world_size: int | None = None
    error: str | None = None
    message: str = ""
