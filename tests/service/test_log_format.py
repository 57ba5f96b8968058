"""Dask's lines have our form, and none says again what Feedline says."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import logging
import distributed
from feedline.service.log_lines import write_log_lines
write_log_lines(level=logging.INFO)
logging.getLogger("distributed.worker").exception("Failed to communicate with scheduler during heartbeat.")
logging.getLogger("distributed.worker").error("another error")
logging.getLogger("distributed.worker.state_machine").warning(
    "Async instruction for <Task cancelled name='execute' coro=<Worker.execute()>> ended with CancelledError"
)
logging.getLogger("distributed.worker.state_machine").error("Unhandled exception in async instruction for <Task 1>")
logging.getLogger("distributed.scheduler").info("no news")
logging.getLogger("feedline.service").info("joined")
"""


def test_lines_have_a_time_and_a_level_and_are_written_once():
    done = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    lines = [line.split(maxsplit=2)[2] for line in done.stderr.splitlines()]
    assert lines == [
        "ERROR another error",
        "ERROR Unhandled exception in async instruction for <Task 1>",
        "INFO joined",
    ]
