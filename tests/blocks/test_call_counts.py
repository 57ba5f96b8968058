"""Blocks and batches make few calls for each column: they hold the interpreter's lock, which others wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from call_counts import calls_of

from feedline import Pipeline
from feedline.blocks.compute import run_block
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.layout import BatchSchema, SlotColumn, SlotLayout
from feedline.loader.encoding.shuffled_rows import shuffle
from feedline.loader.encoding.slot import RowSlice, draft, write
from feedline.native import parquet, rows

pytestmark = pytest.mark.skipif(
    not (parquet.COMPILED and rows.COMPILED), reason="installed without a compiler: no column comes as codes"
)
ROWS = 8192
MOST = 195  # for each column: a quarter more than are counted


def calls_of_block(folder: Path, columns: int, kind: str) -> int:
    """The calls of Python and C functions in a block of so many columns, once the job is compiled."""
    random = np.random.default_rng(5)
    words = np.array([f"word {number} of a few" for number in range(300)])
    table: dict[str, Any] = {"clicked": random.integers(0, 2, ROWS, dtype=np.int8)}
    for number in range(columns):
        codes = random.integers(0, 300, ROWS)
        lost = random.random(ROWS) < 0.1
        table[f"c{number}"] = words[codes] if kind == "string" else pa.array(codes, pa.int64(), mask=lost)
    folder.mkdir()
    pq.write_table(pa.table(table), folder / "0.parquet", row_group_size=ROWS // 2)
    names = [f"c{number}" for number in range(columns)]
    features: dict[str, Any] = {"label": {"clicked": []}}
    if kind == "string":
        features["categorical"] = {name: [{"hash_bucket": 1000}] for name in names}
    else:
        features["dense"] = {name: [{"fill_null": 0}, {"cast": "float32"}, "log1p"] for name in names}
    plan = Pipeline.from_dict(
        {
            "version": 1,
            "name": "calls",
            "work_dir": str(folder / "work"),
            "source": {"table": str(folder / "0.parquet"), "split_rows": ROWS // 2},
            "features": features,
            "batch": {"size": 256},
            "shuffle": {"seed": 1, "window_rows": ROWS // 2},
        }
    ).plan()
    first, second = [plan.request(block, 0) for block in plan.schedule(0).blocks(0, everything=True)][:2]
    run_block(plan.job, first, "first", False)
    return calls_of(lambda: run_block(plan.job, second, "second", False))


@pytest.mark.parametrize("kind", ["string", "integer"])
def test_a_coded_column_of_a_block_takes_few_calls(tmp_path: Path, kind: str) -> None:
    few, many = (calls_of_block(tmp_path / f"t{columns}", columns, kind) for columns in (4, 12))
    assert (many - few) / 8 <= MOST


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_batch_takes_as_many_calls_to_write_however_many_ids_it_has(shuffled: bool) -> None:
    few, many = (calls_of_writing(columns, shuffled) for columns in (2, 40))
    assert few == many


def calls_of_writing(columns: int, shuffled: bool) -> int:
    """The calls in writing a batch of two pieces, with so many columns of ids."""
    of_ids = [
        SlotColumn(name=f"c{column}", group="categorical", dtype="int64", arrow="int64", offset=column)
        for column in range(columns)
    ]
    layout = SlotLayout(BatchSchema(tuple(of_ids)))
    ids = tuple(np.arange(10, dtype=np.int64) + column for column in range(columns))
    none = np.empty((10, 0), np.float32)
    part = EncodedRows(rows=10, dense=none, labels=none, categorical=ids, values=(), weights=(), offsets=(), extra=())
    encoded = shuffle([part], np.arange(10)[::-1].copy()) if shuffled else part
    pieces = [RowSlice(encoded=encoded, start=start, stop=start + 4) for start in (0, 5)]
    batch = draft(layout, pieces, epoch=0, step=0)
    buffer = np.empty(batch.placement.nbytes, np.uint8)
    calls = calls_of(lambda: write(layout, batch, buffer))
    expected = ids[-1][::-1] if shuffled else ids[-1]
    start = batch.placement.matrices.categorical + 8 * 8 * (columns - 1)
    assert buffer[start : start + 64].view(np.int64).tolist() == [*expected[:4], *expected[5:9]]
    return calls
