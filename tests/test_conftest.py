"""The leak check in conftest.py finds what a test or a module leaves behind, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from leaks import all_descendants

LEAKS = '''
"""Tests that leave something behind, and three that do not."""
import os, signal, socket, subprocess, sys

kept = []

def test_memfd():
    kept.append(os.memfd_create("ring"))

def test_packets():
    kept.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))

def test_listening():
    kept.append(socket.create_server(("127.0.0.1", 0)))

def test_listening_at_a_path(tmp_path):
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(tmp_path / "s"))
    server.listen()
    kept.append(server)

def test_process():
    kept.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

def test_zombie():
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    process.stdout.read()
    kept.append(process)

def test_closed():
    os.close(os.memfd_create("ring"))
    socket.create_server(("127.0.0.1", 0)).close()
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_pair_of_an_event_loop():
    kept.append(socket.socketpair())

def test_last():
    """Leaves nothing itself."""
'''


@pytest.mark.slow
def test_leaks_are_found(tmp_path: Path):
    """Of each test in `system/`, of each module everywhere: reported with the module's last test."""
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    for folder, name in (("system", "test_leaks.py"), ("unit", "test_leaks_elsewhere.py")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(LEAKS)
    # Nothing of plugins, whose modules pytest would rewrite: that took ten times as long as the tests.
    options = ("-p", "no:cacheprovider", "--assert=plain", "-q", "-rE")
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    support = str(Path(__file__).with_name("support"))
    environment = {**os.environ, "PYTHONPATH": support, "TESTS_GRACE_S": "0.2", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    lines = run.stdout.splitlines()
    failed = sorted(line.split(" ")[1] for line in lines if line.startswith("ERROR "))
    leaking = ["last", "listening", "listening_at_a_path", "memfd", "packets", "process", "zombie"]
    assert failed == [
        *(f"system/test_leaks.py::test_{name}" for name in leaking),
        "unit/test_leaks_elsewhere.py::test_last",
    ], run.stdout
    assert f"{2 * LEAKS.count('def test')} passed, 8 errors" in run.stdout


def test_a_process_that_ends_while_it_is_looked_at_is_found(monkeypatch: pytest.MonkeyPatch):
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    status = psutil.Process.status

    def end_after(self: psutil.Process) -> str:
        found = status(self)
        if self.pid == process.pid and found != psutil.STATUS_ZOMBIE:
            process.stdin.close()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return found

    monkeypatch.setattr(psutil.Process, "status", end_after)
    found = all_descendants()
    process.wait()
    assert found[process.pid] == "(zombie)"
