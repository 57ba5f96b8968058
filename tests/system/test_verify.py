"""`feedline verify` finds the receipts of a resumed run as planned, and those of a faulty feeder not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from pipelines import Place, furnished
from processes import SUPPORT, ended, ended_here

from feedline import FeedlineDataset


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("d"), clicks) as place:
        yield place


def test_a_resumed_run_repeats_nothing(place: Place, tmp_path: Path):
    """Receipts of the batches before a state, and of those after a resume from it."""
    path = place.write(lanes=4, batch={"tail": "pad"}, source={"where": "dense_0 > 0.3"})
    log, state = tmp_path / "receipts" / "0.jsonl", tmp_path / "state.json"
    log.parent.mkdir()
    with FeedlineDataset(path) as dataset, log.open("a") as lines:
        for batch in islice(dataset, 7):
            lines.write(json.dumps(dataset.receipt(batch)) + "\n")
            if batch.step == 4:
                state.write_text(json.dumps(dataset.state_dict(after=batch)))
        dataset.load_state_dict(json.loads(state.read_text()))
        for batch in dataset:
            lines.write(json.dumps(dataset.receipt(batch)) + "\n")
        steps = batch.step + 1

    run = ended_here("verify", path, "--receipts", log.parent)
    assert run.returncode == 0, run.stderr
    assert f"received: epoch 0, steps 0 to {steps - 1}, lanes 0, 1, 2, 3\n" in run.stdout
    assert "received more than once, as after a resume: epoch 0, steps 5 to 6, lanes 0, 1, 2, 3\n" in run.stdout
    assert run.stdout.endswith("all as planned\n")


def test_a_feeder_that_swaps_rows_is_found_out(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, log = place.write(lanes=4), tmp_path / "0.jsonl"
    monkeypatch.setenv("FEEDLINE_COMMAND", f"{sys.executable} {SUPPORT / 'swapping_feeder.py'}")
    with FeedlineDataset(path) as dataset:
        log.write_text("".join(json.dumps(dataset.receipt(batch)) + "\n" for batch in islice(dataset, 3)))
    run = ended_here("verify", path, "--receipts", log, "--json")
    assert run.returncode == 1, run.stderr
    facts = json.loads(run.stdout)
    assert (facts["equal"], facts["rows"]) == (False, 3 * 1024)
    assert facts["count"] >= 1, "two rows of the first block of each lane"
    first = facts["differences"][0]
    assert first["at"] == {"epoch": 0, "step": 0, "rank": 0, "world_size": 1, "column_group": ""}
    assert first["problem"].startswith("trainer 0 received other rows: got digest ")


def test_wrong_arguments_are_refused(place: Place, tmp_path: Path):
    path = place.write(lanes=4)
    for arguments, words in ((("--receipts", tmp_path), "--receipts names no file"), ((), "--receipts")):
        run = ended_here("verify", path, *arguments)
        assert (run.returncode, words in run.stderr.replace("\n", " ")) == (2, True), run.stderr


def test_it_computes_with_the_instructions_of_the_feeders(place: Place, tmp_path: Path):
    """Which cluster.cpu decides: this process has others, if its processor has more than x86-64-v3."""
    path, log = place.write(lanes=4, cluster={"threads": 1, "cpu": "x86-64-v3"}), tmp_path / "0.jsonl"
    with FeedlineDataset(path) as dataset:
        log.write_text("".join(json.dumps(dataset.receipt(batch)) + "\n" for batch in islice(dataset, 1)))
    run = ended("verify", path, "--receipts", log)
    assert (run.returncode, "all as planned" in run.stdout) == (0, True), run.stderr
