"""Worker processes of feeders die, are stopped, and lose the process that forks them: the stream is as planned."""

from __future__ import annotations

import itertools
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pipelines import Place, eventually, furnished, image, oracle
from processes import all_gone, trainer

from feedline import FeedlineDataset
from feedline.errors import ClusterError

SMALL: dict[str, Any] = {"cluster": {"processes": 2}, "source": {"split_rows": 256}, "shuffle": {"window_rows": 256}}


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks / "ds=2026-01-01") as place:
        yield place


def family(dataset: FeedlineDataset, name: str) -> list[psutil.Process]:
    """The processes of a dataset's feeder with a name, but those that have ended."""
    found = []
    for each in psutil.Process(dataset.facts["feeder"]).children(recursive=True):
        try:
            if each.name() == name and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.parametrize(
    ("kills", "seed"), [(8, 0), *(pytest.param(100, seed, marks=pytest.mark.nightly) for seed in (1, 2))]
)
@pytest.mark.usefixtures("plain_starts")
def test_random_kills_over_two_ranks(place: Place, kills: int, seed: int):
    """Of workers mostly, and of the process that forks them; now and then of a feeder."""
    path, chosen, left = place.write(**SMALL), random.Random(seed), [kills // 2, kills - kills // 2]

    def train(rank: int) -> None:
        with FeedlineDataset(path, rank=rank, world_size=2) as dataset:
            for epoch in itertools.takewhile(lambda _: left[rank], itertools.count()):
                seen = []
                for batch in dataset:
                    seen.append(image(batch))
                    if left[rank] and batch.step % 4 == 3:
                        victims = family(dataset, "feedline-block")
                        if chosen.random() < 0.1:
                            victims = family(dataset, "feedline-zygote")
                        if chosen.random() < 0.05:
                            victims = [psutil.Process(dataset.facts["feeder"])]
                        if victims:
                            chosen.choice(victims).kill()
                            left[rank] -= 1
                if seen != oracle(path, rank=rank, world_size=2, epoch=epoch):
                    wrong.append((rank, epoch))

    wrong: list[tuple[int, int]] = []
    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (wrong, left) == ([], [0, 0])
    assert eventually(lambda: not place.left(), within_s=15), place.left()


def test_without_the_process_that_forks_workers_import_for_themselves(place: Place):
    path = place.write(**SMALL)
    with FeedlineDataset(path) as dataset:
        seen = []
        for batch in dataset:
            seen.append(image(batch))
            if batch.step == 10:
                [zygote] = family(dataset, "feedline-zygote")
                zygote.kill()
        assert seen == oracle(path)
        log = Path(dataset.facts["log"]).read_text(encoding="utf-8")
        assert "the process that forks workers has ended" in log
        assert dataset.stats().feeders == 1


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGCONT)


@pytest.mark.nightly  # 15 s until the blocks of a stopped process are overdue
def test_the_blocks_of_a_stopped_worker_are_computed_by_others(place: Place):
    path = place.write(**SMALL)
    with FeedlineDataset(path) as dataset, ExitStack() as stack:
        seen = []
        for batch in dataset:
            seen.append(image(batch))
            if batch.step == 10:
                stopped = family(dataset, "feedline-block")[0]
                stack.callback(_resume, stopped)
                stopped.suspend()
        assert seen == oracle(path)


def test_a_feeder_dies_with_blocks_handed_over(place: Place, tmp_path: Path):
    """Its workers end with it, and all their memory is free."""
    path = place.write(**SMALL)
    with trainer(path, tmp_path / "state.pt", "--epochs", 100_000) as program:
        program.line("^1 ")
        members = program.descendants()
        workers = [each for each in members if each.name() == "feedline-block"]
        assert workers
        assert any("memfd:feedline-block" in region.path for region in workers[0].memory_maps())
        [feeder] = [each for each in members if " feed " in " ".join(each.cmdline()) and each.ppid() == program.pid]
        feeder.kill()
        assert all_gone(workers)
        program.line("^2 ")
        members = program.descendants()
        assert any(each.name() == "feedline-block" for each in members), "another feeder has workers of its own"
        program.kill()
        assert all_gone(members)
    assert eventually(lambda: not place.left(), within_s=15), place.left()


def test_a_block_that_kills_its_workers_is_an_error(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Not without an end: it is named, with the signal."""
    (tmp_path / "deadly.py").write_text(
        "import os, polars as pl\n\n"
        "def die(values: pl.Expr) -> pl.Expr:\n"
        "    if open('/proc/self/comm').read().startswith('feedline-block'):\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return values\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    feature = {
        "dense": {
            "d": {
                "column": "dense_0",
                "ops": [{"fill_null": 0.0}, {"python": {"function": "deadly:die", "gives": "float32"}}],
            }
        }
    }
    path = place.write(allow_code=True, features=feature, **SMALL)
    with FeedlineDataset(path) as dataset, pytest.raises(ClusterError, match=r"failed 4 times: .*killed by SIGKILL"):
        for _ in dataset:
            pass
