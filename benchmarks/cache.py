"""What a cache of finished features costs to fill, and saves: CPU of blocks per row, in one process and thread.

    python cache.py --shape lists --rows 1000000 --rounds 3
    python cache.py --shape papers --rows 200000 --group-rows 20000     604 features, as `pipeline.py` has them
    python cache.py --shape papers --only dense                         a hit of dense features against a copy

Each round computes an epoch without a cache, fills an empty one, reads it twice, reads it after the kernel has dropped
its pages (where it does), and reads it with some features changed. `copied`: every array of the blocks is copied once.
Allocators are set as in a feeder.
Ratios are to the epoch without a cache of the same round, of CPU and of rows per second; medians are of rounds.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pipeline import LONGEST, MOST, TABLE_ROWS, make_borders
from shape_tables import write_table
from shapes import LABEL, SHAPES
from transforms import reborn

from feedline import Pipeline
from feedline.blocks.compute import run_block
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.native.coded_values import CodedArray

STAGES = ("off", "copied", "filling", "first", "second", "dropped", "changed")
_RANGE = re.compile(r"(.*)\{(\d+)\.\.(\d+)\}(.*)")  # of a name that stands for several
_DENSE = [{"fill_null": 0}, {"clip": {"min": 0, "max": MOST}}, "log1p"]
PAPERS = replace(
    SHAPES["wide"],
    name="papers",
    features={
        "dense": {"dense_{0..503}": _DENSE},
        "categorical": {
            f"made_{k}": {"column": f"dense_{k}", "ops": [{"fill_null": 0}, {"bucketize": {"borders": make_borders()}}]}
            for k in range(42)
        },
        "sparse": {
            f"hist_{k}": [
                {"first_x": LONGEST},
                {"sigrid_hash": {"salt": 0, "max_value": TABLE_ROWS}} if k % 2 else {"hash_bucket": TABLE_ROWS},
            ]
            for k in range(42)
        },
        "label": {LABEL: []},
    },
)
TABLES = {**SHAPES, PAPERS.name: PAPERS}
GROUPS = {
    "dense": ("dense", "label"),
    "ids": ("categorical", "sparse"),
    "all": ("dense", "categorical", "sparse", "label"),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU and wall-clock nanoseconds per row of an epoch's blocks, what they found, and the CPU of copying them."""

    cpu: float
    wall: float
    found: CacheCounts
    copy: float = 0.0


def epoch_cost(spec: dict[str, Any], *, copied: bool = False) -> Cost:
    """Compute all blocks of an epoch. copied: and copy each of their arrays once, which is timed apart."""
    plan = Pipeline.from_dict(spec).plan()
    requests = [
        plan.request(block, 0)
        for lane in range(plan.lanes)
        for block in plan.source.schedule(0).blocks(lane, everything=True)
    ]
    counts, rows, cpu_s, wall_s, copy_s = CacheCounts(), 0, 0.0, 0.0, 0.0
    for request in requests:
        before, began = time.process_time(), time.perf_counter()
        result = run_block(plan.source.job, request, "block", False)
        cpu_s, wall_s = cpu_s + time.process_time() - before, wall_s + time.perf_counter() - began
        rows += result.rows
        counts += result.cached or CacheCounts()
        if copied:
            arrays = [array for part in result.parts or () for array in arrays_of(part)]
            before = time.process_time()
            for array in arrays:
                array.copy()
            copy_s += time.process_time() - before
    return Cost(cpu_s / rows * 1e9, wall_s / rows * 1e9, counts, copy_s / rows * 1e9)


def arrays_of(rows: Any) -> Iterator[np.ndarray[Any, Any]]:
    """The arrays of a block's rows; of shuffled ones, of the rows from which they are picked."""
    for part in [rows] if isinstance(rows, EncodedRows) else rows.parts:
        yield from (part.dense, part.labels, *part.categorical, *part.offsets)
        yield from (values.codes if isinstance(values, CodedArray) else values for values in part.values)


