"""Blocks in the table's order keep their lists as codes, and give the bytes of a block of values."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.blocks import compute
from feedline.blocks.compute import run_block
from feedline.loader.encoding.encoded_rows import EncodedRows, with_values
from feedline.loader.encoding.slot import RowSlice, draft, write
from feedline.native import parquet, rows
from feedline.native.coded_values import CodedArray
from feedline.warehouse.parquet.decode import DECODER_VARIABLE

pytestmark = pytest.mark.skipif(
    not (parquet.COMPILED and rows.COMPILED), reason="the kernels were not compiled: there is no C compiler"
)
ROWS, BATCH = 4_000, 300
FEATURES: dict[str, Any] = {
    "categorical": {"item": [{"hash_bucket": 1000}]},
    "sparse": {
        "history": [{"fill_null": 3}, {"modulo": 1_000_003}],
        "recent": {"column": "history", "ops": [{"fill_null": 2**40}, {"first_x": 5}]},
        "last": {"column": "history", "ops": [{"fill_null": -1}, {"list_slice": -3}]},
        "tags": [{"hash_bucket": 20}],
    },
    "label": {"clicked": []},
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lists with nulls, empty and null ones, in row groups that blocks cut."""
    folder, rng = tmp_path_factory.mktemp("kept"), np.random.default_rng(3)
    user = np.repeat(np.arange(ROWS // 4), 4)
    lists = [None if row % 11 == 0 else [None if i % 17 == 3 else int(i) for i in rng.integers(0, 40, row % 23)]
             for row in range(ROWS // 4)]  # fmt: skip
    content = {
        "item": [f"item {value}" for value in rng.integers(0, 100, ROWS)],
        "history": pa.array([lists[each] for each in user], pa.list_(pa.int64())),
        "tags": [[f"tag {value}"] * (value % 9) for value in rng.integers(0, 30, ROWS)],
        "user": user,
        "clicked": rng.integers(0, 2, ROWS).astype(np.float32),
    }
    pq.write_table(pa.table(content), folder / "0.parquet", row_group_size=1_500)
    return folder


def blocks_of(table: Path, folder: Path, shuffle: Any, source: Any, grouped: bool = False) -> tuple[Any, list[Any]]:
    plan = Pipeline.from_dict(
        {
            "version": 1,
            "name": "kept",
            "work_dir": str(folder / "work"),
            "source": {"table": str(table), **source},
            "features": FEATURES,
            "dedup": {"user": {"columns": ["history"]}} if grouped else {},
            "batch": {"size": BATCH},
            "shuffle": shuffle,
        }
    ).plan()
    requests = [plan.request(block, 0) for block in plan.source.schedule(0).blocks(0, everything=True)]
    return plan, [run_block(plan.source.job, request, "k", False) for request in requests]


def slots(layout: Any, part: EncodedRows) -> list[bytes]:
    """The part's batches, the last one padded."""
    images = []
    for start in range(0, part.rows, BATCH):
        stop = min(start + BATCH, part.rows)
        pieces = [RowSlice(encoded=part, start=start, stop=stop)]
        if stop - start < BATCH:
            padding = {"valid": False, "repeats": (part, start)}
            pieces.append(RowSlice(encoded=part, start=start, stop=start + 1, **padding))
        batch = draft(layout, pieces, epoch=0, step=0)
        buffer = np.full(batch.placement.nbytes, 255, np.uint8)
        write(layout, batch, buffer)
        images.append(buffer.tobytes())
    return images


def lists_of(part: EncodedRows) -> list[Any]:
    return [*part.values, *(values for group in part.groups for values in group.rows.values)]


@pytest.mark.parametrize(
    ("source", "rows"),
    list(
        itertools.product(
            [{}, {"where": "clicked > 0"}, {"sample": {"fraction": 0.5, "seed": 4}}, {"split_rows": 500}],
            [
                ("off", False),
                ("off", True),
                ({"rows": False, "seed": 2}, False),
                ({"rows": False, "seed": 2}, True),
                ({"seed": 1, "window_rows": 2_000}, False),
            ],
        )
    ),
)
def test_bytes_and_quality_are_those_of_values(
    table: Path, tmp_path: Path, source: Any, rows: tuple[Any, bool], monkeypatch: pytest.MonkeyPatch
):
    """Of rows in the table's order, blocks in another, and rows in another; `grouped`: with a deduplicated group."""
    shuffle, grouped = rows
    plan, results = blocks_of(table, tmp_path, shuffle, source, grouped)
    kept = [part for result in results for part in result.parts]
    assert any(isinstance(values, CodedArray) for part in kept for values in lists_of(part))
    assert sum(part.nbytes for part in kept) < sum(with_values(part).nbytes for part in kept)
    monkeypatch.setenv(DECODER_VARIABLE, "arrow")
    _, expected = blocks_of(table, tmp_path, shuffle, source, grouped)
    for found, wanted in zip(results, expected, strict=True):
        assert found.quality.to_bytes() == wanted.quality.to_bytes()
        images = [compute.pack_block(plan.layout, result.parts).to_pybytes() for result in (found, wanted)]
        assert images[0] == images[1]
        for part in found.parts:
            assert slots(plan.layout, part) == slots(plan.layout, with_values(part))
