"""Programs that a server forks behave as those that Python starts; this file is one of them."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def details() -> dict[str, object]:
    """What a program knows of itself."""
    return {
        "words": sys.argv[1:],
        "folder": str(Path.cwd()),
        "path": sys.path[0],
        "VARIABLE": os.environ.get("VARIABLE"),
        "parent": os.getppid(),
        "session": os.getsid(0) == os.getpid(),
        "descriptors": [number for number in range(300) if is_open(number)],
        "input": sys.stdin.read(),
        "loaded": __name__,
    }


def start(*words: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]


@pytest.fixture(params=["forked", "plain"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "plain":
        request.getfixturevalue("plain_starts")
    else:
        for _ in range(2):  # the second is forked
            subprocess.run([sys.executable, __file__, "leave", "0"], check=True)
    return str(request.param)


def test_a_program_gets_what_it_is_given(kind: str, tmp_path: Path):
    reads, writes = os.pipe()
    with open(reads), open(writes, "w"):
        given = {"cwd": tmp_path, "env": {**os.environ, "VARIABLE": "x"}, "pass_fds": [writes]}
        program = start("show", "a b", stdin=subprocess.PIPE, start_new_session=True, **given)
        shown, _ = program.communicate("hello")
    assert json.loads(shown) == {
        "words": ["show", "a b"],
        "folder": str(tmp_path),
        "path": str(Path(__file__).parent),
        "VARIABLE": "x",
        "parent": os.getpid(),
        "session": True,
        "descriptors": [0, 1, 2, writes],
        "input": "hello",
        "loaded": "__main__",
    }
    assert program.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_program_is_a_child_that_signals_end(kind: str, number: int):
    with start("wait", stderr=subprocess.DEVNULL) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "waits\n"
        process = psutil.Process(program.pid)
        assert process.ppid() == os.getpid()
        assert process.cmdline()[1:] == [__file__, "wait"]
        program.send_signal(number)
        assert program.wait(10) == -number


def test_a_program_ends_with_its_status(kind: str):
    for status in (0, 7):
        assert subprocess.run([sys.executable, __file__, "leave", str(status)], check=False).returncode == status
    failed = subprocess.run([sys.executable, __file__, "fail"], capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stderr.splitlines()[-1]) == (1, "ValueError: no")


def test_an_orphan_that_comes_while_a_program_is_adopted_is_buried():
    import zygote
    from pipelines import eventually

    adopts = partial(ctypes.CDLL(None).prctl, 36)  # PR_SET_CHILD_SUBREAPER
    adopts(1, 0, 0, 0)
    try:
        orphan = int(subprocess.check_output(["sh", "-c", "sleep 0.2 >/dev/null & echo $!"]))
    finally:
        adopts(0, 0, 0, 0)
    assert eventually(lambda: psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE)
    zygote.bury_strangers()
    assert not psutil.pid_exists(orphan)


def test_a_process_that_multiprocessing_spawns_is_a_child_with_its_status(kind: str):
    from pipelines import eventually  # which the programs do not need

    context = multiprocessing.get_context("spawn")
    for status in (0, 7):  # where servers are on, the second is forked
        process = context.Process(target=sys.exit, args=(status,))
        process.start()
        process.join(60)
        assert process.exitcode == status
        process.close()
    waiting = context.Process(target=signal.pause)
    waiting.start()
    assert psutil.Process(waiting.pid).ppid() == os.getpid()
    assert eventually(lambda: "spawn_main" in " ".join(psutil.Process(waiting.pid).cmdline()))
    waiting.terminate()
    waiting.join(60)
    assert waiting.exitcode == -signal.SIGTERM
    waiting.close()


if __name__ == "__main__":
    if sys.argv[1] == "show":
        print(json.dumps(details()))
    elif sys.argv[1] == "wait":
        print("waits", flush=True)
        signal.pause()
    elif sys.argv[1] == "fail":
        raise ValueError("no")
    else:
        sys.exit(int(sys.argv[2]))
