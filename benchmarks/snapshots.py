"""The cost of many files before the first row is read: listing, snapshot and plan of a table of small files.

    python benchmarks/snapshots.py --files 20000      real files, hard links of a few: listing, cold, warm, plan
    python benchmarks/snapshots.py --synthetic 200000 synthetic footers, no files: growth per file, up to so many
                                                      (1000000: nine minutes, 3 GB of disk; progress is printed)
    python benchmarks/snapshots.py --tiny             64 files and 512 footers: a test that all works

Each measurement runs in a process of its own, forked from one that has only imported the package; memory is the
process's peak, imports included (not that of Dask's workers). `cold` reads every footer (in threads; `cold, 2
processes`: on a Dask cluster of two workers, its start excluded), `warm` takes a snapshot whose files the run before
recorded, `plan` adds `Pipeline.plan`: list, recall, prune, divide into splits. Synthetic footers skip the parsing and
the disk, and creating them is not counted: they show how the rest grows, and where the time goes: packing facts, which
workers do, then joining and writing them in one process, reading them again, planning. 45 columns, 3 row groups a file.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import hashlib
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from feedline.config.cluster_section import ClusterSpec
from feedline.pipeline import Pipeline
from feedline.planning.table_snapshot import listing_of_source
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.parquet.footer import FileFacts, file_facts
from feedline.warehouse.snapshot.footer_tasks import FooterResult, FooterTask, footer_task
from feedline.warehouse.snapshot.packed_facts import blocks_of
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of
from feedline.warehouse.storage.locations import locate

DENSE, IDS, TEXTS = 13, 26, 5  # with the label 45 columns
GROUPS, GROUP_ROWS = 3, 20
BASES = 16  # real files; all others are links to them
FILES_PER_DAY = 100
FIRST_DAY = datetime.date(2020, 1, 1)
_SMALLEST = 512  # synthetic footers: fewer cost less than the overhead
_VARIANTS = 4_096  # of synthetic footers, apart from their digests
_PROGRESS_S = 10.0
LONG_AGO = 1_700_000_000  # older than the clock's resolution: a younger file is read again


def write_table(folder: Path, files: int) -> None:
    """Write a table of `files` small files, `ds=…/part-….parquet`."""
    bases = folder.parent / "bases"
    bases.mkdir(parents=True, exist_ok=True)
    for index in range(BASES):
        pq.write_table(base(index), bases / f"{index}", row_group_size=GROUP_ROWS, compression="zstd")
        os.utime(bases / f"{index}", (LONG_AGO, LONG_AGO))
    for index in range(files):
        day = folder / f"ds={FIRST_DAY + datetime.timedelta(index // FILES_PER_DAY)}"
        if index % FILES_PER_DAY == 0:
            day.mkdir(parents=True)
        source, target = bases / f"{index % BASES}", day / f"part-{index:06d}.parquet"
        try:
            os.link(source, target)
        except OSError:  # a file system without links, or too many of them
            shutil.copy2(source, target)


def base(seed: int) -> pa.Table:
    """Return the rows of one file."""
    rng = np.random.default_rng(seed)
    rows = GROUPS * GROUP_ROWS
    columns: dict[str, Any] = {f"d{i}": rng.random(rows).astype(np.float32) for i in range(DENSE)}
    columns |= {f"i{i}": rng.integers(0, 1 << 40, rows) for i in range(IDS)}
    columns |= {f"t{i}": [f"text {value}" for value in rng.integers(0, 1000, rows)] for i in range(TEXTS)}
    return pa.table({**columns, "label": rng.integers(0, 2, rows).astype(np.int8)})


def write_pipeline(folder: Path, files: int) -> Path:
    """Write a pipeline of all dense and id columns, whose filter prunes by day and statistics, and needs no count."""
    middle = FIRST_DAY + datetime.timedelta(files // FILES_PER_DAY // 2)
    path = folder / "pipeline.yaml"
    lines = [
        "version: 1",
        "name: snapshots",
        f"work_dir: {folder / 'work'}",
        "source:",
        f"  table: {folder / 'table'}",
        f'  where: ds >= "{middle}" and i0 >= 0 and t0 >= ""',
        "features:",
        f"  dense: {{{', '.join(f'd{i}: []' for i in range(DENSE))}}}",
        f"  categorical: {{{', '.join(f'i{i}: []' for i in range(IDS))}}}",
        "  label: {label: []}",
        "batch: {size: 100}",
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


# -- the measurements, each in a process of its own -------------------------------------------------------------------


def measure_listing(folder: Path) -> dict[str, Any]:
    start = time.perf_counter()
    listing = listing_of_source(Pipeline.from_yaml(folder / "pipeline.yaml").spec)
    return {"seconds": time.perf_counter() - start, "files": len(listing.files)}


def measure_cold(folder: Path, workers: int = 0) -> dict[str, Any]:
    shutil.rmtree(folder / "work", ignore_errors=True)
    pipeline = Pipeline.from_yaml(folder / "pipeline.yaml")
    if not workers:
        return _timed(pipeline.snapshot)
    cluster = open_cluster(ClusterRequest(ClusterSpec.model_validate({"workers": workers}), threads=1))
    try:
        cluster.client.wait_for_workers(workers)
        return _timed(lambda: pipeline.snapshot(map=cluster.map))
    finally:
        cluster.close()


def measure_warm(folder: Path) -> dict[str, Any]:
    return _timed(Pipeline.from_yaml(folder / "pipeline.yaml").snapshot)


def measure_plan(folder: Path) -> dict[str, Any]:
    pipeline = Pipeline.from_yaml(folder / "pipeline.yaml")
    start = time.perf_counter()
    plan = pipeline.plan(world_size=8)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "files": len(plan.source.snapshot.files), "id": plan.source.snapshot.id}


def measure_synthetic(folder: Path, files: int) -> dict[str, Any]:
    """Measure cold, warm and plan of a table without files, from a synthetic listing and footers."""
    made = _MadeTable(folder, files)
    pipeline = Pipeline.from_yaml(folder / "pipeline.yaml")
    work_dir = pipeline.spec.work_dir
    start = time.perf_counter()
    listing = made.listing()
    listed = time.perf_counter()
    cold = snapshot_of(listing, work_dir=work_dir, map=made.read)
    between = time.perf_counter()
    cold_peak = _peak_bytes()
    _say(f"{files:,} files: joined and saved {between - made.ended:.1f} s after the last footer")
    warm = snapshot_of(listing, work_dir=work_dir, map=made.read)
    middle = time.perf_counter()
    _say(f"{files:,} files: recalled in {middle - between:.1f} s; the plan …")
    pipeline.plan(world_size=8, snapshot=warm)
    end = time.perf_counter()
    if warm.id != cold.id or len(made.tasks) != -(-files // 256):
        raise RuntimeError("the warm snapshot is another one, or read footers")
    return {
        "made_s": listed - start,
        "cold_s": between - listed - made.seconds,
        "packed_s": made.packed_s,
        "cold_peak": cold_peak,
        "warm_s": middle - between,
        "plan_s": end - middle,
    }


def _say(line: str) -> None:
    """Print progress."""
    print(f"  {line}", flush=True)


class _MadeTable:
    """A listing and footers without files: those of a few real files, with other digests and bounds."""

    def __init__(self, folder: Path, files: int) -> None:
        self._folder, self._files = folder, files
        self.tasks: list[FooterTask] = []
        self.seconds = 0.0  # of making footers
        self.packed_s = self.ended = self._said = 0.0
        self._random = np.random.default_rng(0)
        location = locate(str(folder))
        bases = sorted((folder / "bases").iterdir())
        bases_facts = [file_facts(location.filesystem, str(path), path.stat().st_size, path.name) for path in bases]
        self._facts = [self._with_bounds(bases_facts[index % len(bases_facts)]) for index in range(_VARIANTS)]

    def listing(self) -> Listing:
        number = np.arange(self._files)
        days = [f"{FIRST_DAY + datetime.timedelta(int(day))}" for day in range(self._files // FILES_PER_DAY + 1)]
        paths = [f"ds={days[i // FILES_PER_DAY]}/part-{i:06d}.parquet" for i in number.tolist()]
        day = (np.datetime64(FIRST_DAY) + number // FILES_PER_DAY).astype("datetime64[D]")
        times = pa.array(np.full(self._files, LONG_AGO * 10**9))
        files = pa.table({"path": paths, "bytes": pa.array(number + 10_000), "mtime_ns": times})
        return Listing(uri=str(self._folder / "table"), files=files, partition={"ds": pa.array(day)}, ignored=0)

    def read(self, function: Callable[[Any], Any], tasks: list[Any]) -> Iterator[FooterResult]:
        if function is not footer_task:
            raise RuntimeError("only footers are made")
        for task in tasks:
            self.tasks.append(task)
            start = time.perf_counter()
            facts = [(place, self._made(place)) for place, _, _ in task.files]
            made = time.perf_counter()
            blocks = tuple(blocks_of(facts))
            self.ended = time.perf_counter()
            self.seconds += made - start
            self.packed_s += self.ended - made
            if self.ended - self._said > _PROGRESS_S:
                self._said, done = self.ended, len(self.tasks) * 256
                _say(f"{self._files:,} files: {done:,} packed, {done / self.packed_s:,.0f} files/s")
            yield FooterResult(blocks=blocks, corrupt=())

    def _made(self, place: int) -> FileFacts:
        """Return the facts of a file, with a digest of its own."""
        digest = hashlib.sha256(place.to_bytes(8, "little")).digest()
        return dataclasses.replace(self._facts[place * 7919 % _VARIANTS], digest=digest)

    def _with_bounds(self, known: FileFacts) -> FileFacts:
        """Return a real file's facts with new bounds of the id columns."""
        draws = self._random.integers(0, 1 << 40, (2, IDS * GROUPS))
        low, high = (_as_bytes(bounds) for bounds in (draws.min(0), draws.max(0)))
        columns = [
            dataclasses.replace(
                column, low=low[i * GROUPS : (i + 1) * GROUPS], high=high[i * GROUPS : (i + 1) * GROUPS]
            )
            for i, column in enumerate(known.columns[DENSE : DENSE + IDS])
        ]
        columns = [*known.columns[:DENSE], *columns, *known.columns[DENSE + IDS :]]
        return dataclasses.replace(known, columns=columns)


