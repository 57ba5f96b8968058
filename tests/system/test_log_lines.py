"""What feeder, worker and scheduler log of a worker and a scheduler that die: each line with its time and level."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path

from pipelines import eventually, furnished
from processes import feedline, free_port

from feedline import FeedlineDataset

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING|ERROR) \S")


def test_losses_and_returns_are_logged_once(tmp_path: Path, clicks: Path):
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    with ExitStack() as stack:
        place = stack.enter_context(furnished(tmp_path, clicks))
        (tmp_path / "dask").mkdir()  # where killed processes leave what is not checked
        options = {"env": {**os.environ, "TMPDIR": str(tmp_path / "dask")}}
        scheduler = stack.enter_context(feedline("scheduler", "--port", port, **options))
        scheduler.line("scheduler at")
        workers = [stack.enter_context(feedline("worker", address, "--threads", 1, **options)) for _ in range(2)]
        for worker in workers:
            worker.line("serves")
        small = {"source": {"split_rows": 256}, "shuffle": {"window_rows": 256}}
        path = place.write(cluster={"scheduler": address, "cpu": None}, **small)
        dataset = stack.enter_context(FeedlineDataset(path))
        log = Path(dataset.facts["log"])
        steps = []
        for batch in dataset:
            steps.append(batch.step)
            if batch.step == 10:
                workers[0].kill()
                eventually(lambda: "is lost" in log.read_text())
            if batch.step == 30:
                scheduler.kill()
                eventually(lambda: "is gone; waiting for it" in log.read_text())
                again = stack.enter_context(feedline("scheduler", "--port", port, **options))
                eventually(lambda: "is back after" in log.read_text())
                again.line("joined: 1 workers")
        assert steps == list(range(78))
        said = log.read_text()
    for word in ("is lost: blocks that it had are computed on others", "is gone; waiting for it", "is back after"):
        assert said.count(word) == 1, said
    assert re.search(r"worker tcp://127\.0\.0\.1:\d+ is lost: 1 workers, 1 threads", scheduler.text)
    for text in (said, scheduler.text, again.text, workers[1].text):
        assert all(LINE.match(line) for line in text.splitlines()), text
