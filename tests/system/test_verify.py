"""`feedline verify` finds no difference in what feeders deliver, and each of those that a faulty feeder makes."""

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
    """A state of one rank, verified on two; and receipts of the batches before it and of those after a resume."""
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

    run = ended_here("verify", path, "--state", state, "--ranks", 2, "--json")
    assert run.returncode == 0, run.stderr
    facts = json.loads(run.stdout)
    assert (facts["equal"], facts["repeated"], facts["count"]) == (True, 0, 0)
    assert (facts["epoch"], facts["steps"], facts["batches"]) == (0, [5, steps], 2 * (steps - 5))

    run = ended_here("verify", path, "--receipts", log.parent)
    assert run.returncode == 0, run.stderr
    assert f"received: epoch 0, steps 0 to {steps - 1}, lanes 0, 1, 2, 3\n" in run.stdout
    assert "received more than once, as after a resume: epoch 0, steps 5 to 6, lanes 0, 1, 2, 3\n" in run.stdout
    assert run.stdout.endswith("all as planned\n")


def test_a_feeder_that_swaps_rows_is_found_out(place: Place, monkeypatch: pytest.MonkeyPatch):
    path = place.write(lanes=4)
    monkeypatch.setenv("FEEDLINE_COMMAND", f"{sys.executable} {SUPPORT / 'swapping_feeder.py'}")
    run = ended_here("verify", path, "--steps", "0:3", "--json")
    assert run.returncode == 1, run.stderr
    facts = json.loads(run.stdout)
    assert (facts["equal"], facts["rows"]) == (False, 3 * 1024)
    assert facts["count"] >= 8, "two rows of the first block of each lane"
    first, second = facts["differences"][:2]
    assert (first["at"], first["lane"]) == ({"epoch": 0, "step": 0, "rank": 0, "world_size": 1}, 0)
    assert (first["row"], second["row"]) == (0, 1)
    assert (first["expected"], first["received"]) == (second["received"], second["expected"])


def test_wrong_arguments_are_refused(place: Place, tmp_path: Path):
    path = place.write(lanes=4)
    for arguments, text in (
        (("--steps", "30:40"), "--steps are out of range: got 30:40, expected steps of 0:19"),
        (("--steps", "x:y"), "--steps are two integers with a colon between them: got 'x:y'"),
        (("--ranks", "3"), "got 3 ranks for 4 lanes"),
        (("--receipts", tmp_path, "--ranks", "2"), "leave out the other options"),
        (("--receipts", tmp_path), "--receipts names no file"),
    ):
        run = ended_here("verify", path, *arguments)
        assert (run.returncode, text in run.stderr.replace("\n", " ")) == (2, True), run.stderr


def test_it_computes_with_the_instructions_of_the_feeders(place: Place):
    """Which cluster.cpu decides: this process has others, if its processor has more than x86-64-v3."""
    path = place.write(lanes=4, cluster={"threads": 1, "cpu": "x86-64-v3"})
    run = ended("verify", path, "--steps", "18")
    assert (run.returncode, "all as planned" in run.stdout) == (0, True), run.stderr
