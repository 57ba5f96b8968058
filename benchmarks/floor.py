"""The main benchmark: Feedline against what the machine can do, and against other loaders.

    python benchmarks/floor.py                        5 M rows, 3 rounds: a table of medians and spreads
    python benchmarks/floor.py --busy 5               with a trainer that works 5 ms per batch
    python benchmarks/floor.py --tiny                 20,000 rows, one round: a test that all work and agree

One generated click table (13 dense, 26 ids, 6 histories), read by each contender in a fresh process, in rounds, so
that a slow minute of the machine affects all alike; the order rotates from round to round. Per contender: rows per
second over the whole run without imports, and between 20 % and 80 % of the steps; seconds to the first batch, without
imports; CPU-seconds per million rows, without the trainer's own imports; and peak memory of the process tree (sampled).
Exit code 1 if a contender fails or two of them deliver different rows.

All processes run with the allocator settings that Feedline gives its feeder (`ALLOCATOR_ENVIRONMENT`), which make the
other loaders 10 to 15 % faster, too.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from checksums import differences
from contenders import CONTENDERS, Job
from measure import measure
from rich.console import Console
from rich.table import Table

from feedline.resources import ALLOCATOR_ENVIRONMENT
from feedline.warehouse.synthetic.clicks import ClickRecipe
from feedline.warehouse.synthetic.generate import clicks_pipeline, generate_clicks

HERE = Path(__file__).resolve().parent
VERSIONS = ("feedline", "torch", "polars", "pyarrow", "numpy", "dask", "grain", "torchdata")
COLUMNS = {  # measure -> (heading, formatter)
    "rows_per_s": ("k rows/s", lambda value: f"{value / 1e3:,.0f}"),
    "steady_rows_per_s": ("k rows/s, 20-80 %", lambda value: f"{value / 1e3:,.0f}"),
    "first_batch_s": ("first batch s", lambda value: f"{value:.2f}"),
    "import_s": ("imports s", lambda value: f"{value:.2f}"),
    "cpu_s_per_million_rows": ("CPU-s / M rows", lambda value: f"{value:.2f}"),
    "peak_pss_bytes": ("peak MB", lambda value: f"{value / 1e6:,.0f}"),
}
Runs = dict[str, list[dict[str, Any]]]


class BenchmarkError(Exception):
    """The benchmark cannot continue, or its contenders deliver different rows."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="some of: %(default)s")
    parser.add_argument("--batch-size", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="or workers; all cores")
    parser.add_argument("--busy", type=float, default=0, metavar="MS", help="the trainer's own work per batch")
    parser.add_argument("--table", metavar="DIR", help="keep the table there, and use it if it is there")
    parser.add_argument("--order", choices=("clustered", "log"), default="clustered")
    parser.add_argument("--json", metavar="FILE", help="write everything measured there")
    parser.add_argument("--tiny", action="store_true", help="few rows, one round: a test, not a measurement")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.rounds, options.batch_size = min(options.rows, 20_000), 1, min(options.batch_size, 1024)
        options.threads = 1
    options.contenders = options.contenders.split(",")
    unknown = [name for name in options.contenders if name not in CONTENDERS]
    if unknown:
        parser.error(f"no contender is called {unknown[0]!r}: expected some of {', '.join(CONTENDERS)}")
    if min(options.rows, options.rounds, options.batch_size, options.threads) < 1 or options.busy < 0:
        parser.error("rows, rounds, batch size and threads are at least 1, busy is not negative")
    return options


@contextmanager
def click_table(options: argparse.Namespace) -> Iterator[Path]:
    """Yield the table's folder: the given one, or a temporary one."""
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        folder = Path(options.table or scratch) / ("" if options.table else "table")
        if not folder.exists() or not any(folder.iterdir()):
            days = 2 if options.tiny else 10
            shape: dict[str, int] = {"row_group_rows": 2048, "part_rows": 6000} if options.tiny else {}
            clustered = options.order == "clustered"
            generate_clicks(
                str(folder), ClickRecipe(rows=options.rows, days=days, strings=0, clustered=clustered, **shape)
            )
        yield folder


def available(names: Sequence[str], console: Console) -> list[str]:
    """Return the contenders whose packages are installed; report the others."""
    here = []
    for name in names:
        missing = [package for package in CONTENDERS[name].needs if importlib.util.find_spec(package) is None]
        if missing:
            console.print(f"{name} is skipped: {', '.join(missing)} is not installed (extra: bench)")
        else:
            here.append(name)
    if not here:
        raise BenchmarkError("no contender remains")
    return here


def run(name: str, files: Sequence[str], table: Path, options: argparse.Namespace, units: int) -> dict[str, Any]:
    """Run one contender once, in a fresh process with a fresh work_dir."""
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        pipeline = Path(scratch) / "pipeline.yaml"
        text = clicks_pipeline(str(table.resolve()), batch_size=options.batch_size, tail="partial", work_dir=scratch)
        pipeline.write_text(text)
        job = Job(files=files, pipeline=str(pipeline), batch_size=options.batch_size, threads=options.threads)
        (Path(scratch) / "job.json").write_text(json.dumps(asdict(job)))
        command = [
            sys.executable,
            str(HERE / "trainer.py"),
            name,
            f"{scratch}/job.json",
            repr(time.monotonic()),
            str(units),
        ]
        cost = measure(command, env=ALLOCATOR_ENVIRONMENT | os.environ)
    if cost.code != 0:
        raise BenchmarkError(f"{name} ended with exit code {cost.code}:\n{cost.stderr[-4000:]}")
    result = json.loads(cost.stdout.splitlines()[-1])
    cpu_s = cost.cpu_s - result["import_cpu_s"]
    return {
        **result,
        "cpu_s": cpu_s,
        "cpu_s_per_million_rows": cpu_s / result["rows"] * 1e6,
        "peak_pss_bytes": cost.peak_pss_bytes,
        "left_behind": cost.left_behind,
    }


