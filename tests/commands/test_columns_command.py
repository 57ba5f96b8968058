"""`feedline columns`: what its commands print and refuse, and how pipelines read added columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from column_sources import SeededValues, write_days
from typer.testing import CliRunner, Result

from feedline import Pipeline, Table
from feedline.cli import app
from feedline.commands.columns import columns
from feedline.errors import SpecError
from feedline.warehouse.columns.change import add_columns
from feedline.warehouse.optimize.usage import record_usage

PIPELINE = """
version: 1
name: added
work_dir: {work}
source: {{table: {table}, where: 'x > 50', schema: {{missing: "null"}}, row_key: [id]}}
features:
  dense: {{x: [], price: [log1p]}}
  sparse: {{z: [{{first_x: 2}}]}}
  label: {{id: []}}
batch: {{size: 16, tail: partial}}
shuffle: {{seed: 3, window_rows: 128}}
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_days(tmp_path / "t")


def run(*words: object) -> Result:
    return CliRunner().invoke(columns, [str(word) for word in words], catch_exceptions=False)


def facts(*words: object) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_columns_are_added_listed_and_dropped(table: Path, tmp_path: Path):
    said = run("add", table, "--from", "price * 2 as twice", "--where", 'ds >= "2026-01-02"').output
    assert "added twice (double) to 2 of 3 files" in " ".join(said.split())
    other = tmp_path / "o.parquet"
    pq.write_table(pa.table({"id": np.arange(0, 600, 2), "half": np.arange(300)}), other)
    report = facts("add", table, "--from", other, "--key", "id", "--columns", "half")
    assert (report["columns"], report["files"], report["rows"], report["commit"]) == ({"half": "int64"}, 3, 600, 2)
    snapshot = Table(table).snapshot()
    record_usage(str(tmp_path / "w"), snapshot, ["half", "id"], snapshot.rows_per_row_group, job="j")
    listed = facts("list", table, "--usage", "--work-dir", tmp_path / "w")
    by_name = {column["name"]: column for column in listed["columns"]}
    assert [column["name"] for column in listed["columns"]] == ["twice", "half"]  # unread ones first
    assert (by_name["twice"]["rows"], by_name["twice"]["runs"], by_name["twice"]["last_read"]) == (400, 0, None)
    assert by_name["twice"]["partitions"] == ["ds=2026-01-02", "ds=2026-01-03"]
    assert by_name["half"]["runs"] == 1
    assert by_name["half"]["bytes"] == int(snapshot.column_part("half", "bytes").sum())
    shown = run("list", table, "--usage", "--work-dir", tmp_path / "w").output
    assert "1 of 2 columns were never read" in shown
    assert facts("drop", table, "twice", "name")["columns"] == ["twice", "name"]
    listed = facts("list", table)
    assert ([column["name"] for column in listed["columns"]], listed["dropped"]) == (["half"], ["name"])
    assert listed["unread_bytes"] == sum(
        path.stat().st_size for path in table.rglob("*.columns") if "twice" in pq.read_schema(path).names
    )


def test_a_feature_of_a_pipeline_becomes_a_column(table: Path, tmp_path: Path):
    pipeline = tmp_path / "p.yaml"
    pipeline.write_text(
        f"version: 1\nname: p\nwork_dir: {tmp_path}/w\nsource: {{table: {table}}}\n"
        "features: {dense: {price: [log1p]}, categorical: {name: [{hash_bucket: 100}]}, label: {id: []}}\n"
        "batch: {size: 10}\n"
    )
    run("add", table, "--from", f"{pipeline}:price as logged")
    run("add", table, "--from", f"{pipeline}:name as bucket", "--workers", "1")
    rows = Table(table).read()
    encoded = Pipeline.from_yaml(str(pipeline)).transform(rows.drop_columns(["logged", "bucket"]))
    assert rows["logged"].to_numpy().tolist() == encoded["price"].ravel().tolist()
    assert rows["bucket"].to_pylist() == encoded["name"].tolist()
    with pytest.raises(SpecError, match=r"feature 'prise' is not in .* Did you mean 'price'"):
        run("add", table, "--from", f"{pipeline}:prise as x")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--from", "other"), r"'other' is a table, without --key or --columns: got '' and ''"),
        (("--from", "id + 1 as n", "--key", "id"), "--key and --columns belong to a table"),
        (("--from", "idd + 1 as n"), "unknown column `idd`"),
        (("--from", "id + 1 as n", "--where", "id > 3"), "--where reads column 'id'"),
    ],
)
def test_origins_that_do_not_fit_are_refused(table: Path, words: tuple[str, ...], message: str):
    with pytest.raises(ValueError, match=message):
        run("add", table, *words)


