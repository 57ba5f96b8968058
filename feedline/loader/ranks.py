"""Detect this trainer's rank: from arguments, then torch.distributed, then the launcher's environment variables.

Runs in: the trainer, and `feedline run`. Pure: the environment is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from feedline.errors import PlanError
from feedline.loader.launcher import launcher_rank, local_rank_of, local_ranks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """Which rows this trainer reads (rank and world size), and its place among all trainers.

    local_ranks, local_rank: the number of trainers on this host, and its index among them (None: unknown). trainer,
    trainers: its rank among all trainers and their number, if several of them read the same rows (None: they are rank
    and world size). source: where all that comes from.
    """

    rank: int
    world_size: int
    local_ranks: int
    source: str
    local_rank: int | None = None
    trainer: int | None = None
    trainers: int | None = None

    @property
    def global_rank(self) -> int:
        """The rank among all trainers."""
        return self.rank if self.trainer is None else self.trainer

    @property
    def global_size(self) -> int:
        """The number of all trainers."""
        return self.world_size if self.trainers is None else self.trainers


class Mesh(Protocol):
    """The methods used of a `torch.distributed.device_mesh.DeviceMesh`."""

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def size(self) -> int: ...
    def get_coordinate(self) -> Sequence[int] | None: ...


def detect_rank(
    *,
    rank: int | None,
    world_size: int | None,
    distributed: tuple[int, int] | None,
    environment: Mapping[str, str],
) -> RankInfo:
    """The rank, from both arguments, else from torch.distributed's (rank, size), else from the environment.

    Raises PlanError if a launcher started several processes, and the rank of this one is unknown or contradictory.
    """
    if (rank is None) != (world_size is None):
        raise PlanError(f"rank and world_size must be given together: got rank={rank}, world_size={world_size}")
    if rank is not None and world_size is not None:
        (number, size), source = (rank, world_size), "arguments"
    elif distributed is not None:
        (number, size), source = distributed, "torch.distributed"
    elif (claim := launcher_rank(environment)) is not None:
        assert claim.rank is not None
        assert claim.size is not None
        (number, size), source = (claim.rank, claim.size), f"{claim.rank_name} and {claim.size_name}"
    else:
        (number, size), source = (0, 1), "no launcher found"
    if not 0 <= number < size:
        raise PlanError(f"rank is out of range: got {number}, expected 0 to {size - 1} ({source})")
    return RankInfo(
        rank=number,
        world_size=size,
        local_ranks=max(1, min(local_ranks_of(environment) or 1, size)),
        source=source,
        local_rank=local_rank_of(environment),
    )


def data_rank_of(
    data_rank: int | None, data_world_size: int | None, mesh: Mesh | None
) -> tuple[int | None, int | None, str]:
    """Data rank, data world size and their source. All dimensions of the mesh are data-parallel, the last the fastest.

    Raises PlanError for a mesh beside numbers, and for a mesh that this rank is not part of.
    """
    if mesh is None:
        return data_rank, data_world_size, "data_rank"
    name = f"mesh {', '.join(mesh.mesh_dim_names or ())}".strip()
    if data_rank is not None or data_world_size is not None:
        raise PlanError(
            f"mesh, data_rank and data_world_size exclude each other: got {name}, data_rank={data_rank} and "
            f"data_world_size={data_world_size}, expected a mesh or the two numbers"
        )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise PlanError(f"this rank is not part of the {name}. Pass the mesh that all trainers' ranks are part of")
    number = 0
    for index, size in zip(coordinate, mesh.shape, strict=True):
        number = number * size + index
    return number, mesh.size(), name


def with_data_rank(ranks: RankInfo, data_rank: int | None, data_world_size: int | None, source: str) -> RankInfo:
    """The ranks of a trainer that reads the rows of `data_rank`, as other trainers may do; unchanged without one.

    Raises PlanError where only one of the two is given, and where they cannot be: a rank that is not there, or more
    data ranks than trainers.
    """
    if data_rank is None and data_world_size is None:
        return ranks
    if data_rank is None or data_world_size is None:
        raise PlanError(
            f"data_rank and data_world_size must be given together: got data_rank={data_rank}, "
            f"data_world_size={data_world_size}"
        )
    if not 0 <= data_rank < data_world_size:
        raise PlanError(f"data_rank is out of range: got {data_rank}, expected 0 to {data_world_size - 1} ({source})")
    if data_world_size > ranks.world_size:
        raise PlanError(
            f"there are more data ranks than trainers: got data_world_size={data_world_size} ({source}), expected at "
            f"most {ranks.world_size} ({ranks.source}), since each data rank's rows must be read by some trainer"
        )
    return replace(
        ranks,
        rank=data_rank,
        world_size=data_world_size,
        trainer=ranks.rank,
        trainers=ranks.world_size,
        source=f"{source}; trainer {ranks.rank} of {ranks.world_size}, {ranks.source}",
    )


def describe_ranks(ranks: RankInfo, cores: int) -> str:
    """Which rank this is, and a hint where no launcher says how many ranks share the host and its cores."""
    text = f"feedline: rank {ranks.rank} of {ranks.world_size} ({ranks.source})"
    if ranks.world_size > 1 and ranks.local_rank is None:
        text += (
            "\nfeedline: no launcher says how many ranks this host has: the feeder of this one uses all "
            f"{cores} cores. Set LOCAL_RANK and LOCAL_WORLD_SIZE in each rank, and they share a feeder"
        )
    return text
