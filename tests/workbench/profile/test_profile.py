"""`feedline profile`: of a table, of a pipeline's, of two days, with exit statuses and files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from feedline.cli import app
from feedline.errors import SpecError

ROWS = 500


def write(folder: Path, day: int, **changed: object) -> None:
    random = np.random.default_rng(day)
    path = folder / f"ds=2026-01-0{day}"
    path.mkdir(parents=True)
    columns = {
        "label": random.integers(0, 2, ROWS),
        "price": random.lognormal(size=ROWS),
        "secret": random.choice(["alice", "bob"], ROWS),
    }
    pq.write_table(pa.table({**columns, **changed}), path / "a.parquet")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write(tmp_path / "table", 1)
    write(tmp_path / "table", 2, price=np.random.default_rng(9).lognormal(2, size=ROWS))
    return tmp_path / "table"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["profile", *map(str, arguments)])


def test_a_table_is_described(table: Path):
    done = run(table)
    assert done.exit_code == 0, done.output
    assert "partition key ds (date32[day]): 2 values, 2026-01-01 to 2026-01-02" in done.output
    assert "label? label (taken): named label; 0 and 1" in done.output
    assert "alice" not in done.output
    assert "alice" in run(table, "--values").output


def test_json_is_one_document(table: Path):
    facts = json.loads(run(table, "--json", "--columns", "price", "--label", "label").stdout)
    assert facts["label"] == "label"
    assert [column["rows"] for column in facts["columns"]] == [1000, 1000, 0, 0]
    assert "alice" not in json.dumps(facts)


def test_two_days_are_compared(table: Path):
    days = ("--where", "ds == '2026-01-01'", "--other-where", "ds == '2026-01-02'")
    done = run(table, *days)
    assert done.exit_code == 0, done.output
    assert "1 columns changed much" in done.output
    done = run(table, *days, "--fail-above", "0.25")
    assert done.exit_code == 1
    assert "1 columns are above 0.25, or cannot be compared: 'price'" in done.output
    assert run(table, *days, "--columns", "label", "--fail-above", "0.25").exit_code == 0  # others are not compared
    assert json.loads(run(table, *days, "--json").stdout)["columns"][0]["name"] == "price"


def test_another_table_is_compared(table: Path, tmp_path: Path):
    write(tmp_path / "other", 3)
    done = run(table, "--where", "ds == '2026-01-01'", "--compare", tmp_path / "other", "--fail-above", "0.25")
    assert done.exit_code == 0, done.output
    assert "other: " in done.output


def pipeline(tmp_path: Path, table: Path, fit: str = "") -> Path:
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        f"source: {{table: '{table}', where: \"ds == '2026-01-02'\"}}\n{fit}"
        f"version: 1\nname: small\nwork_dir: '{tmp_path}/work'\n"
        "features: {dense: {price: []}}\nbatch: {size: 8}\n"
    )
    return path


def test_the_table_of_a_pipeline_is_described(table: Path, tmp_path: Path):
    facts = json.loads(run(pipeline(tmp_path, table), "--json").stdout)
    assert facts["where"] == "ds == '2026-01-02'"
    assert facts["selected_rows"] == ROWS


def test_the_rows_of_a_fit_are_compared_with_those_of_runs(table: Path, tmp_path: Path):
    path = pipeline(tmp_path, table, "fit: {where: \"ds == '2026-01-01'\"}\n")
    drift = json.loads(run(path, "--fit", "--json").stdout)
    assert drift["base"]["where"] == "ds == '2026-01-01'"
    assert drift["other"]["where"] == "ds == '2026-01-02'"
    assert drift["columns"][0]["name"] == "price"
    assert drift["columns"][0]["psi"] > 0.25


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fail-above", "1"], "needs a comparison"),
        (["--fit"], "one pipeline.yaml"),
        (["--source", "a"], "pipeline"),
        (["--columns", '"a'], "malformed"),
        (["--columns", "gone"], "gone"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(table: Path, arguments: list[str], words: str):
    done = run(table, *arguments)
    assert isinstance(done.exception, SpecError)
    assert words in str(done.exception)


def test_a_fit_of_the_same_rows_is_refused(table: Path, tmp_path: Path):
    done = run(pipeline(tmp_path, table), "--fit")
    assert "the same for both" in str(done.exception)


def test_pages_are_written(table: Path, tmp_path: Path):
    assert run(table, "--html", tmp_path / "a.html").exit_code == 0
    assert "<svg" in (tmp_path / "a.html").read_text()
    days = ("--where", "ds == '2026-01-01'", "--other-where", "ds == '2026-01-02'")
    assert run(table, *days, "--html", tmp_path / "b.html").exit_code == 0
    assert "price: psi" in (tmp_path / "b.html").read_text()


def test_odd_columns_are_described_beside_others(tmp_path: Path):
    hours = np.arange(ROWS) * 3_600_000
    columns = {
        "far": pa.array([253_402_300_799] * ROWS, pa.timestamp("s", "Asia/Tokyo")),
        "wrong": pa.array(1_700_000_000_000 + hours, pa.timestamp("us")),
        "days": pa.array([2**31 - 1] * ROWS, pa.int32()).cast(pa.date32()),
        "offset": pa.array([0] * ROWS, pa.timestamp("us", "+05:30")),
        "zone": pa.array([0] * ROWS, pa.timestamp("us", "Foo/Bar")),
        "infinite": np.where(np.arange(ROWS) % 2, np.inf, -np.inf),
        "a\0b": np.arange(ROWS),
    }
    write(tmp_path / "table", 1, **columns)
    done = run(tmp_path / "table")
    assert done.exit_code == 0, done.output
    words = " ".join(done.output.split())
    assert "column 'a\\x00b' is left out: its name holds a NUL character" in words
    assert "column 'wrong': its unit may be wrong: as ms since 1970, most values lie between 2023-" in words
    facts = {column["name"]: column for column in json.loads(run(tmp_path / "table", "--json").stdout)["columns"]}
    assert facts["far"]["last"] == "9999-12-31T23:59:59+00:00"
    assert facts["days"]["last"] == "+5881580-07-11"
    assert facts["offset"]["type"] == "timestamp[us, tz=UTC]"
    assert (facts["zone"]["role"], facts["label"]["role"]) == ("unsupported", "category")


def test_two_tables_in_one_folder_are_named(tmp_path: Path):
    pq.write_table(pa.table({"user": [1, 2], "clicked": [0, 1]}), tmp_path / "clicks.parquet")
    pq.write_table(pa.table({"item": [1, 2], "price": [0.5, 1.5]}), tmp_path / "items.parquet")
    words = " ".join(run(tmp_path).output.split())
    assert (
        "note: the folder may hold several tables: 'clicks.parquet'; 'items.parquet', which share no column." in words
    )


def test_lines_are_not_padded_off_a_terminal(table: Path):
    lines = run(table).output.splitlines()
    assert len(lines) > 5
    assert [line for line in lines if line.endswith(" ")] == []
