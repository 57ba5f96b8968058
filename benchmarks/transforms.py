"""The speed of each op, compared with the best bare numpy or Polars that computes the same.

    python benchmarks/transforms.py                    chunks of 32,768 rows, 15 rounds, on one core
    python benchmarks/transforms.py --ops ngram,clip   some ops only
    python benchmarks/transforms.py --tiny             a few hundred rows, one round: a test that all agree

One process, pinned to one core, Polars with one thread, the allocators set as in a feeder. Each round runs every
formulation of every op, so that a slow moment affects all alike. A rate is input values (a list's elements; of onehot,
rows) per second of CPU in the fastest round, which other processes on the machine disturb least; the ratio is the op's
time over that of the fastest bare formulation. Feedline's side is one pass that computes several features by the op,
from a Polars frame to a Polars frame, as in a run; the bare side computes as many, from arrays or series to whatever it
returns. The pass itself costs some microseconds per feature, printed below the table, which is most of the time of the
cheapest ops. Results that should be equal are compared; exit code 1 if they differ.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from group_cases import group_cases
from lookup_cases import lookup_cases
from outside_cases import outside_cases
from rich.console import Console
from rich.table import Table
from transform_cases import Case, cases

from feedline.config.features import FeatureInput, FeatureSpec, OpCall
from feedline.resources.allocators import allocator_environment
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.learning.learner import Artifact, FitRequest, Reading
from feedline.transforms.ops import OPS

FEATURES = 8  # features per pass; a run has more
TARGETS = {  # target, in million values per second
    "hash_bucket": 150,
    "hash_bucket of strings": 30,
    "ngram": 200,
    "bucketize": 25,
    "first_x": 500,
    "vocabulary, 200 k keys": 50,
    "vocabulary, 200 k keys, lists": 50,
    "vocabulary, 10 M keys": 15,
    "vocabulary, 10 M keys, lists": 15,
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32_768, help="per chunk; lists have 20 elements on average")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ops", default="", help="some of the ops, all by default")
    parser.add_argument("--json", metavar="FILE", help="write everything measured there")
    parser.add_argument("--tiny", action="store_true", help="few rows, one round: a test, not a measurement")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.rounds = min(options.rows, 300), 1
    if min(options.rows, options.rounds) < 1:
        parser.error("rows and rounds are at least 1")
    return options


@dataclass(frozen=True)
class Prepared:
    """An artifact set that returns the same artifact for every request."""

    artifact: Artifact | None
    out_of_fold: bool = False

    def seen_rows(self, key: str) -> bool:
        """The same for every fit."""
        return self.out_of_fold

    def find_artifact(self, wanted: FitRequest) -> Artifact | None:
        return self.artifact

    def read(self, reading: Reading) -> Artifact:
        assert self.artifact is not None
        return self.artifact


def feedline_side(case: Case) -> Callable[[], pl.Series]:
    """Compile features by the op, or chain of ops, to one pass as in a run, over columns that share memory."""
    name = case.op
    calls = tuple(OpCall(op=op, arguments=json.dumps(arguments)) for op, arguments in case.calls)
    columns: list[pl.Series] = []
    features: list[FeatureSpec] = []
    for copy in range(FEATURES):
        names = [f"{column}{copy}" for column in case.frame.columns]
        columns += [series.alias(new) for series, new in zip(case.frame, names, strict=True)]
        inputs = tuple(FeatureInput(column=column) for column in names)
        several = {"op": calls[0], "inputs": inputs} if len(names) > 1 else {"column": names[0], "ops": calls}
        features.append(FeatureSpec(name=f"made{copy}", group="sparse" if name == "weighted" else "extra", **several))
    frame = pl.DataFrame(columns)
    schema = frame.to_arrow().schema
    compiled = compile_features(features, schema, Prepared(case.artifact))
    return lambda: compiled.apply(frame).to_series()


def flat(made: Any) -> np.ndarray[Any, Any]:
    """Flatten a result into one array; nulls are NaN."""
    if isinstance(made, np.ndarray):
        return made.ravel()
    series: pl.Series = made
    while isinstance(series.dtype, pl.List | pl.Array):
        series = series.explode(empty_as_null=False) if isinstance(series.dtype, pl.List) else series.explode()
    return series.to_numpy()


def differs(case: Case, mine: Any, other: Any) -> bool:
    """Whether two results differ."""
    found, expected = flat(mine), flat(other)
    if found.shape != expected.shape:
        return True
    exact = found.dtype.kind in "iub" and expected.dtype.kind in "iub"
    return not (np.array_equal(found, expected) if exact else np.allclose(found, expected, rtol=1e-4, equal_nan=True))


def measure(chosen: Sequence[Case], rounds: int) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Return seconds per formulation of each case (fastest round), and the names of cases whose results differ."""
    runs = {case.name: {"feedline": feedline_side(case), **case.bare} for case in chosen}
    seconds: dict[str, dict[str, list[float]]] = {name: {way: [] for way in ways} for name, ways in runs.items()}
    wrong = []
    for case in chosen:
        mine = runs[case.name]["feedline"]()
        wrong += [f"{case.name}: {way}" for way, run in case.bare.items() if case.same and differs(case, mine, run())]
    for _ in range(rounds):
        for name, ways in runs.items():
            for way, run in ways.items():
                run()  # warms the caches
                start = time.process_time()
                for _ in range(1 if way == "feedline" else FEATURES):
                    run()
                seconds[name][way].append((time.process_time() - start) / FEATURES)
    return {name: {way: min(times) for way, times in ways.items()} for name, ways in seconds.items()}, wrong


