"""The gains and costs of `feedline optimize`: bytes, throughput, memory, and delivered rows per second.

    python benchmarks/optimize.py                     2 M rows, 3 rounds
    python benchmarks/optimize.py --tiny              20,000 rows, one round: a test that all works

Three measurements on a generated click table (mean 16 rows per session; 6 histories, half of 13 dense and of 26 ids
user-side, which stay with p = 0.95; written with zstd, dictionaries, nullable):

bytes       the table in log order against the one clustered by session, both with equally long row groups and each in
            its best encodings under zstd (`--for size`, measured on each side's own sample).
throughput  `optimize --cluster-by session_id --sort-by ts` against a bare loop over the same partitions in as many
            threads: read_table, a stable sort, take, write_table in the default encodings. For `optimize`: the time
            spent writing, and the whole command, which also chooses encodings (a fixed time) and reports.
decode      `feedline run --sink null` of the floor benchmark's pipeline on a table in session order as it was written,
            and after `optimize --for decode`, row order kept. The rows are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from measure import Measured, measure

from feedline import Table
from feedline.resources.cgroups import available_cores
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import clicks_pipeline, generate_clicks

_DELIVERED_ROWS = 3_000_000
_SORT = [("hash", "ascending"), ("session_id", "ascending"), ("ts", "ascending")]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--days", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--row-group-rows", type=int, default=65_536)
    parser.add_argument("--questions", default="bytes,throughput,decode", help="some of: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="write everything measured there")
    parser.add_argument("--tiny", action="store_true", help="few rows, one round: a test, not a measurement")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.days, options.rounds, options.row_group_rows = 20_000, 2, 1, 4_096
    return options


def clicks(folder: Path, options: argparse.Namespace, order: str) -> Path:
    """Generate a table."""
    recipe = ClickRecipe(
        rows=options.rows, days=options.days, sessions_mean=16, strings=0, clustered=order == "session",
        row_group_rows=options.row_group_rows,
    )  # fmt: skip
    generate_clicks(str(folder), recipe, threads=options.threads)
    return folder


def command(*arguments: object) -> Measured:
    """Run `feedline` and measure all processes that it starts."""
    done = measure([sys.executable, "-m", "feedline", *(str(argument) for argument in arguments)])
    if done.code != 0:
        raise SystemExit(f"feedline {arguments[0]} ended with {done.code}:\n{done.stderr[-4000:]}")
    return done


def optimized(source: Path, target: Path, options: argparse.Namespace, *arguments: object) -> dict[str, Any]:
    """Rewrite a table; return the command's report, its cost and its seconds."""
    began = time.perf_counter()
    fixed = ("--threads", options.threads, "--row-group-rows", options.row_group_rows, "--json")
    done = command("optimize", source, target, *fixed, *arguments)
    seconds = time.perf_counter() - began
    report = json.loads(done.stdout)
    return {**report, "seconds": seconds, "cpu_s": done.cpu_s, "peak_pss_bytes": done.peak_pss_bytes}


