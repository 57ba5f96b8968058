"""A worker dies, and a scheduler that comes back, with certificates: the batches are those of the plan, and feeder,
worker and scheduler log it, each line with its time and level.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path

from pipelines import eventually, furnished, image, oracle
from processes import Program, ended_here, feedline, free_port, role_files

from feedline import FeedlineDataset

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING|ERROR) \S")


def test_losses_and_returns_are_logged_once_and_change_no_batch(tmp_path: Path, clicks: Path):
    port, certs = free_port(), tmp_path / "certs"
    address = f"tls://127.0.0.1:{port}"
    assert ended_here("certs", certs, "--host", "127.0.0.1").returncode == 0
    with ExitStack() as stack:
        place = stack.enter_context(furnished(tmp_path, clicks / "ds=2026-01-01"))
        (tmp_path / "dask").mkdir()  # where killed processes leave what is not checked

        def start(role: str, *words: object) -> Program:
            tls = [word for key, file in role_files(certs, role).items() for word in (f"--tls-{key}", file)]
            environment = {**os.environ, "TMPDIR": str(tmp_path / "dask")}
            return stack.enter_context(feedline(role, *words, *tls, env=environment))

        scheduler = start("scheduler", "--port", port)
        scheduler.line("scheduler at tls://")
        workers = [start("worker", address, "--threads", 1) for _ in range(2)]
        for worker in workers:
            worker.line("serves")
        cluster = {"scheduler": address, "tls": role_files(certs, "client"), "cpu": None}
        path = place.write(cluster=cluster, source={"split_rows": 256}, shuffle={"window_rows": 256})
        dataset = stack.enter_context(FeedlineDataset(path))
        log = Path(dataset.facts["log"])
        seen = []
        for batch in dataset:
            seen.append(image(batch))
            if batch.step == 3:
                workers[0].kill()
                eventually(lambda: "is lost" in log.read_text())
            if batch.step == 10:
                scheduler.kill()
                eventually(lambda: "is gone; waiting for it" in log.read_text())
                again = start("scheduler", "--port", port)
                eventually(lambda: "is back after" in log.read_text())
                again.line("joined: 1 workers")
        assert seen == oracle(path, set={"cluster.cpu": "native"})
        assert dataset.stats().feeders == 1
        said = log.read_text()
    for word in ("is lost: blocks that it had are computed on others", "is gone; waiting for it", "is back after"):
        assert said.count(word) == 1, said
    assert re.search(r"worker tls://127\.0\.0\.1:\d+ is lost: 1 workers, 1 threads", scheduler.text)
    for text in (said, scheduler.text, again.text, workers[1].text):
        assert all(LINE.match(line) for line in text.splitlines()), text
