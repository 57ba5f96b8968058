"""Batches by the lengths of lists: every row once, the same on any world size, balanced, and padded little.

The oracle is the table itself: every row has an id of its own, and the test knows its list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pipelines import Place, furnished, image

from feedline import FeedlineDataset, Pipeline
from feedline.loader.batch import Batch

LANES = 8
BALANCE: dict[str, Any] = {"size": 64, "balance": "history"}
BUCKETS: dict[str, Any] = {"max_tokens": 1024, "buckets": [4, 16, 64, 256], "length": "history"}
BOTH = {**BUCKETS, "balance": "history"}
CASES = {"balance": BALANCE, "buckets": BUCKETS, "both": BOTH}
PER_CHANGE = [*(pytest.param(case, marks=pytest.mark.nightly) for case in ("balance", "buckets")), "both"]
MISSING = [5]  # the file without the column


def lengths_of_table(rows: int) -> np.ndarray:
    weights = np.arange(1, 257, dtype=np.float64) ** -1.2
    shares = np.concatenate(([0.1], 0.9 * weights / weights.sum()))
    return np.random.default_rng(0).choice(np.arange(257), size=rows, p=shares)


@pytest.fixture(scope="module")
def lengths() -> np.ndarray:
    """The length of each row's list, by id; where it is 0 the list is null or empty, or the file has no such column."""
    found = lengths_of_table(12 * 2048)
    found[5 * 2048 : 6 * 2048] = 0
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, lengths: np.ndarray) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("d")
    (table := folder / "table").mkdir()
    for file, own in enumerate(np.split(lengths, 12)):
        ids = np.arange(file * len(own), (file + 1) * len(own))
        columns = {"id": pa.array(ids)}
        if file not in MISSING:
            offsets = np.concatenate(([0], np.cumsum(own)))
            is_null = (own == 0) & (ids % 2 == 1)
            starts = np.where(is_null, None, offsets[:-1]).tolist()
            values = pa.array(np.repeat(ids, own))
            columns["history"] = pa.ListArray.from_arrays(pa.array([*starts, int(offsets[-1])], pa.int32()), values)
        pq.write_table(pa.table(columns), table / f"{file:02}.parquet", row_group_size=512)
    with furnished(folder, table) as place:
        yield place


def write(place: Place, batch: dict[str, Any], **changes: Any) -> Path:
    document = {
        "version": 1,
        "name": "lengths",
        "work_dir": "work",
        "source": {"table": str(place.table), "split_rows": 512, "schema": {"missing": "null"}},
        "features": {"sparse": {"history": []}, "extra": {"id": []}},
        "batch": batch,
        "shuffle": {"seed": 2, "window_rows": 2048},
        "lanes": LANES,
        "cluster": {"threads": 1, "dashboard": False},
        **changes,
    }
    path = place.folder / "p.yaml"
    path.write_text(json.dumps(document))
    return path


def ids(batches: list[Batch]) -> list[np.ndarray]:
    return [np.asarray(batch.extra["id"]) for batch in batches]


def epoch_of(path: Path, rank: int = 0, world_size: int = 1, **options: Any) -> list[Batch]:
    return list(Pipeline.from_yaml(path).batches(options.pop("epoch", 0), rank, world_size, **options))


@pytest.fixture(scope="module")
def first_epochs(place: Place) -> Callable[[str], list[Batch]]:
    """The batches of the first epoch of a case, computed once."""
    return cache(lambda case: epoch_of(write(place, CASES[case])))


@pytest.mark.parametrize("case", PER_CHANGE)
def test_rows_come_once_with_their_lists_and_other_epochs_have_others(
    place: Place, lengths: np.ndarray, first_epochs: Callable[[str], list[Batch]], case: str
):
    first, second = first_epochs(case), epoch_of(write(place, CASES[case]), epoch=1)
    for batches in (first, second):
        every = np.concatenate(ids(batches))
        assert len(np.unique(every)) == len(every)
        assert len(every) > 0.9 * len(lengths)
        found = np.concatenate([batch.sparse["history"].lengths.numpy() for batch in batches])
        assert (found == lengths[every]).all()
        values = np.concatenate([batch.sparse["history"].values.numpy() for batch in batches])
        assert (values == np.repeat(every, found)).all()
    assert len(first) == len(second)
    assert (np.concatenate(ids(first))[:500] != np.concatenate(ids(second))[:500]).any()


