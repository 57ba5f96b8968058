"""The cost of copying batches to a GPU, from the pinned ring and from ordinary memory.

    python benchmarks/gpu.py                  3 M generated rows, 4 rounds
    python benchmarks/gpu.py --rows 20000     a test, not a measurement

One process, the pipeline of the floor benchmark, default shuffle. Whole epochs are timed, alternating between batches
that stay on the host and batches that are copied (`Batch.to`, one copy each). Then one batch is copied repeatedly: from
its slot, as many bytes from memory that torch pinned, and tensor by tensor from clones in pageable memory; `of_bare` is
the slot's speed, of the bare pinned copy's. Last, a small DLRM trains on batches that a dataset with `device="cuda"`
prefetches: `wait_share` is the share of time in which it waits for a batch. Medians; one JSON object. Needs CUDA.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from feedline import FeedlineDataset
from feedline.loader.batch import Batch
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import clicks_pipeline, generate_clicks

COPIES = 50
ROWS, WIDTH = 100_000, 64  # of the model's embeddings


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=8192)
    return parser.parse_args(arguments)


def rows_per_s(dataset: FeedlineDataset, *, copied: bool) -> float:
    """Return rows per second of one epoch, including its last copy."""
    rows, began = 0, time.perf_counter()
    for batch in dataset:
        there = batch.to("cuda", non_blocking=True) if copied else batch
        rows += there.rows
    torch.cuda.synchronize()
    return rows / (time.perf_counter() - began)


def seconds(copy: Callable[[], object]) -> float:
    """Return the median seconds of synchronized copies."""
    times = []
    for _ in range(COPIES):
        torch.cuda.synchronize()
        began = time.perf_counter()
        there = copy()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        del there
    return statistics.median(times)


class SmallDLRM(torch.nn.Module):
    """Embeddings of ids and histories, their dot products with the dense features' projection, and a top network."""

    def __init__(self, ids: int, histories: int, dense: int) -> None:
        super().__init__()
        self.ids = torch.nn.ModuleList(torch.nn.Embedding(ROWS, WIDTH) for _ in range(ids))
        self.histories = torch.nn.ModuleList(torch.nn.EmbeddingBag(ROWS, WIDTH) for _ in range(histories))
        self.bottom = torch.nn.Sequential(torch.nn.Linear(dense, 256), torch.nn.ReLU(), torch.nn.Linear(256, WIDTH))
        crossed = (1 + ids + histories) ** 2
        self.top = torch.nn.Sequential(torch.nn.Linear(crossed, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1))

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [B, 1]."""
        found = [self.bottom(batch.dense)]
        found += [table(batch.categorical[:, k] % ROWS) for k, table in enumerate(self.ids)]
        found += [
            table(sparse.values % ROWS, sparse.offsets[:-1])
            for table, sparse in zip(self.histories, batch.sparse.values(), strict=True)
        ]
        vectors = torch.stack(found, 1)
        return self.top((vectors @ vectors.transpose(1, 2)).flatten(1))


def wait_share(pipeline: Path) -> float:
    """Return the share of an epoch in which a small DLRM waits for batches, its first epoch apart."""
    with FeedlineDataset(pipeline, device="cuda") as dataset:
        groups = [len(dataset.schema.group(group)) for group in ("categorical", "sparse", "dense")]
        model = SmallDLRM(*groups).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        waited = 0.0
        for _ in range(2):
            before, began = dataset.stats().wait_s, time.perf_counter()
            for batch in dataset:
                optimizer.zero_grad()
                torch.nn.functional.binary_cross_entropy_with_logits(model(batch), batch.labels).backward()
                optimizer.step()
            torch.cuda.synchronize()
            waited = (dataset.stats().wait_s - before) / (time.perf_counter() - began)
    return waited


def measure(pipeline: Path, rounds: int) -> dict[str, object]:
    """Return all measurements by name."""
    speeds: dict[str, list[float]] = {"host": [], "cuda": []}
    with FeedlineDataset(pipeline) as dataset:
        rows_per_s(dataset, copied=False)  # the first epoch starts a feeder
        for _ in range(rounds):
            for name, rates in speeds.items():
                rates.append(rows_per_s(dataset, copied=name == "cuda"))
        batch = next(iter(dataset))
        tensors = [batch.dense, batch.categorical, batch.labels]
        tensors += [part for one in batch.sparse.values() for part in (one.values, one.lengths, one.offsets)]
        clones = [tensor.clone() for tensor in tensors]
        size = sum(tensor.nbytes for tensor in tensors)
        slot = seconds(lambda: batch.to("cuda", non_blocking=True))
        bare = torch.empty(batch.nbytes, dtype=torch.uint8, pin_memory=True)
        pinned_s = seconds(lambda: bare.to("cuda", non_blocking=True))
        pageable = seconds(lambda: [clone.to("cuda") for clone in clones])
        pinned = batch.is_pinned()
    return {
        "card": torch.cuda.get_device_name(),
        "rows_per_s": {name: statistics.median(rates) for name, rates in speeds.items()},
        "pinned": pinned,
        "batch_bytes": size,
        "copy_ms": {"slot": 1e3 * slot, "pinned": 1e3 * pinned_s, "pageable": 1e3 * pageable},
        "of_bare": pinned_s / slot,
        "gb_per_s": {"slot": size / slot / 1e9, "pageable": size / pageable / 1e9},
    }


def main(arguments: Sequence[str]) -> int:
    """Run the program; return the exit status."""
    options = parse(arguments)
    if not torch.cuda.is_available():
        print("no CUDA device: there is nothing to measure", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "clicks"
        generate_clicks(str(table), ClickRecipe(rows=options.rows, days=4))
        pipeline = Path(folder) / "pipeline.yaml"
        pipeline.write_text(clicks_pipeline(str(table), batch_size=options.batch_size))
        found = {**measure(pipeline, options.rounds), "wait_share": wait_share(pipeline)}
        print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
