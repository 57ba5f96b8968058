"""`feedline plan --save` does before a run what its start would do, and continues where a killed one stopped."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipelines import Place, furnished, image, oracle
from processes import ended_here, finished

from feedline.pipeline import Pipeline
from feedline.warehouse.selection import select
from feedline.warehouse.snapshot import footer_tasks, take

FILES = 12
WHERE = "x > 0.5"
FEATURES = {"dense": {"x": [{"fill_null": 0}, "standardize"]}, "label": {"clicked": []}}
# Kills its own process in the middle: before the fourth wave of footers, or the fifth task that counts.
KILLED = """
import os, signal, sys
from feedline.cli import app
from feedline.warehouse.selection import select, waves
from feedline.warehouse.snapshot import footer_tasks
from feedline.warehouse.snapshot import take

def killing(module, name, calls):
    original = getattr(module, name)
    left = iter([None] * calls)
    def call(*arguments, **options):
        if next(left, "over") == "over":
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)
    setattr(module, name, call)

take._WAVE_FILES = waves._TASK_FILES = 2
waves.FIRST_TASKS = 1
waves.next_tasks = lambda tasks, seconds: 1
if sys.argv[1] == "footers":
    killing(take, "read_footers", 3)
else:
    killing(select, "count_task", 4)
app(["plan", sys.argv[2], "--save"])
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    table = tmp_path / "table"
    table.mkdir()
    for number in range(FILES):
        rows = {"x": [(number * 7 + row) % 10 / 10 for row in range(40)], "clicked": [row % 2 for row in range(40)]}
        pq.write_table(pa.table(rows), table / f"{number:02}.parquet", row_group_size=20)
        old = time.time_ns() - 3600 * 10**9
        os.utime(table / f"{number:02}.parquet", ns=(old, old))
    (tmp_path / "place").mkdir()
    with furnished(tmp_path / "place", table) as place:
        yield place


def killed(stage: str, path: Path) -> None:
    done = finished(sys.executable, "-c", KILLED, stage, path)
    assert done.returncode == -signal.SIGKILL, done.stderr


def watched(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What this process does from now on: files whose footers it reads, fragments that it counts."""
    done: dict[str, list[Any]] = {"footers": [], "counted": []}
    file_facts, count_task = footer_tasks.file_facts, select.count_task

    def spy_facts(filesystem: Any, path: str, *rest: Any) -> Any:
        done["footers"].append(Path(path).name)
        return file_facts(filesystem, path, *rest)

    def spy_count(task: Any) -> Any:
        done["counted"] += [fragment.path for fragment in task.fragments]
        return count_task(task)

    monkeypatch.setattr(footer_tasks, "file_facts", spy_facts)
    monkeypatch.setattr(select, "count_task", spy_count)
    monkeypatch.setattr(take, "_WAVE_FILES", 2)
    return done


def test_a_killed_command_continues_where_it_stopped(place: Place, monkeypatch: pytest.MonkeyPatch):
    path = place.write(source={"where": WHERE}, features=FEATURES, fit="auto", batch={"size": 16})
    names = [f"{number:02}.parquet" for number in range(FILES)]
    killed("footers", path)
    killed("counts", path)

    done = watched(monkeypatch)
    saved = json.loads(ended_here("plan", path, "--save", "--json").stdout)["saved"]
    assert done["footers"] == [], "the second run had read the rest"
    assert sorted(done["counted"]) == names[8:], "four tasks of two files had been counted"
    assert (saved["files"], saved["rows"], saved["counted_row_groups"]) == (FILES, FILES * 40, FILES * 2)
    assert saved["artifacts"], "the mean is fitted"

    # A run from what was saved: it neither lists nor reads a footer nor counts nor fits, also when the table has grown.
    (place.table / "99.parquet").write_bytes((place.table / "00.parquet").read_bytes())
    frozen = {"source.snapshot": saved["snapshot_file"]}
    for module, name in ((footer_tasks, "file_facts"), (select, "count_task")):
        monkeypatch.setattr(module, name, None)
    plan = Pipeline.from_yaml(path, frozen).complete_plan()
    assert plan.source.snapshot.id == saved["snapshot"]
    assert plan.source.job.artifacts.manifest == saved["artifacts"]
    assert [image(batch) for batch in Pipeline.from_yaml(path, frozen).batches(plan=plan)] == oracle(path, set=frozen)


def test_it_says_what_it_saved_and_refuses_what_a_run_would(place: Place):
    unfitted = place.write(source={"where": WHERE}, features=FEATURES, batch={"size": 16})
    refused = ended_here("plan", unfitted, "--save")
    assert refused.returncode == 2
    assert "feedline fit" in refused.stderr
    assert ended_here("plan", unfitted, "--save", "--ops").returncode == 2

    path = place.write("p2.yaml", features={"dense": {"x": []}, "label": {"clicked": []}}, batch={"size": 16})
    done = ended_here("plan", path, "--save")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[-2].startswith(f"saved in {place.work}: snapshot ")
    assert said[-2].endswith("; nothing to count; no artifacts")
    file = said[-1].rpartition("source.snapshot: ")[2]
    assert Path(file).is_relative_to(place.work / "planned")
    again = ended_here("plan", path, "--save", "--set", f"source.snapshot={file}")
    assert again.stdout.splitlines()[-1] == said[-1]
