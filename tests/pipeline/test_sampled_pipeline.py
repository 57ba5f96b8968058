"""A sampled pipeline from pipeline.yaml to batches: the same rows however the work is cut, and what errors say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pipelines import Place, furnished
from processes import ended_here
from sampling_definition import key_hash, place_hash, stays

from feedline import Pipeline
from feedline.blocks.compute import run_block
from feedline.errors import SpecError

SAMPLE = {"fraction": 0.25, "where": "clicked == 0", "seed": 7}
WHERE = 'ds >= "2026-01-02" and dwell > 1'


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("d"), clicks) as place:
        yield place


@cache
def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.ParquetFile(path).read(["request_id", "clicked", "dwell", "session_id"]).to_pylist()
    return rows


def expected(clicks: Path, sample: dict[str, Any], *, where: bool = True) -> dict[int, float]:
    """request_id and weight of every row that stays, row by row."""
    kept = {}
    for path in sorted(clicks.rglob("*.parquet")):
        name = str(path.relative_to(clicks))
        for index, row in enumerate(rows_of(path)):
            if where and (name[3:13] < "2026-01-02" or row["dwell"] is None or row["dwell"] <= 1):
                continue
            sampled = "where" not in sample or row["clicked"] == 0
            seed = sample.get("seed", 0)
            hashed = key_hash((row["session_id"],), seed) if "key" in sample else place_hash(name, index, seed)
            if not sampled or stays(hashed, sample["fraction"]):
                kept[row["request_id"]] = float(np.float32(1 / sample["fraction"])) if sampled else 1.0
    return kept


def write(place: Place, sample: dict[str, Any] | None, where: str | None = WHERE, **changes: Any) -> Path:
    features = {
        "dense": {"dense_0": [{"fill_null": 0}], "weight": {"column": "sample_weight"}},
        "label": {"clicked": []},
        "extra": ["request_id", "sample_weight"],
    }
    source = {"sample": sample, **({"where": where} if where else {}), **changes.pop("source", {})}
    return place.write(source=source, **{"features": features, "batch": {"size": 64, "tail": "partial"}, **changes})


def delivered(path: Path, world_size: int = 1, *, epoch: int = 0, step: int = 0, **overrides: Any) -> dict[int, float]:
    pipeline = Pipeline.from_yaml(path, overrides)
    found: dict[int, float] = {}
    plan = pipeline.complete_plan(world_size)
    for rank in range(world_size):
        for batch in pipeline.batches(epoch, rank, world_size, step=step, plan=plan):
            valid = batch.valid.numpy()
            weights = batch.extra["sample_weight"].numpy()[valid]
            assert weights.dtype == np.float32
            assert (batch.dense[:, 1].numpy()[valid] == weights).all()
            rows = dict(zip(batch.extra["request_id"].numpy()[valid].tolist(), weights.tolist(), strict=True))
            assert not found.keys() & rows.keys(), "each row once"
            found |= rows
    return found


@pytest.mark.parametrize(
    ("sample", "where"),
    [
        (SAMPLE, True),
        pytest.param(SAMPLE, False, marks=pytest.mark.nightly),
        ({"fraction": 0.3, "key": ["session_id"]}, False),
        pytest.param({"fraction": 0.3, "key": ["session_id"]}, True, marks=pytest.mark.nightly),
        ({"fraction": 0.1}, True),
        pytest.param({"fraction": 0.1}, False, marks=pytest.mark.nightly),
    ],
)
def test_the_rows_of_the_definition_reach_the_batches(
    place: Place, clicks: Path, sample: dict[str, Any], where: bool
) -> None:
    path = write(place, sample, WHERE if where else None)
    rows = expected(clicks, sample, where=where)
    assert delivered(path) == rows
    facts = Pipeline.from_yaml(path).plan().facts()
    assert facts.rows == len(rows)


def test_the_rest_is_read_with_what_the_sample_has_taught(place: Place, clicks: Path) -> None:
    sample = {"fraction": 0.9, "key": ["session_id"]}
    path = write(
        place,
        sample,
        None,
        features={"dense": {"dense_0": ["standardize", {"fill_null": 0}]}, "label": {"clicked": []}},
    )
    rows = pa.concat_tables(
        pq.read_table(each, columns=["session_id", "dense_0"]) for each in clicks.rglob("*.parquet")
    )
    learnt = [stays(key_hash((each,), 0), 0.9) for each in rows["session_id"].to_pylist()]
    rest = {"source.sample.rest": True}
    assert Pipeline.from_yaml(path, rest).fit().rows == sum(learnt)
    assert Pipeline.from_yaml(path).plan().facts().rows == sum(learnt)
    assert Pipeline.from_yaml(path, rest).plan().facts().rows == len(learnt) - sum(learnt)


def test_the_sample_is_independent_of_how_the_work_is_cut(place: Place, clicks: Path) -> None:
    path = write(place, SAMPLE)
    rows = expected(clicks, SAMPLE)
    cuts: tuple[tuple[int, dict[str, Any]], ...] = (
        (1, {"source.split_rows": 100_000}),
        (3, {"source.split_rows": 1}),
        (2, {"lanes": 6, "shuffle": "off"}),
        (1, {"shuffle.by": "session_id", "shuffle.window_rows": 500}),
    )
    for number, (world_size, overrides) in enumerate(cuts):
        assert delivered(path, world_size, epoch=number % 2, **overrides) == rows


def test_blocks_read_the_bytes_that_the_plan_says(place: Place, clicks: Path) -> None:
    """Where statistics prove the filter, its columns are read for nobody."""
    files = [pq.ParquetFile(path) for path in sorted(clicks.rglob("*.parquet"))]

    def stored(names: set[str]) -> int:
        groups = [file.metadata.row_group(index) for file in files for index in range(file.metadata.num_row_groups)]
        chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
        return sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in names)

    base = {"dense_0", "clicked", "request_id"}
    for sample, where, names in (
        ({"fraction": 0.5}, "request_id >= 0", base),
        ({"fraction": 0.5}, "session_id is not None", base),
        ({"fraction": 0.5}, "dwell + 1 > 1.5", base | {"dwell"}),
        ({"fraction": 0.5, "where": "id_0 % 2 == 0"}, None, base | {"id_0"}),
        ({"fraction": 0.5, "key": "session_id"}, None, base | {"session_id"}),
    ):
        path = write(place, sample, where, batch={"size": 64, "tail": "partial"}, source={"split_rows": 4096})
        plan = Pipeline.from_yaml(path).plan()
        assert int(plan.source.row_group_bytes.sum()) == stored(names), (sample, where)
        block = next(iter(plan.source.schedule(0).blocks(0)))
        assert run_block(plan.source.job, plan.request(block, 0), "k", False).rows == block.rows


def test_the_sample_is_in_the_fingerprint_of_the_plan(place: Place) -> None:
    path = write(place, SAMPLE)
    base = Pipeline.from_yaml(path).plan().facts()
    for key, value in (("fraction", 0.26), ("seed", 8), ("where", "clicked <= 0"), ("key", ["request_id"])):
        other = Pipeline.from_yaml(path, {f"source.sample.{key}": value}).plan().facts()
        assert (other.plan != base.plan, other.features) == (True, base.features), key


def test_errors_name_their_place(place: Place) -> None:
    for sample, text in (
        (
            {"fraction": 0.1, "key": ["sesion_id"]},
            r"source\.sample\.key: .*unknown column: got 'sesion_id'.*session_id",
        ),
        ({"fraction": 0.1, "key": ["hist_0"]}, r"source\.sample\.key: .*without a hash: got 'hist_0' of type list<"),
        ({"fraction": 0.1, "where": "clickd == 0"}, r"source\.sample\.where: (?s:.*)clickd"),
        ({"fraction": 1e-18}, r"source\.sample\.fraction: the sample keeps no row: got 0 of [\d,]+ rows"),
    ):
        with pytest.raises(SpecError, match=text) as caught:
            Pipeline.from_yaml(write(place, sample)).plan()
        assert f"{place.folder}/p.yaml:" in str(caught.value)
    with pytest.raises(SpecError, match="unknown column: got 'sample_weight'"):
        Pipeline.from_yaml(write(place, None)).plan()


def test_a_table_with_a_sample_weight_of_its_own(place: Place, tmp_path: Path) -> None:
    table = ds.dataset(place.table).to_table(columns=["request_id", "clicked"])
    pq.write_table(table.append_column("sample_weight", table["request_id"]), tmp_path / "t.parquet")
    source = {"table": str(tmp_path / "t.parquet")}
    for features, where in (
        ({"extra": ["sample_weight"]}, r"features\.extra\[0\]"),
        ({"dense": {"w": {"expr": "sample_weight * 2"}}}, r"features\.dense\.w"),
    ):
        path = place.write(source={**source, "sample": {"fraction": 0.5}}, features=features)
        with pytest.raises(SpecError, match=rf"{where}: .*sample_weight has two meanings"):
            Pipeline.from_yaml(path).plan()
    assert Pipeline.from_yaml(place.write(source=source, features={"extra": ["sample_weight"]})).plan().facts().rows
    path = place.write(source={**source, "sample": {"fraction": 0.5}}, features={"extra": ["request_id"]})
    with pytest.raises(SpecError, match=r"shuffle\.by cannot be sample_weight, which source\.sample"):
        Pipeline.from_yaml(path, {"shuffle.by": "sample_weight"}).plan()
    assert 9_000 < Pipeline.from_yaml(path).plan().facts().rows < 11_000


def test_the_dry_run_says_what_the_sample_costs_and_leaves(place: Place, clicks: Path) -> None:
    path = write(place, {**SAMPLE, "key": ["session_id"]}, 'ds >= "2026-01-02"')
    done = ended_here("plan", path, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    files = [pq.ParquetFile(file) for file in sorted(clicks.rglob("*.parquet")) if "2026-01-01" not in str(file)]
    groups = [file.metadata.row_group(index) for file in files for index in range(file.metadata.num_row_groups)]
    chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
    assert facts["counted"]["row_groups"] == len(groups)
    assert facts["counted"]["bytes"] == sum(
        chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in ("clicked", "session_id")
    )
