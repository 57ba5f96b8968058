"""Strings come as codes also where filter, sample, `shuffle.by` or features need their values: batches stay equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.blocks.compute import run_block
from feedline.errors import FeedlineError
from feedline.native import parquet as native
from feedline.warehouse.reading import row_filter

pytestmark = pytest.mark.skipif(not native.COMPILED, reason="installed without a compiler: no column comes as codes")
ROWS, GROUP = 3000, 700
WORDS = ["", "a", "b", "Zürich", "long " * 9]
HASH = {"hash_bucket": {"buckets": 50, "null_bucket": True}}
FEATURES: dict[str, Any] = {
    "categorical": {"word": [HASH], "other": [HASH]},
    "sparse": {"tags": [{"first_x": 1}, HASH], "history": [HASH]},
    "label": {"clicked": []},
    "extra": ["row"],
}
ALL = {"word", "other", "tags", "history"}


def few(random: np.random.Generator, values: list[Any], count: int, nulls: float = 0.0) -> list[Any]:
    chosen = [values[index] for index in random.integers(0, len(values), count)]
    return [None if lost else value for value, lost in zip(chosen, random.random(count) < nulls, strict=True)]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("expanded") / "table", np.random.default_rng(9)
    tags = [few(random, WORDS, int(length), 0.05) for length in random.integers(0, 8, ROWS)]
    lists = [few(random, list(range(40)), int(length), 0.05) for length in random.integers(0, 8, ROWS)]
    session = [f"session {row // 5 % 40}" for row in range(ROWS)]
    columns = {
        "row": range(ROWS),
        "word": few(random, WORDS, ROWS, 0.1),
        "other": few(random, WORDS, ROWS, 0.1),
        "session": [None if random.random() < 0.05 else one for one in session],
        "tags": [None if row % 19 == 0 else each for row, each in enumerate(tags)],
        "history": lists,
        "clicked": pa.array(few(random, [0, 1], ROWS), pa.int8()),
    }
    folder.mkdir()
    whole = pa.table(columns)
    pq.write_table(whole.slice(0, ROWS // 2), folder / "0.parquet", row_group_size=GROUP)
    pq.write_table(whole.slice(ROWS // 2), folder / "1.parquet", row_group_size=GROUP)
    return folder


def arrays_of(batch: Any) -> list[Any]:
    tensors = [batch.labels]
    for part in (batch, *batch.groups.values()):
        tensors += [part.dense, part.categorical]
        tensors += [each for one in part.sparse.values() for each in (one.values, one.lengths)]
    tensors += [group.inverse for group in batch.groups.values()]
    extra = [one.tolist() if hasattr(one, "tolist") else one.to_pylist() for one in batch.extra.values()]
    return [*(np.ascontiguousarray(tensor.numpy()).tobytes() for tensor in tensors), extra]


def outcome(table: Path, folder: Path, decoder: str, changes: dict[str, Any]) -> Any:
    """The bytes of all batches, and the qualities of all blocks; or the error."""
    changes = dict(changes)
    made = Pipeline.from_dict(
        {
            "version": 1,
            "name": "expanded",
            "work_dir": str(folder / f"work {decoder}"),
            "source": {"table": str(table), "decoder": decoder, **changes.pop("source", {})},
            "features": FEATURES,
            "batch": {"size": 256, "tail": "partial"},
            "shuffle": {"seed": 1, "window_rows": 1500},
            **changes,
        }
    )
    try:
        batches = [arrays_of(batch) for batch in made.batches()]
        plan = made.plan()
        blocks = list(plan.source.schedule(0).blocks(0, everything=True))
        qualities = [
            run_block(plan.source.job, plan.request(block, 0), "k", False).quality.to_bytes() for block in blocks
        ]
    except FeedlineError as error:
        return type(error), str(error)
    return batches, qualities


CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "term over two columns": ({"source": {"where": "word != other or clicked == 1"}}, ALL),
    "term over a list": ({"source": {"where": "tags.list.len() > 2"}}, ALL),
    "term over a list of numbers": ({"source": {"where": "history.list.len() > 1"}}, ALL - {"history"}),
    "terms on codes and on values": ({"source": {"where": "word != 'a' and (word != other or row > 2000)"}}, ALL),
    "sample": (
        {"source": {"sample": {"fraction": 0.5, "key": ["word", "other"], "where": "tags.list.len() > 2"}}},
        ALL,
    ),
    "runs": (
        {
            "shuffle": {"by": "session", "seed": 1, "window_rows": 1500},
            "features": {**FEATURES, "categorical": {**FEATURES["categorical"], "session": [HASH]}},
        },
        {*ALL, "session"},
    ),
    "features": (
        {
            "features": {
                **FEATURES,
                "dense": {"count": {"expr": "tags.list.len()", "ops": [{"fill_null": 0}]}},
                "categorical": {
                    **FEATURES["categorical"],
                    "cross": {"op": {"hashed_cross": 30}, "inputs": ["word", "other"], "ops": [{"fill_null": 30}]},
                    "parity": {"expr": "history.list.len() % 2", "ops": [{"cast": "int64"}]},
                },
                "extra": {"row": {"column": "row"}, "kept": {"column": "word"}},
            }
        },
        ALL - {"history"},
    ),
    "groups": (
        {
            "source": {"where": "word != other or clicked == 1"},
            "shuffle": {"by": "session", "seed": 1, "window_rows": 1500},
            "dedup": {"user": {"columns": ["word", "tags"]}},
        },
        ALL,
    ),
    "group of the runs' column": (
        {
            "features": {**FEATURES, "categorical": {**FEATURES["categorical"], "session": [HASH]}},
            "shuffle": {"by": "session", "seed": 1, "window_rows": 1500},
            "dedup": {"user": {"columns": ["session", "tags"]}},
        },
        {*ALL, "session"},
    ),
    "errors": ({"source": {"where": "word != other"}, "features": {**FEATURES, "dense": {"w": {
        "column": "word", "ops": [{"cast": "float32"}, {"fill_null": 0}]}}}}, set()),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_batches_and_quality_are_those_computed_on_rows(
    table: Path, tmp_path: Path, name: str, computed: set[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(row_filter, "_LEAST_STRINGS", 0)
    changes, columns = CASES[name]
    coded = outcome(table, tmp_path, "auto", changes)
    assert computed == columns
    rows = outcome(table, tmp_path, "arrow", changes)
    assert not computed
    assert coded == rows
    assert issubclass(rows[0], FeedlineError) if name == "errors" else isinstance(rows[0], list)


@pytest.mark.parametrize("name", ["term over two columns", "sample", "runs", "features"])
def test_values_are_decoded_where_row_groups_are_small(table: Path, tmp_path: Path, name: str, computed: set[str]):
    changes, columns = CASES[name]
    outcome(table, tmp_path, "auto", changes)
    values = {"runs": {"session"}, "term over two columns": {"word", "other"}}
    assert computed == columns - values.get(name, {"word", "other", "tags"})
