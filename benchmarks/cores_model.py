"""Predict Feedline's rows per second over the cores of a host from what was counted on few of them.

Pure: costs and machine are arguments. A run is a pipeline of parts that work at the same time, so its rate is that of
the part that is busy first: all cores together, block processes as far as memory holds their blocks, the feeder's loop
(one thread), the trainers (one thread each), and the memory through which blocks are copied. What has no bound here
does not appear in it: a table of too few blocks, a store, a trainer's own work beyond what was counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

# Twice as many threads that copy less than this more have reached the memory's limit.
SATURATED_GAIN = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a row costs: CPU seconds of a block process, of the feeder's loop, of its other threads and of the trainer.

    copied_bytes: that are copied per row, into a segment and into a slot. blocks_in_memory: that all ranks may hold.
    """

    block_s: float
    loop_s: float
    feeder_s: float
    trainer_s: float
    copied_bytes: float
    blocks_in_memory: int

    @property
    def row_s(self) -> float:
        """CPU seconds of all parts."""
        return self.block_s + self.loop_s + self.feeder_s + self.trainer_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Rows per second, the part that bounds them, and what each part could do."""

    rows_per_s: float
    bound: str
    bounds: Mapping[str, float]


def predict(costs: Costs, copies: Mapping[int, float], cores: int, *, ranks: int = 1) -> Prediction:
    """The rate on `cores` cores of as many block processes of one thread. copies: bytes per second that so many threads
    copied together."""
    processes = min(cores, costs.blocks_in_memory)
    parts = {
        "cores": (cores, costs.row_s),
        "memory for blocks": (processes, costs.block_s),
        "feeder's loop": (1, costs.loop_s),
        "trainers": (ranks, costs.trainer_s),
        "memory bandwidth": (copied_bytes_per_s(copies, cores), costs.copied_bytes),
    }
    bounds = {name: many / of_row for name, (many, of_row) in parts.items() if of_row > 0}
    bound = min(bounds, key=lambda name: bounds[name])
    return Prediction(rows_per_s=bounds[bound], bound=bound, bounds=bounds)


def copied_bytes_per_s(copies: Mapping[int, float], cores: int) -> float:
    """Bytes per second that `cores` threads copy together. Beyond those that were measured, each adds as much as the
    last ones did on average, unless they had reached the memory's limit."""
    # {1: 10, 2: 19} -> 4 cores: 38; {1: 10, 2: 11} -> 4 cores: 11; 3 cores of {2: 19, 4: 36}: 27
    if cores in copies:
        return copies[cores]
    fewer = max((each for each in copies if each < cores), default=0)
    more = min((each for each in copies if each > cores), default=0)
    if fewer and more:
        return copies[fewer] + (copies[more] - copies[fewer]) * (cores - fewer) / (more - fewer)
    if more:
        return copies[more] * cores / more
    half = max((each for each in copies if 2 * each <= fewer), default=0)
    gain = (copies[fewer] / copies[half]) ** (1 / math.log2(fewer / half)) if half else 2.0  # of twice the threads
    return copies[fewer] if gain < SATURATED_GAIN else copies[fewer] * cores / fewer


def threads_alone(block_s: float, lock_share: float, threads: int) -> float:
    """Rows per second of block threads in one interpreter, whose lock a thread holds for a share of its time."""
    return min(float(threads), 1 / lock_share if lock_share else float(threads)) / block_s


def apart(predicted: float, measured: float) -> float:
    """How far a prediction is from a measurement: 0.1 where it is a tenth more."""
    return predicted / measured - 1