def test_a_pipeline_delivers_added_columns_as_stored_ones(table: Path, tmp_path: Path):
    """The batches of the table with column files are those of the compacted table, filter and shuffle included."""
    add_columns(str(table), SeededValues((("x", "int"),)))
    add_columns(str(table), SeededValues((("z", "list"),)), where='ds != "2026-01-01"')
    Table(table).optimize(str(tmp_path / "compacted"), row_group_rows=70, keep_nullable=True)
    ids = []
    for name, path in (("one", table), ("other", tmp_path / "compacted")):
        pipeline = tmp_path / f"{name}.yaml"
        pipeline.write_text(PIPELINE.format(table=path, work=tmp_path / name))
        loaded = Pipeline.from_yaml(str(pipeline))
        ids.append([batch.to_dict() for batch in loaded.batches(epoch=0)])
    assert len(ids[0]) == len(ids[1]) > 20
    for one, other in zip(*ids, strict=True):
        assert one["x"].tolist() == other["x"].tolist()
        assert one["id"].tolist() == other["id"].tolist()
        assert one["z"].values.tolist() == other["z"].values.tolist()
        assert one["z"].lengths.tolist() == other["z"].lengths.tolist()


def test_a_plan_says_which_rows_lack_an_added_column(table: Path, tmp_path: Path):
    add_columns(str(table), SeededValues((("x", "int"),)), where='ds == "2026-01-02"')
    add_columns(str(table), SeededValues((("z", "list"),)))
    pipeline = tmp_path / "p.yaml"
    text = PIPELINE.format(table=table, work=tmp_path / "w").replace(", where: 'x > 50'", "")
    pipeline.write_text(text.replace("x: []", "x: [{fill_null: 0}]"))
    said = CliRunner().invoke(app, ["plan", str(pipeline)], catch_exceptions=False).output
    assert "x is missing in 2 of 3 files, 400 rows: null" in " ".join(said.split())
    pipeline.write_text(text.replace('missing: "null"', "missing: error"))
    with pytest.raises(SpecError, match=r"column 'x' is not in .*ds=2026-01-01.*: got 2 files without it"):
        Pipeline.from_yaml(str(pipeline)).plan()


def test_check_finds_a_damaged_page_of_a_column_file(table: Path, tmp_path: Path):
    add_columns(str(table), SeededValues((("x", "int"), ("z", "list"))))
    pipeline = tmp_path / "p.yaml"
    pipeline.write_text(PIPELINE.format(table=table, work=tmp_path / "w").replace("x: []", "x: [{fill_null: 0}]"))
    check = ["check", str(pipeline), "--deep", "--json"]
    result = CliRunner().invoke(app, check, catch_exceptions=False)
    assert (result.exit_code, json.loads(result.stdout)["bad_files"]) == (0, [])
    path = max(table.rglob("ds=2026-01-02/*.columns"))
    content = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(0).column(0)
    content[(chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size - 2] ^= 255
    path.write_bytes(content)
    result = CliRunner().invoke(app, check, catch_exceptions=False)
    assert result.exit_code == 1
    [bad] = json.loads(result.stdout)["bad_files"]
    assert "ds=2026-01-02/part-0.parquet.columns, row group 0" in json.dumps(bad)
