"""The ranks of a host share a feeder, which ends with the last of them; each is served as if it were alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pipelines import Place, furnished, image, oracle
from processes import all_gone

from feedline import FeedlineDataset

RANKS = 2


@pytest.fixture
def place(tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place on a host on which torchrun says that it starts two ranks."""
    for name, value in {"LOCAL_WORLD_SIZE": RANKS, "TORCHELASTIC_RUN_ID": tmp_path.name}.items():
        monkeypatch.setenv(name, str(value))
    with furnished(tmp_path, clicks) as place:
        yield place


def rank_of(path: Path, rank: int, **options: object) -> FeedlineDataset:
    return FeedlineDataset(path, rank=rank, world_size=RANKS, **options)


def feeder_of(dataset: FeedlineDataset) -> int:
    return dataset._feed._connection.feeder_pid


def test_two_ranks_share_a_feeder(place: Place):
    path = place.write()
    with rank_of(path, 0) as zero, rank_of(path, 1) as one:
        for epoch in range(2):
            seen = [[image(batch) for batch in dataset] for dataset in (zero, one)]
            assert seen == [oracle(path, epoch=epoch, rank=rank, world_size=RANKS) for rank in range(RANKS)]
        assert zero.facts["feeder"] == one.facts["feeder"] == feeder_of(zero)
        feeder = psutil.Process(feeder_of(zero))
    assert all_gone([feeder])
