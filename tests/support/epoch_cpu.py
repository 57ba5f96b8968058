"""The CPU time of an epoch: every block of a plan computed and packed, as feeders and workers do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from feedline.blocks.compute import run_block
from feedline.planning.plan import Plan


def epoch_cpu_s(plans: Sequence[Plan], rounds: int = 3) -> list[float]:
    """CPU seconds of an epoch of each plan, the median of rounds in turn; the first round compiles, and is left out."""
    seconds: list[list[float]] = [[] for _ in plans]
    for _ in range(rounds + 1):
        for plan, own in zip(plans, seconds, strict=True):
            start = time.process_time()
            for lane in range(plan.lanes):
                for block in plan.schedule(0).blocks(lane, everything=True):
                    run_block(plan.job, plan.request(block, 0), "epoch", packed=True)
            own.append(time.process_time() - start)
    return [statistics.median(own[1:]) for own in seconds]
