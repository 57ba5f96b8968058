"""A dataset explains its own training, without changing what it delivers."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipelines import Place, furnished, image, oracle

from feedline import FeedlineDataset

STEPS = 78


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


def train(seconds: float) -> None:
    """Compute for a while."""
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


def test_each_epoch_has_a_line_and_a_batch_repeated_changes_no_step(place: Place, caplog: pytest.LogCaptureFixture):
    path = place.write()
    expected = [batches for epoch in range(2) for batches in oracle(path, epoch=epoch)]
    caplog.set_level(logging.INFO, logger="feedline.verdict")
    received, repeated = [], 0
    with FeedlineDataset(path) as dataset:
        assert str(dataset.verdict()).startswith("Nothing was delivered")
        for _ in range(2):
            for batch in dataset:
                received.append(image(batch))
                train(0.005)
                if batch.step == 40:
                    at = dataset.state_dict()
                    probe = dataset.headspace(batch, steps=5)
                    for again in probe:
                        assert again is batch
                        repeated += 1
                        train(0.005)
                    assert dataset.state_dict() == at
                    assert probe.steps == 5
                    assert 0 < probe.rows_per_s <= batch.rows / 0.005
                    assert probe.gain > 0
        verdict = dataset.verdict()
    assert received == expected
    assert repeated == 2 * 6
    assert verdict.rows_per_s > 0
    assert {"trainer", "threads", "cores"} <= {each.name for each in verdict.limits.resources}
    lines = [record.message for record in caplog.records if record.name == "feedline.verdict"]
    assert [line.split(":")[0] for line in lines] == ["epoch 0", "epoch 1"]
    assert all("rows/s. " in line for line in lines)


def test_the_programs_of_the_page_run(place: Place):
    """The page's functions, with a trainer that computes for 2 ms."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for program in re.findall(r"^```python fragment[^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        exec(program, names)
    with FeedlineDataset(place.write(batch={"size": 128})) as dataset:
        assert names["measure"](dataset, lambda batch: train(0.002)) > 0
        assert "rows/s" in names["epoch"](dataset, lambda batch: train(0.002))


def test_nothing_is_imported_to_explain_before_it_is_asked_for():
    code = "import sys; from feedline import FeedlineDataset; print([m for m in sys.modules if 'loader.limits' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
