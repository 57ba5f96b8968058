"""Which rank is this trainer? The first that knows says so; whatever does not fit is refused."""

from __future__ import annotations

import pytest

from feedline.errors import PlanError
from feedline.loader.ranks import RankInfo, detect_rank

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


def detect(rank=None, world_size=None, distributed=None, environment=None) -> RankInfo:
    return detect_rank(rank=rank, world_size=world_size, distributed=distributed, environment=environment or {})


def test_arguments_come_first():
    found = detect(2, 3, (0, 2), TORCHRUN)
    assert (found.rank, found.world_size, found.source) == (2, 3, "arguments")
    assert found.local_ranks == 3, "never more on this host than there are in the world"


def test_then_torch_distributed():
    found = detect(distributed=(1, 2), environment=TORCHRUN)
    assert (found.rank, found.world_size, found.local_ranks, found.source) == (1, 2, 4, "torch.distributed")


def test_then_the_launchers_environment():
    found = detect(environment=TORCHRUN)
    assert (found.rank, found.world_size, found.local_ranks, found.source) == (5, 8, 4, "RANK and WORLD_SIZE")
    assert detect(environment={"RANK": "0", "WORLD_SIZE": "1"}).local_ranks == 1


def test_else_a_trainer_is_alone():
    found = detect()
    assert (found.rank, found.world_size, found.local_ranks, found.source) == (0, 1, 1, "no launcher found")
    assert detect(environment={"LOCAL_WORLD_SIZE": "4"}).world_size == 1


def test_slurm_says_how_many_share_a_host():
    assert detect(1, 16, environment={"SLURM_NTASKS_PER_NODE": "8"}).local_ranks == 8


@pytest.mark.parametrize("half", [{"rank": 1}, {"world_size": 2}])
def test_half_of_a_pair_is_refused(half: dict):
    with pytest.raises(PlanError, match="rank and world_size come together"):
        detect(**half)


@pytest.mark.parametrize("half", ["RANK", "WORLD_SIZE"])
def test_half_of_a_launchers_environment_is_refused(half: str):
    """Taking such a trainer for the only one would feed every rank the whole table."""
    with pytest.raises(PlanError, match=f"RANK and WORLD_SIZE come together: got only {half}"):
        detect(environment={half: "1"})
    assert detect(0, 1, environment={half: "1"}).source == "arguments"


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0), (0, -1)])
def test_a_rank_outside_of_its_world_is_refused(rank: int, size: int):
    with pytest.raises(PlanError, match="rank is out of range"):
        detect(rank, size)
    with pytest.raises(PlanError, match="rank is out of range"):
        detect(environment={"RANK": str(rank), "WORLD_SIZE": str(size)})


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"])
def test_what_is_no_number_is_named(name: str):
    with pytest.raises(PlanError, match=f"{name} is no number: got 'two'"):
        detect(environment={**TORCHRUN, name: "two"})