def bytes_gained(source: Path, scratch: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return bytes of column chunks: as written, in the best zstd encodings of log order, and of clustered order."""
    log = optimized(source, scratch / "log", options, "--for", "size")
    clustered = optimized(
        source, scratch / "clustered", options, "--for", "size", "--cluster-by", "session_id", "--sort-by", "ts"
    )
    before, after = log["after"]["compressed_bytes"], clustered["after"]["compressed_bytes"]
    return {
        "row_group_rows": options.row_group_rows,
        "row_groups_log": log["after"]["row_groups"],
        "row_groups_clustered": clustered["after"]["row_groups"],
        "as_written_bytes": log["before"]["compressed_bytes"],
        "log_bytes": before,
        "clustered_bytes": after,
        "ratio": before / after,
    }


def bare(source: Path, target: Path, options: argparse.Namespace) -> dict[str, float]:
    """Read, sort and write every partition in a bare loop."""
    folders = sorted(path for path in source.iterdir() if path.is_dir())

    def rewrite(folder: Path) -> None:
        files = sorted(folder.glob("*.parquet"))
        table = pa.concat_tables([pq.ParquetFile(file).read(use_threads=False) for file in files]).combine_chunks()
        key = table["session_id"].to_numpy().view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        keys = table.select(["session_id", "ts"]).append_column("hash", pa.array(key))
        table = table.take(pc.sort_indices(keys, sort_keys=_SORT))
        (target / folder.name).mkdir(parents=True)
        pq.write_table(
            table, target / folder.name / "x.parquet", compression="zstd", row_group_size=options.row_group_rows
        )

    began, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(options.threads) as pool:
        list(pool.map(rewrite, folders))
    return {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}


def throughput(source: Path, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure rows per second of `optimize` and of the bare loop, interleaved; return medians and their ratio."""
    runs: dict[str, list[dict[str, Any]]] = {"bare": [], "optimize": []}
    for number in range(options.rounds):
        runs["bare"].append(bare(source, scratch / f"bare-{number}", options))
        cluster = ("--cluster-by", "session_id", "--sort-by", "ts")
        runs["optimize"].append(optimized(source, scratch / f"optimize-{number}", options, *cluster))
    bare_s = statistics.median(run["seconds"] for run in runs["bare"])
    writing_s = statistics.median(run["writing_s"] for run in runs["optimize"])
    whole_s = statistics.median(run["seconds"] for run in runs["optimize"])
    partition = max(
        sum(pq.ParquetFile(file).read().nbytes for file in folder.glob("*.parquet"))
        for folder in source.iterdir()
        if folder.is_dir()
    )
    return {
        "bare_rows_per_s": options.rows / bare_s,
        "optimize_rows_per_s": options.rows / writing_s,
        "whole_command_rows_per_s": options.rows / whole_s,
        "ratio": bare_s / writing_s,
        "ratio_whole_command": bare_s / whole_s,
        "measuring_s": statistics.median(run["measuring_s"] for run in runs["optimize"]),
        "bare_cpu_s": statistics.median(run["cpu_s"] for run in runs["bare"]),
        "optimize_cpu_s": statistics.median(run["cpu_s"] for run in runs["optimize"]),
        "largest_partition_decoded_bytes": partition,
        "peak_pss_bytes": max(run["peak_pss_bytes"] for run in runs["optimize"]),
    }


def decode(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure rows per second through the ring, from the table as written and after `optimize --for decode`."""
    source, target = clicks(scratch / "session", options, "session"), scratch / "decode"
    report = optimized(source, target, options, "--for", "decode")
    epochs = 1 if options.tiny else max(1, round(_DELIVERED_ROWS / options.rows))  # waits for the first batch once
    rates: dict[str, list[float]] = {"defaults": [], "optimized": []}
    cpu: dict[str, list[float]] = {"defaults": [], "optimized": []}
    for number in range(options.rounds):
        for name, table in (("defaults", source), ("optimized", target)):
            work = scratch / f"work-{name}-{number}"
            work.mkdir()
            text = clicks_pipeline(str(table), work_dir=str(work), batch_size=min(8192, options.rows // 4))
            (work / "pipeline.yaml").write_text(text)
            settings = ("--set", "shuffle=off", "--set", f"epochs={epochs}")
            done = command("run", work / "pipeline.yaml", "--sink", "null", *settings, "--json")
            summary = json.loads(done.stdout)
            rates[name].append(summary["rows_per_s"])
            cpu[name].append(done.cpu_s / summary["rows"] * 1e6)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "rows_per_s": medians,
        "ratio": medians["optimized"] / medians["defaults"],
        "cpu_s_per_million_rows": {name: statistics.median(values) for name, values in cpu.items()},
        "bytes": {"defaults": report["before"]["bytes"], "optimized": report["after"]["bytes"]},
        "same_rows": same_rows(source, target),
    }


def same_rows(one: Path, other: Path) -> bool:
    """Whether two tables hold the same rows in the same order, partition by partition."""
    for folder in sorted(path.name for path in one.iterdir()):
        tables = [Table(str(root / folder)).read() for root in (one, other)]
        if not tables[0].equals(tables[1].cast(tables[0].schema)):
            return False
    return True


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Run the selected measurements."""
    found: dict[str, Any] = {"options": vars(options)}
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as folder:
        scratch = Path(folder)
        questions = options.questions.split(",")
        log = clicks(scratch / "source", options, "log")
        if "bytes" in questions:
            found["bytes"] = bytes_gained(log, scratch, options)
        if "throughput" in questions:
            found["throughput"] = throughput(log, scratch, options)
        if "decode" in questions:
            found["decode"] = decode(scratch, options)
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    options = parse(arguments)
    found = measured(options)
    print(json.dumps(found, indent=1))
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
