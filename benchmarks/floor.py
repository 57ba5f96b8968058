"""The main benchmark: Feedline against what the machine can do, and against other loaders.

    python benchmarks/floor.py                        5 M rows, 5 rounds: tables of medians and spreads, and ratios
    python benchmarks/floor.py --optimized            also on the table that `optimize --for decode` writes of it
    python benchmarks/floor.py --busy 5               with a trainer that works 5 ms per batch
    python benchmarks/floor.py --shape wide           another table and the work that goes with it; or another shape
    python benchmarks/floor.py --tiny                 20,000 rows, one round: a test that all work and agree

Shapes of the generated table, each with a label, and of the work (`shapes`):

    lists     5 M clicks of 13 dense columns (fill_null, clip, log1p), 26 ids (modulo) and 6 histories (first_x)
    short     the columns of lists, 1.4 M clicks in partitions by day, of which a filter keeps 234,000: the rows of two
              days in which an id is not the most frequent one
    wide      400,000 rows of 504 dense columns (fill_null) and 42 lists of 20 ids on average (first_x, modulo), in row
              groups of 20,000: the public model of papers on data storage and ingestion
    strings   5 M rows of 13 integers (fill_null, cast, log1p) and 26 strings of 8 hex digits, 3,000 to 200,000
              different ones (hash_bucket)
    flat      20 M rows of 2 dense columns and 9 ids of 3,000 to 2 million values, without ops, in row groups of a
              million: little but decoding and copying

Each contender reads the table in rounds, so that a slow minute of the machine affects all alike; the order rotates
from round to round. Each run is a fresh process (Feedline: two) with a fresh work_dir, so that all pay for the memory
that they touch first; batches stay valid as long as the trainer keeps them. All processes have the allocator settings
that Feedline gives its feeder (`own_or_users`), which make the other loaders 10 to 15 % faster, too.

Per contender: rows per second after the first batch, between 20 % and 80 % of the steps, and over the whole run
without imports; seconds of that run; seconds to the first batch, without imports; CPU-seconds per million rows, in all
but the trainer's own imports, and from the first batch on; and peak memory of the process tree (sampled). A ratio is
the median of the rounds' ratios, and the best in-process contender is the one with the best median. Exit code 1 if a
contender fails or two of them deliver different rows: sums of all values and of their products with a mark of the row
are compared.

In `strings` the others hash as Polars does, since Feedline's hash would cost them more, so the ids of one cannot be
compared with those of the other by value. Everything else is; ids are compared among those of the same hash; all are
within the buckets; and in the first batches of a contender in the table's order, ids are compared with the strings in
the table: equal strings have equal ids, and different ones hardly ever (`hashed_ids`). A contender that has no other
one with its hash and in the table's order beside it is refused.
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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from agreement import Agreement, require_strings
from contenders import CONTENDERS, IN_PROCESS, Job
from floor_tables import OPTIMIZED, PLAIN, BenchmarkError, cached_files, open_tables
from measure import measure
from rich.console import Console
from rich.table import Table
from shapes import SHAPES

from feedline.resources.allocators import own_or_users

HERE = Path(__file__).resolve().parent
VERSIONS = ("feedline", "torch", "polars", "pyarrow", "numpy", "dask", "grain", "torchdata")


def _thousands(value: float) -> str:
    return f"{value / 1e3:,.0f}"


def _hundredths(value: float) -> str:
    return f"{value:.2f}"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f}"


COLUMNS = {  # measure -> (heading, formatter)
    "after_first_rows_per_s": ("k rows/s after the first batch", _thousands),
    "steady_rows_per_s": ("20-80 %", _thousands),
    "rows_per_s": ("whole run", _thousands),
    "run_s": ("whole run s", _hundredths),
    "first_batch_s": ("first batch s", _hundredths),
    "import_s": ("imports s", _hundredths),
    "cpu_s_per_million_rows": ("CPU-s / M rows", _hundredths),
    "later_cpu_s_per_million_rows": ("after the first batch", _hundredths),
    "peak_pss_bytes": ("peak MB", _megabytes),
}
RATES = tuple(key for key in COLUMNS if key.endswith("rows_per_s"))  # the more the better; the others: the less
Runs = dict[str, list[dict[str, Any]]]  # contender -> results of the rounds
Tables = dict[str, Runs]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="lists", help="of the table and of the work")
    parser.add_argument("--rows", type=int, help="of the table; by default as many as its shape has")
    parser.add_argument(
        "--group-rows", type=int, help="of a row group of --shape wide, strings or flat, for another table"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="some of: %(default)s")
    parser.add_argument("--batch-size", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="or workers; all cores")
    parser.add_argument("--busy", type=float, default=0, metavar="MS", help="the trainer's own work per batch")
    parser.add_argument("--table", metavar="DIR", help="keep the table there (and beside it, the optimized one)")
    parser.add_argument("--optimized", action="store_true", help="also on the table that `feedline optimize` writes")
    parser.add_argument("--order", choices=("clustered", "log"), default="clustered", help="of --shape lists or short")
    parser.add_argument("--json", metavar="FILE", help="write everything measured there")
    parser.add_argument("--tiny", action="store_true", help="few rows, one round: a test, not a measurement")
    options = parser.parse_args(arguments)
    shape = SHAPES[options.shape]
    options.rows = shape.rows if options.rows is None else options.rows
    if options.tiny:
        options.rows, options.batch_size = min(options.rows, shape.tiny_rows), min(options.batch_size, 1024)
        options.rounds = options.threads = 1
    options.contenders = options.contenders.split(",")
    unknown = [name for name in options.contenders if name not in CONTENDERS]
    if unknown:
        parser.error(f"no contender is called {unknown[0]!r}: expected some of {', '.join(CONTENDERS)}")
    group_rows = 1 if options.group_rows is None else options.group_rows
    if min(options.rows, options.rounds, options.batch_size, options.threads, group_rows) < 1 or options.busy < 0:
        parser.error("rows, rounds, batch size, threads and group rows are at least 1, busy is not negative")
    if options.order == "log" and not shape.clicks:
        parser.error(f"--order is for --shape lists and short: the rows of {shape.name} are independent of each other")
    if options.group_rows is not None and shape.clicks:
        parser.error("--group-rows is for --shape wide, strings and flat: the others have row groups of 65,536 rows")
    return options


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


def run(
    name: str,
    files: Sequence[str],
    table: Path,
    options: argparse.Namespace,
    units: int,
    *,
    epochs: int = 1,
    settings: Mapping[str, object] | None = None,
    ranks: int = 1,
) -> dict[str, Any]:
    """Run one contender once, in a fresh process with a fresh work_dir.

    epochs: how often it reads the table; settings: overrides of Feedline's pipeline; ranks: trainers that share the
    rows and the threads. The result has a `sample` of hashed ids of one trainer beside the numbers, or None.
    """
    shape = SHAPES[options.shape]
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        pipeline = Path(scratch) / "pipeline.yaml"
        pipeline.write_text(shape.pipeline(str(table.resolve()), batch_size=options.batch_size, work_dir=scratch))
        ids = Path(scratch) / "ids.npy"
        job = Job(
            files=files if shape.filter is None else shape.filter.files(files),
            pipeline=str(pipeline),
            batch_size=options.batch_size,
            threads=options.threads,
            shape=shape.name,
            sample=str(ids),
            epochs=epochs,
            settings=settings or {},
        )
        (Path(scratch) / "job.json").write_text(json.dumps(asdict(job)))
        program, count = ("trainer.py", []) if ranks == 1 else ("rank_trainers.py", [str(ranks)])
        arguments = [name, f"{scratch}/job.json", repr(time.monotonic()), str(units), *count]
        command = [sys.executable, str(HERE / program), *arguments]
        cost = measure(command, env={**os.environ, **own_or_users(options.threads, os.environ)})
        sample = np.load(ids) if ids.exists() else None
    if cost.code != 0:
        raise BenchmarkError(f"{name} ended with exit code {cost.code}:\n{cost.stderr[-4000:]}")
    result = json.loads(cost.stdout.splitlines()[-1])
    cpu_s = cost.cpu_s - result["import_cpu_s"]
    later_rows = result["rows"] - result["first_batch_rows"]
    return {
        **result,
        "sample": sample,
        "cpu_s": cpu_s,
        "cpu_s_per_million_rows": cpu_s / result["rows"] * 1e6,
        "later_cpu_s_per_million_rows": (
            (cost.cpu_s - result["first_batch_cpu_s"]) / later_rows * 1e6 if later_rows else None
        ),
        "peak_pss_bytes": cost.peak_pss_bytes,
        "left_behind": cost.left_behind,
    }


def calibrate(busy_ms: float, shape: str) -> int:
    """Return the units of work per batch that take a trainer so long when it runs alone."""
    if not busy_ms:
        return 0
    cost = measure([sys.executable, str(HERE / "trainer.py"), "calibrate", str(busy_ms), shape])
    if cost.code != 0:
        raise BenchmarkError(f"the calibration ended with exit code {cost.code}:\n{cost.stderr[-4000:]}")
    return int(cost.stdout)


def rounds(names: Sequence[str], tables: Mapping[str, Path], options: argparse.Namespace, console: Console) -> Tables:
    """Run all contenders on all tables, interleaved.

    Raises BenchmarkError if one dies, delivers other rows than the first, or hashes ids that do not follow strings.
    """
    files = {name: cached_files(table, options.rows) for name, table in tables.items()}
    units = calibrate(options.busy, options.shape)
    agreement = Agreement(SHAPES[options.shape])
    runs: Tables = {table: {name: [] for name in names} for table in tables}
    for number in range(options.rounds):
        turn = number % len(names)
        for name in [*names[turn:], *names[:turn]]:
            for table, folder in tables.items():
                result = run(name, files[table], folder, options, units)
                wrong = agreement.wrong(name, result, result.pop("sample"), files[table])
                if wrong:
                    raise BenchmarkError(f"{name} on the {table} table {wrong}")
                runs[table][name].append(result)
                if result["left_behind"]:
                    console.print(f"{name} left behind, and had to be killed: {result['left_behind']}", markup=False)
                rate = f"{result['rows_per_s'] / 1e3:,.0f} k rows/s"
                console.print(f"round {number + 1}, {table} table: {name} {rate}", highlight=False)
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


def best(runs: Runs, key: str, *roles: str) -> str | None:
    """Return the contender of these roles with the best median of a measure."""
    medians = {}
    for name, several in runs.items():
        found = spread([run[key] for run in several])
        if found is not None and CONTENDERS[name].role in roles:
            medians[name] = found["median"]
    return (max if key in RATES else min)(medians, key=lambda name: medians[name], default=None)


def ratio(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]], key: str) -> dict[str, float] | None:
    """Return median, minimum and maximum of the ratios of a measure, round by round; None if a run was too short."""
    pairs = [(one[key], other[key]) for one, other in zip(ours, theirs, strict=True)]
    return spread([one / other if one is not None and other else None for one, other in pairs])


def ratios(tables: Tables) -> dict[str, dict[str, dict[str, float]]]:
    """Return Feedline's ratios to other contenders, and to itself: description -> measure -> ratio."""
    found: dict[str, dict[str, dict[str, float]]] = {}

    def add(about: str, ours: tuple[str, str], theirs: tuple[str, str | None], keys: Iterable[str]) -> None:
        one, other = (tables.get(table, {}).get(name or "") for table, name in (ours, theirs))
        for key in keys:
            value = ratio(one, other, key) if one and other else None
            if value is not None:
                found.setdefault(about, {})[key] = value

    for table, runs in tables.items():
        off = (table, "feedline-off")
        for key in COLUMNS:
            if key != "import_s":
                add(f"{table}: feedline-off / best in-process", off, (table, best(runs, key, *IN_PROCESS)), [key])
        add(f"{table}: feedline-off / thread-pool", off, (table, "thread-pool"), ["peak_pss_bytes", *RATES])
        add(f"{table}: feedline-off / dataloader", off, (table, "dataloader"), RATES)
        add(f"{table}: feedline / feedline-off", (table, "feedline"), off, [*RATES, "peak_pss_bytes"])
    if PLAIN in tables and OPTIMIZED in tables:
        for key in RATES:
            theirs = (PLAIN, best(tables[PLAIN], key, *IN_PROCESS))
            add("feedline-off, optimized / best in-process, plain", (OPTIMIZED, "feedline-off"), theirs, [key])
    return found


