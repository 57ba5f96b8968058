"""Scratch folders are private, held by whoever uses them, and removed by the next start when nobody does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feedline.resources import scratch
from feedline.resources.scratch import ScratchFolder, make_scratch, scratch_folder

HOLD = """
import sys, tempfile
from feedline.resources.scratch import make_scratch
tempfile.tempdir = sys.argv[1]
held = make_scratch()
print(held.lock, held.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, of which what is left is removed at once."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_LEFT_S", -1.0)
    return tmp_path


def removed(*made: ScratchFolder) -> None:
    for each in made:
        each.remove()


def test_scratch_folders_are_private(temporary: Path):
    made = [make_scratch() for _ in range(2)]
    assert {Path(each.path) for each in made} == set(temporary.iterdir())
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in temporary.iterdir())
    removed(*made)
    assert not list(temporary.iterdir())


def test_a_folder_of_a_killed_process_goes_with_the_next_start_and_a_used_one_stays(temporary: Path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(temporary)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lock, _, path = process.stdout.readline().strip().partition(" ")
        (folder := Path(path)).joinpath("feeder.log").write_text("end")
        assert int(lock) > 2
        with scratch_folder() as own:
            assert set(temporary.iterdir()) == {folder, own}
        process.send_signal(signal.SIGKILL)
    with scratch_folder() as own:
        assert set(temporary.iterdir()) == {own}


def test_a_process_that_inherits_the_lock_holds_the_folder_when_its_maker_has_ended(temporary: Path):
    made = make_scratch()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[made.lock]) as heir:
        made.hand_over()
        made.hand_over()
        with scratch_folder():
            assert Path(made.path) in temporary.iterdir()
        assert heir.stdin is not None
        heir.stdin.close()
        heir.wait()
    with scratch_folder() as own:
        assert set(temporary.iterdir()) == {own}


def test_what_was_left_a_moment_ago_and_what_is_not_ours_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder is made before it is locked, and a feeder's log is read after its end."""
    fresh = temporary / "feedline-scratch-a"
    fresh.mkdir()
    (other := temporary / "feedline-1000").mkdir()
    (link := temporary / "feedline-scratch-b").symlink_to(other)
    monkeypatch.setattr(scratch, "_LEFT_S", 600.0)
    with scratch_folder() as own:
        assert set(temporary.iterdir()) == {fresh, other, link, own}
    os.utime(fresh, (0, 0))
    with scratch_folder() as own:
        assert set(temporary.iterdir()) == {other, link, own}
