"""Runs over histories: any process computes the same bits, states go on at another world size, commands know them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from event_tables import document, event_table, laid_out, row_table, write
from pipelines import Place, furnished, image, oracle
from processes import ended_here

from feedline import FeedlineDataset
from feedline.errors import FeedlineError, StateError

OF_EVENTS: dict[str, Any] = {"history": "events", "at": "at"}
FEATURES: dict[str, Any] = {
    "sparse": {
        "items": {**OF_EVENTS, "column": "item", "last": 8, "lag": 1, "ops": [{"fill_null": 0}, {"hash_bucket": 100}]},
        "ids": {**OF_EVENTS, "column": "no", "last": 8, "ops": [{"vocabulary": {"min_count": 1}}]},
        "seen": {
            **OF_EVENTS,
            "columns": ["ratio"],
            "tag": "pool",
            "pools": {"liked": {"where": "kind == 'like'", "last": 3}},
        },
    }
}
HISTORY = {"known_at": "known", "tie_break": "no"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("h")
    rows = write(row_table(400), folder / "rows", row_group_size=100)
    laid_out(event_table(900), folder / "events", "ts", "no")
    with furnished(folder, rows) as place:
        yield place


def written(place: Place, name: str = "p.yaml", **changes: Any) -> Path:
    changes = {"lanes": 4, "batch": {"size": 8, "tail": "partial"}, "fit": "auto", **changes}
    path = place.folder / name
    path.write_text(
        json.dumps(document(place.table, place.folder / "events", FEATURES, place.work, history=HISTORY, **changes))
    )
    return path


@pytest.fixture(scope="module")
def path(place: Place) -> Path:
    path = written(place)
    assert ended_here("fit", path).returncode == 0
    return path


@pytest.mark.parametrize("cluster", [{"threads": 2}, {"processes": 2}], ids=str)
def test_workers_compute_the_same_bits(place: Place, path: Path, cluster: dict[str, Any]):
    with FeedlineDataset(written(place, "workers.yaml", cluster=cluster)) as dataset:
        assert [image(batch) for batch in dataset] == oracle(path)


def test_a_state_goes_on_in_mid_epoch_at_another_world_size(path: Path):
    with FeedlineDataset(path) as dataset:
        steps = len(dataset)
        for batch in islice(dataset, 5):
            state = dataset.state_dict(after=batch)
    assert (state["epoch"], state["step"]) == (0, 5)
    for rank in range(2):
        with FeedlineDataset(path, rank=rank, world_size=2) as dataset:
            dataset.load_state_dict(state)
            found = [image(batch) for batch in dataset]
        assert found == oracle(path, rank=rank, world_size=2, step=5)
        assert len(found) == steps - 5


def test_a_state_is_of_its_generation(place: Place, tmp_path: Path):
    """Other events are other features: refused with both fingerprints, unless asked for."""
    events = tmp_path / "events"
    laid_out(event_table(900), events, "ts", "no")
    features = {"sparse": {"items": FEATURES["sparse"]["items"]}}
    given = document(place.table, events, features, tmp_path / "w", history=HISTORY)
    with FeedlineDataset(given) as dataset:
        state = dataset.state_dict(after=next(iter(dataset)))
    shutil.rmtree(events)
    laid_out(event_table(900, seed=3), events.with_name("other"), "ts", "no").rename(events)
    with FeedlineDataset(given) as dataset, pytest.raises(StateError, match="features"):
        dataset.load_state_dict(state)
    with FeedlineDataset(given) as dataset:
        dataset.load_state_dict(state, features="changed")
        assert dataset.state_dict()["step"] == 1
        assert len(list(dataset)) == len(dataset) - 1


def test_a_generation_that_is_deleted_ends_a_run_in_words(place: Place, tmp_path: Path):
    events = laid_out(event_table(900), tmp_path / "events", "ts", "no")
    features = {"sparse": {"items": FEATURES["sparse"]["items"]}}
    history = {**HISTORY, "memory": 1}  # nothing is kept decoded
    given = document(place.table, events, features, tmp_path / "w", history=history, batch={"size": 2})
    with FeedlineDataset(given) as dataset:
        iterator = iter(dataset)
        next(iterator)
        shutil.rmtree(events)
        dataset.set_epoch(3)
        with pytest.raises(FeedlineError, match=r"\.parquet"):
            list(dataset)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["plan"], "400, of which 0 dropped"),
        (["plan", "--ops"], "events: item before at - 1, last 8"),
        (["head", "-n", "2"], "seen.pool"),
        (["schema"], 'sparse["seen.ratio"]'),
        (["check"], "nothing found"),
        (["check", "--rows"], "checked 400 rows"),
        (["transform", "--check"], "every bit is the same"),
        (["profile"], "400 rows"),
        (["usage"], "columns"),
        (["run", "--sink", "null"], "400 rows in"),
        (["materialize", "OUT", "--format", "parquet"], "400 rows in"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_commands_know_histories(path: Path, tmp_path: Path, words: list[str], shown: str):
    command, *options = words
    done = ended_here(command, path, *[str(tmp_path / "out") if word == "OUT" else word for word in options])
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout + done.stderr


def test_transform_says_that_it_has_no_events(path: Path, place: Place, tmp_path: Path):
    done = ended_here("transform", path, next(place.table.glob("*.parquet")), tmp_path / "out.parquet")
    assert done.returncode == 2
    assert "transform has no events for features of histories: got 'items'. Use Pipeline.transform" in done.stderr
