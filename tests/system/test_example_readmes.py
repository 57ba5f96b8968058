"""The commands in the examples' READMEs name programs, files and options that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from feedline.cli import app

ROOT = Path(__file__).resolve().parents[2]
READMES = sorted((ROOT / "examples").glob("*/README.md"))
COMMAND = re.compile(r"^ {4}(?:echo .* \| )?((?:python|feedline|make) .*)$", re.MULTILINE)


def commands(readme: Path) -> list[list[str]]:
    """The indented commands, as words without comments."""
    text = readme.read_text(encoding="utf-8").replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in COMMAND.findall(text)]


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_commands_of_the_readme_exist(readme: Path):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    found = commands(readme)
    for words in found:
        program, first, *rest = words
        options = {word for word in rest if word.startswith("--")}
        if program == "make":
            assert first in targets, words
        elif program == "python":
            source = (ROOT / first).read_text(encoding="utf-8")
            assert all(f'"{option}"' in source for option in options), words
        else:
            command = typer.main.get_command(app)
            for word in (first, *rest):
                command = command.get_command(typer.Context(command), word)
                assert command is not None, words
                if not isinstance(command, typer.core.TyperGroup):
                    break
            assert options <= {option for parameter in command.params for option in parameter.opts}, words
        paths = [word for word in rest if word.startswith("examples/")]
        assert all((ROOT / path).is_file() for path in paths), words
    assert found, "no command, or none that is indented"
