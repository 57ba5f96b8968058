"""Live statuses are found while their feeders run, and removed when these are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from feeder_statuses import status_of
from pipelines import Place, eventually, furnished

from feedline.loader.ring.rendezvous import runtime_dir
from feedline.loader.ring.status_files import StatusFile, live_statuses, sweep_statuses
from feedline.loader.wire.codec import WIRE_VERSION

PROGRAM = """
from dataclasses import replace
from feeder_statuses import status_of
from feedline.loader.ring.status_files import StatusFile
StatusFile().write(status_of(feeder="other"))
print("written", flush=True)
input()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path) -> Iterator[Place]:
    with furnished(tmp_path, tmp_path) as place:
        yield place


def test_a_status_is_found_until_it_is_removed():
    file = StatusFile()
    for step in (1, 2):
        file.write(status_of(feeder="mine", step=step))
        [found] = live_statuses()
        assert found == status_of(feeder="mine", step=step)
    assert [path.name for path in runtime_dir().iterdir()] == [file.path.name], "nothing is left aside"
    file.remove()
    assert live_statuses() == []


def test_the_file_of_a_killed_process_is_swept():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        assert [status.feeder for status in live_statuses()] == ["other"]
        os.kill(process.pid, signal.SIGKILL)
        assert eventually(lambda: live_statuses() == []), "also before its parent has asked for its exit status"
    assert list(runtime_dir().iterdir()) == []


def test_a_file_of_another_process_of_the_same_number_is_swept():
    stale = runtime_dir() / f"status-{os.getpid()}-1.json"
    stale.write_text("{}")
    aside = runtime_dir() / "status-999999999-1.tmp"
    aside.write_text("{")
    sweep_statuses()
    assert not stale.exists()
    assert not aside.exists()


def test_a_status_of_another_release_is_left_out_and_stays():
    file = StatusFile()
    file.write(status_of(feeder="mine"))
    file.path.write_text(file.path.read_text().replace(f'"wire": {WIRE_VERSION}', f'"wire": {WIRE_VERSION + 1}'))
    assert live_statuses() == []
    assert file.path.exists()
    file.remove()
