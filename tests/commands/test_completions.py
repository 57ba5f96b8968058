"""A shell completes commands, options, pipelines, overrides, features and sources, by the protocols of real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from minimal_pipeline import MINIMAL

from feedline.commands.pipeline_arguments import (
    complete_pipeline,
    complete_words,
    divide_override,
    override_keys,
    rejoin_override,
)
from feedline.config import parse_spec
from feedline.config.overrides import parse_overrides
from feedline.config.pipeline_spec import json_schema
from feedline.errors import SpecError

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """#!/bin/sh
PYTHONPATH="{root}" exec "{python}" -c \
"import sys; sys.argv[0] = 'feedline'; from feedline.__main__ import main; main()" "$@"
"""
STAYS = "&& true"  # the shell does not become the last command's process: the program looks for its parent
SOURCES = """
version: 1
name: two
sources:
  - {name: first, table: a, weight: 1}
  - {name: second, table: b, weight: 2}
features:
  dense: {price: [], "x_{0..2}": []}
  sparse: {history: []}
  label: {clicked: []}
batch: {size: 8}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two pipelines, and the program in its `bin`."""
    path = tmp_path_factory.mktemp("shell")
    (path / "bin").mkdir()
    program = path / "bin" / "feedline"
    program.write_text(PROGRAM.format(root=ROOT, python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
    (path / "two.yaml").write_text(SOURCES, encoding="utf-8")
    (path / "other.yml").write_text(MINIMAL, encoding="utf-8")
    (path / "notes.txt").touch()
    (path / "completion").write_text(
        in_shell(path, "bash", f"feedline --show-completion bash {STAYS}"), encoding="utf-8"
    )
    (path / "old").mkdir()
    (path / "old" / "one.yaml").touch()
    return path


def in_shell(folder: Path, shell: str, script: str) -> str:
    environ = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder)}
    for variable in ("COMP_WORDS", "COMP_CWORD"):
        environ.pop(variable, None)
    command = [shutil.which(shell) or shell, *(["--norc", "--noprofile"] if shell == "bash" else []), "-c", script]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, env=environ, timeout=120)
    assert run.stderr == ""
    return run.stdout


def completed_by_bash(folder: Path, *words: str) -> list[str]:
    """What bash offers for the last word, by the script that Feedline installs."""
    line = " ".join(f"'{word}'" for word in words)
    script = f"""
. ./completion
COMP_WORDS=(feedline {line}); COMP_CWORD={len(words)}
$(complete -p feedline | sed 's/.*-F \\([^ ]*\\).*/\\1/') feedline
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return in_shell(folder, "bash", script).splitlines()


def nightly(words: list[str], offered: list[str]) -> object:
    """A case whose words are completed as those of another one."""
    return pytest.param(words, offered, marks=pytest.mark.nightly)


