"""The cost of features from one map column, compared with a lookup per feature and with a column per key.

The same values are read in three ways, alternating, in CPU seconds: Feedline's `read_fragment` with parts
(`m["f0007"]`), the whole map with one `map.get` per feature in Polars, and the same keys as columns of their own
(`m.f0007`), read by the same parts. The sums of all three must agree. `python benchmarks/maps.py` prints a table;
`--tiny` is for tests.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from feedline import Table
from feedline.expressions.column_parts import flattened_name
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.selection.select import plan_fragments, screen_rows

_ROW_GROUP_ROWS = 25_000


def write_maps(folder: Path, *, rows: int, keys: int, coverage: float) -> list[str]:
    """Write two tables of the same rows, `maps` and `columns`; return the keys. `coverage`: a key's probability."""
    random = np.random.default_rng(0)
    names = [f"f{key:04}" for key in range(keys)]
    for part, start in enumerate(range(0, rows, _ROW_GROUP_ROWS)):
        size = min(_ROW_GROUP_ROWS, rows - start)
        there = random.random((size, keys)) < coverage
        values = random.integers(0, 1000, (size, keys)).astype(np.float32)
        offsets = np.concatenate(([0], np.cumsum(there.sum(axis=1)))).astype(np.int32)
        words = pa.DictionaryArray.from_arrays(np.nonzero(there)[1].astype(np.int32), pa.array(names))
        maps = pa.MapArray.from_arrays(pa.array(offsets), words.cast(pa.string()), pa.array(values[there]))
        columns = {
            flattened_name("m", name): pa.array(values[:, key], mask=~there[:, key]) for key, name in enumerate(names)
        }
        empty = pa.array([[]] * size, maps.type)
        for table, content in (("maps", {"m": maps}), ("columns", {**columns, "m": empty})):
            place = folder / table / f"part-{part}.parquet"
            place.parent.mkdir(exist_ok=True)
            pq.write_table(pa.table(content), place, compression="zstd")
    return names


def reader(table: Path, columns: Sequence[str], finish: Callable[[pl.DataFrame], pl.DataFrame]) -> Callable[[], float]:
    """Return a function that reads the columns and returns the sum of all values after `finish`."""
    snapshot = Table(table).snapshot()
    fragments = plan_fragments(snapshot, screen_rows(snapshot, None), 65_536)

    def read() -> float:
        total = 0.0
        for fragment in fragments:
            for chunk in read_fragment(fragment, ReadRequest(columns, snapshot.schema)):
                frame = finish(chunk.frame)
                total += float(
                    frame.lazy().select(pl.sum_horizontal(pl.all().cast(pl.Float64).sum())).collect().item() or 0
                )
        return total

    return read


def compare(folder: Path, keys: Sequence[str], *, rounds: int) -> dict[str, float]:
    """Return the median CPU seconds of each way to read the keys. Raises ValueError if their values differ."""
    parts = [f'm["{key}"]' for key in keys]
    lookups = [pl.col("m").map.get(key).alias(part) for key, part in zip(keys, parts, strict=True)]
    ways = {
        "parts of the map": reader(folder / "maps", parts, lambda frame: frame),
        "a lookup per key": reader(
            folder / "maps", ["m"], lambda frame: frame.lazy().select_seq(lookups).collect(engine="in-memory")
        ),
        "flattened": reader(folder / "columns", parts, lambda frame: frame),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    sums = set()
    for _ in range(rounds):
        for way, read in ways.items():
            start = time.process_time()
            sums.add(read())
            seconds[way].append(time.process_time() - start)
    if len(sums) > 1:
        raise ValueError(f"the ways to read disagree: got sums {sorted(sums)}, expected one")
    return {way: statistics.median(values) for way, values in seconds.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--coverage", type=float, default=0.45)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a run of a second, which measures nothing")
    given = parser.parse_args(arguments)
    rows, keys, rounds = (300, 20, 1) if given.tiny else (given.rows, given.keys, given.rounds)
    with tempfile.TemporaryDirectory() as folder:
        names = write_maps(Path(folder), rows=rows, keys=keys, coverage=given.coverage)
        print(f"{rows:,} rows, {keys:,} keys in the map, each in {given.coverage:.0%} of rows; CPU seconds")
        for read_keys in sorted({max(1, keys // 100), keys // 5}):
            medians = compare(Path(folder), names[:: keys // read_keys][:read_keys], rounds=rounds)
            print(f"{read_keys:,} keys: " + ", ".join(f"{way} {median:.2f}" for way, median in medians.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
