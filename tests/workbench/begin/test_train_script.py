"""train.py has the label and the rows of the plan, and is a program as one would write it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from hypothesis import given, settings
from profiles import NAMES, binary, column, key, numbers, planned, table

from feedline.workbench.begin.init import train_script
from feedline.workbench.begin.init_plan import HeldOut

ROOT = Path(__file__).resolve().parents[3]
LATE = HeldOut(by=("ds",), train='ds < "2026-01-04"', held_out='ds >= "2026-01-04"', reason="")
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
    plan = planned(facts, label=name, held_out=LATE)
    found = constants(train_script(plan))
    assert found["LABEL"] == plan.label.feature.name
    held_out = {"source.where": 'ds >= "2026-01-04"'}
    assert (found["TASK"], found["CLASSES"], found["HELD_OUT"]) == ("binary", 1, held_out)


def test_constants_of_a_regression():
    facts = table(column("price", numbers=numbers(mean=4.25, std=0.5)), column("a"))
    found = constants(train_script(planned(facts, label="price")))
    assert (found["TASK"], found["MEAN"], found["STD"]) == ("regression", 4.25, 0.5)
    assert found["HELD_OUT"] == {"source.sample.rest": True}


def test_large_tables_are_learnt_more_slowly_and_small_ones_with_more_decay():
    paces = []
    for rows in (2_000, 500_000, 10**9):
        found = constants(train_script(planned(table(binary(), column("a"), rows=rows))))
        paces.append((found["DECAY"], found["DROPOUT"], found["PATIENCE"]))
    assert paces == sorted(paces, reverse=True)
    assert len(set(paces)) == 3


def test_the_program_is_in_the_style_of_the_project(tmp_path: Path):
    script = train_script(planned(table(binary(), column("a"))))
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-m", "ruff"]
    config = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", str(tmp_path / "train.py")]
    for words in (["check", "--ignore", "ANN,TRY,C901,INP"], ["format", "--check"]):
        run = subprocess.run([*command, *words, *config], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
