"""The cost of a pipeline as large as those in papers, compared with a script written by hand for it alone.

    python benchmarks/pipeline.py                     32,768 rows, 9 rounds, on one core
    python benchmarks/pipeline.py --rows 8192         a smaller chunk
    python benchmarks/pipeline.py --tiny              few rows and features, one round: a test that all agree

The model is RM3 of PreSto's Table I (ISCA 2024), which its authors derived from statistics that Meta published: 504
dense features, 42 id lists of mean length 20, 42 features generated from dense ones by bucketize with 1024 borders, and
tables of 500,000 rows. Here dense features go through fill_null, clip and log1p, lists through first_x and sigrid_hash
or hash_bucket in turn, and the generated ones share their fill_null with the dense feature of the same column.

This measures what a task does between decoding and permuting: the transforms' pass over one chunk (`CompiledFeatures`)
and its encoding (`encode`). The script computes the same arrays from the same frame in numpy and Polars; all are
compared bit by bit, and the exit code is 1 if they differ. One process, pinned to one core, Polars with one thread,
the allocators set as in a feeder; each round runs both sides, and times are CPU seconds of the fastest round. An op's
share is its addition to the pass: the pipeline is measured with one op more each time. A pass over one row shows the
fixed cost of a pass; compiling happens once per process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table
from transform_cases import GOLDEN, Array
from transforms import reborn

from feedline.blocks.jobs import batch_schema
from feedline.config.features import FeatureSpec, OpCall
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.transforms.compile.compiled import compile_features
from feedline.warehouse.reading.read import CHUNK_ROWS

MEAN_LENGTH, LONGEST, TABLE_ROWS, BORDERS = 20, 30, 500_000, 1024
MOST = 1e6  # the largest dense value
BLOCK, ROWS_OF_MATRIX = 32768, 2048


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=CHUNK_ROWS, help="of the chunk")
    parser.add_argument("--dense", type=int, default=504)
    parser.add_argument("--sparse", type=int, default=42)
    parser.add_argument("--generated", type=int, default=42, help="of as many of the dense columns")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="FILE", help="write everything measured there")
    parser.add_argument("--tiny", action="store_true", help="few rows and features, one round: a test")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.dense, options.sparse, options.generated, options.rounds = 300, 20, 4, 3, 1
    if min(options.rows, options.sparse, options.generated, options.rounds) < 1 or options.dense < options.generated:
        parser.error("there is at least one of everything, and no more generated features than dense ones")
    return options


def make_frame(options: argparse.Namespace) -> pl.DataFrame:
    """Return a decoded chunk: log-normal float32 with a tenth of nulls, lists of 0 to 40 ids."""
    random = np.random.default_rng(0)
    columns: dict[str, pl.Series] = {}
    for index in range(options.dense):
        numbers = random.lognormal(1, 2, options.rows).astype(np.float32)
        columns[f"dense_{index}"] = pl.Series(pa.array(numbers, mask=random.random(options.rows) < 0.1))
    for index in range(options.sparse):
        offsets = np.concatenate(([0], np.cumsum(random.integers(0, 2 * MEAN_LENGTH + 1, options.rows))))
        ids = random.integers(0, 2**62, int(offsets[-1]))
        columns[f"sparse_{index}"] = pl.Series(pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids)))
    return pl.DataFrame(columns)


def make_borders() -> list[float]:
    """Return borders of equally filled buckets."""
    numbers = np.random.default_rng(1).lognormal(1, 2, 200_000)
    return [float(border) for border in np.unique(np.quantile(numbers, np.linspace(0, 1, BORDERS)).astype(np.float32))]


def make_features(options: argparse.Namespace, borders: list[float]) -> list[FeatureSpec]:
    """Return the features of the pipeline."""

    def feature(group: Any, name: str, column: str, *ops: tuple[str, Any]) -> FeatureSpec:
        calls = tuple(
            OpCall(op=op, arguments=json.dumps(value if isinstance(value, dict) else {"": value})) for op, value in ops
        )
        return FeatureSpec(name=name, group=group, column=column, ops=calls)

    fill: tuple[str, Any] = ("fill_null", 0)
    dense_ops = (fill, ("clip", {"min": 0, "max": MOST}), ("log1p", {}))
    hashes = (("sigrid_hash", {"salt": 0, "max_value": TABLE_ROWS}), ("hash_bucket", TABLE_ROWS))
    return [
        *(feature("dense", f"dense_{i}", f"dense_{i}", *dense_ops) for i in range(options.dense)),
        *(
            feature("categorical", f"made_{i}", f"dense_{i}", fill, ("bucketize", {"borders": borders}))
            for i in range(options.generated)
        ),
        *(
            feature("sparse", f"sparse_{i}", f"sparse_{i}", ("first_x", LONGEST), hashes[i % 2])
            for i in range(options.sparse)
        ),
    ]


def by_hand(frame: pl.DataFrame, options: argparse.Namespace, borders: Array) -> tuple[Any, ...]:
    """Compute what `encode` returns without Feedline: dense [N, D], a column per generated feature, lists.

    The fastest way found. Lists are truncated as binary strings of their bytes (Polars' head takes 1.5 times as long);
    the matrix is written in blocks of rows that stay in the cache.
    """
    rows = frame.height
    generated = [np.empty(rows, np.int64) for _ in range(options.generated)]
    finished = np.empty((options.dense, rows), np.float32)
    for index in range(options.dense):
        array = frame.get_column(f"dense_{index}").to_arrow()
        validity, data = array.buffers()
        valid = np.unpackbits(np.frombuffer(validity, np.uint8), count=rows, bitorder="little").view(np.bool_)
        filled = np.where(valid, np.frombuffer(data, np.float32, count=rows), np.float32(0))
        if index < options.generated:
            generated[index][:] = np.searchsorted(borders, filled, side="left")
        np.clip(filled, np.float32(0), np.float32(MOST), out=finished[index])
        np.log1p(finished[index], out=finished[index])
    dense = np.empty((rows, options.dense), np.float32)
    for start in range(0, rows, ROWS_OF_MATRIX):
        block = dense[start : start + ROWS_OF_MATRIX]
        for index in range(options.dense):
            block[:, index] = finished[index, start : start + ROWS_OF_MATRIX]
    values, offsets = [], []
    for index in range(options.sparse):
        ids, places = first_by_hand(frame.get_column(f"sparse_{index}").to_arrow())
        hashed = np.empty(len(ids), np.int64)
        for start in range(0, len(ids), BLOCK):
            (bucket_by_hand if index % 2 else sigrid_by_hand)(ids[start : start + BLOCK], hashed[start : start + BLOCK])
        values.append(hashed)
        offsets.append(places)
    return dense, generated, values, offsets


def first_by_hand(array: pa.Array) -> tuple[Array, Array]:
    """Truncate lists without nulls; return ids and offsets."""
    places = pa.py_buffer((array.offsets.to_numpy() * 8).astype(np.int32))
    strings = pa.Array.from_buffers(pa.binary(), len(array), [None, places, array.values.buffers()[1]])
    _, ends, data = pc.binary_slice(strings, 0, 8 * LONGEST).buffers()
    offsets = np.frombuffer(ends, np.int32, count=len(array) + 1) // np.int64(8)
    return np.frombuffer(data, np.int64, count=int(offsets[-1])), offsets


def bucket_by_hand(ids: Array, out: Array) -> None:
    """Splitmix64's first output, modulo the table's rows."""
    words, scratch = out.view(np.uint64), np.empty(len(out), np.uint64)
    np.add(ids.view(np.uint64), GOLDEN, out=words)
    for shift, multiplier in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words ^= np.right_shift(words, np.uint64(shift), out=scratch)
        words *= np.uint64(multiplier)
    words ^= np.right_shift(words, np.uint64(31), out=scratch)
    np.floor_divide(words, np.uint64(TABLE_ROWS), out=scratch)
    scratch *= np.uint64(TABLE_ROWS)
    words -= scratch


def sigrid_by_hand(ids: Array, out: Array) -> None:
    """Compute TorchArrow's sigrid_hash with salt 0."""
    words, scratch, given = out.view(np.uint64), np.empty(len(out), np.uint64), ids.view(np.uint64)
    np.add(~given, np.left_shift(given, np.uint64(21), out=scratch), out=words)
    for shift, multiplier in ((24, 265), (14, 21)):
        words ^= np.right_shift(words, np.uint64(shift), out=scratch)
        words *= np.uint64(multiplier)
    words ^= np.right_shift(words, np.uint64(28), out=scratch)
    words += np.left_shift(words, np.uint64(31), out=scratch)
    for _ in range(2):
        words *= np.uint64(0x9DDFEA08EB382D69)
        words ^= np.right_shift(words, np.uint64(47), out=scratch)
    words *= np.uint64(0x9DDFEA08EB382D69)
    quotient = np.floor_divide(out, np.int64(TABLE_ROWS), out=scratch.view(np.int64))
    quotient *= np.int64(TABLE_ROWS)
    out -= quotient


def differences(mine: EncodedRows, other: tuple[Any, ...]) -> list[str]:
    """Return the parts of a batch that are not bit-identical."""
    sides: dict[str, tuple[Any, Any]] = {"dense": ([mine.dense], [other[0]])}
    for name, found, expected in zip(
        ("generated", "values", "offsets"), (mine.categorical, mine.values, mine.offsets), other[1:], strict=True
    ):
        sides[name] = (found, expected)
    return [
        name
        for name, (found, expected) in sides.items()
        if not all(np.array_equal(one, two) for one, two in zip(found, expected, strict=True))
    ]


def chain_steps(features: Sequence[FeatureSpec]) -> list[tuple[str, list[FeatureSpec]]]:
    """Yield the pipeline with one op more each time, named by it. Every feature is an extra: none is finished."""
    kinds: dict[tuple[str, ...], list[FeatureSpec]] = {}
    for feature in features:
        ops = tuple(call.op for call in feature.ops)
        kinds.setdefault((feature.group, *ops), []).append(replace(feature, group="extra"))
    whole: list[FeatureSpec] = []
    steps = []
    for (group, *ops), members in kinds.items():
        for length, op in enumerate(("no ops", *ops)):
            grown = [replace(member, ops=member.ops[:length]) for member in members]
            steps.append((f"{op} ({group})", whole + grown))
        whole = whole + grown
    return steps


def measure(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return CPU seconds of each in its fastest round."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    return {name: min(times[1:]) for name, times in seconds.items()}


def shares(frame: pl.DataFrame, features: Sequence[FeatureSpec], rounds: int) -> dict[str, float]:
    """Return the CPU seconds that each op adds to the pass."""
    schema = frame.to_arrow().schema
    steps = chain_steps(features)
    passes = [compile_features(chosen, schema) for _, chosen in steps]
    runs = {str(place): (lambda features=features: features.apply(frame)) for place, features in enumerate(passes)}
    found: dict[str, float] = {}
    before = 0.0
    for (name, _), now in zip(steps, measure(runs, rounds).values(), strict=True):
        found[name] = found.get(name, 0.0) + now - before
        before = now
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    frame, borders = make_frame(options), make_borders()
    features = make_features(options, borders)
    one, numbers = frame.head(1), np.array(borders, np.float32)
    start = time.process_time()
    compiled = compile_features(features, frame.to_arrow().schema)
    compile_s = time.process_time() - start
    schema = batch_schema(compiled)
    finished = compiled.apply(frame)
    wrong = differences(encode(finished, schema), by_hand(frame, options, numbers))
    seconds = measure(
        {
            "feedline": lambda: encode(compiled.apply(frame), schema),
            "by hand": lambda: by_hand(frame, options, numbers),
            "transform": lambda: compiled.apply(frame),
            "encode": lambda: encode(finished, schema),
            "one row": lambda: encode(compiled.apply(one), schema),
        },
        options.rounds,
    )
    ops = shares(frame, features, options.rounds)
    facts = {
        "options": vars(options),
        "compile_s": compile_s,
        "seconds": seconds,
        "ratio": seconds["feedline"] / seconds["by hand"],
        "rows_per_s": {side: options.rows / seconds[side] for side in ("feedline", "by hand")},
        "ops_s": ops,
        "wrong": wrong,
    }
    show(facts, console)
    if options.json:
        Path(options.json).write_text(json.dumps(facts, indent=1))
    for name in wrong:
        console.print(f"{name}: the script computes other numbers than Feedline", style="red", markup=False)
    return 1 if wrong else 0


def show(facts: dict[str, Any], console: Console) -> None:
    """The figures for people."""
    seconds, rates = facts["seconds"], facts["rows_per_s"]
    table = Table(title="CPU ms per chunk", title_justify="left")
    table.add_column("")
    for heading in ("ms", "share"):
        table.add_column(heading, justify="right")
    whole = sum(facts["ops_s"].values()) + seconds["encode"]
    for name, cost in [*facts["ops_s"].items(), ("encode", seconds["encode"])]:
        table.add_row(name, f"{1e3 * cost:,.1f}", f"{cost / whole:.0%}")
    console.print(table)
    console.print(
        f"feedline {rates['feedline']:,.0f} rows/s per core ({1e3 * seconds['feedline']:,.0f} ms), by hand "
        f"{rates['by hand']:,.0f} ({1e3 * seconds['by hand']:,.0f} ms): ratio {facts['ratio']:.2f}; one row "
        f"{1e3 * seconds['one row']:.1f} ms; compiled in {facts['compile_s']:.2f} s",
        highlight=False,
    )


if __name__ == "__main__":
    reborn()
    sys.exit(main(sys.argv[1:]))
