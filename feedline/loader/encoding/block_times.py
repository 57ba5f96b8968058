"""The times of blocks, of one or summed over many: what their threads did, and for how long they waited.

Runs in: Dask workers, where a block is timed; the feeder, which sums; whatever explains a run. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from operator import attrgetter

from feedline.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTimes:
    """Seconds of the three stages of a block in its thread, with the CPU seconds among them; `transform_cpu_s` includes
    Polars' own threads.

    fetch_s: of `read_s`, waiting for the store or the disk. contended_s: of all three, ready to run while other threads
    had the CPUs. queued_s: between submission and result, without computing.
    """

    read_s: float = 0.0
    transform_s: float = 0.0
    encode_s: float = 0.0
    read_cpu_s: float = 0.0
    transform_cpu_s: float = 0.0
    encode_cpu_s: float = 0.0
    fetch_s: float = 0.0
    contended_s: float = 0.0
    queued_s: float = 0.0

    @classmethod
    def total(cls, times: Iterable[BlockTimes]) -> BlockTimes:
        """The sum of times."""
        sums = map(sum, zip(*map(_VALUES, times), strict=True))
        return cls(**dict(zip(_NAMES, sums, strict=False)))  # without any, all are 0

    def __add__(self, other: BlockTimes) -> BlockTimes:
        return BlockTimes.total((self, other))

    def __sub__(self, earlier: BlockTimes) -> BlockTimes:
        """What was added since an earlier sum."""
        return BlockTimes(**{name: getattr(self, name) - getattr(earlier, name) for name in _NAMES})

    @property
    def stages(self) -> Mapping[str, float]:
        """Seconds by stage."""
        return {"read": self.read_s, "transform": self.transform_s, "encode": self.encode_s}

    @property
    def cpu_stages(self) -> Mapping[str, float]:
        """CPU seconds by stage."""
        return {"read": self.read_cpu_s, "transform": self.transform_cpu_s, "encode": self.encode_cpu_s}

    @property
    def thread_s(self) -> float:
        """Seconds of threads, of all stages."""
        return self.read_s + self.transform_s + self.encode_s

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all stages."""
        return self.read_cpu_s + self.transform_cpu_s + self.encode_cpu_s


_NAMES = tuple(each.name for each in fields(BlockTimes))
_VALUES = attrgetter(*_NAMES)