@pytest.mark.parametrize(
    ("case", "world_size"),
    [
        pytest.param("balance", 2, marks=pytest.mark.nightly),
        pytest.param("buckets", 4, marks=pytest.mark.nightly),
        ("both", 8),
    ],
)
def test_every_world_size_has_the_same_rows(
    place: Place, first_epochs: Callable[[str], list[Batch]], case: str, world_size: int
):
    path = write(place, CASES[case])
    plan = Pipeline.from_yaml(path).complete_plan()
    ranks = [ids(epoch_of(path, rank, world_size, plan=plan)) for rank in range(world_size)]
    for step, rows in enumerate(ids(first_epochs(case))):
        assert np.array_equal(np.concatenate([rank[step] for rank in ranks]), rows)


def imbalance(batches: list[Batch], lengths: np.ndarray) -> np.ndarray:
    sums = np.array([lengths[rows].reshape(LANES, -1).sum(axis=1) for rows in ids(batches)])
    return sums.max(axis=1) / np.maximum(sums.mean(axis=1), 1)


def test_lanes_hold_about_as_many_elements(place: Place, lengths: np.ndarray):
    def batches(batch: dict[str, Any]) -> list[Batch]:
        source = {"table": str(place.table), "split_rows": 512, "where": f"id // 2048 != {MISSING[0]}"}
        return epoch_of(write(place, batch, source={**source, "schema": {"missing": "null"}}))

    plain, balanced = batches({"size": 64}), batches(BALANCE)
    assert len(plain) == len(balanced)
    before, after = imbalance(plain, lengths), imbalance(balanced, lengths)
    assert before.mean() > 1.3
    assert after.mean() - 1 < (before.mean() - 1) / 3  # the rest: lanes of 2,816 rows differ as a whole
    assert after.max() < before.mean()
    capped = batches({"size": 64, "balance": {"column": "history", "max": 20}})
    assert imbalance(capped, np.minimum(lengths, 20)).mean() < 1.07