def snapshot_of_links(pipeline: Pipeline) -> Snapshot:
    """Take the snapshot of a table that `write_table` wrote, reading the footer of each base once."""
    listing = listing_of_source(pipeline.spec)
    location = locate(listing.uri)
    bases: dict[int, FileFacts] = {}

    def read(function: Callable[[Any], Any], tasks: list[Any]) -> Iterator[FooterResult]:
        if function is not footer_task:
            raise RuntimeError("only footers are known")
        for task in tasks:
            facts = []
            for place, path, nbytes in task.files:
                base = place % BASES
                if base not in bases:
                    bases[base] = file_facts(location.filesystem, f"{location.path}/{path}", nbytes, path)
                facts.append((place, bases[base]))
            yield FooterResult(blocks=tuple(blocks_of(facts)), corrupt=())

    return snapshot_of(listing, work_dir=pipeline.spec.work_dir, map=read)


def _as_bytes(bounds: np.ndarray[Any, np.dtype[np.int64]]) -> list[bytes]:
    """Encode numbers as footers store them."""
    content = bounds.astype("<i8").tobytes()
    return [content[i : i + 8] for i in range(0, len(content), 8)]


def _timed(take: Callable[[], Any]) -> dict[str, Any]:
    start = time.perf_counter()
    snapshot = take()
    return {"seconds": time.perf_counter() - start, "files": len(snapshot.files), "id": snapshot.id}


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _cpu_s() -> float:
    """Return the CPU seconds of this process and its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "listing": measure_listing,
    "cold": measure_cold,
    "cold, 2 processes": lambda folder: measure_cold(folder, workers=2),
    "warm": measure_warm,
    "plan": measure_plan,
}


# -- the benchmark's own process --------------------------------------------------------------------------------------


def run(name: str, folder: Path, files: int) -> dict[str, Any]:
    """Run one measurement in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["feedline.pipeline", "feedline.service.cluster.cluster", "rich.table"])
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(measure, name, folder, files).result()


