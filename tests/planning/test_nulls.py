"""Footers show nulls that features cannot hold, and columns that files lack, before the first batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipelines import furnished
from processes import ended
from typer.testing import CliRunner

from feedline import FeedlineDataset, Pipeline
from feedline.cli import app
from feedline.commands.check import run_check
from feedline.errors import DataError

ROWS, GROUP = 2000, 500
LABEL = {"label": {"y": []}}


def write(folder: Path, **changes: dict[str, Any]) -> None:
    """Three files `day=0..2` of columns x, y and id; `day1={"x": None}` leaves a column of the second one out."""
    for day in range(3):
        columns: dict[str, Any] = {
            "x": np.arange(ROWS, dtype=np.float64),
            "y": np.arange(ROWS) % 2,
            "id": np.arange(ROWS) + day * ROWS,
        }
        columns |= changes.get(f"day{day}", {})
        path = folder / f"day={day}" / "data.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {name: values for name, values in columns.items() if values is not None}
        pq.write_table(pa.table(kept), path, row_group_size=GROUP)


def with_nulls(*rows: int) -> pa.Array:
    return pa.array([None if row in rows else row % 2 for row in range(ROWS)], pa.int64())


def pipeline(folder: Path, features: Mapping[str, Any] = LABEL, **source: Any) -> Path:
    document = {
        "version": 1,
        "name": "gaps",
        "work_dir": str(folder / "work"),
        "source": {"table": str(folder / "t"), **source},
        "features": features,
        "batch": {"size": 64, "tail": "partial"},
        "shuffle": "off",
    }
    path = folder / "p.yaml"
    path.write_text(json.dumps(document))
    return path


def gaps(path: Path, **set: Any) -> Any:
    return Pipeline.from_yaml(path, {key.replace("__", "."): value for key, value in set.items()}).plan().source.gaps


# -- what footers know --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_null_label_is_refused_before_the_first_batch(tmp_path: Path):
    write(tmp_path / "t", day1={"y": with_nulls(7)})
    path = pipeline(tmp_path)
    [found] = gaps(path).nulls
    assert (found.feature, found.column, found.least, found.most) == ("y", "y", 1, 1)
    assert (found.files, found.read, found.file) == (1, 3, "day=1/data.parquet")
    words = r"feature 'y' holds nulls: got 1 in 1 of 3 files \(first: day=1/data.parquet\), expected none. "
    words += r"Add fill_null to its ops, or `y is not None` to source.where"
    with pytest.raises(DataError, match=words):
        Pipeline.from_yaml(path).batches()
    with pytest.raises(DataError, match=words):
        Pipeline.from_yaml(path).to_dask()
    (tmp_path / "place").mkdir()
    with (
        furnished(tmp_path / "place", tmp_path),
        FeedlineDataset(path) as dataset,
        pytest.raises(DataError, match=words),
    ):
        len(dataset)


@pytest.mark.parametrize(
    ("where", "least", "most"),
    [
        (None, 3, 3),
        ("y is not None", None, None),
        ("y in [0, 1]", None, None),
        ("not (y == 2) and id >= 0", None, None),
        ("y == 1 or id % 2 == 0", 2, 3),  # row group 0 of day 1 loses one row, with or without a null
        ("day == 2", None, None),
        ("day == 1", 3, 3),
        ("id < 2600", 2, 3),  # of row group 1 of day 1 100 rows are kept
        ("id % 2 == 0", 0, 3),
        ("y is None", 0, 3),
    ],
)
def test_nulls_that_the_filter_drops_are_not_reported(
    tmp_path: Path, where: str | None, least: int | None, most: int | None
):
    """At least and at most as many nulls as the rows that pyarrow reads and filters hold."""
    write(tmp_path / "t", day1={"y": with_nulls(7, 8, 650)})
    found = gaps(pipeline(tmp_path), source__where=where).nulls
    assert [(one.least, one.most) for one in found] == ([] if least is None else [(least, most)])
    kept = Pipeline.from_yaml(pipeline(tmp_path, {"extra": ["y"]}), {"source.where": where}).batches()
    actual = sum(batch["y"].null_count for batch in kept if hasattr(batch["y"], "null_count"))
    assert (least or 0) <= actual <= (most or 0)


def test_nulls_of_partition_keys_count(tmp_path: Path):
    write(tmp_path / "t")
    (tmp_path / "t" / "day=2").rename(tmp_path / "t" / "day=__HIVE_DEFAULT_PARTITION__")
    [found] = gaps(pipeline(tmp_path, {"dense": {"day": []}})).nulls
    assert (found.column, found.least, found.most) == ("day", ROWS, ROWS)


def test_rows_that_the_tail_drops_may_be_the_ones_with_nulls(tmp_path: Path):
    """6,000 rows in batches of 64: 48 are dropped, 1 null may be among them and 49 cannot be."""
    write(tmp_path / "t", day1={"y": with_nulls(7)})
    tail = {"batch.tail": "drop"}
    with pytest.warns(UserWarning, match="feature 'y' holds nulls: got 1 in 1 of 3 files"):
        Pipeline.from_yaml(pipeline(tmp_path), tail).batches()
    write(tmp_path / "t", day1={"y": with_nulls(*range(49))})
    with pytest.raises(DataError, match="got 49 in 1 of 3 files"):
        Pipeline.from_yaml(pipeline(tmp_path), tail).batches()


def test_a_row_that_the_tail_drops_raises_what_its_block_raises(tmp_path: Path):
    """The last of 6,000 rows is in no step of 64 rows; its block has others. Alone in a block it is not computed."""
    write(tmp_path / "t", day2={"y": with_nulls(ROWS - 1)})
    tail = {"batch.tail": "drop"}
    with pytest.warns(UserWarning, match="got 1 in 1 of 3 files"), pytest.raises(DataError, match="'y' holds a null"):
        list(Pipeline.from_yaml(pipeline(tmp_path), tail).batches())
    alone = {**tail, "source.where": "id >= 5935 and day == 2", "source.split_rows": 1}
    whole = pa.table({"x": [1.0] * 65, "y": with_nulls(64)[:65], "id": np.arange(5935, 6000)})
    pq.write_table(whole, tmp_path / "t" / "day=2" / "data.parquet", row_group_size=64)
    with pytest.warns(UserWarning, match="got 1 in 1 of 1 files"):
        assert len(list(Pipeline.from_yaml(pipeline(tmp_path), alone).batches())) == 1


def test_a_column_that_files_lack_is_listed(tmp_path: Path):
    write(tmp_path / "t", day1={"C4": np.arange(ROWS)}, day2={"C4": np.arange(ROWS)})
    filled = {"categorical": {"C4": [{"fill_null": 0}]}, **LABEL}
    path = pipeline(tmp_path, filled)
    assert gaps(path).notes() == ["C4 is missing in 1 of 3 files, 2,000 rows: null (first: day=0/data.parquet)"]
    assert not gaps(path).nulls
    assert list(Pipeline.from_yaml(path).batches())  # no warning: it is filled
    assert not gaps(path, source__where="day > 0").absent
    assert not gaps(path, source__where="C4 is not None").absent
    [found] = gaps(path, features__categorical={"C4": []}).nulls
    assert (found.least, found.most, found.file) == (ROWS, ROWS, "day=0/data.parquet")


def test_out_of_fold_features_are_probed_for_seen_and_other_rows(tmp_path: Path):
    """Of a fit that has seen some of the rows: the null key has an encoding, the null number has none."""
    write(tmp_path / "t", day1={"x": pa.array([None, *range(1, ROWS)], pa.float64()), "y": with_nulls(7)})
    encoding = {"op": {"target_encoding": {"target": "x", "fold_by": "id"}}, "inputs": ["y"]}
    path = pipeline(tmp_path, {"dense": {"x": ["standardize"], "mean": encoding}})
    set = {"fit.where": "day > 0", "source.where": "id >= 0"}
    Pipeline.from_yaml(path, set).fit()
    plan = Pipeline.from_yaml(path, set).plan()
    assert plan.source.features.marks
    assert [(found.feature, found.least) for found in plan.source.gaps.nulls] == [("x", 1)]


# -- who says it --------------------------------------------------------------------------------------------------


def test_check_ends_with_1_and_plan_lists(tmp_path: Path):
    write(tmp_path / "t", day1={"y": with_nulls(7), "C4": np.arange(ROWS)}, day2={"C4": np.arange(ROWS)})
    path = pipeline(tmp_path, {"categorical": {"C4": [{"fill_null": 0}]}, **LABEL})
    run = CliRunner().invoke(app, ["check", str(path)])
    assert run.exit_code == 1
    assert "nulls    feature 'y' holds nulls: got 1 in 1 of 3 files (first: day=1/data.parquet)" in run.stdout
    assert "missing  C4 is missing in 1 of 3 files, 2,000 rows: null" in run.stdout
    facts = json.loads(CliRunner().invoke(app, ["check", str(path), "--json"]).stdout)
    assert [(found["feature"], found["most"]) for found in facts["nulls"]] == [("y", 1)]
    assert [(found["column"], found["rows"]) for found in facts["absent"]] == [("C4", 2000)]
    planned = CliRunner().invoke(app, ["plan", str(path)], env={"COLUMNS": "200"})
    assert planned.exit_code == 0
    assert "feature 'y' holds nulls: got 1 in 1 of 3 files" in planned.stdout
    assert "C4 is missing in 1 of 3 files, 2,000 rows: null" in planned.stdout
    facts = json.loads(CliRunner().invoke(app, ["plan", str(path), "--json"]).stdout)
    assert ([found["feature"] for found in facts["nulls"]], len(facts["absent"])) == (["y"], 1)


@pytest.mark.slow
def test_run_warns_before_the_first_batch(tmp_path: Path):
    """The null is in a row that the filter drops, which footers do not show: a warning, and the run continues."""
    write(tmp_path / "t", day1={"y": with_nulls(7), "C4": np.arange(ROWS)}, day2={"C4": np.arange(ROWS)})
    features = {"categorical": {"C4": [{"fill_null": 0}]}, **LABEL}
    path = pipeline(tmp_path, features, where="id % 2 == 0")
    done = ended("run", path, "--sink", "null")
    assert done.returncode == 0, done.stderr
    assert "warning: feature 'y' holds nulls: got up to 1 in 1 of 3 files" in done.stdout
    assert "C4 is missing in 1 of 3 files, 1,000 rows: null" in done.stdout
    assert done.stdout.index("C4 is missing") < done.stdout.index("3,000 rows in ")


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ({"where": "y is not None"}, 1),  # C4 is still missing
        ({"where": "y is not None", "schema": {"missing": "null"}}, 0),
        ({"where": "y is not None and day > 0"}, 0),
        ({"schema": {"missing": "null"}}, 1),
    ],
    ids=str,
)
def test_check_continues_where_gaps_are_expected(tmp_path: Path, source: dict[str, Any], status: int):
    write(tmp_path / "t", day1={"y": with_nulls(7), "C4": np.arange(ROWS)}, day2={"C4": np.arange(ROWS)})
    path = pipeline(tmp_path, {"categorical": {"C4": [{"fill_null": 0}]}, **LABEL}, **source)
    assert CliRunner().invoke(app, ["check", str(path)]).exit_code == status


def test_check_reads_good_files_beside_bad_ones(tmp_path: Path):
    write(tmp_path / "t", day1={"y": with_nulls(7)})
    (tmp_path / "t" / "day=0" / "data.parquet").write_bytes(b"no Parquet")
    report = run_check(Pipeline.from_yaml(pipeline(tmp_path)).spec)
    assert (len(report.bad_files), [found.read for found in report.gaps.nulls]) == (1, [2])
    report = run_check(Pipeline.from_yaml(pipeline(tmp_path, {"label": {"zz": []}})).spec)
    assert (len(report.bad_files), report.gaps) == (1, None)  # zz may be in the bad one
    for day in (1, 2):
        (tmp_path / "t" / f"day={day}" / "data.parquet").write_bytes(b"no Parquet")
    report = run_check(Pipeline.from_yaml(pipeline(tmp_path)).spec)
    assert (len(report.bad_files), report.gaps) == (3, None)
    assert "were not checked" in report.text()
