"""What `batch.balance` and `batch.buckets` change: imbalance, padding, and the steps of a synchronous trainer.

    python benchmarks/balance.py                   262,144 rows, 8 lanes, one epoch of each setting
    python benchmarks/balance.py --batch-size 32   fewer rows of a lane and step: more imbalance before
    python benchmarks/balance.py --folder DIR      the table is kept there, and found again
    python benchmarks/balance.py --tiny            8,192 rows: a test that it works

The table has one list column, whose lengths follow Zipf's law (exponent 1.2) up to 5,000. Each setting is read by a
dataset, and measured by the lengths in its batches: imbalance is the most elements of a lane in a step by the mean of
all lanes; padding the share of places without an element, with the rows of a lane padded to its longest, or to the
bound of their bucket. A simulated trainer waits in each step for the lane with the most work: its elements, or its
places where rows are padded. `speed` is that of the setting by that of `plain`, over the same number of elements.
`bytes` are those that blocks read, by those of the columns. The last line compares steps of one bucket on all ranks
with ranks that each draw a bucket of their own, both in batches of equal rows. `--json` prints one object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from feedline import FeedlineDataset, Pipeline

LANES = 8
LONGEST = 5_000
EXPONENT = 1.2
FILES = 16
GROUP_ROWS = 4_096
BUCKETS = (9, 14, 20, 30, 45, 68, 100, 150, 230, 340, 510, 770, 1150, 1700, 2600, 3800, 5000)
TINY_BUCKETS = (8, 64, 512, 5000)


@dataclass(frozen=True, slots=True)
class Row:
    """A setting: mean and worst imbalance, padding, speed of the simulated trainer without and with padding (1: that of
    `plain`), bytes read by those of the columns, rows delivered by those of the table."""

    name: str
    steps: int
    imbalance: float
    worst_imbalance: float
    padding: float
    speed: float
    padded_speed: float
    bytes: float
    rows: float


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=262_144)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--max-tokens", type=int, default=16_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.batch_size = 8_192, 32
    return options


def zipf_lengths(rows: int, seed: int = 0) -> NDArray[np.int64]:
    """int64 [rows]: lengths by Zipf's law, from 1 to `LONGEST`."""
    weights = np.arange(1, LONGEST + 1, dtype=np.float64) ** -EXPONENT
    return np.random.default_rng(seed).choice(np.arange(1, LONGEST + 1), size=rows, p=weights / weights.sum())


def generate(folder: Path, rows: int) -> Path:
    """Write the table, unless it is there."""
    table = folder / f"zipf-{rows}"
    if table.exists():
        return table
    table.mkdir(parents=True)
    for file, lengths in enumerate(np.array_split(zipf_lengths(rows), FILES)):
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        ids = np.random.default_rng(file).integers(0, 1_000, offsets[-1])
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
        pq.write_table(pa.table({"history": lists}), table / f"{file:03}.parquet", row_group_size=GROUP_ROWS)
    return table


def settings(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The `batch` of each setting."""
    buckets = {"max_tokens": options.max_tokens, "buckets": list(TINY_BUCKETS if options.tiny else BUCKETS)}
    return {
        "plain": {"size": options.batch_size},
        "balance": {"size": options.batch_size, "balance": "history"},
        "buckets": {**buckets, "length": "history"},
        "balance and buckets": {**buckets, "balance": "history"},
    }


def measure(folder: Path, table: Path, options: argparse.Namespace) -> list[Row]:
    """Read an epoch of each setting."""
    rows: list[Row] = []
    plain: tuple[float, float] | None = None
    for name, batch in settings(options).items():
        document = {
            "version": 1,
            "name": "balance",
            "work_dir": str(folder / "work"),
            "source": {"table": str(table)},
            "features": {"sparse": {"history": []}},
            "batch": batch,
            "lanes": LANES,
            "cluster": {"dashboard": False},
        }
        path = folder / "balance.yaml"
        path.write_text(json.dumps(document))
        steps = list(_steps(path))
        elements = np.array([lengths.sum(axis=1) for lengths, _ in steps])
        places = np.array([lengths.shape[1] * longest for lengths, longest in steps])
        work = elements.sum() / elements.max(axis=1).sum()
        padded_work = elements.sum() / places.max(axis=1).sum()
        plain = plain or (work, padded_work)
        imbalance = elements.max(axis=1) / elements.mean(axis=1)
        rows.append(
            Row(
                name=name,
                steps=len(steps),
                imbalance=float(imbalance.mean()),
                worst_imbalance=float(imbalance.max()),
                padding=float(1 - elements.sum() / places.sum()),
                speed=float(work / plain[0]),
                padded_speed=float(padded_work / plain[1]),
                bytes=_bytes(path),
                rows=sum(lengths.size for lengths, _ in steps) / options.rows,
            )
        )
    return rows


def _steps(path: Path) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The lengths of each step's rows, int64 [lanes, rows], and to which each lane's are padded, int64 [lanes]."""
    with FeedlineDataset(path, rank=0, world_size=1) as dataset:
        for batch in dataset:
            lengths = batch.sparse["history"].lengths.numpy().astype(np.int64).reshape(LANES, -1)
            longest = lengths.max(axis=1) if batch.bound is None else np.full(LANES, batch.bound)
            yield lengths, longest


def _bytes(path: Path) -> float:
    plan = Pipeline.from_yaml(path).plan()
    schedule = plan.source.schedule(0)
    read = sum(plan.request(block, 0).nbytes for lane in range(LANES) for block in schedule.blocks(lane))
    return read / int(plan.source.row_group_bytes.sum())


def coordinated_speed(lengths: NDArray[np.int64], bounds: Sequence[int], seed: int = 0) -> float:
    """How much faster steps are in which all lanes have the same bucket than those in which each draws its own: with
    the rows of a batch the same in all buckets, a step takes as long as its greatest bound."""
    bound = np.array(bounds)[np.searchsorted(bounds, np.minimum(lengths, bounds[-1]))]
    own = np.random.default_rng(seed).choice(bound, size=(len(bound), LANES))
    return float(own.max(axis=1).mean() / bound.mean())


def lines(rows: Sequence[Row], coordinated: float) -> Iterator[str]:
    """The rows as a table."""
    names = ("steps", 7), ("imbalance", 11), ("worst", 8), ("padding", 9), ("speed", 7), ("padded", 8), ("bytes", 7)
    yield "setting".ljust(20) + "".join(name.rjust(width) for name, width in (*names, ("rows", 7)))
    for row in rows:
        yield (
            f"{row.name:20}{row.steps:7,}{row.imbalance:11.3f}{row.worst_imbalance:8.3f}{row.padding:9.1%}"
            f"{row.speed:7.2f}{row.padded_speed:8.2f}{row.bytes:7.2f}{row.rows:7.1%}"
        )
    yield f"one bucket on all ranks, by a bucket of each rank's own: {coordinated:.2f} times as fast"


@contextmanager
def _folder(options: argparse.Namespace) -> Iterator[Path]:
    if options.folder is not None:
        yield options.folder
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark."""
    options = parse(arguments)
    with _folder(options) as folder:
        rows = measure(folder, generate(folder, options.rows), options)
    bounds = settings(options)["buckets"]["buckets"]
    coordinated = coordinated_speed(zipf_lengths(options.rows), bounds)
    if options.json:
        print(json.dumps({"settings": [asdict(row) for row in rows], "coordinated_speed": coordinated}))
    else:
        print("\n".join(lines(rows, coordinated)))


if __name__ == "__main__":
    main(sys.argv[1:])
