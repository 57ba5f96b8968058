"""The throughput and memory of `feedline build`, against DuckDB's joins and COPY of the same rows.

    python benchmarks/build.py                        a day of 2 M impressions, 3 rounds
    python benchmarks/build.py --rows 20000000        the size of the target: 0.7 of DuckDB's rows/s, 2 GB
    python benchmarks/build.py --tiny                 20,000 impressions, one round: a test that all works

Logs of one day by `feedline generate logs`: impressions with two outcomes, clicks within half an hour by request and
item, orders within a week by user and item, both to the last impression before them. The contenders, in turn in each
round, each in processes of its own that are timed as a whole:

build    `feedline build`: duplicates dropped, clustered by session, sorted by time, encodings measured.
join     DuckDB: the joins, and COPY to Parquet with zstd in whichever order rows come. Impressions are not looked
         through for duplicates where none were generated (`--duplicates 0`, the default).
sorted   DuckDB: the same, in the order of session and time, as those who read sessions need it.

All must write the same rows: counts, sums and hashes of their columns are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import measure
from ratios import bytes_below

from feedline.resources.cgroups import available_cores
from feedline.workbench.generate.generate import generate_logs
from feedline.workbench.generate.logs import LogRecipe

CONTENDERS = ("build", "join", "sorted")
_UNTIL = "2026-03-01T00:00:00"  # the day is closed, whatever the newest event is
_SAMPLES = """
version: 1
impressions: {table: logs/impressions, key: [request_id, item_id], time: ts}
outcomes:
  click: {table: logs/clicks, key: [request_id, item_id], time: ts, within: 30m,
          label: {clicked: exists, dwell: sum(dwell_ms)}}
  order: {table: logs/orders, key: [user_id, item_id], time: ts, within: 7d, label: {ordered: exists}}
out: {table: OUT, by: day(ts), cluster_by: session_id, sort_by: ts}
"""
_COPY = """
import sys, duckdb
database = duckdb.connect(config={"threads": int(sys.argv[2])})
database.sql("set preserve_insertion_order = false")
database.sql(sys.argv[1])
"""
# Of impressions at one time, the last is that of the largest request and item.
_QUERY = """
with impressions as (select {distinct} * exclude ds from '{logs}/impressions/*/*.parquet'),
clicks as (select distinct * exclude ds from '{logs}/clicks/*/*.parquet'),
once as (select distinct * exclude ds from '{logs}/orders/*/*.parquet'),
orders as (select row_number() over () as number, * from once),
clicked as (
    select c.request_id, c.item_id, sum(dwell_ms) as dwell from clicks c join impressions i using (request_id, item_id)
    where c.ts > i.ts and c.ts <= i.ts + interval 30 minute group by all
),
touched as (
    select max({{ts: i.ts, request_id: i.request_id, item_id: i.item_id}}) as last from orders o
    join impressions i using (user_id, item_id) where o.ts > i.ts and o.ts <= i.ts + interval 7 day group by number
),
ordered as (select distinct last.request_id, last.item_id from touched)
select i.*, c.request_id is not null as clicked, c.dwell, o.request_id is not null as ordered
from impressions i left join clicked c using (request_id, item_id) left join ordered o using (request_id, item_id)
"""
_CHECK = """
select count(*), sum(clicked::int), sum(ordered::int), sum(dwell), sum(len(recent)),
    sum(hash(request_id, session_id, user_id, item_id, position, ts, device, price, clicked, dwell::bigint, ordered)
        % 1000003)
from read_parquet('{files}', hive_partitioning = false)
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--duplicates", type=float, default=0.0, help="share of rows that are logged twice")
    parser.add_argument("--memory", metavar="SIZE", help="`--memory` of build")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="some of: %(default)s")
    parser.add_argument("--scratch", metavar="DIR", help="where tables are written, and removed (default: TMPDIR)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured there")
    parser.add_argument("--tiny", action="store_true", help="few rows, one round: a test, not a measurement")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.rounds = 20_000, 1
    return options


def command(contender: str, scratch: Path, target: Path, options: argparse.Namespace) -> list[str]:
    """The contender's command; it writes to `target`."""
    threads = str(options.threads)
    if contender == "build":
        samples = scratch / f"{target.name}.yaml"
        samples.write_text(_SAMPLES.replace("OUT", target.name))
        memory = [] if options.memory is None else ["--memory", options.memory]
        words = ["build", str(samples), "--until", _UNTIL, "--threads", threads, *memory]
        return [sys.executable, "-m", "feedline", *words]
    target.mkdir()
    distinct = "distinct on (request_id, item_id)" if options.duplicates else ""
    query = _QUERY.format(logs=scratch / "logs", distinct=distinct)
    order = "order by session_id, ts" if contender == "sorted" else ""
    statement = f"copy ({query} {order}) to '{target}/rows.parquet' (format parquet, compression zstd)"
    return [sys.executable, "-c", _COPY, statement, threads]


def run(contender: str, scratch: Path, number: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run a contender; return its cost, and what it wrote."""
    import duckdb

    target = scratch / f"{contender}-{number}"
    words = command(contender, scratch, target, options)
    began = time.perf_counter()
    done = measure(words)
    seconds = time.perf_counter() - began
    if done.code != 0:
        raise SystemExit(f"{contender} ended with {done.code}:\n{done.stderr[-4000:]}{done.stdout[-4000:]}")
    query = _CHECK.format(files=f"{target}/{'*/' if contender == 'build' else ''}*.parquet")
    return {
        "seconds": seconds,
        "rows_per_s": options.rows / seconds,
        "cpu_s": done.cpu_s,
        "peak_pss_bytes": done.peak_pss_bytes,
        "bytes": bytes_below(target),
        "rows": [float(each) for each in duckdb.sql(query).fetchall()[0]],
    }


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Generate logs, and run the contenders in turn; return medians, and ratios of rows per second."""
    contenders = options.contenders.split(",")
    runs: dict[str, list[dict[str, Any]]] = {contender: [] for contender in contenders}
    with tempfile.TemporaryDirectory(prefix="feedline-bench-", dir=options.scratch) as folder:
        scratch = Path(folder)
        recipe = LogRecipe(rows=options.rows, days=1, duplicates=options.duplicates, late=0.0)
        report = generate_logs(str(scratch / "logs"), recipe, threads=options.threads)
        for number in range(options.rounds):
            for contender in contenders:
                runs[contender].append(run(contender, scratch, number, options))
    rates = {name: statistics.median(each["rows_per_s"] for each in runs[name]) for name in contenders}
    return {
        "options": vars(options),
        "logged": dict(report.logged),
        "rows_per_s": rates,
        "ratio": {name: rates["build"] / rates[name] for name in contenders if name != "build" and "build" in rates},
        "peak_pss_bytes": {name: max(each["peak_pss_bytes"] for each in runs[name]) for name in contenders},
        "cpu_s": {name: statistics.median(each["cpu_s"] for each in runs[name]) for name in contenders},
        "bytes": {name: runs[name][0]["bytes"] for name in contenders},
        "rows": {name: runs[name][0]["rows"] for name in contenders},
        "same_rows": len({tuple(each["rows"]) for name in contenders for each in runs[name]}) == 1,
    }


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code: 1 if the contenders wrote other rows."""
    options = parse(arguments)
    found = measured(options)
    print(json.dumps(found, indent=1))
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))
    return 0 if found["same_rows"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
