"""The cost of fitting, compared with a bare Polars script that computes the same from the same files.

    python benchmarks/fitting.py                     1 M rows, 3 rounds
    python benchmarks/fitting.py --tiny              20,000 rows, one round: does it all still work?

A generated click table; 13 means and standard deviations, 26 vocabularies of ids, 6 of ids in lists. The script reads
the needed columns of all files at once, groups by each, sorts by frequency and value, and takes float means, so it
needs memory for the whole table. Both run in this process, alternating, and their results are compared. Wall and CPU
seconds are the minimum over all rounds; `--threads` are the threads that fit, Polars' own pool is set by
POLARS_MAX_THREADS.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from feedline import Pipeline
from feedline.artifacts.store import load_artifact, load_manifest
from feedline.fitting.fit_report import FitReport
from feedline.resources.cgroups import available_cores
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import generate_clicks

DENSE = [f"dense_{number}" for number in range(13)]
IDS = [f"id_{number}" for number in range(26)]
HISTORIES = [f"hist_{number}" for number in range(6)]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--table", help="a click table that is there already")
    parser.add_argument("--json", metavar="FILE", help="write everything measured there")
    parser.add_argument("--tiny", action="store_true", help="few rows, one round: a test, not a measurement")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.rounds = 20_000, 1
    return options


def pipeline(folder: Path, table: str, threads: int) -> Pipeline:
    """Return the pipeline to fit."""
    spec = {
        "version": 1,
        "name": "fitting",
        "source": {"table": table},
        "features": {
            "dense": {name: ["standardize"] for name in DENSE},
            "categorical": {name: ["vocabulary"] for name in IDS},
            "sparse": {name: ["vocabulary"] for name in HISTORIES},
        },
        "batch": {"size": 8192},
        "cluster": {"threads": threads},
    }
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps(spec))
    return Pipeline.from_yaml(path)


def bare(files: Sequence[str]) -> dict[str, Any]:
    """Compute the same by hand: per column (mean, standard deviation), or the frame of values and counts."""
    frame = pl.read_parquet(files, columns=[*DENSE, *IDS, *HISTORIES], hive_partitioning=False)
    found: dict[str, Any] = {}
    for name in DENSE:
        values = frame[name].cast(pl.Float64)
        found[name] = values.mean(), values.std(ddof=0)
    for name in [*IDS, *HISTORIES]:
        values = frame[name].alias("value")
        if name in HISTORIES:
            values = values.drop_nulls().explode(empty_as_null=False)
        counts = values.drop_nulls().to_frame().group_by("value").agg(pl.len().alias("count"))
        found[name] = counts.sort("count", "value", descending=[True, False])
    return found


def refuse_differences(report: FitReport, expected: dict[str, Any]) -> None:
    """Raise AssertionError if the results differ."""
    assert report.manifest is not None
    for fit in load_manifest(report.folder, report.manifest).fits.values():
        [name] = fit.features
        artifact, other = load_artifact(report.folder, fit), expected[name]
        if isinstance(other, tuple):
            for got, bare_value in zip((artifact.facts["mean"], artifact.facts["std"]), other, strict=True):
                limit = 1e-9 * max(abs(bare_value), 1e-9)
                assert abs(got - bare_value) <= limit, f"{name}: got {got}, expected {bare_value}"
        else:
            found = pl.from_arrow(artifact.table)
            assert isinstance(found, pl.DataFrame)
            assert found.equals(other.cast(found.schema)), f"{name}: other values or counts"


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return wall seconds, CPU seconds, and the result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    with tempfile.TemporaryDirectory() as folder:
        table = options.table or str(Path(folder, "clicks"))
        if options.table is None:
            generate_clicks(table, ClickRecipe(rows=options.rows, days=4))
        files = sorted(str(path) for path in Path(table).rglob("*.parquet"))
        fitting = pipeline(Path(folder), table, options.threads)
        snapshot = fitting.snapshot()
        least: dict[str, dict[str, float]] = {}
        for _ in range(options.rounds):
            expected: dict[str, Any] = {}
            for name in ("bare", "fit"):
                work = (lambda: bare(files)) if name == "bare" else (lambda: fitting.fit(snapshot=snapshot))
                wall, cpu, result = timed(work)
                if name == "bare":
                    expected = result
                else:
                    refuse_differences(result, expected)
                best = least.setdefault(name, {"wall_s": wall, "cpu_s": cpu})
                least[name] = {"wall_s": min(best["wall_s"], wall), "cpu_s": min(best["cpu_s"], cpu)}
    ratio = {key: least["fit"][key] / least["bare"][key] for key in ("wall_s", "cpu_s")}
    facts = {"rows": snapshot.rows, "threads": options.threads, **least, "ratio": ratio}
    for name in ("bare", "fit"):
        print(f"{name:<5} {least[name]['wall_s']:7.2f} s   {least[name]['cpu_s']:7.2f} s CPU")
    print(f"fit takes {ratio['wall_s']:.2f}x the time of the bare script, {ratio['cpu_s']:.2f}x its CPU time")
    if options.json:
        Path(options.json).write_text(json.dumps(facts, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
