"""Trainers get the rows of a plan with an exclusion, whoever computes the blocks, and resume in the middle."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from bad_table import BadTable
from pipelines import Place, furnished, image, oracle

from feedline import FeedlineDataset
from feedline.errors import StateError


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("d")
    table = BadTable(folder / "data")
    table.check()
    with furnished(folder, table.table) as place:
        yield place


def table_of(place: Place) -> BadTable:
    return BadTable(place.folder / "data", days=0)


def write(place: Place, file: str, /, **changes: Any) -> Path:
    table = table_of(place)
    path = place.folder / file
    source = {"exclude": str(table.exclusion)} if changes.pop("excluded", True) else {}
    cluster = {**changes.pop("cluster", {"threads": 1}), "dashboard": False}
    path.write_text(json.dumps(table.spec(source=source, cluster=cluster, **changes)))
    return path


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param({"threads": 2}, id="threads"),
        pytest.param({"processes": 1}, id="processes"),
        pytest.param({"workers": 1}, id="workers", marks=pytest.mark.nightly),
    ],
)
def test_batches_are_those_of_the_plan_and_resume(place: Place, cluster: dict[str, Any]):
    path = write(place, "p.yaml", cluster=cluster)
    expected = [oracle(path, epoch=epoch) for epoch in range(2)]
    with FeedlineDataset(path) as dataset:
        assert len(dataset) == len(expected[0])
        assert [image(batch) for batch in dataset] == expected[0]
        state = dataset.state_dict()
        assert (state["epoch"], state["step"]) == (1, 0)
        dataset.load_state_dict({**state, "step": 5})
        assert [image(batch) for batch in dataset] == expected[1][5:]


def test_a_run_goes_on_without_rows_that_were_found_in_its_middle(place: Place):
    """The features of this run take every row; one that the exclusion leaves out is not delivered after it."""
    features = {"extra": ["id"], "label": {"clicked": [{"fill_null": 0}]}}
    plain = write(place, "plain.yaml", features=features, excluded=False, name="middle")
    before = []
    with FeedlineDataset(plain) as dataset:
        for batch in islice(dataset, 9):
            before += batch.extra["id"].tolist()
            state = dataset.state_dict(after=batch)
            del batch
    path = write(place, "excluding.yaml", features=features, name="middle")
    with FeedlineDataset(path) as dataset, pytest.raises(StateError, match='snapshot="rebase"'):
        dataset.load_state_dict(state)
    with warnings.catch_warnings(action="ignore"), FeedlineDataset(path) as dataset:
        dataset.load_state_dict(state, snapshot="rebase")
        after = [row for batch in dataset for row in batch.extra["id"].tolist()]
    table = table_of(place)
    assert after
    assert set(after) <= set(table.good_ids()) - set(before)
    assert len(set(table.good_ids()) - set(before) - set(after)) < 2 * 16  # the tail
