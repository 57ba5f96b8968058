"""A local file appears whole, or not at all, with or without unnamed files of the file system."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feedline.warehouse.storage import whole_file as module
from feedline.warehouse.storage.whole_file import whole_file

_DIES_WRITING = """
import os, signal, sys
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import locate

def parts():
    yield b"half"
    os.kill(os.getpid(), signal.SIGKILL)

content_store.put(locate(sys.argv[1]), "name", parts())
"""


@pytest.fixture(params=["unnamed", "named"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "named":
        monkeypatch.setattr(module, "_open_unnamed", lambda folder: None)
    return str(request.param)


def write(target: Path, content: bytes) -> None:
    with whole_file(target) as path:
        path.write_bytes(content)
        assert not target.exists() or target.read_bytes() != content


def test_it_appears_and_is_replaced(tmp_path: Path, kind: str):
    target = tmp_path / "name"
    for content in (b"first", b"second"):
        write(target, content)
        assert target.read_bytes() == content
        assert [path.name for path in tmp_path.iterdir()] == ["name"]


def test_it_has_no_name_while_it_is_written(tmp_path: Path, kind: str):
    with whole_file(tmp_path / "name") as path:
        path.write_bytes(b"1")
        assert len(list(tmp_path.iterdir())) == (kind == "named")


def test_it_has_the_mode_that_the_umask_says(tmp_path: Path):
    before = os.umask(0o027)
    try:
        write(tmp_path / "name", b"1")
    finally:
        os.umask(before)
    assert (tmp_path / "name").stat().st_mode & 0o777 == 0o640


def test_a_link_is_replaced_not_followed(tmp_path: Path):
    (tmp_path / "elsewhere").write_bytes(b"kept")
    (tmp_path / "name").symlink_to(tmp_path / "elsewhere")
    write(tmp_path / "name", b"1")
    assert not (tmp_path / "name").is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == b"kept"


def test_an_error_leaves_what_was_there(tmp_path: Path):
    (tmp_path / "name").write_bytes(b"earlier")

    def interrupted() -> None:
        with whole_file(tmp_path / "name") as path:
            path.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("name", b"earlier")]


def test_what_cannot_be_replaced_is_an_error_and_nothing_stays(tmp_path: Path):
    (tmp_path / "name").mkdir()
    with pytest.raises(IsADirectoryError), whole_file(tmp_path / "name") as path:
        path.write_bytes(b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["name"]
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "missing" / "name") as path:
        path.write_bytes(b"1")


@pytest.mark.parametrize("kind", ["unnamed"], indirect=True)
def test_a_process_that_is_killed_while_it_writes_leaves_nothing(tmp_path: Path):
    killed = subprocess.run([sys.executable, "-c", _DIES_WRITING, str(tmp_path / "folder")], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list((tmp_path / "folder").iterdir()) == []