def with_changes(spec: dict[str, Any], count: int) -> dict[str, Any]:
    """The pipeline with another bound of `count` of its dense features."""
    dense: dict[str, Any] = {}
    for name, body in spec["features"].get("dense", {}).items():
        match = _RANGE.fullmatch(name)
        first, last = (int(match[2]), int(match[3])) if match else (0, 0)
        ops = body if isinstance(body, list) else body.get("ops", [])
        for number in range(first, last + 1):
            own = f"{match[1]}{number}{match[4]}" if match else name
            changed = [*ops, {"clip": {"max": 1e5}}] if len(dense) < count else ops
            dense[own] = changed if isinstance(body, list) else {**body, "ops": changed}
    return {**spec, "features": {**spec["features"], **({"dense": dense} if dense else {})}}


def drop_pages(cache: Path) -> None:
    """Let the kernel drop the pages of a cache's files, which it may keep."""
    for path in cache.rglob("*.entry"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def remove_entries(cache: Path) -> None:
    """Empty a cache that this process has open."""
    for path in cache.rglob("*.entry"):
        path.unlink()


def measure(spec: dict[str, Any], cache: Path, count: int, keys: dict[str, Any]) -> dict[str, Cost]:
    """One round: costs by stage. keys: of the cache."""
    cached = {**spec, "cache": {"dir": str(cache), "free": 1, "size": "100 GB", **keys}}
    off = epoch_cost(spec, copied=True)
    costs = {"off": off, "copied": replace(off, cpu=off.copy, wall=off.copy)}
    for stage in ("filling", "first", "second"):
        costs[stage] = epoch_cost(cached)
    drop_pages(cache)
    costs["dropped"] = epoch_cost(cached)
    costs["changed"] = epoch_cost(with_changes(cached, count))
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(TABLES), default="lists")
    parser.add_argument("--only", choices=sorted(GROUPS), default="all", help="groups of features")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--group-rows", type=int, default=82_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--changed", type=int, default=3, help="dense features that are changed")
    parser.add_argument("--shuffle", action="store_true", help="the default shuffle instead of the table's order")
    parser.add_argument("--mode", choices=("features", "auto"), default="features")
    parser.add_argument("--write-budget", type=float, help="of the time of computing (default: none)")
    options = parser.parse_args()
    keys = {"mode": options.mode, "write_budget": options.write_budget}
    shape = TABLES[options.shape]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "table").mkdir()
        write_table(folder / "table", shape, rows=options.rows, group_rows=options.group_rows)
        spec = yaml.safe_load(shape.pipeline(str(folder / "table"), batch_size=8192, work_dir=scratch))
        spec["features"] = {name: spec["features"][name] for name in GROUPS[options.only] if name in spec["features"]}
        spec.pop("shuffle", None)
        if not options.shuffle:
            spec["shuffle"] = "off"
        rounds = []
        for _ in range(options.rounds + 1):
            rounds.append(measure(spec, folder / "cache", options.changed, keys))
            remove_entries(folder / "cache")
    rounds.pop(0)  # in which features are compiled, once per process
    report(options, rounds)


def report(options: argparse.Namespace, rounds: list[dict[str, Cost]]) -> None:
    """Print medians by stage."""
    filled = rounds[-1]["filling"].found
    kept = filled.nbytes_written / options.rows
    print(f"{options.shape}: {options.rows:,} rows; {kept:,.0f} bytes per row are kept")
    print(f"filling: {filled.describe()}")
    print(f"with features changed: {rounds[-1]['changed'].found.describe()}")
    for stage in STAGES:
        cpu = statistics.median(each[stage].cpu for each in rounds)
        ratio = statistics.median(each[stage].cpu / each["off"].cpu for each in rounds)
        speed = statistics.median(each["off"].wall / each[stage].wall for each in rounds)
        print(f"{stage:8} {cpu:8,.0f} ns/row of CPU  {ratio:5.2f}   rows/s {speed:5.2f}")


if __name__ == "__main__":
    reborn()
    main()
