"""train.py has the label and the rows of the plan, and is a program as one would write it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from hypothesis import given, settings
from profiles import NAMES, binary, column, key, numbers, table

from feedline.commands.begin.init_plan import Choices
from feedline.commands.begin.plan_pipeline import plan_pipeline
from feedline.commands.begin.train_script import train_script

ROOT = Path(__file__).resolve().parents[3]
KEY = key("ds", "date32[day]", 4, "2026-01-01", "2026-01-04")


def constants(script: str) -> dict[str, object]:
    """The literals of the program's top."""
    found: dict[str, object] = {}
    for node in ast.parse(script).body:
        if isinstance(node, ast.Assign):
            names = [each.id for each in ast.walk(node.targets[0]) if isinstance(each, ast.Name)]
            try:
                value = ast.literal_eval(node.value)
            except ValueError:
                continue
            found |= dict(zip(names, value if len(names) > 1 else [value], strict=True))
    return found


@given(NAMES)
@settings(max_examples=30, deadline=None)
def test_constants_of_any_label(name: str):
    facts = table(binary(name), column(name + "x"), partitions=(KEY,))
    plan = plan_pipeline(facts, Choices(label=name), table="t")
    found = constants(train_script(plan))
    assert found["LABEL"] == plan.label.feature.name
    assert (found["TASK"], found["CLASSES"], found["HELD_OUT"]) == ("binary", 1, 'ds >= "2026-01-04"')


def test_constants_of_a_regression_without_held_out_rows():
    facts = table(column("price", numbers=numbers(mean=4.25, std=0.5)), column("a"))
    found = constants(train_script(plan_pipeline(facts, Choices(label="price"), table="t")))
    assert (found["TASK"], found["MEAN"], found["STD"], found["HELD_OUT"]) == ("regression", 4.25, 0.5, None)


def test_the_program_is_in_the_style_of_the_project(tmp_path: Path):
    script = train_script(plan_pipeline(table(binary(), column("a")), Choices(), table="t"))
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-m", "ruff"]
    config = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", str(tmp_path / "train.py")]
    for words in (["check", "--ignore", "ANN,TRY,C901,INP"], ["format", "--check"]):
        run = subprocess.run([*command, *words, *config], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
