"""The cost of the dataset itself per batch that is already in the ring.

    python benchmarks/waiting_batch.py                      45 features: 13 dense, 26 ids, 6 histories
    python benchmarks/waiting_batch.py --features 350       as many in these proportions
    python benchmarks/waiting_batch.py --pipeline FILE      the features of a pipeline.yaml of your own

The trainer lets the ring fill before each step and reads 64 MB, which evicts the dataset's code and data from the
caches, as a training step does (`--warm` leaves that out). Then it times `next()`, and `next()` with all tensors of the
batch. Prints medians in microseconds, and the number of tensors; `--json` prints one object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from feedline import FeedlineDataset
from feedline.loader.batch import Batch
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import clicks_pipeline, generate_clicks

_SETTLE_S = 0.03  # long enough for the feeder to fill the slot released by the last step
_EVICTED = np.ones(1 << 23)  # 64 MB: twice a large cache
_SHARES = {"dense": 13 / 45, "ids": 26 / 45}  # of all features; the others are histories


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, default=45)
    parser.add_argument("--pipeline", metavar="FILE")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--warm", action="store_true", help="leave the caches as they are")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


@contextmanager
def click_pipeline(options: argparse.Namespace) -> Iterator[Path]:
    """Yield a pipeline over a generated table: the rows of an epoch are the steps."""
    counts = {kind: round(share * options.features) for kind, share in _SHARES.items()}
    counts |= {"histories": options.features - sum(counts.values())}
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        table = Path(scratch) / "table"
        rows = options.steps * options.batch_size
        recipe = ClickRecipe(rows=rows, days=1, strings=0, history_min=1, history_max=8, **counts)
        generate_clicks(str(table), recipe)
        pipeline = Path(scratch) / "pipeline.yaml"
        size = {"batch_size": options.batch_size}
        pipeline.write_text(clicks_pipeline(str(table), **counts, **size, work_dir=scratch))
        yield pipeline


def take_tensors(batch: Batch) -> int:
    """Use every tensor of a batch, which creates it; returns their number."""
    batch.dense, batch.categorical, batch.labels  # noqa: B018
    for sparse in batch.sparse.values():
        sparse.values, sparse.lengths, sparse.offsets  # noqa: B018
    return 3 + 3 * len(batch.sparse)


def measure(pipeline: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return medians over the steps."""
    alone: list[float] = []
    with_tensors: list[float] = []
    tensors = 0
    with FeedlineDataset(pipeline) as dataset:
        stream = iter(dataset)
        next(stream)
        for _ in range(min(options.steps, len(dataset)) - 1):
            settled = time.perf_counter() + _SETTLE_S
            while time.perf_counter() < settled:  # computes, as a trainer does: after sleeping, its core would be cold
                if not options.warm:
                    _EVICTED.sum()
            began = time.perf_counter()
            batch = next(stream)
            had = time.perf_counter()
            tensors = take_tensors(batch)
            with_tensors.append(time.perf_counter() - began)
            alone.append(had - began)
            del batch
    return {
        "tensors": tensors,
        "next_us": statistics.median(alone) * 1e6,
        "next_with_tensors_us": statistics.median(with_tensors) * 1e6,
    }


def main(arguments: Sequence[str]) -> int:
    """Run the program; return the exit status."""
    options = parse(arguments)
    if options.pipeline:
        found = measure(Path(options.pipeline), options)
    else:
        with click_pipeline(options) as pipeline:
            found = measure(pipeline, options)
    if options.json:
        print(json.dumps(found))
    else:
        print(f"next(): {found['next_us']:.0f} us; with all {found['tensors']} tensors: ", end="")
        print(f"{found['next_with_tensors_us']:.0f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
