"""A check of rows finds every bad row with its reasons, as DuckDB does, within its budget."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bad_table import FEATURES, REASONS, BadTable
from processes import ended_here

from feedline import Pipeline
from feedline.commands.head import preview
from feedline.errors import DataError, SpecError
from feedline.fitting.row_check import RowBudget, RowReport
from feedline.planning.table_snapshot import freeze
from feedline.warehouse.selection.exclusion import Exclusion


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[BadTable, RowReport]:
    table = BadTable(tmp_path_factory.mktemp("bad"))
    return table, table.check()


@pytest.fixture(scope="module")
def table(checked: tuple[BadTable, RowReport]) -> BadTable:
    """Read it only."""
    return checked[0]


def rows_of(table: BadTable, pipeline: Pipeline) -> list[int]:
    plan = pipeline.plan()
    ids = [row for batch in pipeline.batches(plan=plan) for row in batch.extra["id"].tolist()]
    assert len(ids) == plan.source.schedule(0).rows - plan.source.schedule(0).rows_dropped
    return sorted(ids)


def test_every_bad_row_is_found_with_its_reasons(checked: tuple[BadTable, RowReport]):
    table, report = checked
    exclusion = Exclusion.read(str(table.exclusion))
    assert report.rows == report.computed == len(table.ids("true"))
    assert report.bad == exclusion.rows == len(table.bad_ids()) > 40
    expected = {key: len(found) for key, condition in REASONS.items() if (found := table.ids(condition))}
    assert len(expected) == len(REASONS)  # the table has rows of each kind
    assert {(each.feature, each.reason): each.rows for each in report.findings} == expected
    assert exclusion.reasons() == expected
    assert exclusion.id == report.exclusion
    for finding in report.findings:  # its place is that of the first such row
        rows = f"read_parquet('{table.table / finding.file}', file_row_number = true)"
        condition = REASONS[finding.feature, finding.reason]
        query = f"select min(file_row_number) from {rows} where id % 7 != 3 and ({condition})"
        assert duckdb.sql(query).fetchall() == [(finding.row,)]


def test_what_is_left_is_delivered_without_an_error(table: BadTable):
    assert rows_of(table, table.excluding(batch={"size": 16, "tail": "partial"})) == table.good_ids()
    with warnings.catch_warnings(action="ignore"), pytest.raises(DataError):
        rows_of(table, table.pipeline())


@pytest.mark.parametrize(
    "change",
    [
        {"dedup": {"g": {"columns": ["word", "history"]}}, "shuffle": "off"},
        pytest.param({"source": {"decoder": "arrow"}}, marks=pytest.mark.nightly),
    ],
)
def test_how_rows_are_read_does_not_matter(checked: tuple[BadTable, RowReport], change: dict[str, Any]):
    table, report = checked
    assert table.check(table.pipeline(**change), out=None).findings == report.findings


def test_a_clean_table_has_an_exclusion_of_no_rows(tmp_path: Path):
    table = BadTable(tmp_path, days=1, share=0)
    report = table.check()
    assert (report.bad, report.findings) == (0, ())
    plan, plain = table.excluding().plan(), table.pipeline().plan()
    assert plan.fingerprint == plain.fingerprint  # the same rows come


@pytest.mark.parametrize(
    "budget", [{"max_rows": 3}, {"max_share": 0.001}, {"max_rows": 10**6, "max_share": 0}, {}], ids=str
)
def test_more_than_the_budget_is_an_error_that_says_what_is_wrong(tmp_path: Path, budget: dict[str, Any]):
    table = BadTable(tmp_path, days=1)
    with pytest.raises(DataError, match=r"too many rows are bad: got \d+ or more of 686, expected at most") as caught:
        table.pipeline().check_rows(table.exclusion, **budget)
    assert "rows in" in str(caught.value) or "row in" in str(caught.value)
    assert "feature 'price' holds a value that is not finite (first: ds=0/0.parquet, row " in str(caught.value)
    assert not table.exclusion.exists()
    assert not list((tmp_path / "work").glob("exclusions/*"))


def test_exactly_the_budget_is_allowed(table: BadTable):
    bad = len(table.bad_ids())
    assert table.check(max_rows=bad, max_share=1, out=None).bad == bad
    with pytest.raises(DataError, match=f"got {bad} or more"):
        table.check(max_rows=bad - 1, max_share=1, out=None)


def test_a_budget_bounds_both_the_number_and_the_share():
    assert [RowBudget(share=0.01).most(rows) for rows in (99, 100, 1000)] == [0, 1, 10]
    assert [RowBudget(rows=5, share=0.01).most(rows) for rows in (100, 10_000)] == [1, 5]
    for share in (-0.1, 1.5, float("nan")):
        with pytest.raises(SpecError, match="max_share must be a share of the rows: got"):
            RowBudget(share=share)


def test_only_changed_and_new_files_are_computed_again(tmp_path: Path):
    table = BadTable(tmp_path, days=2)
    first = table.check()
    table.write(1, 0, 0.02)  # rewritten: other rows are bad
    table.write(2, 0, 0.03)
    again = table.check(earlier=str(table.exclusion), out=str(tmp_path / "again.exclusion"))
    assert again.snapshot != first.snapshot
    files = f"read_parquet(['{table.table}/ds=1/0.parquet', '{table.table}/ds=2/0.parquet'])"
    assert [(again.computed,)] == duckdb.sql(f"select count(*) from {files} where id % 7 != 3").fetchall()
    whole = table.check(out=None)
    assert (replace(again, file="", seconds=0, computed=0)) == replace(whole, file="", seconds=0, computed=0)
    assert again.bad == len(table.bad_ids())
    assert "by the earlier check" in again.text()


def test_a_file_written_again_with_its_size_and_footer_is_checked_again(tmp_path: Path):
    """And so is one that was touched; the report says it. A copy with its time is taken over."""
    path = tmp_path / "t" / "a.parquet"
    path.parent.mkdir()
    spec = {
        "version": 1,
        "name": "again",
        "work_dir": str(tmp_path / "work"),
        "source": {"table": str(path.parent)},
        "features": {"dense": {"x": {"column": "x", "on_nonfinite": "error"}}},
        "batch": {"size": 100},
    }

    def check(earlier: str | None = None) -> RowReport:
        return Pipeline.from_dict(spec).check_rows(str(tmp_path / "found"), max_share=1.0, earlier=earlier)

    def write(bad: int) -> bytes:
        x = np.where(np.arange(3000) == bad, np.nan, np.arange(3000) % 5)
        pq.write_table(pa.table({"x": x}), path, compression="none", use_dictionary=False)
        return path.read_bytes()

    old = write(700)
    check()
    new = write(900)
    assert (len(new), new[-400:]) == (len(old), old[-400:])
    report = check(str(tmp_path / "found"))
    assert ([found.row for found in report.findings], report.computed) == ([900], 3000)
    line = "1 file is checked again, as the time or tag is another, though size and footer are equal: a.parquet. Copies"
    assert line in report.text()
    copy = path.with_suffix(".copy")
    shutil.copy2(path, copy)
    copy.rename(path)
    report = check(str(tmp_path / "found"))
    assert ([found.row for found in report.findings], report.computed, report.retimed) == ([900], 0, "")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"source": {"where": "id % 7 != 4"}}, "where"),
        ({"source": {"sample": {"fraction": 0.5}}}, "sample"),
        ({"on_nonfinite": "error"}, "rules"),
        ({"features": {"label": {"clicked": []}}}, "features"),
    ],
)
def test_an_earlier_check_by_other_rules_is_refused(table: BadTable, change: dict[str, Any], name: str):
    with pytest.raises(SpecError, match=f"was found with another {name}: got .* expected .*Leave it out"):
        table.check(table.pipeline(**change), earlier=str(table.exclusion), out=None)


def test_an_earlier_file_that_is_none_is_refused(table: BadTable, tmp_path: Path):
    (tmp_path / "x").write_bytes(b"nothing")
    with pytest.raises(SpecError, match=r"cannot be written: .* Name a writable one"):
        table.check(out=tmp_path / "x" / "below a file")
    for file in ("x", "missing"):
        with pytest.raises(SpecError, match=r"cannot be used: .* Leave it out"):
            table.check(earlier=str(tmp_path / file), out=None)


def test_features_that_are_not_fitted_are_checked_up_to_the_op_that_learns(tmp_path: Path):
    table = BadTable(tmp_path, days=1)
    categorical = {
        "word": {"column": "word", "ops": [{"vocabulary": {"min_count": 2}}], "expect": {"oov_rate": "<= 0"}}
    }
    features = {**FEATURES, "categorical": categorical}
    features["dense"] = {**FEATURES["dense"], "age": {"expr": 'age.cast("float32")', "ops": ["standardize"]}}
    pipeline = table.pipeline(features=features)
    with pytest.raises(DataError):
        pipeline.fit()  # an age cannot be computed
    report = table.check(pipeline)
    assert report.unfitted == ("age", "word")
    assert "Check again after the fit" in report.text()
    reasons = {(each.feature, each.reason) for each in report.findings}
    assert ("age", "cannot be computed (standardize)") in reasons
    assert ("word", "expected oov_rate <= 0") not in reasons
    fitted = table.excluding(features=features)
    assert fitted.fit().rows == report.rows - report.bad  # without the rows on which it failed
    again = table.check(fitted)
    assert again.unfitted == ()
    assert again.bad >= report.bad


def test_a_fit_that_is_missing_may_name_columns_that_no_feature_reads(tmp_path: Path):
    encoding = {"target_encoding": {"target": "clicked", "fold_by": "id"}}
    features = {"dense": {"word": [{"fill_null": "?"}, encoding], "age": FEATURES["dense"]["age"]}}
    pipeline = BadTable(tmp_path, days=1).pipeline(features=features, source={"where": "clicked is not None"})
    report = pipeline.check_rows(max_share=1)
    assert report.unfitted == ("word",)
    assert {each.feature for each in report.findings} == {"age"}


def test_errors_of_no_row_are_not_blamed_on_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that fails on more than 50 rows at once fails on no row alone."""
    (tmp_path / "shaky.py").write_text(
        "import numpy as np\n\n\n"
        "def halve(values: np.ndarray) -> np.ndarray:\n"
        "    if len(values) > 50:\n        raise ValueError('too many')\n    return values / 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    table = BadTable(tmp_path, days=1, share=0)
    op = {"python": {"function": "shaky:halve", "form": "numpy", "gives": "float32"}}
    features = {"dense": {"price": {"column": "price", "ops": [op]}}, "label": {"clicked": []}}
    with pytest.raises(DataError, match="fails on some rows together, but on none of them alone"):
        table.check(table.pipeline(features=features, allow_code=True))


def test_the_command_reports_what_it_wrote(table: BadTable, tmp_path: Path):
    path, out = tmp_path / "p.yaml", tmp_path / "out.exclusion"
    path.write_text(json.dumps(table.spec(work_dir=str(tmp_path / "work"))))
    done = ended_here("check", path, "--rows", "--max-share", "0.5", "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["bad"] == len(table.bad_ids())
    assert facts["file"] == str(out)
    text = ended_here("check", path, "--rows", "--max-share", "0.5").stdout
    assert f"{facts['bad']:,} bad" in text
    assert f"exclusion {facts['exclusion']}: {tmp_path}/work/exclusions/{facts['exclusion']}.arrow" in text
    assert ended_here("check", path, "--rows").returncode == 1  # more than 1 %
    for wrong, message in (
        (["--out", "x"], "--out needs --rows"),
        (["--max-share", "0.1"], "--max-share needs --rows"),
        (["--rows", "--deep"], "--rows and --deep are two checks"),
    ):
        refused = ended_here("check", path, *wrong)
        assert (refused.returncode, message in refused.stderr) == (2, True)


@pytest.mark.nightly
def test_a_dask_cluster_finds_the_same(table: BadTable, tmp_path: Path):
    path = tmp_path / "p.yaml"
    path.write_text(json.dumps(table.spec(work_dir=str(tmp_path / "work"), cluster={"workers": 1, "dashboard": False})))
    done = ended_here("check", path, "--rows", "--max-share", "0.5", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["exclusion"] == Exclusion.read(str(table.exclusion)).id


def test_bad_rows_are_not_learnt_from_unless_the_fit_has_rows_of_its_own(tmp_path: Path):
    table = BadTable(tmp_path)
    features = {**FEATURES, "categorical": {"word": {"column": "word", "ops": ["vocabulary"]}}}
    features = {**features, "dense": {"price": FEATURES["dense"]["price"], "place": FEATURES["dense"]["place"]}}
    table.check(table.pipeline(features=features))
    exclusion = Exclusion.read(str(table.exclusion))
    excluding = table.excluding(features=features)
    assert excluding.fit().rows == len(table.ids("true")) - exclusion.rows
    manifest = next((tmp_path / "work" / "artifacts").glob("fits-*.json")).read_text()
    assert f'"exclude": "{exclusion.id}"' in manifest
    own = {"where": "id % 7 != 3 and ds == 0"}
    whole = table.excluding(features=features, fit=own)
    assert whole.fit().rows == len(table.ids("ds = 0"))


def test_files_of_features_hold_good_rows_in_the_tables_order(table: BadTable, tmp_path: Path):
    report = table.excluding().materialize(tmp_path / "out", format="parquet")
    assert report.rows == len(table.good_ids())
    files = f"read_parquet('{tmp_path}/out/*.parquet', filename = true, file_row_number = true)"
    rows = duckdb.sql(f"select id from {files} order by filename, file_row_number").fetchall()
    assert [row for (row,) in rows] == table.good_ids()


# The command, with a signal to itself at the first progress.
SIGNALLED = """
import os, signal, sys
number = getattr(signal, sys.argv.pop())
import feedline.commands.check as command
def show(line, progress):
    if progress.phase == "checking" and progress.done:
        os.kill(os.getpid(), number)
command.ProgressLine.show = show
from feedline.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("number", "status"), [("SIGINT", 130), pytest.param("SIGTERM", 143, marks=pytest.mark.nightly)]
)
def test_an_interrupted_check_writes_nothing(table: BadTable, tmp_path: Path, number: str, status: int):
    path, out = tmp_path / "p.yaml", tmp_path / "out.exclusion"
    path.write_text(json.dumps(table.spec(work_dir=str(tmp_path / "work"))))
    arguments = ["check", str(path), "--rows", "--max-share", "1", "--out", str(out), number]
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == status, done.stderr
    assert ("stopped: no exclusion was written" in done.stderr) == (number == "SIGINT")
    assert not out.exists()
    assert not list((tmp_path / "work").glob("exclusions/*"))


def test_skipped_files_have_no_rows_to_check(tmp_path: Path):
    table = BadTable(tmp_path, days=2)
    broken = table.table / "ds=1" / "0.parquet"
    broken.write_bytes(broken.read_bytes()[:-7])
    source = {"on_bad_file": "skip"}
    report = table.check(table.pipeline(source=dict(source)))
    broken.unlink()
    assert (report.rows, report.bad) == (len(table.ids("true")), len(table.bad_ids()))
    assert table.excluding(source=dict(source)).plan().source.schedule(0).rows == report.rows - report.bad


def test_head_shows_rows_that_are_not_excluded(table: BadTable):
    facts = preview(table.excluding().spec, 40)
    [ids] = [feature["value"] for feature in facts["features"] if feature["name"] == "id"]
    assert ids == table.good_ids()[:40] != table.ids("true")[:40]


def test_a_saved_snapshot_is_what_is_checked(tmp_path: Path):
    table = BadTable(tmp_path, days=1)
    file = str(tmp_path / "saved.snapshot")
    frozen = freeze(table.pipeline().spec, file)
    good = table.good_ids()
    table.write(1, 0, 0.02)  # the table grows, with further bad rows
    report = table.check(table.pipeline(source={"snapshot": file}))
    assert (report.snapshot, report.bad) == (frozen.id, report.rows - len(good))
    batch = {"size": 16, "tail": "partial"}
    assert rows_of(table, table.excluding(source={"snapshot": file}, batch=batch)) == good