def measure(name: str, folder: Path, files: int) -> dict[str, Any]:
    """Run one measurement; adds its CPU time and this process's peak memory."""
    before = _cpu_s()
    found = measure_synthetic(folder, files) if name == "synthetic" else MEASURES[name](folder)
    return {**found, "cpu_s": _cpu_s() - before, "peak": _peak_bytes()}


def real(folder: Path, files: int, console: Console) -> None:
    start = time.perf_counter()
    write_table(folder / "table", files)
    write_pipeline(folder, files)
    console.print(f"{files:,} files of {DENSE + IDS + TEXTS + 1} columns x {GROUPS} row groups")
    console.print(f"written in {time.perf_counter() - start:.1f} s")
    table = Table("", "s", "CPU s", "ms per file", "files/s", "peak MB")
    ids = set()
    for name in MEASURES:
        found = run(name, folder, files)
        if found["files"] != files:
            raise SystemExit(f"{name} found {found['files']} files, expected {files}")
        ids.add(found.get("id"))
        seconds = found["seconds"]
        per_file = f"{1e3 * seconds / files:.3f}"
        rate = f"{files / seconds:,.0f}"
        table.add_row(name, f"{seconds:.2f}", f"{found['cpu_s']:.2f}", per_file, rate, f"{found['peak'] / 1e6:,.0f}")
    if len(ids - {None}) != 1:
        raise SystemExit("the snapshots differ")
    console.print(table)


