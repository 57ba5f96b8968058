"""The cost of a very large vocabulary: to fit it in bounded memory, to load it, to look ids up in it.

    python benchmarks/vocabulary.py                           50 M distinct ids, 75 M rows, states of at most 256 MB
    python benchmarks/vocabulary.py --max-size 1000000        the most frequent million of them
    python benchmarks/vocabulary.py --tiny                    a few thousand ids: a test that all agree

One process runs the steps of a fit's tasks one after the other: observe chunks, merge states, spill states larger than
the limit, merge the parts, finish. Every id occurs once and every other id once more, in random order, so the expected
vocabulary is known. Memory is the process's peak so far (`ru_maxrss`), including libraries and the chunk. Exit code 1
if the vocabulary is wrong.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from feedline.config.features import FeatureSpec, OpCall
from feedline.fitting.spill import Scratch, SpilledState, discard, merge_all, state_parts
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.learning.learner import Artifact, InMemoryArtifacts
from feedline.transforms.ops.vocabulary import Vocabulary, learner_of
from feedline.transforms.values.kinds import Value

CHUNK_ROWS = 1_000_000
SCATTER = np.uint64(0x9E3779B97F4A7C15)  # times an index, modulo 2^62: distinct ids over the whole range
STRIDE = 982_451_653  # a prime: rows in random order
LOOKED_UP = 650_000


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distinct", type=int, default=50_000_000, help="ids that differ; even")
    parser.add_argument("--limit-mb", type=float, default=256, help="of a state in memory")
    parser.add_argument("--max-size", type=int, default=None, help="as the op's parameter")
    parser.add_argument("--scratch", default=None, help="a folder for what is spilled; a temporary one by default")
    parser.add_argument("--json", metavar="FILE", help="write everything measured there")
    parser.add_argument("--tiny", action="store_true", help="few ids: a test, not a measurement")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.distinct, options.limit_mb = min(options.distinct, 20_000), 0.05
    if options.distinct < 2 or options.distinct % 2:
        parser.error("--distinct is even, and at least 2")
    return options


def ids(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Map indices to ids."""
    return ((numbers.astype(np.uint64) * SCATTER) & np.uint64(2**62 - 1)).view(np.int64)


def chunks(distinct: int) -> Iterator[pl.Series]:
    """Yield all rows: every index below `distinct`, and the even ones once more."""
    rows = distinct + distinct // 2
    stride = STRIDE if rows % STRIDE else STRIDE + 4
    for start in range(0, rows, CHUNK_ROWS):
        row = np.arange(start, min(start + CHUNK_ROWS, rows)) * stride % rows
        yield pl.Series(ids(np.where(row < distinct, row, 2 * (row - distinct))))


def expected(distinct: int, max_size: int | None) -> np.ndarray[Any, Any]:
    """Return the vocabulary: ids that occur twice, ascending, then those that occur once."""
    twice, once = ids(np.arange(0, distinct, 2)), ids(np.arange(1, distinct, 2))
    twice.sort()
    once.sort()
    return np.concatenate((twice, once))[:max_size]


def peak_mb() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Steps:
    """Seconds and peak memory, step by step."""

    def __init__(self) -> None:
        self.measured: dict[str, float] = {}
        self._at = time.perf_counter(), time.process_time()

    def done(self, step: str) -> None:
        """End a step and begin the next."""
        wall, cpu = time.perf_counter(), time.process_time()
        found = {"s": wall - self._at[0], "cpu_s": cpu - self._at[1], "peak_mb": peak_mb()}
        self.measured |= {f"{step}_{name}": round(value, 3) for name, value in found.items()}
        print(
            f"{step:8} {found['s']:8.1f} s  {found['cpu_s']:8.1f} s of CPU  peak {found['peak_mb']:8.0f} MB", flush=True
        )
        self._at = time.perf_counter(), time.process_time()


def fit(options: argparse.Namespace, folder: str, steps: Steps) -> Artifact:
    """Fit the vocabulary, spilling to disk."""
    parameters = Vocabulary(max_size=options.max_size, max_memory=2**40)
    learner = learner_of(parameters, [Value(expr=pl.col("id"), dtype=pl.Int64())])
    scratch = Scratch(folder=folder, limit_bytes=int(options.limit_mb * 1e6))
    states: Iterator[pa.Table] = (learner.observe([chunk]).to_arrow() for chunk in chunks(options.distinct))
    state = merge_all(learner, states, scratch)
    steps.done("observe")
    if isinstance(state, SpilledState):
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        steps.measured |= {"files": len(state.files), "spilled_mb": round(size / 1e6, 1)}
    artifact = learner.finish(state_parts(learner, state, scratch))
    steps.done("finish")
    print(f"digest {artifact.digest[:12]}")
    steps.done("digest")
    discard(scratch)
    return artifact


def look_up(artifact: Artifact, distinct: int, steps: Steps) -> pl.Series:
    """Look up values in a table built beforehand, as a worker process does."""
    frame = pl.DataFrame({"id": ids(np.random.default_rng(0).integers(0, distinct, LOOKED_UP))})
    schema = frame.to_arrow().schema
    feature = FeatureSpec(name="id", group="categorical", column="id", ops=(OpCall(op="vocabulary"),))
    known = {want.key: artifact for want in compile_features([feature], schema).missing_fits}
    compiled = compile_features([feature], schema, InMemoryArtifacts(artifacts=known))
    compiled.apply(frame.head(1))
    steps.done("table")
    found = compiled.apply(frame)
    steps.done("look up")
    return pl.DataFrame({"id": frame["id"], "found": found["id"]})


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    options = parse(arguments)
    steps = Steps()
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        artifact = fit(options, f"{folder}/states", steps)
    found = look_up(artifact, options.distinct, steps)
    steps.measured |= {"values": artifact.facts["values"], "distinct": artifact.facts["distinct"]}
    print(json.dumps(steps.measured))
    if options.json:
        Path(options.json).write_text(json.dumps({"options": vars(options), **steps.measured}, indent=1))
    assert artifact.table is not None
    values = expected(options.distinct, options.max_size)
    right = np.array_equal(artifact.table["value"].to_numpy(), values)
    wanted = pl.DataFrame({"id": values, "wanted": np.arange(3, len(values) + 3)})
    looked = found.join(wanted, on="id", how="left", maintain_order="left")
    right = right and looked["found"].equals(looked["wanted"].fill_null(2).rename("found"))
    print("right" if right else "wrong")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
