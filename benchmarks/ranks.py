"""Several ranks on one host: the speed of two beside that of one, and the memory of a feeder with eight beside one.

    python benchmarks/ranks.py                   2 M rows, 3 rounds; a table of 200,000 files
    python benchmarks/ranks.py --tiny            3,000 rows, 64 files: a test that all works

Speed: rows per second through the rings of one rank, and of two ranks that share a feeder (`feedline run --sink null`),
in turn. Memory: the private memory (RssAnon) of the feeder of a table of many small files, after each rank has had a
few batches; rings are shared memory and do not count, blocks are small.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
from snapshots import snapshot_of_links, write_pipeline, write_table

from feedline.config import load_spec
from feedline.loader.launcher import meeting_name
from feedline.loader.ring.client import FeederClient
from feedline.loader.ring.launch import FeederAccess, FeederTask, HostLaunch, feeder_command
from feedline.loader.wire.facts import Hello
from feedline.pipeline import Pipeline
from feedline.resources.cgroups import available_cores
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import clicks_pipeline, generate_clicks

_BATCHES = 3  # per rank, before memory is read
_MIB = 2**20


def write_clicks(folder: Path, rows: int) -> Path:
    """Write a click table and its pipeline, in the table's order."""
    recipe = ClickRecipe(rows=rows, days=2, row_group_rows=min(rows, 65_536), part_rows=min(rows, 262_144))
    generate_clicks(str(folder / "clicks"), recipe)
    path = folder / "clicks.yaml"
    path.write_text(clicks_pipeline("clicks"))
    return path


def rows_per_s(path: Path, ranks: int, batch_size: int) -> float:
    """Rows per second of all ranks together."""
    words = ["run", str(path), "--sink", "null", "--json", "--world-size", str(ranks)]
    settings = ["--set", f"batch.size={batch_size}", "--set", "cluster.dashboard=false"]
    command = [sys.executable, "-m", "feedline", *words, *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["rows_per_s"])


def feeder_bytes(path: Path, ranks: int) -> int:
    """Private memory of the feeder of so many ranks, each of which has had a few batches."""
    spec = load_spec(path)
    command = feeder_command(spec, FeederTask(ranks=(), world_size=ranks, local_ranks=ranks, cores=available_cores()))
    name, round = meeting_name(f"benchmark-{os.getpid()}", ranks, {})
    access = FeederAccess(command=command, host=HostLaunch(name=name, round=round, command=command))
    feeds = [FeederClient(access) for _ in range(ranks)]
    try:
        for rank, feed in enumerate(feeds):
            answer = feed.open(Hello(rank=rank, world_size=ranks, lanes=spec.lanes))
            feed.begin(answer, 0, 0)
        for feed in feeds:
            for _ in range(_BATCHES):
                feed.next()
        feeder = psutil.Process(answer.feeder.feeder)
        status = Path(f"/proc/{feeder.pid}/status").read_text()
        memory = int(status.partition("RssAnon:")[2].split()[0]) * 1024
    finally:
        for feed in feeds:
            feed.close()
    feeder.wait(60)  # it writes to the folder until it ends
    return memory


def measure_speed(folder: Path, *, rows: int, rounds: int, batch_size: int) -> None:
    """Print the speed of one rank and of two, in turn, and the median of the ratios."""
    path = write_clicks(folder, rows)
    rows_per_s(path, 1, batch_size)  # the snapshot is there from now on
    ratios = []
    for _ in range(rounds):
        alone, together = rows_per_s(path, 1, batch_size), rows_per_s(path, 2, batch_size)
        ratios.append(together / alone)
        print(f"one rank {alone:,.0f} rows/s, two ranks {together:,.0f} rows/s: {ratios[-1]:.2f}", flush=True)
    print(f"two ranks, of one: {statistics.median(ratios):.2f} (median of {rounds})")


def measure_memory(folder: Path, *, files: int) -> None:
    """Print the memory of a feeder with one rank and with eight."""
    write_table(folder / "table", files)
    path = write_pipeline(folder, files)
    lines = [line for line in path.read_text().splitlines() if "where:" not in line]
    batch = max(1, min(100, files // 8))
    lines[-1:] = [f"batch: {{size: {batch}}}", "lanes: 8", "shuffle: {window_rows: 100}", "cluster: {dashboard: false}"]
    path.write_text("\n".join(lines) + "\n")
    snapshot_of_links(Pipeline.from_yaml(path))  # which the feeders find
    sizes = {}
    for ranks in (1, 8):
        sizes[ranks] = feeder_bytes(path, ranks)
        print(f"{ranks} ranks, {files:,} files: {sizes[ranks] / _MIB:,.0f} MiB", flush=True)
    print(f"memory of a feeder with eight ranks, of one: {sizes[8] / sizes[1]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--only", choices=["speed", "memory"])
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if options.tiny:
        options.rows, options.rounds, options.files = 3_000, 1, 64
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        if options.only != "memory":
            batch_size = min(8192, options.rows // 8)
            measure_speed(Path(folder), rows=options.rows, rounds=options.rounds, batch_size=batch_size)
        if options.only != "speed":
            measure_memory(Path(folder), files=options.files)


if __name__ == "__main__":
    main()
