"""Advice: a change of a pipeline, a command or a table, with the gain that is predicted of it.

Runs in: whatever explains a run. Pure; no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from feedline.loader.limits.run_facts import Interval

AdviceKind = Literal[
    "workers", "threads", "processes", "store", "cache", "memory", "window", "batch",
    "decode", "dedup", "feature", "row_groups", "op",
]  # fmt: skip

WORTH = 1.02  # advice that promises less is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A change and its predicted gain.

    change: the key of pipeline.yaml with its value, or the command. rows_ratio: predicted rows per second over those
    of now. cpu_s_saved: CPU seconds saved per million rows. Both with their intervals (None: unknown). reason: what
    was measured that makes it worth it. caveat: what the prediction leaves out.
    """

    kind: AdviceKind
    change: str
    reason: str
    rows_ratio: float = 1.0
    rows_interval: Interval | None = None
    cpu_s_saved: float = 0.0
    cpu_interval: Interval | None = None
    caveat: str = ""

    @property
    def is_worth_it(self) -> bool:
        """Whether it promises more than the measurement's noise."""
        return self.rows_ratio >= WORTH or self.cpu_s_saved > 0


def counted(number: float, noun: str) -> str:
    """A number with its noun: "1 core", "2 cores"."""
    number = round(number, 1)
    return f"{number:g} {noun}" + "s" * (number != 1)


def sorted_advice(advice: Iterable[Advice]) -> tuple[Advice, ...]:
    """What is worth it, the largest gain in rows per second first, then the most CPU saved."""
    worth = [each for each in advice if each.is_worth_it]
    return tuple(sorted(worth, key=lambda each: (-round(each.rows_ratio, 2), -each.cpu_s_saved)))
