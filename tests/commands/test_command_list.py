"""The list of commands, and those that are imported only to be run."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from feedline.cli import app
from feedline.commands import command_list


def test_help_lists_every_command_and_imports_none():
    code = "import sys; from feedline.cli import main\ntry: main()\nfinally: print(sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    here = ("run", "plan", "head", "rebase", "snapshot", "schema", "version")
    for command in (*command_list.ELSEWHERE, *here):
        assert f"│ {command} " in run.stdout, command
    assert "│ feed " not in run.stdout
    groups = [run.stdout.index(f"╭─ {group} ─") for group in ("Run", "Prepare", "Look", "Operate")]
    assert groups == sorted(groups)
    for module in ("feedline.commands.fit", "feedline.config", "polars", "pyarrow"):
        assert f"'{module}'" not in run.stdout, module


@pytest.mark.parametrize("name", command_list.ELSEWHERE)
def test_commands_of_other_modules_are_listed_with_their_own_words(name: str):
    _, module, summary = command_list.ELSEWHERE[name]
    function = getattr(importlib.import_module(module), name)
    described = function.info.help if isinstance(function, typer.Typer) else function.__doc__
    assert " ".join(described.split("\n\n")[0].split()) == summary
    shown = CliRunner().invoke(app, [name, "--help"])
    assert shown.exit_code == 0
    assert f"feedline {name} [OPTIONS]" in " ".join(shown.stdout.split()) or f"{name} [OPTIONS]" in shown.stdout
