"""Write a table in the shape of Criteo's click logs: 13 integers, 26 categorical strings and a label, by day.

Runs in: one process, before training; it holds one row group at a time. The same arguments give the same files.

The columns have about the nulls and the numbers of distinct values of the Kaggle data set: I1 to I13 are counts with
heavy tails, of which up to three quarters are null; C1 to C26 are eight hexadecimal digits, with 3 to ten million
distinct values in a Zipf law. No row of the data set is in it.

`label` is 1 with a probability that depends on some integers, on some categories, on a pair of categories, and on
nothing else: `click_logit` is what a model can learn.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from feedline.workbench.generate import clicks as draws

# Of I1 to I13: the median, the spread of the logarithm, and the share of nulls.
INTEGERS = (
    *((1, 1.2, 0.45), (3, 1.6, 0.0), (7, 1.2, 0.21), (4, 0.9, 0.22), (2500, 1.8, 0.03), (32, 1.5, 0.22)),
    *((3, 1.4, 0.04), (7, 0.9, 0.0), (38, 1.4, 0.04), (1, 0.5, 0.45), (1, 0.9, 0.04), (1, 0.9, 0.76), (4, 0.9, 0.22)),
)
# Of C1 to C26: distinct values, and the share of nulls.
CATEGORIES = (
    *((1460, 0.0), (583, 0.0), (10_131_227, 0.03), (2_202_608, 0.03), (305, 0.0), (24, 0.12), (12_517, 0.0)),
    *((633, 0.0), (3, 0.0), (93_145, 0.0), (5683, 0.0), (8_351_593, 0.03), (3194, 0.0), (27, 0.0), (14_992, 0.0)),
    *((5_461_306, 0.03), (10, 0.0), (5652, 0.0), (2173, 0.44), (4, 0.44), (7_046_547, 0.03), (18, 0.76), (15, 0.0)),
    *((286_181, 0.03), (105, 0.44), (142_572, 0.44)),
)
INTEGER_WEIGHTS = {1: 0.7, 3: 0.4, 5: -0.35, 6: 0.3, 11: 0.6}  # of ln(1 + value) less its median
CATEGORY_WEIGHTS = {2: 0.5, 6: 0.6, 9: 0.7, 10: 0.8, 14: 0.7, 17: 0.7, 20: 0.5, 23: 0.5, 26: 0.8}
PAIR, PAIR_WEIGHT = (14, 17), 1.2
_LABELS, _INTEGERS, _CATEGORIES = 0, 100, 200  # streams of random words; a column's is kind + index
_HEX = np.frombuffer(bytes(range(256)).hex().encode(), np.uint8).reshape(256, 2)

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def words(seed: int, stream: int, day: int, group: int, rows: int) -> draws.Words:
    """The random words of a column in a row group."""
    return draws.draw_words((seed, stream), (group, 0, day), rows)


def hexadecimal(ids: Numbers, column: int, is_null: Mask) -> pa.Array:
    """Ids as eight hexadecimal digits, which look nothing like the ids, nor like those of another column."""
    mixed = (ids.astype(np.uint64) + np.uint64(column << 40)) * np.uint64(0x9E3779B97F4A7C15)
    digits = _HEX[(mixed >> np.uint64(32)).astype(">u4").view(np.uint8)]
    offsets = pa.py_buffer(np.arange(0, 8 * len(ids) + 1, 8, dtype=np.int32))
    validity = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(ids), [validity, offsets, pa.py_buffer(digits)])


def click_logit(
    integers: dict[int, tuple[Numbers, Mask]], categories: dict[int, tuple[Numbers, Mask]]
) -> draws.Float64s:
    """The log-odds of `label`, from (values, nulls) by number of the column; a null adds nothing, but for I1."""
    logit = np.full(len(integers[1][0]), -1.1) - 0.8 * integers[1][1]
    for column, weight in INTEGER_WEIGHTS.items():
        values, is_null = integers[column]
        centred = np.log1p(np.maximum(values, 0)) - np.log1p(INTEGERS[column - 1][0])
        logit += weight * np.where(is_null, 0.0, centred)
    for column, weight in CATEGORY_WEIGHTS.items():
        ids, is_null = categories[column]
        logit += weight * np.where(is_null, 0.0, draws.effect(ids + (column << 40)))
    (first, _), (second, _) = (categories[column] for column in PAIR)
    return logit + PAIR_WEIGHT * draws.effect(first * 1000 + second + (99 << 40))


def row_group(seed: int, day: int, group: int, rows: int) -> pa.Table:
    """One row group of a day."""
    integers, categories = {}, {}
    columns: dict[str, pa.Array] = {}
    for number, (median, spread, null_share) in enumerate(INTEGERS, 1):
        drawn = words(seed, _INTEGERS + number, day, group, rows)
        values = np.floor(median * (draws.lognormal(drawn, spread).astype(np.float64) + 0.1)).astype(np.int64)
        values -= 2 * (number == 2)  # I2 is the one with negative values
        integers[number] = values, draws.nulls(drawn, null_share)
    for number, (cardinality, null_share) in enumerate(CATEGORIES, 1):
        drawn = words(seed, _CATEGORIES + number, day, group, rows)
        categories[number] = draws.zipf(drawn, cardinality), draws.nulls(drawn, null_share)
    chance = 1.0 / (1.0 + np.exp(-click_logit(integers, categories)))
    columns["label"] = pa.array(draws.unit(words(seed, _LABELS, day, group, rows)) < chance).cast(pa.int8())
    for number, (values, is_null) in integers.items():
        columns[f"I{number}"] = pa.array(values, pa.int64(), mask=is_null)
    for number, (values, is_null) in categories.items():
        columns[f"C{number}"] = hexadecimal(values, number, is_null)
    return pa.table(columns)


def write_day(directory: Path, seed: int, day: int, rows: int, group_rows: int) -> None:
    """Write `day=…/part-00000.parquet`."""
    folder = directory / f"day={day}"
    folder.mkdir(parents=True)
    first = row_group(seed, day, 0, 0)
    with pq.ParquetWriter(folder / "part-00000.parquet", first.schema, compression="zstd") as writer:
        for group, start in enumerate(range(0, rows, group_rows)):
            writer.write_table(row_group(seed, day, group, min(group_rows, rows - start)), row_group_size=group_rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table, unless it exists; it appears under its name when it is complete."""
    parser = argparse.ArgumentParser(description="Write a table in the shape of Criteo's click logs.")
    parser.add_argument("directory", type=Path, help="where the table goes, for example warehouse/criteo")
    parser.add_argument("--rows", type=int, default=700_000, help="of all days together (default: 700,000)")
    parser.add_argument("--days", type=int, default=7, help="(default: 7)")
    parser.add_argument("--group-rows", type=int, default=16_384, help="rows of a row group (default: 16,384)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if min(options.days, options.group_rows) < 1 or options.rows < options.days or options.seed < 0:
        parser.error("expected at least one day, a row a day and a row a row group, and a seed of at least 0")
    directory: Path = options.directory
    if directory.exists():
        print(f"{directory} is there already: nothing to do (remove it to write it again)")
        return
    unfinished = directory.with_name(directory.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for day in range(options.days):
        start, stop = (options.rows * each // options.days for each in (day, day + 1))
        write_day(unfinished, options.seed, day, stop - start, options.group_rows)
    unfinished.rename(directory)
    print(f"{directory}: {options.rows:,} rows in {options.days} days")


if __name__ == "__main__":
    main()