def calibrate(busy_ms: float) -> int:
    """Return the units of work per batch that take a trainer so long when it runs alone."""
    if not busy_ms:
        return 0
    cost = measure([sys.executable, str(HERE / "trainer.py"), "calibrate", str(busy_ms)])
    if cost.code != 0:
        raise BenchmarkError(f"the calibration ended with exit code {cost.code}:\n{cost.stderr[-4000:]}")
    return int(cost.stdout)


def rounds(names: Sequence[str], table: Path, options: argparse.Namespace, console: Console) -> Runs:
    """Run all contenders, interleaved. Raises BenchmarkError if one dies or delivers other rows than the first."""
    files = sorted(str(file) for file in table.resolve().rglob("*.parquet"))
    rows = sum(pq.read_metadata(file).num_rows for file in files)
    if rows != options.rows:
        raise BenchmarkError(
            f"{table} holds {rows} rows, expected {options.rows}: say --rows {rows}, or another --table"
        )
    for file in files:
        Path(file).read_bytes()  # all find the table in the page cache
    units = calibrate(options.busy)
    runs: Runs = {name: [] for name in names}
    expected: dict[str, Any] = {}
    for number in range(options.rounds):
        turn = number % len(names)
        for name in [*names[turn:], *names[:turn]]:
            result = run(name, files, table, options, units)
            runs[name].append(result)
            expected = expected or result["checksums"]
            wrong = differences(expected, result["checksums"])
            if wrong:
                raise BenchmarkError(f"{name} disagrees with {next(n for n in runs if runs[n])} in {'; '.join(wrong)}")
            if result["left_behind"]:
                console.print(f"{name} left behind, and had to be killed: {result['left_behind']}", markup=False)
            console.print(f"round {number + 1}: {name} {result['rows_per_s'] / 1e3:,.0f} k rows/s", highlight=False)
    return runs


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Return median, minimum and maximum; None if a run was too short."""
    valid_values = [value for value in values if value is not None]
    if len(valid_values) < len(values) or not valid_values:
        return None
    return {"median": statistics.median(valid_values), "min": min(valid_values), "max": max(valid_values)}


def summarize(runs: Runs) -> dict[str, dict[str, dict[str, float] | None]]:
    """Return median and spread over the rounds, per contender and measure."""
    return {name: {key: spread([run[key] for run in several]) for key in COLUMNS} for name, several in runs.items()}


def ratios(summary: Mapping[str, Mapping[str, dict[str, float] | None]]) -> dict[str, dict[str, float]]:
    """Return ratios of Feedline's median speed to the floors' and other loaders', whole run and steady part."""

    def best(role: str, key: str) -> float | None:
        found = [s[key]["median"] for name, s in summary.items() if CONTENDERS[name].role == role and s[key]]
        return max(found, default=None)

    result: dict[str, dict[str, float]] = {}
    for key in ("rows_per_s", "steady_rows_per_s"):
        feedline = {name: values[key]["median"] for name, values in summary.items() if values[key]}
        pairs = {
            "feedline-off / floor": (feedline.get("feedline-off"), best("floor", key)),
            "feedline-off / best in-process": (feedline.get("feedline-off"), best("in-process", key)),
            "feedline-off / dataloader": (feedline.get("feedline-off"), best("processes", key)),
            "feedline / feedline-off": (feedline.get("feedline"), feedline.get("feedline-off")),
        }
        result[key] = {name: top / below for name, (top, below) in pairs.items() if top and below}
    return result


def show(summary: Mapping[str, Mapping[str, dict[str, float] | None]], title: str, console: Console) -> None:
    """Print the table: a median, with minimum and maximum in brackets."""
    table = Table(title=title, title_justify="left")
    table.add_column("contender")
    for heading, _ in COLUMNS.values():
        table.add_column(heading, justify="right")
    for name, values in summary.items():
        cells = []
        for key, (_, render) in COLUMNS.items():
            value = values[key]
            several = value is not None and value["min"] != value["max"]
            bounds = f" ({render(value['min'])}-{render(value['max'])})" if several else ""
            cells.append("-" if value is None else f"{render(value['median'])}{bounds}")
        table.add_row(name, *cells)
    console.print(table)
    for key, pairs in ratios(summary).items():
        for name, ratio in pairs.items():
            console.print(f"{COLUMNS[key][0]}: {name} = {ratio:.2f}", highlight=False)


def machine() -> dict[str, Any]:
    """Describe the machine and the versions."""
    versions = {}
    for package in VERSIONS:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": versions,
    }


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        names = available(options.contenders, console)
        with click_table(options) as table:
            runs = rounds(names, table, options, console)
    except BenchmarkError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return 1
    summary = summarize(runs)
    busy = f", trainer busy {options.busy:g} ms a batch" if options.busy else ""
    title = f"{options.rows:,} rows, {options.order}, {options.threads} threads, {options.rounds} rounds{busy}"
    show(summary, title, console)
    if options.json:
        everything = {
            "options": vars(options),
            "machine": machine(),
            "summary": summary,
            "ratios": ratios(summary),
            "runs": runs,
        }
        Path(options.json).write_text(json.dumps(everything, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
