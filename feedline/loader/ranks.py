"""Which rank is this trainer? Arguments say so, then torch.distributed, then the launcher's environment.

Runs in: the trainer. Pure but for reading the environment that it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from feedline.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """A rank, the world's size, how many ranks share this host, and who said so."""

    rank: int
    world_size: int
    local_ranks: int
    source: str


def detect_rank(
    *,
    rank: int | None,
    world_size: int | None,
    distributed: tuple[int, int] | None,
    environment: Mapping[str, str],
) -> RankInfo:
    """The rank from the first that knows: both arguments, torch.distributed's (rank, size), RANK and WORLD_SIZE."""
    local = _number(environment, "LOCAL_WORLD_SIZE") or _number(environment, "SLURM_NTASKS_PER_NODE") or 1
    if (rank is None) != (world_size is None):
        raise PlanError(f"rank and world_size come together: got rank={rank}, world_size={world_size}. Give both")
    if rank is not None and world_size is not None:
        found = RankInfo(rank=rank, world_size=world_size, local_ranks=min(local, world_size), source="arguments")
    elif distributed is not None:
        found = RankInfo(rank=distributed[0], world_size=distributed[1], local_ranks=local, source="torch.distributed")
    elif ("RANK" in environment) != ("WORLD_SIZE" in environment):
        only = "RANK" if "RANK" in environment else "WORLD_SIZE"
        raise PlanError(
            f"the environment's RANK and WORLD_SIZE come together: got only {only}. Set or unset both, or give rank "
            f"and world_size"
        )
    elif "RANK" in environment:
        rank, world_size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
        assert rank is not None
        assert world_size is not None
        found = RankInfo(rank=rank, world_size=world_size, local_ranks=local, source="RANK and WORLD_SIZE")
    else:
        found = RankInfo(rank=0, world_size=1, local_ranks=1, source="no launcher found")
    if not 0 <= found.rank < found.world_size:
        raise PlanError(
            f"rank is out of range: got {found.rank}, expected 0 to {found.world_size - 1} ({found.source})"
        )
    return found


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise PlanError(f"the environment's {name} is no number: got {text!r}. Unset it or set a number") from None