# The lines that a test completes are divided as bash divides them: at = and :, too.
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["pl"], ["plan"]),
        nightly(["ver"], ["version"]),
        (["generate", ""], ["clicks", "listens", "logs"]),
        (["plan", "two.yaml", "--wor"], ["--world-size"]),
        (["plan", "o"], ["other.yml", "old/"]),
        nightly(["plan", "old/"], ["old/one.yaml"]),
        nightly(["plan", "n"], [""]),
        nightly(["run", "two.yaml", "--sink", ""], ["trainer", "null"]),
        (["run", "two.yaml", "--features", "x"], ["x_0", "x_1", "x_2"]),
        nightly(["run", "none.yaml", "--features", "x"], [""]),
        (["plan", "two.yaml", "--source", ""], ["first", "second"]),
        nightly(["plan", "two.yaml", "--set", "batch.t"], ["batch.tail=drop", "batch.tail=pad", "batch.tail=partial"]),
        (["plan", "two.yaml", "--set", "shuffle.r"], ["shuffle.rows=true", "shuffle.rows=false"]),
        (["plan", "two.yaml", "--set", "batch.tail", "=", "p"], ["pad", "partial"]),
        nightly(["plan", "two.yaml", "--set", "batch.tail", "="], ["drop", "pad", "partial"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bash_completes(folder: Path, words: list[str], offered: list[str]):
    assert completed_by_bash(folder, *words) == offered


def test_bash_completion_is_installed_for_the_next_shell(folder: Path):
    (folder / ".bashrc").write_text("x=1\n", encoding="utf-8")
    in_shell(folder, "bash", f"feedline --install-completion bash {STAYS}")
    assert "_feedline_completion" in in_shell(folder, "bash", ". ~/.bashrc; complete -p feedline; echo $x")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_offered_the_same(folder: Path, shell: str):
    """By the words of their protocols, which Typer's scripts pass on."""
    lines = {"feedline plan two.yaml --source f": "first", "feedline plan --set batch.tail=pa": "tail=pad"}
    for line, word in lines.items():
        environ = {
            **os.environ,
            "_FEEDLINE_COMPLETE": f"complete_{shell}",
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
        run = subprocess.run(
            [folder / "bin" / "feedline"], capture_output=True, text=True, check=True, cwd=folder, env=environ
        )
        assert word in run.stdout
    if shutil.which(shell):
        assert "feedline" in in_shell(folder, shell, f"feedline --show-completion {shell} {STAYS}")


def test_completing_a_command_imports_none():
    code = "from feedline.cli import main\ntry: main()\nfinally: print(sorted(sys.modules), file=sys.stderr)"
    environ = {**os.environ, "COMP_WORDS": "feedline\nf", "COMP_CWORD": "1", "_FEEDLINE_COMPLETE": "complete_bash"}
    code = f"import sys; sys.argv[0] = 'feedline'\n{code}"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ, cwd=ROOT
    )
    assert run.stdout.split() == ["fit"]
    for module in ("feedline.commands.fit", "feedline.config", "polars", "pyarrow"):
        assert f"'{module}'" not in run.stderr, module


def test_every_key_can_be_overridden():
    keys = override_keys(json_schema())
    assert len(keys) > 60
    assert len({each.key for each in keys}) == len(keys)
    assert all(each.description for each in keys)
    accepted = 0
    for key, values, _ in keys:
        for value in filter(None, values):
            with suppress(SpecError):  # of a key that needs another
                parse_spec(MINIMAL, overrides=parse_overrides([f"{key}={value}"]))
                accepted += 1
    assert accepted > 40


def test_a_section_that_is_a_word_too_has_both():
    values = {each.key: each.values for each in override_keys(json_schema())}
    assert values["shuffle"] == ("off",)
    assert values["fit.auto"] == ("true", "false")
    assert values["epochs"] == ("", "1")
    assert "auto" in values["cluster.threads"]
    assert "" in values["cluster.threads"]
    assert "features.dense" not in values


def test_files_that_a_shell_would_divide_are_left_to_it(tmp_path: Path):
    (tmp_path / "a b.yaml").touch()
    assert complete_pipeline(f"{tmp_path}/a") == []
    assert complete_pipeline(f"{tmp_path}/none/a") == []
    (tmp_path / "c.yaml").touch()
    assert complete_pipeline(f"{tmp_path}/c") == [f"{tmp_path}/c.yaml"]


def test_words():
    assert complete_words("keep", "popular")("p") == ["popular"]


WORDS = st.lists(st.sampled_from(["feedline", "--set", "=", "a.b", "", "x"]), min_size=1, max_size=8)


@given(WORDS, st.integers(0, 8))
def test_only_the_value_of_an_override_is_divided_off(words: list[str], position: int):
    line, place, key = divide_override(words, position)
    if not key:
        assert (line, place) == (words, position)
    else:
        given = [*words[: position + 1], *[""] * (position + 1 - len(words))]
        assert [*line[:place], key, "="] == given[: len(line) + 1][: place + 2]
        assert line[place - 1] == "--set"
        assert len(line) == place + 1


def test_other_environments_are_left_alone():
    for environ in ({}, {"COMP_WORDS": "feedline"}, {"COMP_WORDS": "feedline", "COMP_CWORD": "x"}):
        before = dict(environ)
        rejoin_override(environ)
        assert environ == before
