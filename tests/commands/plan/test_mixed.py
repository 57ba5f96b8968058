"""`feedline plan` of several sources: each as a plan of its own, the rows of a step, and the memory of all."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from mixed_tables import mixed_pipeline, write_tables
from rich.console import Console
from typer.testing import CliRunner

from feedline import Pipeline
from feedline.cli import app
from feedline.commands.plan.views import describe_plan, described_plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tables(tmp_path_factory.mktemp("mixed"))
    document = mixed_pipeline(folder, stop="all")
    document["sources"][0]["where"] = "id < 1200"
    (folder / "p.yaml").write_text(json.dumps(document))
    return folder


def rendered(facts: dict) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(described_plan(facts))
    return console.file.getvalue()


def test_the_facts_of_each_source_and_of_the_mix(folder: Path):
    facts = describe_plan(Pipeline.from_yaml(folder / "p.yaml").plan(world_size=2), 2)
    clicks, views = facts["sources"]
    assert (clicks["name"], clicks["batch_rows"], clicks["stages"][-1]["rows"]) == ("clicks", 8, 1_200)
    assert (views["name"], views["batch_rows"], views["stages"][-1]["rows"]) == ("views", 2, 450)
    assert (facts["steps"], clicks["pass_steps"], views["pass_steps"]) == (112, 75, 112)
    assert clicks["passes"] == pytest.approx(112 / 75)
    expected = clicks["bytes"]["read_per_epoch"] * 112 / 75 + views["bytes"]["read_per_epoch"]
    assert facts["bytes"]["read_per_epoch"] == int(expected)
    text = rendered(facts)
    assert "8 of the 10 rows of a lane's step (80.0%); a pass has 75 steps, an epoch 1.49 passes" in text
    assert "112 on each of 2 ranks: the longest source ends an epoch" in text
    assert " ".join(text.split()).count("what remains after") == 2  # after the table's path, however long that is


def test_a_mix_holds_no_more_than_one_source_of_the_same_window(folder: Path):
    document = mixed_pipeline(folder, shuffle={"window_rows": 600})
    mix = describe_plan(Pipeline.from_dict(document).plan(), 1)
    alone = {**document, "source": document["sources"][0] | {"weight": None}}
    alone["source"] = {"table": document["sources"][0]["table"]}
    del alone["sources"], alone["mix"]
    one = describe_plan(Pipeline.from_dict(alone).plan(), 1)
    assert mix["memory"]["in_flight_bytes"] <= 1.5 * one["memory"]["in_flight_bytes"]


def test_commands_take_one_source_or_name_them(folder: Path):
    run = CliRunner().invoke
    path = str(folder / "p.yaml")
    step = run(app, ["plan", path, "--step", "80", "--json"])
    assert step.exit_code == 0, step.output
    facts = json.loads(step.stdout)
    counts = {
        name: sum(len(part["rows"]) for part in facts["row_groups"] if part["source"] == name)
        for name in ("clicks", "views")
    }
    assert counts == {"clicks": 8, "views": 2}
    one = run(app, ["plan", path, "--source", "views", "--json"])
    assert json.loads(one.stdout)["batch_size"] == 2
    for arguments in (["plan", path, "--ops"], ["head", path], ["snapshot", path, str(folder / "s.arrow")]):
        refused = run(app, arguments)
        assert "Name one with --source" in str(refused.exception), refused.output
    frozen = run(app, ["snapshot", path, str(folder / "s.arrow"), "--source", "views"])
    assert frozen.exit_code == 0
    fixed = run(app, ["plan", path, "--set", f"sources.1.snapshot={folder / 's.arrow'}", "--json"])
    assert json.loads(fixed.stdout)["sources"][1]["snapshot"] in frozen.stdout
    assert run(app, ["head", path, "--source", "views", "--json"]).exit_code == 0
    checked = run(app, ["check", path, "--json"])
    assert [each["name"] for each in json.loads(checked.stdout)["sources"]] == ["clicks", "views"]
    assert run(app, ["check", path]).stdout.startswith("source clicks: ")


def test_a_saved_plan_names_a_snapshot_for_each_source(folder: Path):
    saved = CliRunner().invoke(app, ["plan", str(folder / "p.yaml"), "--save", "--json"])
    assert saved.exit_code == 0, saved.output
    files = json.loads(saved.stdout)["saved"]["snapshot_file"].split(",")
    overrides = [f"--set=sources.{index}.snapshot={file}" for index, file in enumerate(files)]
    again = CliRunner().invoke(app, ["plan", str(folder / "p.yaml"), *overrides, "--json"])
    assert json.loads(again.stdout)["plan"] == json.loads(saved.stdout)["plan"]
