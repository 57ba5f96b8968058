"""The cost of the dataset itself per batch that is already in the ring.

    python benchmarks/waiting_batch.py PIPELINE.YAML

The trainer lets the ring fill before each step, then times `next()`, and `next()` with all tensors of the batch.
Prints medians in microseconds.
"""

from __future__ import annotations

import statistics
import sys
import time

from feedline import FeedlineDataset

_SETTLE_S = 0.03  # long enough for the feeder to fill the slot released by the last step
_STEPS = 100


def main() -> None:
    """Reads the argument above."""
    alone: list[float] = []
    with_tensors: list[float] = []
    with FeedlineDataset(sys.argv[1]) as dataset:
        stream = iter(dataset)
        for _ in range(min(_STEPS, len(dataset))):
            settled = time.perf_counter() + _SETTLE_S
            while time.perf_counter() < settled:  # computes, as a trainer does: after sleeping, its core would be cold
                pass
            began = time.perf_counter()
            batch = next(stream)
            had = time.perf_counter()
            batch.dense, batch.categorical, batch.labels  # noqa: B018 -- created on first use
            for sparse in batch.sparse.values():
                sparse.values, sparse.lengths, sparse.offsets  # noqa: B018
            alone.append(had - began)
            with_tensors.append(time.perf_counter() - began)
            del batch, sparse
    alone_us, with_tensors_us = (statistics.median(times) * 1e6 for times in (alone, with_tensors))
    print(f"next(): {alone_us:.0f} us; with all tensors made: {with_tensors_us:.0f} us")


if __name__ == "__main__":
    main()
