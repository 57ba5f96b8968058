"""Batches are those without a cache: on every kind of cluster, under any order, resumed, rebased, while it evicts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import dask
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from pipelines import Place, furnished, image, oracle
from rewritten import Rewritten
from schedulers import local_cluster

from feedline import FeedlineDataset, Pipeline

NIGHTLY = pytest.mark.nightly
OFF = {"cache": "off"}
TIGHT = 200_000  # bytes: of one pipeline's entries a part, so that each new file displaces another
FEATURES = {
    "dense": {"dense_0": [{"fill_null": 0}], "dense_1": [{"fill_null": 0}, "log1p"]},
    "categorical": {"id_0": [{"modulo": 1000}], "str_0": [{"hash_bucket": 100}]},
    "sparse": {"hist_0": [], "hist_1": [{"first_x": 3}]},
    "label": {"clicked": []},
    "extra": {"request_id": [], "ts": []},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("c"), clicks / "ds=2026-01-01") as place:
        yield place


def cache_at(folder: Path, mode: str = "features", size: int = 2**30) -> dict[str, Any]:
    return {"dir": str(folder), "mode": mode, "size": size, "free": 1}


@pytest.mark.parametrize("kind", ["threads", "processes", "scheduler", pytest.param("workers", marks=NIGHTLY)])
def test_any_cluster_reads_what_it_has_kept(place: Place, tmp_path: Path, kind: str) -> None:
    with contextlib.ExitStack() as stack:
        cluster: dict[str, Any] = {kind: 2}
        if kind == "workers":
            cluster["threads"] = 1
        if kind == "scheduler":
            stack.enter_context(dask.config.set(temporary_directory=str(tmp_path)))
            cluster = {"scheduler": stack.enter_context(local_cluster()).scheduler_address}
        path = place.write(f"{kind}.yaml", cluster=cluster, cache=cache_at(place.folder / kind))
        dataset = stack.enter_context(FeedlineDataset(path))
        for epoch in range(2):
            assert [image(batch) for batch in dataset] == oracle(path, set=OFF, epoch=epoch)
        cached = dataset.stats().cached
        assert cached is not None
        assert cached.found >= cached.computed > 0
        assert cached.damaged == 0


ORDERS = [  # of rows, with and without a deduplicated group
    ("off", False),
    ({"seed": 3}, False),
    ({"seed": 4, "window_rows": 2048}, False),
    ({"seed": 4, "by": "session_id"}, False),
    ("off", True),
    ({"seed": 4, "by": "session_id"}, True),
]


@examples(36)
@given(
    order=st.sampled_from(ORDERS),
    mode=st.sampled_from(["features", "auto"]),
    size=st.sampled_from([2**30, TIGHT]),
    lanes=st.sampled_from([1, 4]),
    where=st.sampled_from([None, "dense_0 > 0"]),
    batch=st.integers(50, 900),
    first=st.floats(0, 1),
    epoch=st.integers(0, 2),
)
def test_any_part_of_any_order(
    place: Place,
    order: tuple[object, bool],
    mode: str,
    size: int,
    lanes: int,
    where: str | None,
    batch: int,
    first: float,
    epoch: int,
) -> None:
    """Examples share two folders, so that each finds what others of the same filter have kept."""
    shuffle, dedup = order
    path = place.write(
        "drawn.yaml",
        cache=cache_at(place.folder / f"drawn{size}", mode, size),
        shuffle=shuffle,
        lanes=lanes,
        batch={"size": batch, "tail": "partial"},
        source={} if where is None else {"where": where},
        features=FEATURES,
        **({"dedup": {"user": {"columns": ["hist_0", "hist_1"]}}} if dedup else {}),
    )
    world = min(lanes, 2)
    expected = [oracle(path, set=OFF, epoch=epoch, rank=rank, world_size=world) for rank in range(world)]
    step = int(first * (len(expected[0]) - 1))
    for rank in range(world):
        found = oracle(path, epoch=epoch, rank=rank, world_size=world, step=step)
        assert found == expected[rank][step:]


def test_a_rebased_epoch(tmp_path: Path) -> None:
    """Rows that a rebase leaves out are left out of what is found, too."""
    (tmp_path / "job").mkdir()
    with furnished(tmp_path, tmp_path):
        table = Rewritten(tmp_path / "job")
        table.fill()
        cache = cache_at(tmp_path / "kept")
        table.pipeline(cluster={"threads": 1, "dashboard": False}, memory="64MiB", cache=cache)
        path = table.folder / "p.yaml"
        with FeedlineDataset(path) as dataset:
            for _ in islice(dataset, len(dataset) // 2):
                pass
            state = dataset.state_dict()
            table.delete("ds=1/0.parquet")
            table.delete("ds=2/0.parquet", shuffled=False)
            dataset.load_state_dict(state, snapshot="rebase")
            rebased = dataset.state_dict()
            bare = Pipeline.from_yaml(path, OFF)
            rest = bare.batches(0, step=rebased["step"], plan=bare.plan_for(rebased))
            assert [image(batch) for batch in dataset] == [image(batch) for batch in rest]
            whole = bare.batches(1, plan=bare.plan_for(rebased))
            assert [image(batch) for batch in dataset] == [image(batch) for batch in whole]
            cached = dataset.stats().cached
        assert cached is not None
        assert cached.found > 0
