"""The command, the overrides and the log of a feeder process."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from feedline.config import PipelineSpec, load_spec
from feedline.errors import FeederError
from feedline.loader.ring import launch
from feedline.loader.ring.channel import ChannelClosedError
from feedline.loader.ring.feeder_source import OwnFeeder
from feedline.loader.ring.launch import (
    FeederCommand,
    feeder_words,
    shorten_log,
)

pytestmark = pytest.mark.usefixtures("plain_starts")

LAUNCHER = """#!/bin/sh
echo "$@"
cat
exit 3
"""


def test_this_python_starts_a_feeder_unless_a_command_is_set():
    assert feeder_words({}) == [sys.executable, "-P", "-m", "feedline", "feed"]
    assert feeder_words({"FEEDLINE_COMMAND": "env PEX_MODULE=feedline '/a b/train.pex'"}, None) == [
        "env",
        "PEX_MODULE=feedline",
        "/a b/train.pex",
        "feed",
    ]
    with pytest.raises(FeederError, match="FEEDLINE_COMMAND is not a command: got"):
        feeder_words({"FEEDLINE_COMMAND": "a 'b"})
    for none in (None, ""):
        with pytest.raises(FeederError, match=r"no Python is known that could start a feeder: .* Set FEEDLINE_COMMAND"):
            feeder_words({}, none)


def command(**overrides: object) -> FeederCommand:
    keys = {"source": {"table": "t"}, "features": {"dense": {"x": []}}, "batch": {"size": 2}}
    pipeline = {"version": 1, "name": "p", **keys}
    return FeederCommand(arguments=["p.yaml"], pipeline=load_spec(pipeline, overrides).packed(), environment={})


def test_pipelines_travel_on_standard_input_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    launcher = tmp_path / "launcher"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o700)
    monkeypatch.setenv("FEEDLINE_COMMAND", f"{launcher} --quick")
    process = OwnFeeder(command(**{"source.table": "s3://key:secret@bucket"}))
    try:
        with pytest.raises(ChannelClosedError):
            process.channel.receive()
        words = process.last_words()
        arguments, heard, status = words.splitlines()
        assert arguments.startswith("--quick feed p.yaml --scratch ")
        assert "secret" not in arguments
        assert PipelineSpec.unpacked(heard.encode()).source.table == "s3://key:secret@bucket"
        assert status == "(exit status 3)"
        assert process.log_path.read_text().strip() == words.removesuffix(f"\n{status}")
    finally:
        process.channel.close()
        process.end()
    assert not process.log_path.parent.exists()


def test_a_feeder_holds_its_scratch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    launcher = tmp_path / "launcher"
    launcher.write_text("#!/bin/sh\nls -l /proc/$$/fd\n")
    launcher.chmod(0o700)
    monkeypatch.setenv("FEEDLINE_COMMAND", str(launcher))
    process = OwnFeeder(command())
    try:
        assert f" -> {process.log_path.parent}\n" in process.last_words()
    finally:
        process.channel.close()
        process.end()


def test_a_command_that_cannot_be_started_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEEDLINE_COMMAND", str(tmp_path / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(FeederError, match=r"the feeder cannot be started: .*none.* See FEEDLINE_COMMAND"):
        OwnFeeder(command())
    assert list(tmp_path.iterdir()) == []


def test_a_log_is_cut_to_its_last_lines(tmp_path: Path):
    with open(tmp_path / "log", "a+b", buffering=0) as log, open(tmp_path / "log", "ab", buffering=0) as other:
        log.writelines(b"line %d\n" % number for number in range(1000))
        size = os.fstat(log.fileno()).st_size
        assert not shorten_log(log.fileno(), limit_bytes=size, kept_bytes=100)
        assert shorten_log(log.fileno(), limit_bytes=size - 1, kept_bytes=100)
        other.write(b"and on\n")
    gone, *lines = (tmp_path / "log").read_text().splitlines()
    assert lines[-3:] == ["line 998", "line 999", "and on"]
    assert all(line.startswith("line ") for line in lines[:-1])
    assert 5 < len(lines) < 15
    kept = sum(len(line) + 1 for line in lines[:-1])
    assert gone == f"({size - kept:,} bytes of this log are gone)"
    read, write = os.pipe()
    assert not shorten_log(write, limit_bytes=0, kept_bytes=0), "the terminal of a command is no log"
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    ("cluster", "cores", "words"),
    [
        ({}, 4, r"processes of the feeder: 4 of 1 thread\(s\), on 4 core\(s\)"),
        ({}, 2, r"threads of the feeder: 2; 2 process\(es\) once they wait for each other"),
        ({"fork": False}, 1, r"threads of the feeder: 1; 1 process\(es\) once they wait for each other"),
        ({"processes": 2}, 2, r"processes of the feeder: 2 of 1 thread\(s\), on 2 core\(s\)"),
        ({"processes": 2}, 6, r"processes of the feeder: 2 of 3 thread\(s\), on 6 core\(s\)"),
        ({"processes": 3, "threads": 2}, 1, r"processes of the feeder: 3 of 2 thread\(s\), on 1 core\(s\)"),
        ({"threads": 3}, 4, "threads of the feeder: 3"),
        ({"workers": 2}, 4, r"Dask workers on this host: up to 2 of 2 thread\(s\)"),
        ({"scheduler": "tcp://127.0.0.1:8786"}, 4, "Dask workers of tcp://127.0.0.1:8786"),
    ],
)
def test_what_computes_blocks_is_said(monkeypatch: pytest.MonkeyPatch, cluster: dict[str, Any], cores: int, words: str):
    monkeypatch.setattr(launch, "available_memory_bytes", lambda: 2**40)
    keys = {"source": {"table": "t"}, "features": {"dense": {"x": []}}, "batch": {"size": 2}}
    spec = load_spec({"version": 1, "name": "p", **keys}, {"cluster": cluster})
    assert re.fullmatch(words, launch.describe_workers(spec, cores=cores))


@pytest.mark.parametrize(
    ("threads", "gigabytes", "processes"), [(2, 1, 2), (16, 64, 16), (64, 8, 32), (64, 0.1, 1), (5, 1, 3), (1, 0, 1)]
)
def test_a_pool_has_a_process_per_thread_unless_memory_is_short(threads: int, gigabytes: float, processes: int):
    assert launch.pool_processes(threads, memory_bytes=int(gigabytes * 2**30)) == processes