@pytest.mark.parametrize("case", PER_CHANGE[1:])
def test_a_step_has_rows_of_one_bucket(
    place: Place, lengths: np.ndarray, first_epochs: Callable[[str], list[Batch]], case: str
):
    batches = first_epochs(case)
    places, lower = 0, dict(zip(BUCKETS["buckets"], [-1, *BUCKETS["buckets"]], strict=False))
    for batch, rows in zip(batches, ids(batches), strict=True):
        assert batch.bound is not None
        own = lengths[rows]
        assert lower[batch.bound] < own.min()
        assert own.max() <= batch.bound
        assert len(rows) == LANES * (BUCKETS["max_tokens"] // batch.bound)
        places += len(rows) * batch.bound
    padding = 1 - lengths[np.concatenate(ids(batches))].sum() / places
    plain = [lengths[rows] for rows in ids(epoch_of(write(place, {"size": 16})))]
    before = 1 - sum(each.sum() for each in plain) / sum(len(each) * each.max() for each in plain)
    assert before > 0.8
    assert padding < 0.62
    assert {batch.bound for batch in batches[: len(batches) // 4]} == set(BUCKETS["buckets"]), "all buckets advance"


def test_lists_are_padded_to_the_bound_of_their_bucket(
    place: Place, lengths: np.ndarray, first_epochs: Callable[[str], list[Batch]]
):
    for batch in first_epochs("both")[:12]:
        assert batch.bound is not None
        padded = batch.sparse["history"].to_padded(batch.bound, fill=-1)
        rows, own = np.asarray(batch.extra["id"]), batch.sparse["history"].lengths.numpy()
        wanted = np.where(np.arange(batch.bound) < own[:, None], rows[:, None], -1)
        assert (padded.numpy() == wanted).all()
        assert batch.clone().bound == batch.bound
        cut = batch.sparse["history"].to_padded(2)
        assert torch.equal(cut, torch.from_numpy(np.where(np.arange(2) < own[:, None], rows[:, None], 0)))
    assert next(iter(Pipeline.from_yaml(write(place, {"size": 8})).batches())).bound is None


@pytest.mark.parametrize(
    "case", [*(pytest.param(each, marks=pytest.mark.nightly) for each in CASES if each != "both"), "both"]
)
def test_a_cache_gives_the_same_batches(place: Place, first_epochs: Callable[[str], list[Batch]], case: str):
    wanted = [image(batch) for batch in first_epochs(case)]
    cached = write(place, CASES[case], cache={"dir": str(place.folder / f"cache-{case}"), "mode": "features"})
    for _ in range(2):
        assert [image(batch) for batch in epoch_of(cached)] == wanted


@pytest.mark.parametrize("case", [pytest.param("balance", marks=pytest.mark.nightly), "both"])
@pytest.mark.parametrize(
    "cluster", [{"threads": 2}, pytest.param({"workers": 2, "threads": 1}, marks=pytest.mark.nightly)]
)
def test_a_feeder_delivers_them_and_resumes_in_the_middle(place: Place, case: str, cluster: dict[str, Any]):
    path = write(place, CASES[case], cluster={**cluster, "dashboard": False}, lanes=2)
    wanted = epoch_of(path)
    middle = len(wanted) // 2
    with FeedlineDataset(path, rank=0, world_size=1) as dataset:
        assert len(dataset) == len(wanted)
        for batch in dataset:
            assert (image(batch), batch.bound) == (image(wanted[batch.step]), wanted[batch.step].bound)
            if batch.step == 2 and "workers" in cluster:  # one dies, with the blocks that it computes
                family = psutil.Process(dataset.facts["feeder"]).children(recursive=True)
                next(each for each in family if "spawn_main" in " ".join(each.cmdline())).kill()
            if batch.step == middle:
                state = dataset.state_dict()
                break
    with FeedlineDataset(path, rank=0, world_size=1) as dataset:
        dataset.load_state_dict(state)
        rest = [(batch.step, image(batch)) for batch in dataset]
    assert rest == [(batch.step, image(batch)) for batch in wanted[state["step"] :]]


def test_no_row_group_is_read_once_per_bucket(place: Place):
    plan = Pipeline.from_yaml(write(place, BOTH)).plan()
    schedule = plan.source.schedule(0)
    read = sum(plan.request(block, 0).nbytes for lane in range(LANES) for block in schedule.blocks(lane))
    once = int(plan.source.row_group_bytes[plan.source.selection.rows > 0].sum())
    assert once < read < 1.6 * once  # 7 borders of lanes among 48 row groups


@pytest.mark.parametrize(
    "batch", [{"size": 50, "balance": "tags"}, {"max_tokens": 600, "buckets": [4, 16], "length": "tags"}]
)
def test_lists_of_codes_count_whole(tmp_path: Path, batch: dict[str, Any]):
    """The feature reads two elements of lists that come as codes; their stored lengths decide, whatever decodes."""
    rng = np.random.default_rng(1)
    tags = [[f"t{tag}" for tag in rng.integers(0, 50, size)] for size in rng.integers(0, 17, 4000)]
    (tmp_path / "table").mkdir()
    pq.write_table(pa.table({"id": range(4000), "tags": tags}), tmp_path / "table" / "a.parquet", row_group_size=500)
    features = {"sparse": {"tags": [{"first_x": 2}, {"hash_bucket": 100}]}, "extra": {"id": []}}
    found = []
    for decoder in ("auto", "arrow"):
        document = {
            "version": 1,
            "name": "codes",
            "work_dir": "work",
            "source": {"table": str(tmp_path / "table"), "decoder": decoder},
            "features": features,
            "batch": batch,
            "shuffle": {"window_rows": 1000},
            "lanes": 2,
        }
        (tmp_path / "p.yaml").write_text(json.dumps(document))
        found.append(np.concatenate(ids(epoch_of(tmp_path / "p.yaml"))))
    assert np.array_equal(*found)
    lanes = np.array([len(tags[row]) for row in found[0]])
    if "size" in batch:
        sums = lanes.reshape(-1, 2, 50).sum(axis=2)
        assert (sums.max(axis=1) / sums.mean(axis=1)).max() < 1.05
