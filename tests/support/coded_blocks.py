"""A table whose columns come as codes, and batches, quality and errors of a pipeline on codes and on rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipelines import image

from feedline import Pipeline
from feedline.errors import FeedlineError
from feedline.native import parquet

needs_kernel = pytest.mark.skipif(not parquet.COMPILED, reason="installed without a compiler: no column comes as codes")
ROWS, GROUP = 4000, 700
IDS = [*range(-5, 60), 2**40]
WORDS = ["", "a", "Zürich", "long " * 9]


def few(random: np.random.Generator, values: list[Any], count: int, nulls: float = 0.0) -> list[Any]:
    chosen = [values[index] for index in random.integers(0, len(values), count)]
    return [None if lost else value for value, lost in zip(chosen, random.random(count) < nulls, strict=True)]


def write_halves(table: pa.Table, folder: Path) -> Path:
    """Two files of several row groups, with pages of both kinds and without statistics."""
    folder.mkdir()
    half = len(table) // 2
    for file, part, version in (("0", table.slice(0, half), "1.0"), ("1", table.slice(half), "2.0")):
        path = folder / f"{file}.parquet"
        pq.write_table(part, path, row_group_size=GROUP, write_statistics=False, data_page_version=version)
    return folder


def write_table(folder: Path) -> Path:
    """Columns of few values each."""
    random = np.random.default_rng(3)
    lists = [few(random, IDS, int(length), 0.05) for length in random.integers(0, 9, ROWS)]
    tags = [few(random, WORDS, int(length)) for length in random.integers(0, 8, ROWS)]
    items = few(random, IDS, ROWS, 0.1)
    columns = {
        "row": range(ROWS),
        "price": pa.array(few(random, [0.0, -0.0, 1.5, 2.25, 1e30, 7.0], ROWS, 0.2), pa.float32()),
        "clean": few(random, [0.5, 1.5, 2.5], ROWS),
        "small": pa.array(few(random, [1, 2, 3], ROWS, 0.1), pa.int8()),
        "item": items,
        "priced": [item in {*IDS[2::2]} for item in items],
        "code": few(random, IDS, ROWS, 0.1),
        "full": few(random, IDS, ROWS),
        "number": few(random, ["0.5", "-0.0", "0", "1e30", "7"], ROWS, 0.2),
        "word": few(random, WORDS, ROWS, 0.1),
        "other": few(random, WORDS, ROWS, 0.1),
        "session": [None if random.random() < 0.05 else f"session {row // 5 % 40}" for row in range(ROWS)],
        "user": [f"user {number}" for number in random.integers(0, 40, ROWS)],
        "history": [None if row % 17 == 0 else each for row, each in enumerate(lists)],
        "filled": [[value or 0 for value in each] for each in lists],
        "tags": [None if row % 19 == 0 else each for row, each in enumerate(tags)],
        "scores": [few(random, [0.5, 1.5], int(n)) for n in random.integers(0, 4, ROWS)],
        "pair": pa.array([[float(row), None][: row % 3] for row in range(ROWS)], pa.list_(pa.float32())),
        "clicked": pa.array(few(random, [0, 1], ROWS), pa.int8()),
    }
    return write_halves(pa.table(columns), folder)


def pipeline(table: Path, work: Path, decoder: str = "auto", **changes: Any) -> Pipeline:
    source = {"table": str(table), "decoder": decoder, **changes.pop("source", {})}
    base = {"version": 1, "name": "codes", "work_dir": str(work / "work"), "source": source}
    batch = {"size": 256, "tail": "partial"}
    return Pipeline.from_dict({**base, "batch": batch, "shuffle": {"seed": 1, "window_rows": 1500}, **changes})


def outcome(made: Pipeline, *, expanded: bool = False) -> Any:
    """The bytes of all batches, and the quality of all their rows; or the error."""
    try:
        batches = [arrays_of(batch.expanded()) if expanded else image(batch) for batch in made.batches()]
        return batches, [monitor.total.to_bytes() for monitor in made._monitors]
    except FeedlineError as error:
        return type(error), str(error)


def arrays_of(batch: Any) -> list[bytes]:
    """The tensors of a batch without groups."""
    lists = [each for one in batch.sparse.values() for each in (one.values, one.lengths)]
    tensors = [batch.dense, batch.categorical, batch.labels, batch.extra["row"], *lists]
    return [np.ascontiguousarray(tensor.numpy()).tobytes() for tensor in tensors]


def on_codes_and_rows(table: Path, work: Path, computed: set[str], columns: set[str], **changes: Any) -> Any:
    """The outcome, which is the same on codes and on rows. computed: the fixture. columns: those computed on codes."""
    coded = outcome(pipeline(table, work, **changes))
    assert computed == columns
    rows = outcome(pipeline(table, work, "arrow", **changes))
    assert not computed
    assert coded == rows
    return coded
