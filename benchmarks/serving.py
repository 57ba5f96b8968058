"""The latency of `Pipeline.transform`, for 1, 10 and 1,000 rows, with pipelines of three sizes.

    python benchmarks/serving.py           21, 45 and 600 features, 30 rounds, on one core
    python benchmarks/serving.py --tiny    a few features, one round: a test that it runs

One process, pinned to one core, Polars with one thread. Each round sends one request of every size to every pipeline,
so that a slow moment affects all alike; the output is the fastest and the median CPU time, and a feature's share. The
first request of a process compiles the features. `as doubles` sends the dense columns as float64, which are first
rounded to training's float32.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from feedline.config import load_spec
from feedline.resources.allocators import allocator_environment
from feedline.serving.encoder import Serving

ROWS = (1, 10, 1000)
SIZES = {  # dense, lists (and ids), lists that are crossed
    "21 features": (13, 3, 2),
    "45 features": (26, 6, 7),
    "600 features": (504, 42, 12),
}
LENGTH = 20


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", metavar="FILE", help="write everything measured there")
    parser.add_argument("--tiny", action="store_true", help="few features, one round: a test, not a measurement")
    return parser.parse_args(arguments)


def features_of(dense: int, lists: int, crossed: int) -> dict[str, Any]:
    """Return common features: filled, clipped, log-scaled numbers, hashed ids, truncated and hashed lists, crosses."""
    short = {"ops": [{"first_x": 5}]}
    return {
        "dense": {f"d{i}": [{"fill_null": 0}, {"clip": {"min": 0, "max": 100}}, "log1p"] for i in range(dense)},
        "categorical": {f"c{i}": [{"hash_bucket": 1_000_000}] for i in range(lists)},
        "sparse": {
            **{f"l{i}": [{"first_x": LENGTH}, {"hash_bucket": 100_000}] for i in range(lists)},
            **{
                f"x{i}": {
                    "op": {"cartesian": 1000},
                    "inputs": [{"column": f"l{i % lists}", **short}, {"column": f"l{(i + 1) % lists}", **short}],
                }
                for i in range(crossed)
            },
        },
    }


def rows_of(count: int, dense: int, lists: int) -> pa.Table:
    """Return the rows of a request."""
    random = np.random.default_rng(0)
    columns: dict[str, pa.Array] = {f"d{i}": pa.array(random.random(count, np.float32)) for i in range(dense)}
    columns |= {f"c{i}": pa.array(random.integers(0, 10**9, count)) for i in range(lists)}
    for i in range(lists):
        lengths = random.integers(0, 2 * LENGTH + 1, count)
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        values = random.integers(0, 10**6, int(lengths.sum()))
        columns[f"l{i}"] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
    return pa.table(columns)


def as_doubles(rows: pa.Table) -> pa.Table:
    """Return the rows with dense values as float64."""
    fields = [field.with_type(pa.float64()) if field.type == pa.float32() else field for field in rows.schema]
    return rows.cast(pa.schema(fields))


def measure(sizes: dict[str, tuple[int, int, int]], rounds: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return seconds of the first request by pipeline, and CPU seconds of all others by pipeline and request."""
    first: dict[str, float] = {}
    calls: dict[str, tuple[Serving, pa.Table]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (dense, lists, crossed) in sizes.items():
            path = Path(folder) / f"{dense}.yaml"
            features = features_of(dense, lists, crossed)
            document = {"version": 1, "name": "serving", "source": {"table": "none"}, "features": features}
            path.write_text(json.dumps({**document, "batch": {"size": 1}}))
            requests = {f"{count:,} rows": rows_of(count, dense, lists) for count in ROWS}
            one = requests[f"{ROWS[0]:,} rows"]
            serving = Serving(load_spec(path, {}), types=one.schema)
            began = time.perf_counter()
            serving.transform(one)
            first[name] = time.perf_counter() - began
            requests[f"{ROWS[0]:,} rows as doubles"] = as_doubles(one)
            calls |= {f"{name}, {request}": (serving, rows) for request, rows in requests.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for serving, rows in calls.values():
        serving.transform(rows)
    for _ in range(rounds):
        for name, (serving, rows) in calls.items():
            began = time.process_time()
            serving.transform(rows)
            seconds[name].append(time.process_time() - began)
    return first, seconds


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    options = parse(arguments)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    sizes = {"5 features": (2, 1, 1)} if options.tiny else SIZES
    first, seconds = measure(sizes, 1 if options.tiny else options.rounds)
    table = Table("pipeline, request", "fastest ms", "median ms", "us per feature")
    for name, found in seconds.items():
        dense, lists, crossed = sizes[name.partition(",")[0]]
        share = min(found) / (dense + 2 * lists + crossed)
        table.add_row(name, f"{min(found) * 1e3:.2f}", f"{statistics.median(found) * 1e3:.2f}", f"{share * 1e6:.0f}")
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(table)
    for name, taken in first.items():
        console.print(f"{name}: the first request of a process {taken * 1e3:.0f} ms", highlight=False)
    if options.json:
        Path(options.json).write_text(json.dumps({"first_s": first, "seconds": seconds}, indent=1))
    return 0


def reborn() -> None:
    """Start again with the environment that libraries read when they are loaded."""
    wanted = {**allocator_environment(1), "POLARS_MAX_THREADS": "1"}
    if not all(os.environ.get(name, "").endswith(value) for name, value in wanted.items()):  # Polars writes before one
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})


if __name__ == "__main__":
    reborn()
    sys.exit(main(sys.argv[1:]))
