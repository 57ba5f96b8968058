"""Is `cache: {mode: auto}` as fast as the best fixed mode? CPU of all epochs of a run, of the floor benchmark's tables.

    python cache_auto.py [--shape lists flat strings wide] [--epochs 3] [--rounds 3]

One process and thread; the page cache is warm. In each round every mode runs all epochs, `features` and `auto` from an
empty folder, interleaved by epoch. With one epoch, `auto` writes within its budget: the ratio to `off` is what that
takes. Exit status 1: the median of `auto` is more than the best fixed mode's over 0.9.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from shape_tables import write_table
from shapes import SHAPES

from feedline import Pipeline
from feedline.blocks.compute import run_block
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.planning.plan import Plan

MODES = ("off", "features", "auto")
LEAST = 0.9
# Rows of a table and of a row group: some dozens of segments, as the first five are measured.
SIZES = {
    "lists": (2_000_000, 65_536),
    "flat": (6_000_000, 131_072),
    "strings": (2_000_000, 65_536),
    "wide": (240_000, 8_000),
}
TINY = (4_000, 500)


def epoch_cost(plan: Plan, epoch: int) -> tuple[float, CacheCounts]:
    """CPU seconds of an epoch's blocks, and what they found."""
    blocks = [
        block for lane in range(plan.lanes) for block in plan.source.schedule(epoch).blocks(lane, everything=True)
    ]
    requests = [plan.request(block, epoch) for block in blocks]
    counts, before_s = CacheCounts(), time.process_time()
    for request in requests:
        counts += run_block(plan.source.job, request, "block", False).cached or CacheCounts()
    return time.process_time() - before_s, counts


def measure_round(spec: dict[str, Any], folder: Path) -> tuple[dict[str, float], CacheCounts]:
    """CPU seconds of all epochs by mode, and what `auto` found."""
    plans = {}
    for mode in MODES:
        cache = {"dir": str(folder / mode), "mode": mode, "free": 1, "size": "100 GB"}
        plans[mode] = Pipeline.from_dict({**spec, "cache": cache}).plan()
    costs, counts = dict.fromkeys(MODES, 0.0), CacheCounts()
    for epoch in range(spec["epochs"]):
        for mode in MODES:
            cost, found = epoch_cost(plans[mode], epoch)
            costs[mode] += cost
            counts += found if mode == "auto" else CacheCounts()
    return costs, counts


def measure_shape(name: str, size: tuple[int, int], epochs: int, rounds: int) -> float:
    """Print a line per mode; returns the best fixed mode's cost to that of `auto`, by medians."""
    rows, group_rows = size
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_table(folder / "table", SHAPES[name], rows=rows, group_rows=group_rows)
        spec = yaml.safe_load(SHAPES[name].pipeline(str(folder / "table"), batch_size=8192, work_dir=scratch))
        spec["epochs"] = epochs
        epoch_cost(Pipeline.from_dict(spec).plan(), 0)  # snapshots, counts, compiled features
        measured = []
        for number in range(rounds):
            measured.append(measure_round(spec, folder / str(number)))
            shutil.rmtree(folder / str(number))
    medians = {mode: statistics.median(costs[mode] for costs, _ in measured) for mode in MODES}
    share = min(medians["off"], medians["features"]) / medians["auto"]
    times = ", ".join(f"{mode} {medians[mode]:.2f} s" for mode in MODES)
    print(f"{name}, {epochs} epochs of {rows:,} rows: {times}; best / auto {share:.2f}; {measured[-1][1].describe()}")
    return share


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=sorted(SIZES), default=sorted(SIZES))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="small tables, one round: does it run?")
    options = parser.parse_args(arguments)
    rounds = 1 if options.tiny else options.rounds
    sizes = dict.fromkeys(SIZES, TINY) if options.tiny else SIZES
    shares = [measure_shape(name, sizes[name], options.epochs, rounds) for name in options.shape]
    return int(min(shares) < LEAST and not options.tiny)


if __name__ == "__main__":
    sys.exit(main())