def show(table: str, runs: Runs, title: str, console: Console) -> None:
    """Print a table: a median, with minimum and maximum in brackets."""
    grid = Table(title=f"{table} table: {title}", title_justify="left")
    grid.add_column("contender")
    for heading, _ in COLUMNS.values():
        grid.add_column(heading, justify="right")
    for name, values in summarize(runs).items():
        cells = []
        for key, (_, render) in COLUMNS.items():
            value = values[key]
            several = value is not None and value["min"] != value["max"]
            bounds = f" ({render(value['min'])}-{render(value['max'])})" if value is not None and several else ""
            cells.append("-" if value is None else f"{render(value['median'])}{bounds}")
        grid.add_row(name, *cells)
    console.print(grid)


def show_ratios(found: Mapping[str, Mapping[str, Mapping[str, float]]], console: Console) -> None:
    """Print the ratios, and those of the slowest and fastest round in brackets."""
    for about, measures in found.items():
        for key, value in measures.items():
            bounds = f"{value['min']:.2f}-{value['max']:.2f}"
            console.print(f"{about}, {key} = {value['median']:.2f} ({bounds})", highlight=False, markup=False)


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
        require_strings(names, SHAPES[options.shape])
        with open_tables(options) as tables:
            runs = rounds(names, tables, options, console)
    except BenchmarkError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return 1
    busy = f", trainer busy {options.busy:g} ms a batch" if options.busy else ""
    kind = options.order if options.shape == "lists" else options.shape
    title = f"{options.rows:,} rows, {kind}, {options.threads} threads, {options.rounds} rounds{busy}"
    for table, results in runs.items():
        show(table, results, title, console)
    found = ratios(runs)
    show_ratios(found, console)
    if options.json:
        everything = {
            "options": vars(options),
            "machine": machine(),
            "summary": {table: summarize(results) for table, results in runs.items()},
            "ratios": found,
            "runs": runs,
        }
        Path(options.json).write_text(json.dumps(everything, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
