"""Short epochs, one after the other and in any other order, are those of a dataset that computes nothing ahead."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pipelines import Place, furnished, image, oracle

from feedline import FeedlineDataset, Pipeline, Table

EPOCHS = 4
SHAPES: dict[str, dict[str, Any]] = {
    "off": {"shuffle": "off"},
    "one block": {"batch": {"tail": "pad"}},
    "blocks of lanes": {"shuffle": {"window_rows": 4096}, "batch": {"tail": "partial"}, "lanes": 4},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    """Over one day of the clicks: epochs are short."""
    with furnished(tmp_path_factory.mktemp("d"), sorted(clicks.iterdir())[0]) as place:
        yield place


@pytest.fixture(scope="module")
def rows(place: Place) -> int:
    return Table(str(place.table)).snapshot().rows


@pytest.mark.parametrize("shape", SHAPES)
def test_any_way_through_the_epochs_delivers_the_planned_batches(place: Place, shape: str):
    path = place.write(f"{shape}.yaml", **SHAPES[shape])
    epochs = [oracle(path, epoch=epoch) for epoch in range(EPOCHS)]
    steps = len(epochs[0])
    choose = random.Random(shape)
    with FeedlineDataset(path) as dataset:
        fresh = dataset.state_dict()
        expected = (0, 0)
        for _ in range(12):
            way = choose.choice(["go on", "go on", "set epoch", "resume"])
            if way == "set epoch":
                expected = choose.randrange(EPOCHS - 1), 0
                dataset.set_epoch(expected[0])
            elif way == "resume" or expected[0] == EPOCHS:
                expected = choose.randrange(EPOCHS - 1), choose.randrange(steps)
                dataset.load_state_dict({**fresh, "epoch": expected[0], "step": expected[1]})
            epoch, step = expected
            count = choose.choice([steps, steps, 1, 5])  # the whole epoch, or a few batches of it
            assert [image(batch) for batch in islice(dataset, count)] == epochs[epoch][step:][:count], (way, expected)
            expected = epoch + 1, 0


def test_ranks_get_their_own_short_epochs(place: Place):
    path = place.write("ranks.yaml")
    for rank in range(2):
        with FeedlineDataset(path, rank=rank, world_size=2) as dataset:
            found = [[image(batch) for batch in dataset] for _ in range(3)]
        assert found == [oracle(path, epoch=epoch, rank=rank, world_size=2) for epoch in range(3)]


def test_quality_and_counts_are_those_of_delivered_epochs(place: Place):
    path = place.write("quality.yaml", batch={"tail": "partial"})
    pipeline, epochs = Pipeline.from_yaml(path), (0, 1, 4)
    rows = sum(batch.rows for epoch in epochs for batch in pipeline.batches(epoch))
    with FeedlineDataset(path) as dataset:
        for epoch in epochs:
            dataset.set_epoch(epoch)
            for _ in dataset:
                pass
        assert dataset.quality == pipeline.quality()
        assert {measure["rows"] for measure in dataset.quality.values()} == {rows}
        counts = dataset._feed.reports.stats
        assert (counts.rows, counts.batches) == (rows, dataset.stats().batches)


@pytest.mark.parametrize("asked", [False, True])
def test_a_feeder_that_dies_between_epochs_is_replaced(place: Place, rows: int, asked: bool):
    path = place.write("killed.yaml", batch={"tail": "partial"})
    with FeedlineDataset(path) as dataset:
        found = [[image(batch) for batch in dataset] for _ in range(2)]
        third = iter(dataset) if asked else None
        os.kill(dataset.facts["feeder"], signal.SIGKILL)
        found.append([image(batch) for batch in (third or dataset)])
        found.append([image(batch) for batch in dataset])
        assert dataset.stats().feeders == 2
        quality = dataset.quality
    assert found == [oracle(path, epoch=epoch) for epoch in range(4)]
    assert {measure["rows"] for measure in quality.values()} == {4 * rows}


def test_an_evaluation_between_epochs_changes_neither(place: Place, rows: int):
    path = place.write("evaluated.yaml", cluster={"threads": 2, "window": 3})
    with FeedlineDataset(path) as dataset:
        for _ in dataset:
            pass
        with FeedlineDataset(path, set={"shuffle": "off", "batch.tail": "partial"}) as evaluation:
            for _ in range(2):
                evaluation.set_epoch(0)
                assert sum(batch.rows for batch in evaluation) == rows
        assert [image(batch) for batch in dataset] == oracle(path, epoch=1)
