"""What a cache of finished features costs to fill, and saves: CPU of blocks per row, in one process and thread.

    python cache.py --shape lists --rows 1000000 --rounds 3

Each round computes an epoch without a cache, fills an empty one, reads it twice, and adds some features. The page
cache is warm. Ratios are to the epoch without a cache of the same round; medians are of rounds.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from shape_tables import write_table
from shapes import SHAPES

from feedline import Pipeline
from feedline.blocks.compute import run_block
from feedline.loader.encoding.cache_counts import CacheCounts

STAGES = ("off", "filling", "first", "second", "added")
_RANGE = re.compile(r"(.*)\{(\d+)\.\.(\d+)\}(.*)")  # of a name that stands for several


def epoch_cost(spec: dict[str, Any]) -> tuple[float, CacheCounts]:
    """CPU nanoseconds per row of all blocks of an epoch, and what they found."""
    plan = Pipeline.from_dict(spec).plan()
    requests = [
        plan.request(block, 0) for lane in range(plan.lanes) for block in plan.schedule(0).blocks(lane, everything=True)
    ]
    counts, rows, before_s = CacheCounts(), 0, time.process_time()
    for request in requests:
        result = run_block(plan.job, request, "block", False)
        rows += result.rows
        counts += result.cached or CacheCounts()
    return (time.process_time() - before_s) / rows * 1e9, counts


def with_more(spec: dict[str, Any], count: int) -> dict[str, Any]:
    """The pipeline with `count` further features, copies of its first dense ones under other names."""
    dense = dict(spec["features"]["dense"])
    copies = {}
    for name, body in spec["features"]["dense"].items():
        match = _RANGE.fullmatch(name)
        first, last = (int(match[2]), int(match[3])) if match else (0, 0)
        columns = [f"{match[1]}{number}{match[4]}" for number in range(first, last + 1)] if match else [name]
        ops = body if isinstance(body, list) else body.get("ops", [])
        copies |= {f"{column}_again": {"column": column, "ops": ops} for column in columns}
    return {**spec, "features": {**spec["features"], "dense": dense | dict(list(copies.items())[:count])}}


def measure(
    spec: dict[str, Any], cache: Path, count: int, keys: dict[str, Any]
) -> tuple[dict[str, float], CacheCounts, CacheCounts]:
    """One round: costs by stage, what filling wrote and what the larger pipeline found. keys: of the cache."""
    cached = {**spec, "cache": {"dir": str(cache), "free": 1, "size": "100 GB", **keys}}
    costs = {"off": epoch_cost(spec)[0]}
    costs["filling"], filled = epoch_cost(cached)
    costs["first"], _ = epoch_cost(cached)
    costs["second"], _ = epoch_cost(cached)
    costs["added"], found = epoch_cost(with_more(cached, count))
    return costs, filled, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="lists")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--group-rows", type=int, default=82_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--added", type=int, default=3, help="dense features that are added")
    parser.add_argument("--shuffle", action="store_true", help="the default shuffle instead of the table's order")
    parser.add_argument("--mode", choices=("features", "auto"), default="features")
    parser.add_argument("--write-budget", type=float, help="of the time of computing (default: none)")
    options = parser.parse_args()
    keys = {"mode": options.mode, "write_budget": options.write_budget}
    shape = SHAPES[options.shape]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "table").mkdir()
        write_table(folder / "table", shape, rows=options.rows, group_rows=options.group_rows)
        spec = yaml.safe_load(shape.pipeline(str(folder / "table"), batch_size=8192, work_dir=scratch))
        if options.shuffle:
            spec.pop("shuffle", None)
        epoch_cost(spec)  # snapshots, counts, compiled features
        rounds = []
        for number in range(options.rounds):
            cache = folder / f"cache{number}"
            costs, filled, found = measure(spec, cache, options.added, keys)
            rounds.append(costs)
            shutil.rmtree(cache)
    print(f"{options.shape}: {options.rows:,} rows; {filled.nbytes_written / options.rows:,.0f} bytes per row are kept")
    print(f"filling: {filled.describe()}")
    print(f"with more features: {found.describe()}")
    for stage in STAGES:
        ratio = statistics.median(each[stage] / each["off"] for each in rounds)
        cost = statistics.median(each[stage] for each in rounds)
        print(f"{stage:8} {cost:8,.0f} ns/row  {ratio:5.2f}")


if __name__ == "__main__":
    main()
