"""Dask's lines have our form, and none says again what Feedline says; nobody waits for whoever reads them."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipelines import eventually

from feedline.service import log_lines
from feedline.service.log_lines import LineWriter

SCRIPT = """
import logging
import distributed
from feedline.service.log_lines import write_log_lines
write_log_lines(level=logging.INFO)
logging.getLogger("distributed.worker").exception("Failed to communicate with scheduler during heartbeat.")
logging.getLogger("distributed.worker").exception("failed during get data with %s -> %s", "tcp://192.0.2.1:1", None)
logging.getLogger("distributed.worker").error("another error")
logging.getLogger("distributed.worker.state_machine").warning(
    "Async instruction for <Task cancelled name='execute' coro=<Worker.execute()>> ended with CancelledError"
)
logging.getLogger("distributed.worker.state_machine").error("Unhandled exception in async instruction for <Task 1>")
logging.getLogger("distributed.scheduler").info("no news")
logging.getLogger("distributed.client").warning("a client's")
logging.getLogger("tornado.application").error("of a page")
logging.getLogger("feedline.service").info("joined")
"""


def test_lines_have_a_time_and_a_level_and_are_written_once():
    done = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    lines = [line.split(maxsplit=2)[2] for line in done.stderr.splitlines()]
    assert lines == [
        "ERROR another error",
        "ERROR Unhandled exception in async instruction for <Task 1>",
        "WARNING a client's",
        "ERROR of a page",
        "INFO joined",
    ]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for each in ends:
        os.close(each)


def fill(descriptor: int) -> int:
    """Fill a pipe, without changing it for others; returns the number of bytes."""
    own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK)
    count = 0
    try:
        while True:
            count += os.write(own, b"." * 4096)
    except BlockingIOError:
        return count
    finally:
        os.close(own)


def log(writer: LineWriter, *lines: str) -> None:
    for line in lines:
        writer.handle(logging.LogRecord("feedline", logging.WARNING, "f.py", 1, line, None, None))


def test_lines_are_written_at_once_where_there_is_room(pipe: tuple[int, int]):
    writer = LineWriter(pipe[1])
    log(writer, "first", "second \udcff")
    assert os.read(pipe[0], 100) == b"first\nsecond \\udcff\n"
    assert writer._thread is None


def test_a_full_pipe_delays_nobody_and_all_lines_come_in_their_order(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(log_lines, "_MOST_LINES", 300)
    writer, read = LineWriter(pipe[1]), bytearray()
    lines = [f"{number} {'x' * (number * 37 % 9000)}" for number in range(300)]
    filled = fill(pipe[1])
    logs = threading.Thread(target=log, args=(writer, *lines, "gone", "gone as well"), daemon=True)
    logs.start()
    logs.join(60)
    assert not logs.is_alive()

    def read_until(count: int) -> None:
        while len(read) < count:
            read.extend(os.read(pipe[0], 65536))

    expected = "".join(f"{line}\n" for line in lines).encode()
    read_until(filled + len(expected))
    writer.flush()
    log(writer, "last")
    expected += b"(2 lines of this log are gone)\nlast\n"
    read_until(filled + len(expected))
    assert read[filled:] == expected


def test_a_file_and_a_pipe_that_nobody_reads_any_more(tmp_path: Path):
    with open(tmp_path / "log", "ab") as file:
        log(LineWriter(file.fileno()), "a" * 10_000, "b")
    assert (tmp_path / "log").read_text() == "a" * 10_000 + "\nb\n"
    read, write = os.pipe()
    os.close(read)
    log(LineWriter(write), "lost")
    os.close(write)


def test_a_scheduler_whose_log_nobody_reads_serves_and_leaves_the_whole_log(pipe: tuple[int, int]):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    filled = fill(pipe[1])
    command = [sys.executable, "-m", "feedline", "scheduler", "--port", str(port)]
    with subprocess.Popen(command, stderr=pipe[1]) as process:
        try:
            eventually(lambda: _answers(port))
            process.send_signal(signal.SIGTERM)
            read = b""
            while len(read) <= filled or not read.endswith(b"\n"):
                read += os.read(pipe[0], 65536)
            assert process.wait(60) == 0  # a second signal could meet it without its handlers
        finally:
            process.kill()
    assert re.fullmatch(rf"\S+ \S+ INFO scheduler at tcp://127\.0\.0\.1:{port}\n", read[filled:].decode())


def _answers(port: int) -> bool:
    """Whether a scheduler begins its handshake: its loop runs."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return bool(connection.recv(1))
    except OSError:
        return False
