"""A block whose first rows are handed over early has the bytes, the counts and the errors of any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.blocks import block_encoder, piece_chunks
from feedline.blocks.block_encoder import HandOver
from feedline.blocks.compute import pack_block, run_block
from feedline.blocks.request import BlockResult
from feedline.loader.encoding.shuffled_rows import Rows
from feedline.planning.plan import Plan
from feedline.service.cluster.attempts import attempt_block
from feedline.service.cluster.blame import BlockFailure
from feedline.warehouse.parquet.decode import DECODER_VARIABLE, chunk_sizes

ROWS = 9_000
FEATURES: dict[str, Any] = {
    "dense": {"price": [{"fill_null": 0.25}, "log1p"], "raw": []},
    "categorical": {"item": [{"hash_bucket": 1000}], "code": [{"modulo": 7}]},
    "sparse": {"history": [{"first_x": 4}, {"fill_null": 3}, {"hash_bucket": 50}], "tags": [{"hash_bucket": 20}]},
    "label": {"clicked": []},
    "extra": ["user"],
}
OFF: dict[str, Any] = {"shuffle": "off"}
TURNED_OFF = {"split_rows": 20_000}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("handed")
    for part in range(2):
        rng = np.random.default_rng(part)
        users = np.sort(rng.integers(0, 900, ROWS))
        ids = [None if user % 11 == 0 else [None if i % 7 == 3 else i for i in range(user % 9)] for user in users]
        content = {
            "price": pa.array([None if row % 13 == 0 else float(row % 50) for row in range(ROWS)], pa.float32()),
            "raw": pa.array(rng.random(ROWS), pa.float32()),
            "item": [f"item {value}" for value in rng.integers(0, 300, ROWS)],
            "code": rng.integers(0, 10**6, ROWS),
            "history": pa.array(ids, pa.list_(pa.int64())),
            "tags": [[f"tag {value}"] * (value % 3) for value in rng.integers(0, 9, ROWS)],
            "user": users,
            "clicked": rng.integers(0, 2, ROWS).astype(np.float32),
        }
        pq.write_table(pa.table(content), folder / f"{part}.parquet", row_group_size=4_000)
    return folder


def plan_of(table: Path, folder: Path, changes: dict[str, Any]) -> Plan:
    spec = {
        "version": 1,
        "name": "handed",
        "work_dir": str(folder / "work"),
        "source": {"table": str(table), **TURNED_OFF, **changes.get("source", {})},
        "features": FEATURES | changes.get("features", {}),
        "batch": {"size": 500, "tail": "partial"},
        "shuffle": changes.get("shuffle", "off"),
        **({"dedup": changes["dedup"]} if "dedup" in changes else {}),
        **({"lanes": changes["lanes"]} if "lanes" in changes else {}),
    }
    return Pipeline.from_dict(spec).plan()


def compute_block(plan: Plan, number: int, rows: int) -> tuple[BlockResult, BlockResult, list[Rows]]:
    """A block as ever, the block whose rows are handed over, and these."""
    blocks = list(plan.source.schedule(0).blocks(0, everything=True))
    request = plan.request(blocks[number], 0)
    handed: list[Rows] = []
    alone = run_block(plan.source.job, request, "key", False)
    return alone, run_block(plan.source.job, request, "key", False, HandOver(rows, handed.append)), handed


CASES = {
    "plain": {},
    "filter": {"source": {"where": "code % 3 != 1 and price is not None"}},
    "sample": {"source": {"sample": {"fraction": 0.5, "seed": 3}}},
    "arrow": {"source": {"decoder": "arrow"}},
    "lanes": {"lanes": 3},  # blocks that begin within a row group
    "splits": {"shuffle": {"seed": 1, "rows": False}},
}


@pytest.mark.parametrize("case", CASES)
def test_bytes_and_counts_are_those_of_any_block(case: str, table: Path, tmp_path: Path) -> None:
    plan = plan_of(table, tmp_path, CASES[case])
    count = len(list(plan.source.schedule(0).blocks(0, everything=True)))
    for number in range(count):
        alone, result, handed = compute_block(plan, number, 500)
        assert result.rows == alone.rows == sum(part.rows for part in result.parts or ())
        assert pack_block(plan.layout, result.parts or ()) == pack_block(plan.layout, alone.parts or ())
        assert result.quality.to_bytes() == alone.quality.to_bytes()
        if result.parts is not None and len(result.parts) > 1:
            assert all(one is other for one, other in zip(handed, result.parts[:-1], strict=True))
        else:
            assert not handed


def test_the_first_part_is_small_and_the_next_ones_grow(table: Path, tmp_path: Path) -> None:
    _, result, handed = compute_block(plan_of(table, tmp_path, {}), 0, 500)
    assert [part.rows for part in result.parts or ()][:4] == [500, 1000, 2000, 4500]
    assert len(handed) == len(result.parts or ()) - 1


def test_the_first_part_has_enough_rows_where_a_filter_drops_some(table: Path, tmp_path: Path) -> None:
    plan = plan_of(table, tmp_path, CASES["filter"])
    assert plan.source.schedule(0).rows < ROWS * 2 * 0.65
    _, _, handed = compute_block(plan, 0, 500)
    assert 500 <= handed[0].rows <= 600


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"shuffle": {"seed": 1, "window_rows": 9_000}}, id="permuted"),
        pytest.param({"source": {"row_key": ["user"]}}, id="recorded"),
    ],
)
def test_rows_that_are_permuted_or_recorded_are_not_handed_over(
    changes: dict[str, Any], table: Path, tmp_path: Path
) -> None:
    plan = plan_of(table, tmp_path, changes)
    alone, result, handed = compute_block(plan, 0, 500)
    assert not handed
    assert pack_block(plan.layout, result.parts or ()) == pack_block(plan.layout, alone.parts or ())


def test_runs_of_groups_end_where_they_always_do(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (piece_chunks, block_encoder):
        monkeypatch.setattr(module, "CHUNK_ROWS", 1_000)
    plan = plan_of(table, tmp_path, {"dedup": {"user": {"columns": ["history"]}}})
    assert plan.layout.schema.dedup
    alone, result, handed = compute_block(plan, 0, 100)
    assert [part.rows for part in result.parts or ()] == [part.rows for part in alone.parts or ()]
    assert pack_block(plan.layout, result.parts or ()) == pack_block(plan.layout, alone.parts or ())
    assert len(handed) == len(alone.parts or ()) - 1 > 0


def test_the_error_is_that_of_the_whole_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The feature that is evaluated first is wrong in a late row, another one in an early row."""
    folder = tmp_path / "wrong"
    folder.mkdir()
    early, late = [float(row) for row in range(4000)], [float(row) for row in range(4000)]
    early[700], late[3000] = None, None  # type: ignore[call-overload]
    columns = {"first": pa.array(late), "second": pa.array(early), "clicked": [1.0] * 4000}
    pq.write_table(pa.table(columns), folder / "0.parquet", write_statistics=False)
    features = {"dense": {"first": [], "second": []}, "label": {"clicked": []}}
    spec = {"version": 1, "name": "wrong", "work_dir": str(tmp_path), "source": {"table": str(folder)}}
    plan = Pipeline.from_dict(spec | {"features": features, "batch": {"size": 500}, "shuffle": "off"}).plan()
    request = plan.request(next(plan.source.schedule(0).blocks_of([0], first_step=0)), 0)
    handed: list[Rows] = []
    alone = attempt_block(plan.source.job, request, "key", False)
    result = attempt_block(plan.source.job, request, "key", False, HandOver(500, handed.append))
    assert isinstance(alone, BlockFailure)
    assert result == alone
    assert [part.rows for part in handed] == [500]


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [((10, 4), [4, 4, 2]), ((10, 4, 1), [1, 2, 4, 3]), ((3, 4, 9), [3]), ((0, 4, 1), []), ((8, 8, 3), [3, 5])],
)
def test_chunks_grow_to_their_size(arguments: tuple[int, ...], sizes: list[int]) -> None:
    assert list(chunk_sizes(*arguments)) == sizes


def test_files_that_pyarrow_decodes_come_in_chunks_as_before(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DECODER_VARIABLE, "arrow")
    plan = plan_of(table, tmp_path, {})
    alone, result, _ = compute_block(plan, 0, 500)
    assert pack_block(plan.layout, result.parts or ()) == pack_block(plan.layout, alone.parts or ())
