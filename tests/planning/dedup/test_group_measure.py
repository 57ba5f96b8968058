"""What `feedline plan` says of deduplicated groups, recounted by pandas over a small table."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from pipelines import Place, furnished
from rich.console import Console
from typer.testing import CliRunner

from feedline import Pipeline
from feedline.cli import app
from feedline.commands.dedup_table import group_lines
from feedline.commands.plan.report import describe, plan_table
from feedline.config import parse_spec
from feedline.config.column_ranges import expand_range
from feedline.planning.dedup.proposals import describe_proposals, with_ranges, yaml_section

ROWS = 4_000
FEATURES: dict[str, Any] = {
    "dense": {"age": [{"fill_null": 0}], "both": {"expr": "coalesce(age, 0) + item"}},
    "categorical": {"city": [{"vocabulary": {}}], "item": [{"modulo": 7}]},
    "sparse": {"hist_0": [{"first_x": 2}], "hist_1": [], "hist_2": [], "tags": []},
    "label": {"clicked": []},
}
SESSION = {"by": "session", "seed": 1}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    """Sessions of 16 rows, clustered in `table`, by time in `log`. A user's histories change in the same rows."""
    folder = tmp_path_factory.mktemp("measure")
    rng = np.random.default_rng(5)
    version = ((rng.random(ROWS) < 0.05) | (np.arange(ROWS) % 16 == 0)).cumsum()
    ids = [rng.integers(0, 9, 1 + number % 7) for number in range(ROWS)]
    table = pa.table(
        {
            "session": np.arange(ROWS) // 16,
            "age": pa.array([None if number % 9 == 0 else float(number) for number in version]),
            "city": pa.array([str(number % 50) for number in version]),
            **{f"hist_{k}": pa.array([ids[number + k] for number in version]) for k in range(3)},
            "item": rng.integers(0, 2**40, ROWS),
            "tags": pa.array(ids),
            "clicked": rng.integers(0, 2, ROWS),
        }
    )
    for name, rows in (
        ("table", np.arange(ROWS)),
        ("log", np.argsort(np.arange(ROWS) // 16 + np.arange(ROWS) % 16 / 5)),
    ):
        (folder / name).mkdir()
        pq.write_table(table.take(rows), folder / name / "part.parquet", row_group_size=1000)
    (folder / "place").mkdir()
    with furnished(folder / "place", folder / "table") as place:
        yield place


def frame(place: Place) -> pd.DataFrame:
    return pq.read_table(place.table / "part.parquet").to_pandas()


def pipeline(place: Place, **changes: Any) -> Pipeline:
    settings = {"features": FEATURES, "shuffle": SESSION, "batch": {"size": 500}, **changes}
    return Pipeline.from_yaml(place.write("p.yaml", **settings))


def test_a_group_is_measured_in_rows_and_bytes(place: Place):
    plan = pipeline(
        place, dedup={"user": {"columns": ["age", "city", "hist_{0..2}"]}, "item": {"columns": ["item"]}}
    ).plan()
    facts = describe(plan.source, world_size=1)
    user, item = (next(each for each in facts["dedup"]["groups"] if each["name"] == name) for name in ("user", "item"))
    table = frame(place)
    assert (facts["dedup"]["rows"], facts["dedup"]["by"]) == (ROWS, "session")
    assert sorted(user["features"]) == ["age", "city", "hist_0", "hist_1", "hist_2"]
    text = table[["session", "age", "city", "hist_0", "hist_1", "hist_2"]].astype(str).fillna("null")
    starts = (text != text.shift()).any(axis=1)
    unique = starts.sum()
    assert user["unique_rows"] == pytest.approx(unique, abs=10)  # a block ends a run
    assert user["factor"] == pytest.approx(ROWS / user["unique_rows"])
    assert user["session_rows"] == pytest.approx(16, abs=1)
    repeats = [(~(text[[name, "session"]] != text[[name, "session"]].shift()).any(axis=1)) for name in text.columns[1:]]
    others = ROWS - table["session"].nunique()
    shares = [each.sum() / others for each in repeats]
    assert min(shares) - 0.01 <= user["repeated"] <= max(shares) + 0.01
    assert user["formula"] >= user["factor"] * 0.98
    lists = [table["hist_0"].str.len().clip(upper=2), table["hist_1"].str.len(), table["hist_2"].str.len()]
    row_bytes = 4 + 8 + sum(12 + 8 * each for each in lists)
    assert user["bytes_plain"] == pytest.approx(row_bytes.mean())
    assert user["bytes"] == pytest.approx(row_bytes[starts].sum() / ROWS + 4, rel=0.03)
    assert user["bytes_saved"] == user["bytes_plain"] - user["bytes"]
    assert user["worth_it"] is True
    assert describe(plan.source, world_size=1)["dedup"] == facts["dedup"], "as it will be the next time"
    assert item["factor"] == pytest.approx(1, abs=0.001)
    assert item["bytes_saved"] == pytest.approx(-4, abs=0.01)
    assert item["worth_it"] is False
    assert json.loads(json.dumps(facts["dedup"])) == facts["dedup"]


def test_a_group_that_saves_too_little_is_said_with_a_remedy(place: Place, capsys: pytest.CaptureFixture[str]):
    plan = pipeline(
        place, dedup={"user": {"columns": ["age", "hist_{0..2}", "tags"]}, "item": {"columns": ["item"]}}
    ).plan()
    facts = describe(plan.source, world_size=1)
    Console(width=400).print(plan_table(facts))
    shown = capsys.readouterr().out
    assert "item saves too little: -4 of 8 bytes per row, and a group should save 10%. Remove the group" in shown
    assert "Leave out 'tags': without it the factor is" in shown
    assert "4,000 rows of" in shown


def test_a_plan_without_groups_measures_none(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("feedline.planning.dedup.group_measure.first_block_rows", None)
    assert "dedup" not in describe(pipeline(place).plan().source, world_size=1)


@pytest.mark.parametrize("table", ["table", "log"])
def test_proposals_are_written_as_they_are_pasted(place: Place, table: str):
    """Columns that change together are one group; as a section of pipeline.yaml they measure the same."""
    source = {"table": str(place.table.parent / table)}
    facts = describe_proposals(pipeline(place, source=source).plan().source)
    [group] = facts["proposals"]
    assert sorted(group["columns"]) == ["age", "city", "hist_0", "hist_1", "hist_2"]
    assert facts["yaml"] == f"dedup:\n  {group['name']}: {{columns: [age, city, 'hist_{{0..2}}']}}"
    assert facts["optimize"] == (
        f"feedline optimize {source['table']} OUT \\\n  --cluster-by session \\\n"
        f"  --dedup {group['name']}=age,city,hist_0,hist_1,hist_2"
    )
    assert group["factor"] > 5
    assert (group["factor_now"] == group["factor"]) if table == "table" else 2 * group["factor_now"] < group["factor"]
    pasted = {group["name"]: {"columns": ["age", "city", "hist_{0..2}"]}}
    plan = pipeline(place, source=source, dedup=pasted).plan()
    again = describe_proposals(plan.source)
    assert again["proposals"] == []
    assert again["yaml"] is None
    assert [each["factor"] for each in again["groups"]] == [group["factor_now"]]
    assert again["optimize"] == facts["optimize"], "the table does not store the group once yet"
    lines = group_lines(describe(plan.source, world_size=1)["dedup"])
    assert table == "log" or any("times over: store it once per run of equal rows" in line for line in lines)


def test_the_command_that_stores_groups_works_for_every_name(tmp_path: Path):
    """Columns with commas, quotes, braces and spaces; once stored so, the plan has nothing more to say."""
    names = ["a,b", 'c"d', "e f", "h{0..2}"]
    values = np.arange(600) // 20
    (tmp_path / "table").mkdir()
    pq.write_table(
        pa.table({**{name: values + k for k, name in enumerate(names)}, "s=s": values, "y": np.arange(600) % 2}),
        tmp_path / "table" / "part.parquet",
    )
    (tmp_path / "place").mkdir()
    with furnished(tmp_path / "place", tmp_path / "table") as place:
        features = {
            "categorical": {f"f{k}": {"column": name} for k, name in enumerate(names[:3])},
            "label": {"y": []},
        }
        settings = {"features": features, "shuffle": {"by": "s=s", "seed": 1}, "batch": {"size": 50}}
        path = place.write("p.yaml", **settings)
        facts = json.loads(CliRunner().invoke(app, ["plan", "--dedup", "--json", str(path)]).stdout)
        [group] = facts["proposals"]
        assert group["columns"] == names[:3]
        command = facts["optimize"].replace(" OUT ", f" {tmp_path / 'out'} ").replace("\\\n", " ")
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, done.output
        named = {group["name"]: {"columns": group["columns"]}}
        place.write("p.yaml", **settings, source={"table": str(tmp_path / "out")}, dedup=named)
        again = json.loads(CliRunner().invoke(app, ["plan", "--dedup", "--json", str(path)]).stdout)
        assert set(again["stored_once"]) == set(names[:3])
        assert (again["proposals"], again["optimize"]) == ([], None)
        lines = group_lines(describe(Pipeline.from_yaml(path).plan().source, world_size=1)["dedup"])
        assert not any("store" in line for line in lines)


def test_sessions_without_a_column_have_no_size(place: Place):
    features = {"sparse": {"hist_0": []}, "label": {"clicked": []}}
    facts = describe_proposals(pipeline(place, features=features, shuffle="off").plan().source)
    [group] = facts["proposals"]
    assert (group["session_rows"], group["formula"]) == (None, None)
    assert group["factor"] > 5
    path = place.write("off.yaml", features=features, shuffle="off", batch={"size": 500})
    shown = CliRunner().invoke(app, ["plan", "--dedup", str(path)], env={"COLUMNS": "200"})
    assert re.search(r"│ hist_0 │ hist_0  │ - │ 0\.8\d+ │       - │", shown.output), shown.output


def test_rows_that_no_feature_can_hold_are_said_in_the_measure(place: Place):
    features = {**FEATURES, "dense": {"age": []}}
    plan = pipeline(place, features=features, dedup={"user": {"columns": ["age", "city"]}}).plan()
    [group] = describe(plan.source, world_size=1)["dedup"]["groups"]
    assert "feature 'age' holds a null" in group["error"]
    assert (group["bytes"], group["worth_it"]) == (None, None)
    assert group["factor"] > 5


def test_marks_of_rows_that_a_fit_has_seen_are_compared_but_are_no_columns(place: Place):
    """Rows of one fold repeat each other where a fit has seen all of them, or none."""
    encoding = {"target_encoding": {"target": "clicked", "fold_by": "session"}}
    features = {"dense": {"rate": {"column": "city", "ops": [encoding]}, "age": [{"fill_null": 0}]}}
    changes = {"name": "marks", "features": features, "fit": {"auto": True, "where": "item % 2 == 0"}}
    seen = pipeline(place, **changes, dedup={"user": {"columns": ["city", "age", "session"]}})
    [before] = describe(seen.plan().source, world_size=1)["dedup"]["groups"]
    seen.fit()
    [after] = describe(seen.plan().source, world_size=1)["dedup"]["groups"]
    table = frame(place)
    marked = pd.DataFrame({"city": table["city"], "s": table["session"], "seen": table["item"] % 2})
    wanted = (marked != marked.shift()).any(axis=1).sum()
    assert after["unique_rows"] == pytest.approx(wanted, abs=10)
    assert after["factor"] < before["factor"]
    assert sorted(after["columns"]) == ["age", "city", "session"]
    proposed = describe_proposals(pipeline(place, **changes).plan().source)
    assert all(set(group["columns"]) <= {"age", "city", "session"} for group in proposed["proposals"])


names = st.text(st.sampled_from("ab_10'\"{}, :#é"), min_size=1, max_size=6).filter(str.strip)
numbered = st.builds(lambda stem, number: f"{stem}{number}", st.sampled_from(["h_", "C", "x0"]), st.integers(0, 12))


@examples(40)
@given(st.lists(names | numbered, min_size=1, unique=True).filter(lambda each: not any("{" in name for name in each)))
def test_ranges_stand_for_their_columns(columns: list[str]):
    short = with_ranges(columns)
    assert [name for word in short for name in expand_range(word)] == columns
    text = "version: 1\nname: p\nsource: {table: t}\nfeatures: {extra: [a]}\nbatch: {size: 1}\nshuffle: off\n"
    [group] = parse_spec(text + yaml_section({"g": columns})).dedup
    assert list(group.columns) == columns