def show(chosen: Sequence[Case], fastest: dict[str, dict[str, float]], console: Console) -> list[dict[str, Any]]:
    """Print the table and return its rows."""
    table = Table(title="million values per second, one core", title_justify="left")
    for heading in ("op", "feedline", "bare", "ratio", "fastest bare", "target"):
        table.add_column(heading, justify="left" if heading in ("op", "fastest bare") else "right")
    rows = []
    for case in chosen:
        ways = dict(fastest[case.name])
        mine = ways.pop("feedline")
        best = min(ways, key=lambda way: ways[way]) if ways else None
        row = {
            "op": case.name,
            "feedline": case.values / mine / 1e6,
            "bare": case.values / ways[best] / 1e6 if best else None,
            "ratio": mine / ways[best] if best else None,
            "fastest bare": best,
            "target": TARGETS.get(case.name),
        }
        rows.append(row)
        cells = [
            "-"
            if value is None
            else f"{value:,.2f}"
            if key == "ratio"
            else f"{value:,.0f}"
            if isinstance(value, float)
            else str(value)
            for key, value in row.items()
        ]
        table.add_row(*cells)
    console.print(table)
    return rows


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    wanted = {name for name in options.ops.split(",") if name}
    made = cases(options.rows)
    if not wanted or any(name.startswith("vocabulary") for name in wanted):  # lookups in ten million keys take seconds
        made += lookup_cases(options.rows)
    if not wanted or any(name.startswith(("target_encoding", "group_statistics")) for name in wanted):
        made += group_cases(options.rows)
    if not wanted or any(name.startswith(("join_external", "embedding")) for name in wanted):  # as do their arrays
        made += outside_cases(options.rows)
    chosen = [case for case in made if not wanted or case.op in wanted or case.name in wanted]
    if not chosen:
        console.print(f"no such op: expected some of {', '.join(OPS)}", style="red", markup=False)
        return 1
    fastest, wrong = measure(chosen, options.rounds)
    rows = show(chosen, fastest, console)
    (alone,) = cases(1)[:1]
    cost_s = min(measure([alone], options.rounds)[0][alone.name]["feedline"] for _ in range(3))
    console.print(f"a pass costs {cost_s * 1e6:.0f} us per feature, whatever the op ({alone.name} of one row)")
    if options.json:
        Path(options.json).write_text(
            json.dumps({"options": vars(options), "rows": rows, "seconds": fastest}, indent=1)
        )
    for name in wrong:
        console.print(f"{name} computes other numbers than Feedline", style="red", markup=False)
    return 1 if wrong else 0


def reborn() -> None:
    """Start again with the environment that libraries read when they are loaded."""
    wanted = {**allocator_environment(1), "POLARS_MAX_THREADS": "1"}
    if not all(os.environ.get(name, "").endswith(value) for name, value in wanted.items()):  # Polars writes before one
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})


if __name__ == "__main__":
    reborn()
    sys.exit(main(sys.argv[1:]))
