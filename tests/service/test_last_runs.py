"""The last status of a run is found by its pipeline, per set of ranks."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from feeder_statuses import status_of
from hypothesis import given
from hypothesis import strategies as st

from feedline.config import load_spec
from feedline.errors import TableNotFoundError
from feedline.service import last_runs
from feedline.service.last_runs import LastRun, _files, last_status, last_statuses
from feedline.warehouse.storage.locations import absolute, locate

PIPELINE = """
version: 1
name: clicks
work_dir: work
source: {table: t}
features: {label: {y: []}}
batch: {size: 8}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(PIPELINE)
    return path


def test_the_last_run_of_a_pipeline_as_it_is_now(path: Path, monkeypatch: pytest.MonkeyPatch):
    spec = load_spec(path)
    assert last_status(spec) is None
    LastRun(spec, 4).write(status_of(feeder="left", ranks=(0, 1), now_s=5.0))
    LastRun(spec, 4).write(status_of(feeder="right", ranks=(2, 3), now_s=6.0))
    LastRun(spec, 4).write(status_of(feeder="left again", ranks=(0, 1), now_s=7.0))
    assert [status.feeder for status in last_statuses(spec)] == ["left again", "right"]
    assert last_status(spec) == status_of(feeder="left again", ranks=(0, 1), now_s=7.0)
    quicker = load_spec(path, {"cluster.threads": 7, "epochs": 3})
    assert last_status(quicker) is not None, "they decide how a job runs, not what it delivers"
    for other in (load_spec(path, {"batch.size": 16}), load_spec(_copy(path))):
        assert last_status(other) is None
    monkeypatch.chdir(path.parent)
    assert last_status(load_spec("p.yaml")) is not None


def _copy(path: Path) -> Path:
    (copy := path.with_name("copy.yaml")).write_text(path.read_text())
    return copy


def test_old_files_and_those_of_another_release(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(last_runs, "_KEPT", 2)
    spec, folder = load_spec(path), path.parent / "work" / "status"
    for rank in range(3):
        LastRun(spec, 3).write(status_of(ranks=(rank,), now_s=float(rank)))
    assert [status.ranks[0].rank for status in last_statuses(spec)] == [2, 1]
    newest = next(each for each in folder.iterdir() if "-2-of-3" in each.name)
    newest.write_text("{}")
    (folder / f"{newest.name[:-5]}-again.json").mkdir()  # not even a file
    assert [status.ranks[0].rank for status in last_statuses(spec)] == [1]
    assert "cannot be read and is skipped" in caplog.text


def test_a_status_that_cannot_be_kept_is_a_warning(path: Path, caplog: pytest.LogCaptureFixture):
    (path.parent / "work").write_text("no folder")
    with caplog.at_level(logging.WARNING):
        LastRun(load_spec(path), 1).write(status_of())
    assert "could not be kept" in caplog.text


@given(st.sets(st.integers(0, 40), min_size=1))
def test_ranges_name_exactly_their_ranks(ranks: set[int]):
    named: set[int] = set()
    for part in last_runs._ranges(sorted(ranks)).split("_"):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == ranks


def test_a_file_that_is_renamed_while_the_folder_is_listed_hides_none(path: Path):
    """Arrow lists a folder, and then looks at each file."""
    spec = load_spec(path)
    location = locate(absolute(spec.work_dir))
    failures = [FileNotFoundError(errno.ENOENT, "renamed")] * 2
    info = SimpleNamespace(base_name="a.json", mtime_ns=1)

    def list_files(_selector: object) -> list[SimpleNamespace]:
        if failures:
            raise failures.pop()
        return [info]

    files: Any = SimpleNamespace(get_file_info=list_files, type_name="local")
    renaming = replace(location, filesystem=files)
    assert _files(renaming) == ["a.json"]
    failures.extend([FileNotFoundError(errno.ENOENT, "renamed")] * 9)
    with pytest.raises(TableNotFoundError):
        _files(renaming)
