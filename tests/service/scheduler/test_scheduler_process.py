"""The command `feedline scheduler`, as a process and in this one."""

from __future__ import annotations

import gc
import json
import re
import signal
import socket
import subprocess
import sys
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from distributed import Client
from typer.testing import CliRunner

from feedline.cli import app
from feedline.errors import ClusterError, SpecError
from feedline.service.scheduler.scheduler_process import SchedulerOptions, refuse_open, run_scheduler


def test_a_scheduler_has_the_extension_and_ends_with_sigterm():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        page = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "feedline", "scheduler", "--port", "0", "--dashboard", page]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.fullmatch(r"\d{4}-\S+ \S+ INFO scheduler at (tcp://127\.0\.0\.1:\d+)\n", line)
            assert found is not None, line
            with Client(found[1], set_as_default=False) as client:
                with pytest.raises(ClusterError, match="number of workers is unknown: the scheduler started less than"):
                    client.sync(client.scheduler.adaptive_target)
                assert list(client.sync(client.scheduler.feedline_jobs)) == []
            with pytest.raises(HTTPError, match="503") as refused:  # whoever asks keeps the size
                urlopen(f"http://{page}/api/v1/adaptive_target")
            assert "workers is unknown" in json.load(refused.value)["error"]
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert not [line for line in errors.splitlines() if "ERROR" in line and "adaptive_target" not in line], errors


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # tornado leaves its socket open
def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = f"cannot listen on 127.0.0.1:{port}: Address already in use. Free it, or give another --host or --port"
        with pytest.raises(ClusterError, match=re.escape(words)):
            run_scheduler(SchedulerOptions(port=port))
    gc.collect()


def test_an_open_scheduler_without_certificates_is_refused():
    for host in ("0.0.0.0", "10.0.0.1", "::", "scheduler.example.org"):
        with pytest.raises(SpecError, match=f"unencrypted and not only on this machine: got --host {host}. Dask"):
            refuse_open(SchedulerOptions(host=host), insecure=False)
        refuse_open(SchedulerOptions(host=host), insecure=True)
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        refuse_open(SchedulerOptions(host=host), insecure=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dashboard", "8787x"], "--dashboard is no address: got '8787x'"),
        (["--tls-ca", "a.pem"], "--tls-cert, --tls-key missing"),
        (["--host", "0.0.0.0"], "accept the risk with --insecure"),
    ],
)
def test_wrong_options(words: list[str], message: str):
    result = CliRunner().invoke(app, ["scheduler", *words])
    assert message in str(result.exception)
