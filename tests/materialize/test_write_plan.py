"""Files of features hold the rows of batches in the table's order, bit for bit, whoever computes them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import zarr
from pipelines import Place, furnished

from feedline import Pipeline
from feedline.commands.cluster.connect import pipeline_cluster
from feedline.errors import CorruptFileError, DataError, SpecError, TableError
from feedline.loader.encoding.encoded_rows import arrow_table, expand, take
from feedline.loader.encoding.slot import encoded_rows
from feedline.materialize import arrays_writer, feature_arrays, write_plan
from feedline.materialize.feature_arrays import feature_path
from feedline.materialize.output_folder import MARKER
from feedline.service.cluster.fit_workers import DaskWorkers
from feedline.warehouse.storage.locations import list_tree, locate

ROWS = 1_000
FEATURES: dict[str, Any] = {
    "dense": {"price": [{"fill_null": 0}], "vector": [{"vector": 3}], "age": [{"fill_null": 0}]},
    "categorical": {"item": [{"modulo": 7}], "city": [{"fill_null": "?"}, {"hash_bucket": 50}]},
    "sparse": {
        "tags": [],
        "none": [],
        "scores": [],
        "pairs": {"op": "weighted", "inputs": ["tags", "weights"]},
        "a/b": {"column": "tags", "ops": [{"first_x": 1}]},
    },
    "label": {"clicked": []},
    "extra": {"row": [], "when": [], "word": {"column": "city"}, "maybe": {"column": "flag"}, "small": []},
}
NO_LISTS = {group: FEATURES[group] for group in ("dense", "categorical", "label")}
DEDUP = {"user": {"columns": ["age", "city", "tags"]}}
WIDE = {"dense": {f"d{index}": {"column": "price", "ops": [{"fill_null": index}]} for index in range(40)}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Values with NaN, zeros of both signs, nulls, empty lists, a feature without any value; repeated user columns."""
    folder = tmp_path_factory.mktemp("materialize")
    rng = np.random.default_rng(3)
    user = np.repeat(np.arange(ROWS), rng.integers(1, 9, ROWS))[:ROWS]
    lengths = rng.integers(0, 4, ROWS)[user]
    table = pa.table(
        {
            "row": np.arange(ROWS),
            "price": pa.array(rng.choice([0.0, -0.0, float("nan"), 1.5], ROWS), mask=rng.random(ROWS) < 0.1),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(3 * ROWS, dtype=np.float32)), 3),
            "age": pa.array(user % 9, pa.float64(), mask=user % 5 == 0),
            "city": pa.array([["a", "", None, "Ölüdeniz"][each % 4] for each in user]),
            "item": rng.integers(0, 1 << 40, ROWS),
            "tags": pa.array([list(range(each)) for each in lengths], pa.list_(pa.int64())),
            "none": pa.array([[]] * ROWS, pa.list_(pa.int64())),
            "scores": pa.array([[-0.0, float("nan"), 2.0][:each] for each in lengths], pa.list_(pa.float32())),
            "weights": pa.array([[0.5] * each for each in lengths], pa.list_(pa.float32())),
            "clicked": rng.integers(0, 2, ROWS),
            "when": pa.array(rng.integers(0, 1 << 40, ROWS), pa.timestamp("us")),
            "flag": pa.array(rng.random(ROWS) < 0.5, mask=rng.random(ROWS) < 0.3),
            "small": pa.array(rng.integers(0, 100, ROWS), pa.int8(), mask=rng.random(ROWS) < 0.01),
        }
    )
    for part, start in enumerate(range(0, ROWS, 360)):
        path = folder / "table" / f"ds={part}" / "part.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(table.slice(start, 360), path, row_group_size=100)
    (folder / "place").mkdir()
    with furnished(folder / "place", folder / "table") as place:
        yield place


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks, chunks and shards of few rows."""
    monkeypatch.setattr(write_plan, "_BLOCK_ROWS", 160)
    monkeypatch.setattr(feature_arrays, "CHUNK_BYTES", 1 << 10)
    monkeypatch.setattr(arrays_writer, "_SHARD_CHUNKS", 3)


def pipeline(place: Place, **changes: Any) -> Pipeline:
    return Pipeline.from_yaml(place.write(**{"features": FEATURES, **changes}))


def of_batches(place: Place, **changes: Any) -> pa.Table:
    """The rows that batches deliver without a shuffle, from one lane, the last one partial."""
    plain = {**changes, "shuffle": "off", "lanes": 1, "batch": {"size": 133, "tail": "partial"}}
    own = pipeline(place, **plain)
    layout = own.complete_plan().layout
    rows = [encoded_rows(layout, pa.py_buffer(bytes(each._bytes().numpy()))) for each in own.batches()]
    whole = take(rows, np.arange(sum(each.rows for each in rows)))
    return arrow_table(expand(whole, layout.schema), layout.schema.expanded)


def of_arrays(out: Path) -> pa.Table:
    """The table that arrays stand for, read with zarr alone."""
    group = zarr.open_group(out, mode="r", zarr_format=3)
    columns, matrices = {}, {name: array[:] for name, array in group.arrays()}
    for column in group.attrs["columns"]:
        name, place, width = column["name"], column["offset"], column["width"]
        found = matrices.get(column["path"], group.get(column["path"]))
        if column["group"] in ("dense", "label", "categorical"):
            values = found[:, place : place + width]
            columns[name] = (
                pa.array(values[:, 0])
                if width == 1
                else pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), width)
            )
        elif column["group"] == "sparse":
            values = pa.array(found["values"][:])
            if column["weighted"]:
                values = pa.StructArray.from_arrays([values, pa.array(found["weights"][:])], ["id", "weight"])
            columns[name] = pa.LargeListArray.from_arrays(pa.array(found["offsets"][:]), values)
        else:
            columns[name] = _extra(found, column)
    return pa.table(columns)


def _extra(found: Any, column: dict[str, Any]) -> pa.Array:
    values, nulls = found["values"][:], ~found["valid"][:]
    if "offsets" in found:
        borders = found["offsets"][:]
        pieces = [bytes(values[low:high]).decode() for low, high in pairwise(borders)]
        return pa.array(pieces, column["arrow"], mask=nulls)
    return pa.array(values, mask=nulls).cast(pa.timestamp("us") if column["unit"] else column["arrow"])


def bits(table: pa.Table) -> dict[str, Any]:
    """Every column as values that are equal for equal bits only; what nulls and lists hide is left out."""
    found = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        column = column.flatten() if isinstance(column, pa.LargeListArray) else column
        flat = [column] if not pa.types.is_struct(column.type) else [column.field(0), column.field(1)]
        lengths = (
            pa.compute.list_value_length(table.column(name)).to_pylist()
            if "list" in str(table.schema.field(name).type)
            else []
        )
        found[name] = lengths, [_bits(each) for each in flat]
    return found


def _bits(array: pa.Array) -> list[Any]:
    if isinstance(array, pa.FixedSizeListArray):
        array = array.flatten()
    if pa.types.is_floating(array.type):
        return [str(array.type), *array.to_numpy(zero_copy_only=False).view(np.uint32).tolist()]
    return [str(array.type), *array.to_pylist()]


VARIANTS: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "lanes": {
        "lanes": 4,
        "shuffle": {"seed": 3, "window_rows": 200, "by": "row"},
        "batch": {"size": 8, "tail": "drop"},
    },
    "where": {"source": {"where": "row % 3 == 1 and row < 880"}},
    "sample": {"source": {"sample": {"fraction": 0.3, "seed": 1}}},
    "dedup": {"dedup": DEDUP, "shuffle": {"rows": False}},
    "wide": {"features": {**FEATURES, **WIDE}},
    "no lists": {"features": NO_LISTS},
    "few": {"source": {"where": "row < 3"}, "batch": {"size": 2, "tail": "pad"}},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name == "sample" else ()) for name in VARIANTS]
)
def test_arrays_equal_batches(place: Place, tmp_path: Path, name: str):
    report = pipeline(place, **VARIANTS[name]).materialize(tmp_path / "out")
    expected = of_batches(place, **VARIANTS[name])
    found = of_arrays(tmp_path / "out")
    assert bits(found) == bits(expected)
    assert (report.rows, report.features) == (expected.num_rows, expected.num_columns)
    nbytes = sum(
        each.nbytes for _, each in zarr.open_group(tmp_path / "out").members(max_depth=None) if hasattr(each, "nbytes")
    )
    assert report.bytes == nbytes


@pytest.mark.parametrize("name", ["shuffled", "sample", "dedup", "few"])
def test_parquet_equals_batches(place: Place, tmp_path: Path, name: str):
    report = pipeline(place, **VARIANTS[name]).materialize(tmp_path / "out", format="parquet")
    expected = of_batches(place, **VARIANTS[name])
    assert bits(ds.dataset(tmp_path / "out").to_table()) == bits(expected)
    assert report.rows == expected.num_rows


def test_worker_processes_write_the_same_files(place: Place, tmp_path: Path):
    with pipeline_cluster(pipeline(place, cluster={"workers": 1}).spec) as cluster:
        assert cluster is not None
        for format in write_plan.FORMATS:
            pipeline(place).materialize(tmp_path / format, format=format, workers=DaskWorkers(cluster), map=cluster.map)
    expected = bits(of_batches(place))
    assert bits(of_arrays(tmp_path / "zarr")) == expected
    assert bits(ds.dataset(tmp_path / "parquet").to_table()) == expected


def test_the_root_says_what_was_written(place: Place, tmp_path: Path):
    own = pipeline(place)
    own.materialize(tmp_path / "out")
    plan = own.complete_plan()
    own.materialize(tmp_path / "files", format="parquet")
    facts = zarr.open_group(tmp_path / "out").attrs.asdict()
    other = json.loads((tmp_path / "files" / MARKER).read_text())
    expected = {
        "pipeline": "clicks",
        "snapshot": plan.source.snapshot.id,
        "plan": plan.fingerprint,
        "features": plan.features_fingerprint,
        "rows": ROWS,
    }
    own_facts = dict.fromkeys(("columns", "files", "run", "contents"))
    assert {name: facts[name] for name in expected} == expected
    assert {**expected, **other, **own_facts} == {**facts, **own_facts}
    assert other["contents"] == sorted(path.name for path in (tmp_path / "files").glob("*.parquet"))
    assert sorted(facts["contents"]) == sorted(
        name for name, each in zarr.open_group(tmp_path / "out").members(None) if isinstance(each, zarr.Array)
    )
    columns = {column["name"]: column for column in facts["columns"]}
    assert list(columns) == [column.name for column in plan.layout.schema]
    assert columns["a/b"]["path"] == feature_path(plan.layout.schema["a/b"]) == "sparse/a%2Fb"
    assert columns["age"]["offset"] == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files", "out"]


def test_a_uri_is_written_in_place(place: Place, tmp_path: Path):
    pipeline(place).materialize("memory://materialized/out", format="parquet")
    with pytest.raises(SpecError, match=r"holds features already: .* Add --overwrite"):
        pipeline(place).materialize("memory://materialized/out")
    pipeline(place).materialize("memory://materialized/out", overwrite=True)
    paths = [info.path for info in list_tree(locate("memory://materialized/out"))]
    assert any(path.endswith("/zarr.json") for path in paths)
    assert not [path for path in paths if "_unfinished" in path or path.endswith(".parquet")]


def test_nothing_is_left_where_a_file_is_corrupt(place: Place, tmp_path: Path):
    table = tmp_path / "table"
    table.mkdir()
    for name in ("a", "b", "c"):
        pq.write_table(pa.table({"price": np.arange(1000.0), "ids": [[1]] * 1000}), table / f"{name}.parquet")
    path = place.write(source={"table": str(table)}, features={"dense": {"price": []}, "sparse": {"ids": []}})
    own = Pipeline.from_yaml(path)
    own.snapshot()
    with (table / "c.parquet").open("r+b") as file:
        file.seek(200)
        file.write(b"\xff" * 2000)
    os.utime(table / "c.parquet", ns=((table / "b.parquet").stat().st_mtime_ns,) * 2)
    for format in write_plan.FORMATS:
        with pytest.raises((CorruptFileError, DataError), match=r"c\.parquet"):
            own.materialize(tmp_path / "out", format=format)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["table"]


def test_wrong_input(place: Place, tmp_path: Path):
    with pytest.raises(SpecError, match="the format is unknown: got 'csv', expected zarr or parquet"):
        pipeline(place).materialize(tmp_path / "out", format="csv")
    unfitted = pipeline(place, features={"categorical": {"item": ["vocabulary"]}}, fit={"auto": False})
    with pytest.raises(SpecError, match="fit"):
        unfitted.materialize(tmp_path / "out")
    with pytest.raises(SpecError, match="source and target overlap"):
        pipeline(place).materialize(place.table / "out")
    with pytest.raises(SpecError, match="the filter keeps no row"):
        pipeline(place, source={"where": "row < 0"}).materialize(tmp_path / "out")
    lists = {"dense": {"price": [{"fill_null": 0}]}, "extra": {"tags": []}}
    with pytest.raises(SpecError, match=r"extra 'tags' cannot be an array: got .*--format parquet"):
        pipeline(place, features=lists).materialize(tmp_path / "out")
    pipeline(place, features=lists).materialize(tmp_path / "parquet", format="parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parquet"]


def test_broken_expectations_end_it(place: Place, tmp_path: Path):
    features = {"dense": {"price": {"column": "price", "ops": [{"fill_null": 0}], "expect": {"null_rate": "<= 0.001"}}}}
    with pytest.raises(DataError, match="price"):
        pipeline(place, features=features, on_expect="error").materialize(tmp_path / "out")
    assert not list(tmp_path.iterdir())
    with pytest.warns(UserWarning, match="price"):
        pipeline(place, features=features, on_expect="warn").materialize(tmp_path / "out")


def test_overwrite_replaces_only_what_it_wrote(place: Place, tmp_path: Path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(SpecError, match="is not empty: it holds 'notes', which feedline materialize did not write"):
            pipeline(place).materialize(tmp_path / "foreign", overwrite=overwrite)
    assert (tmp_path / "foreign" / "notes").read_text() == "mine"
    (tmp_path / "out").mkdir()
    pipeline(place).materialize(tmp_path / "out")
    with pytest.raises(TableError, match="holds features already"):
        pipeline(place).materialize(tmp_path / "out")
    pipeline(place, features=NO_LISTS).materialize(tmp_path / "out", overwrite=True)
    assert bits(of_arrays(tmp_path / "out")) == bits(of_batches(place, features=NO_LISTS))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign", "out"]
