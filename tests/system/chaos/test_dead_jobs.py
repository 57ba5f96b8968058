"""A job whose processes are killed leaves nothing on its scheduler and workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from deployment import SMALL
from distributed import Client
from pipelines import Place, eventually, furnished
from processes import SUPPORT, feedline, free_port, running

from feedline.loader.ring.status_files import live_statuses

RANK = {"RANK": "0", "WORLD_SIZE": "1"}


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


def held(client: Client) -> dict[str, int]:
    """What the scheduler holds; this client is one."""

    def held(dask_scheduler: Any) -> dict[str, int]:  # nested functions are pickled by value
        names = ("tasks", "task_groups", "clients")
        return {name: len(getattr(dask_scheduler, name)) for name in names}

    return dict(client.run_on_scheduler(held))


def kept(client: Client) -> dict[str, int]:
    """What the worker holds: tasks, results, and jobs that tasks may name."""

    def kept(dask_worker: Any) -> dict[str, int]:
        from feedline.blocks import jobs

        found = {"tasks": dask_worker.state.tasks, "results": dask_worker.data, "jobs": jobs._jobs._entries}
        return {name: len(each) for name, each in found.items()}

    [answer] = client.run(kept).values()
    return dict(answer)


@pytest.mark.nightly
def test_a_job_that_is_killed_leaves_nothing(place: Place):
    """Six jobs with other features each, one after the other, whose trainer and feeder are killed at work. A worker
    keeps the jobs that were in use within ten minutes, and eight others."""
    scratch, port = place.folder / "scratch", free_port()
    address = f"tcp://127.0.0.1:{port}"
    own = {**os.environ, "TMPDIR": str(place.folder / "dask")}
    (place.folder / "dask").mkdir()
    with ExitStack() as programs:
        programs.enter_context(feedline("scheduler", "--port", port, env=own)).line("scheduler at")
        options = ("--threads", 1, "--cpu", "native", "--scratch", scratch)
        worker = programs.enter_context(feedline("worker", address, *options, env=own))
        worker.line("serves")
        client = programs.enter_context(Client(address, set_as_default=False))
        clients = held(client)["clients"]
        memory, files = [], []
        for number in range(6):
            features = {"dense": {"dense_0": [{"fill_null": number}]}, "label": {"clicked": []}}
            path = place.write(**SMALL, cluster={"scheduler": address}, features=features)
            receipts = place.folder / f"receipts {number}"
            receipts.mkdir()
            with running(
                sys.executable, SUPPORT / "receipt_trainer.py", path, receipts, env={**own, **RANK}
            ) as trainer:
                written = receipts / "0.jsonl"
                assert eventually(lambda file=written: file.exists() and file.stat().st_size > 5000), trainer.text
                [feeder] = [each for each in trainer.descendants() if "feed" in each.cmdline()]
                feeder.kill()
                trainer.kill()
            nothing = {"tasks": 0, "task_groups": 0, "clients": clients}
            assert eventually(lambda nothing=nothing: held(client) == nothing, within_s=30), held(client)
            assert eventually(lambda: kept(client)["tasks"] == 0, within_s=30)
            assert kept(client) == {"tasks": 0, "results": 0, "jobs": number + 1}
            files.append(sorted(str(file.relative_to(scratch)) for file in scratch.rglob("*")))
            memory.append(psutil.Process(worker.pid).memory_info().rss)
        print("the worker's MB after each job:", [each >> 20 for each in memory])
        assert files[-1] == files[0], "what Dask has there"
        assert memory[-1] - memory[2] < 20 * 2**20
    assert not live_statuses(), "which removes the file of the last feeder: its parent was killed, too"