def synthetic(folder: Path, largest: int, console: Console) -> None:
    """Measure sizes up to the largest, each four times the one before."""
    table = Table(
        "made footers", "packed files/s", "cold us/file", "of it joining", "warm us/file", "plan us/file",
        "warm + plan s", "cold MB", "peak MB",
    )  # fmt: skip
    for files in sorted(size for size in (largest >> shift for shift in (0, 2, 4)) if size >= _SMALLEST):
        place = folder / f"made-{files}"
        write_table(place / "table", 0)
        write_pipeline(place, files)
        found = run("synthetic", place, files)
        table.add_row(
            f"{files:,}",
            f"{files / found['packed_s']:,.0f}",
            f"{1e6 * found['cold_s'] / files:.1f}",
            f"{1e6 * (found['cold_s'] - found['packed_s']) / files:.1f}",
            *(f"{1e6 * found[key] / files:.1f}" for key in ("warm_s", "plan_s")),
            f"{found['warm_s'] + found['plan_s']:.2f}",
            f"{found['cold_peak'] / 1e6:,.0f}",
            f"{found['peak'] / 1e6:,.0f}",
        )
        shutil.rmtree(place)
    console.print(table)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=0, help="real files")
    parser.add_argument("--synthetic", type=int, default=0, help="made footers, at most")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--folder", type=Path, help="where the table is made (default: a temporary folder)")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.files, options.synthetic = 64, 512
    elif not options.files and not options.synthetic:
        options.files, options.synthetic = 20_000, 200_000
    return options


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    console = Console()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.files:
            real(Path(folder), options.files, console)
        if options.synthetic:
            synthetic(Path(folder), options.synthetic, console)


if __name__ == "__main__":
    main(sys.argv[1:])
