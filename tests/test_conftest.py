"""Does the check for leaks in conftest.py find what a test leaves behind, and nothing else?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LEAKS = '''
"""Tests that leave something behind, and two that do not."""
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
'''


def test_leaks_are_found(tmp_path: Path):
    conftest = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(conftest.replace("LEAK_GRACE_S = 10.0", "LEAK_GRACE_S = 0.2"))
    (tmp_path / "test_leaks.py").write_text(LEAKS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rE", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    failed = {line.split("::")[1].split(" ")[0] for line in run.stdout.splitlines() if line.startswith("ERROR ")}
    assert failed == {f"test_{name}" for name in ("memfd", "packets", "process", "zombie")} | {
        "test_listening",
        "test_listening_at_a_path",
    }, run.stdout
    assert "8 passed, 6 errors" in run.stdout
