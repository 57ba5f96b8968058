"""Write the tables of the floor benchmark's shapes `wide`, `strings` and `flat`; runs in its process, on all cores.

Repeatable: every column of every row group has its own stream of words (`feedline.workbench.generate.clicks`), so the
same rows come from any number of threads. Rows are independent of each other. Columns:

    dense_0 ..   float32      log-normal minus a little; in `wide`, 5 % are null
    int_0 ..     int64        counts with a heavy tail, 5 % null
    id_0 ..      int64        Zipf over a few thousand to 2 million ids
    str_0 ..     string       8 hex digits, Zipf over 3,000 to 200,000 of them
    hist_0 ..    list<int64>  0 to 40 ids, Zipf over 10 million
    clicked      int8         1 in one row of 20
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from shapes import LABEL, Shape

from feedline.workbench.generate import clicks

SEED, NULL_SHARE, CLICKED = 0, 0.05, 0.05
LIST_MAX, LIST_CARDINALITY = 40, 10_000_000
ID_CARDINALITIES = (2_000_000, 500_000, 150_000, 40_000, 10_000, 3_000, 1_000_000, 80_000, 5_000)
STRING_CARDINALITIES = (3_000, 200_000, 20_000, 100_000, 8_000, 50_000)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_LENGTHS = 1 << 32  # added to a list column's stream: its lengths


@dataclass(frozen=True, slots=True)
class Place:
    """A row group: the group's and the file's number, and its rows."""

    group: int
    file: int
    rows: int

    def words(self, stream: int, count: int | None = None) -> clicks.Words:
        """Return random words of a stream; by default one per row."""
        return clicks.draw_words((SEED, stream), (self.group, self.file, 0), self.rows if count is None else count)


def write_table(folder: Path, shape: Shape, *, rows: int, group_rows: int) -> None:
    """Write `rows` rows of a shape into files `part-00000.parquet` and so on, as writers do by default, in zstd."""
    folder.mkdir(parents=True, exist_ok=True)
    file_rows = group_rows * shape.file_groups
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        writes = [
            pool.submit(_write_file, folder, shape, number, min(file_rows, rows - first), group_rows)
            for number, first in enumerate(range(0, rows, file_rows))
        ]
        for write in writes:
            write.result()


def _write_file(folder: Path, shape: Shape, number: int, rows: int, group_rows: int) -> None:
    names = shape.columns
    path = folder / f"part-{number:05d}.parquet"
    writer: pq.ParquetWriter | None = None
    for group, first in enumerate(range(0, rows, group_rows)):
        place = Place(group, number, min(group_rows, rows - first))
        table = pa.table([_draw(shape, name)(place, stream) for stream, name in enumerate(names)], names=names)
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table, row_group_size=group_rows)
    assert writer is not None
    writer.close()


def _draw(shape: Shape, name: str) -> Callable[[Place, int], pa.Array]:
    """Return the generator of a column."""
    if name == LABEL:
        return _labels
    kind, number = name.split("_")
    index = int(number)
    match kind:
        case "dense":
            return functools.partial(_floats, null_share=NULL_SHARE if shape.name == "wide" else 0.0)
        case "id":
            return functools.partial(_ids, cardinality=ID_CARDINALITIES[index % len(ID_CARDINALITIES)])
        case "str":
            return functools.partial(_strings, cardinality=STRING_CARDINALITIES[index % len(STRING_CARDINALITIES)])
        case "hist":
            return _lists
    return _integers


def _floats(place: Place, stream: int, *, null_share: float) -> pa.Array:
    words = place.words(stream)
    values = clicks.lognormal(words, 0.6 + 0.2 * (stream % 5))
    return pa.array(values, mask=clicks.nulls(words, null_share) if null_share else None)


def _integers(place: Place, stream: int) -> pa.Array:
    words = place.words(stream)
    values = clicks.lognormal(words, 1.0 + 0.2 * (stream % 5)) * np.float32(10)
    return pa.array(np.maximum(values, 0).astype(np.int64), mask=clicks.nulls(words, NULL_SHARE))


def _ids(place: Place, stream: int, *, cardinality: int) -> pa.Array:
    return pa.array(clicks.zipf(place.words(stream), cardinality))


def _strings(place: Place, stream: int, *, cardinality: int) -> pa.Array:
    return _hex_digits(cardinality, stream).take(pa.array(clicks.zipf(place.words(stream), cardinality)))


def _lists(place: Place, stream: int) -> pa.Array:
    lengths = (clicks.unit(place.words(stream + _LENGTHS)) * (LIST_MAX + 1)).astype(np.int32)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    values = clicks.zipf(place.words(stream, int(offsets[-1])), LIST_CARDINALITY)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def _labels(place: Place, stream: int) -> pa.Array:
    return pa.array((clicks.unit(place.words(stream)) < CLICKED).view(np.int8))


@functools.cache
def _hex_digits(count: int, stream: int) -> pa.Array:
    """Return so many different strings of 8 hex digits; another stream has other ones."""
    numbers = np.arange(count, dtype=np.uint32) * np.uint32(2_654_435_761)  # odd: permutes the numbers below 2**32
    numbers += np.uint32(stream * 40_503)
    digits = (numbers[:, None] >> np.arange(28, -4, -4, dtype=np.uint32)) & np.uint32(15)
    offsets = np.arange(0, 8 * count + 1, 8, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(_HEX[digits].tobytes()))
