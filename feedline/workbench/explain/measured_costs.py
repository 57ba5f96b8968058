"""The measured costs of a pipeline and the changes that would save some, as values that travel between processes.

Runs in: the process of `feedline explain`, and the one that measures. Pure; imports little, as it is read beside runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

from feedline.workbench.explain.cpu_time import NO_CPU, CpuEstimate

ChangeKind = Literal["drop", "truncate", "optimize", "cache", "dedup", "row_groups", "op"]

WORTHWHILE_SHARE = 0.03  # the share of today's CPU time that a change has to save


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChange:
    """A change and what it gains, per million rows. subject: the feature, op or group. how: what to do. loses: what is
    given up. before_s, after_s: CPU seconds of blocks. saved_bytes: compressed ones less to read; disk_bytes: of an
    epoch, to keep. is_measured: on blocks; else from the account of costs. from_epoch: the first that gains. stages:
    the gain of decoding, ops and encoding; before: what they took (empty: unknown).
    """

    kind: ChangeKind
    subject: str
    how: str
    loses: str = ""
    gain_s: CpuEstimate = NO_CPU
    before_s: float = 0.0
    saved_bytes: float = 0.0
    disk_bytes: float = 0.0
    is_measured: bool = True
    from_epoch: int = 0
    stages: Mapping[str, float] = field(default_factory=dict)
    before: Mapping[str, float] = field(default_factory=dict)

    def in_mix(self, share: float) -> Self:
        """The change among all sources. share: of the rows of a step, which its own source has. A run tells what blocks
        of all sources take: not what those of one took."""
        stages = {stage: share * gain_s for stage, gain_s in self.stages.items()}
        saved = share * self.saved_bytes
        return replace(self, gain_s=self.gain_s.scaled(share), stages=stages, before={}, saved_bytes=saved)

    @property
    def share(self) -> float:
        """The part of today's CPU time that is gained."""
        return self.gain_s.cpu_s / self.before_s if self.before_s else 0.0

    @property
    def is_worthwhile(self) -> bool:
        return self.share >= WORTHWHILE_SHARE and self.gain_s.low > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCosts:
    """What was measured of a pipeline. account: facts of a `CostAccount`; changes: those that pay. source: its name, of
    several, and step_share its part of the rows of a step, by which the gains of changes are weighted."""

    account: Mapping[str, Any]
    changes: tuple[DataChange, ...]
    source: str = ""
    step_share: float = 1.0

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """What `facts` gave."""
        changes = ({**each, "gain_s": CpuEstimate(**each["gain_s"])} for each in facts["changes"])
        return cls(**{**facts, "changes": tuple(DataChange(**each) for each in changes)})

    def facts(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)
