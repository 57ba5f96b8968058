"""Target files for Prometheus' file_sd: written whole, removed at the end, and swept after a process that died."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feedline.errors import ClusterError
from feedline.service.monitoring.target_files import MetricsTarget, target_labels

CHILD = """
import sys, time
from feedline.service.monitoring.target_files import MetricsTarget
file = MetricsTarget(sys.argv[1], "127.0.0.1:1", {"feedline_role": "worker"})
print(file.path, flush=True)
sys.stdin.read()
"""


def test_a_target_is_what_file_sd_reads(tmp_path: Path):
    labels = target_labels({"feedline_role": "feeder", "feedline_job": "clicks-1", "feedline_ranks": ""})
    file = MetricsTarget(str(tmp_path / "new" / "folder"), "127.0.0.1:9400", labels)
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]
    [group] = json.loads(file.path.read_text())
    assert group["targets"] == ["127.0.0.1:9400"]
    assert {**group["labels"], "host": ""} == {"feedline_role": "feeder", "feedline_job": "clicks-1", "host": ""}
    assert not {"pipeline", "rank", "job", "instance"} & set(group["labels"])
    file.remove()
    assert list(file.path.parent.iterdir()) == []
    file.remove()  # at most once more


def test_the_files_of_killed_processes_are_swept_and_those_of_living_ones_stay(tmp_path: Path):
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    paths = []
    for child in children:
        assert child.stdout is not None
        paths.append(Path(child.stdout.readline().strip()))
    os.kill(children[0].pid, signal.SIGKILL)
    children[0].wait()
    assert all(path.exists() for path in paths)
    (tmp_path / "others.json").write_text("[]")
    (abandoned := tmp_path / "feedline-worker-a-1-2.tmp").touch()
    os.utime(abandoned, (0, 0))
    (fresh := tmp_path / "feedline-worker-a-1-3.tmp").touch()
    file = MetricsTarget(str(tmp_path), "127.0.0.1:2", {"feedline_role": "feeder"})
    assert [path.exists() for path in (*paths, tmp_path / "others.json", abandoned, fresh, file.path)] == [
        *(False, True, True),
        *(False, True, True),
    ]
    file.remove()
    children[1].kill()
    for child in children:
        child.communicate()


def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match=r"the folder of metrics cannot be written: .*/file/x: .* Name a folder"):
        MetricsTarget(str(tmp_path / "file" / "x"), "127.0.0.1:1", {})
