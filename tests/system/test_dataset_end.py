"""A batch that is late, and the end of a dataset: closed, collected, or with its program. Over real feeders."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pipelines import furnished, image, oracle

from feedline import FeedlineDataset
from feedline.errors import BatchTimeoutError, FeedlineError, SpecError
from feedline.loader.ring import feeder_connection

STEPS = 78  # 20,000 rows in batches of 256, the rest dropped


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Path]:
    with furnished(tmp_path_factory.mktemp("d"), clicks) as place:
        yield place.write()


@pytest.fixture(scope="module")
def epochs(path: Path) -> list[list[bytes]]:
    """What the first epoch must hold."""
    return [oracle(path, epoch=0)]


def test_a_late_batch_is_an_error_with_a_diagnosis(
    path: Path, epochs: list[list[bytes]], monkeypatch: pytest.MonkeyPatch
):
    """A stopped feeder does not answer; once it goes on, so does the epoch. Neither does one that is starting."""
    monkeypatch.setattr(feeder_connection, "_ANSWER_S", 0.2)
    with FeedlineDataset(path, timeout=0.01) as dataset:
        with pytest.raises(BatchTimeoutError, match=r"waited 0 s for the plan: the feeder \(process"):
            len(dataset)
        dataset._feed.timeout_s = None  # the plan and a first batch take as long as they take
        feeder = dataset.facts["feeder"]
        iterator = iter(dataset)
        seen = [image(next(iterator))]
        dataset._feed.timeout_s = 0.3
        os.kill(feeder, signal.SIGSTOP)
        try:
            with pytest.raises(BatchTimeoutError, match=f"process {feeder}.*alive but does not answer") as raised:
                seen.extend(map(image, iterator))
        finally:
            os.kill(feeder, signal.SIGCONT)
        assert isinstance(raised.value, TimeoutError)
        assert f"step {len(seen)} of epoch 0" in str(raised.value)
        dataset._feed.timeout_s = 60
        assert [*seen, *map(image, iterator)] == epochs[0], "nothing is lost"
    with pytest.raises(SpecError, match="positive number of seconds"):
        FeedlineDataset(path, timeout=0)


def test_closing_ends_the_feeder_and_every_use(path: Path, epochs: list[list[bytes]]):
    dataset = FeedlineDataset(path)
    iterator = iter(dataset)
    batch = next(iterator)
    feeder = psutil.Process(dataset.facts["feeder"])
    dataset.close()
    assert not feeder.is_running()
    dataset.close()
    for use in (lambda: next(iterator), lambda: iter(dataset), lambda: next(iterator)):
        with pytest.raises(FeedlineError, match="the dataset is closed"):
            use()
    assert image(batch) == epochs[0][0]
    assert len(dataset) == STEPS, "what is known stays known"
    assert dataset.state_dict()["step"] == 1
    assert dataset.stats().batches == 1


def test_a_dataset_closed_before_it_was_used(path: Path):
    dataset = FeedlineDataset(path)
    dataset.close()
    with pytest.raises(FeedlineError, match="the dataset is closed"):
        len(dataset)


def test_garbage_collection_ends_the_feeder(path: Path):
    dataset = FeedlineDataset(path)
    iterator = iter(dataset)
    next(iterator)
    feeder = psutil.Process(dataset.facts["feeder"])
    del dataset
    assert next(iterator).step == 1, "an iterator keeps its dataset"
    del iterator
    gc.collect()
    assert not feeder.is_running()


@pytest.mark.usefixtures("plain_starts")
def test_the_end_of_the_program_ends_the_feeder(path: Path):
    """Without close, without with: the interpreter's exit."""
    program = (
        "import sys\nfrom feedline import FeedlineDataset\n"
        "dataset = FeedlineDataset(sys.argv[1])\niterator = iter(dataset)\nheld = [next(iterator), next(iterator)]\n"
        "print(dataset.facts['feeder'])\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert not psutil.pid_exists(int(done.stdout))
