"""Detect this trainer's rank, from arguments, torch.distributed or a launcher's variables, which also name the start.

Runs in: the trainer, the feeder, and `feedline run`. Pure: the environment is an argument. Launchers nest (Slurm starts
torchrun or mpirun): the innermost one that sets its variables decides. Several processes without ranks, and launchers
that contradict each other, are errors: a process that believes to be alone would train on all the data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from feedline.dataclass import dataclass
from feedline.errors import PlanError

# Slurm's own steps of one process (the batch script, an interactive shell) are numbered down from 2**32.
_FIRST_OWN_STEP = 2**32 - 16
_REMEDY = "give rank and world_size (rank=0, world_size=1 for an independent training)"
# The variables that differ between starts, restarts included; a job that Slurm requeues keeps its id.
_START_NAMES = (
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
)
# Those that the ranks of a host have in common; of torchrun's agents on one host, each has its own ranks.
_HOST_NAMES = (
    ("TORCHELASTIC_RUN_ID", "GROUP_RANK"),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("PMIX_NAMESPACE",),
    ("PMI_JOBID",),
    ("MASTER_ADDR", "MASTER_PORT"),
)
_ROUND = "TORCHELASTIC_RESTART_COUNT"


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


class Mesh(Protocol):
    """The methods used of a `torch.distributed.device_mesh.DeviceMesh`."""

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def size(self) -> int: ...
    def get_coordinate(self) -> Sequence[int] | None: ...


@dataclass(frozen=True, slots=True)
class _Variables:
    """A launcher's names of rank, world size, local rank and local world size; of several, the first that is set."""

    rank: str
    size: tuple[str, ...]
    local_rank: str | None = None
    local_ranks: str | None = None


_TORCH = _Variables("RANK", ("WORLD_SIZE",), "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_MPI = (
    _Variables(  # Open MPI
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Variables("PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH, Intel MPI, Cray
    _Variables("PMIX_RANK", ()),
)
_SLURM = _Variables("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_LOCALID")


@dataclass(frozen=True, slots=True)
class _Claim:
    """The rank and world size that one launcher sets, and the names of its variables."""

    rank: int | None
    size: int | None
    rank_name: str
    size_name: str

    def __str__(self) -> str:
        parts = ((self.rank_name, self.rank), (self.size_name, self.size))
        return ", ".join(f"{name}={value}" for name, value in parts if value is not None)


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
    elif (claim := _launcher_rank(environment)) is not None:
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
        local_ranks=max(1, min(_local_ranks(environment) or 1, size)),
        source=source,
        local_rank=_first(environment, [each.local_rank for each in _nest(environment)]),
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
    # Coordinate (1, 2) of a mesh of 2 x 4: rank 6 of 8.
    number = 0
    for index, size in zip(coordinate, mesh.shape, strict=True):
        number = number * size + index
    return number, mesh.size(), name


def with_data_rank(ranks: RankInfo, data_rank: int | None, data_world_size: int | None, source: str) -> RankInfo:
    """The ranks of a trainer that reads the rows of `data_rank`, as other trainers may do; unchanged without one.

    Raises PlanError for one number without the other, a rank out of range, or more data ranks than trainers.
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


def launch_name(environment: Mapping[str, str]) -> str | None:
    """The launcher's name of this start, on all hosts, different after a restart; None without a launcher."""
    for names in _START_NAMES:
        values = [environment[name] for name in names if name in environment]
        if values and values[0] != "none":
            return "".join(character if character.isalnum() else "_" for character in "-".join(values))
    return None


def meeting_name(job: str, world_size: int, environment: Mapping[str, str]) -> tuple[str, int]:
    """The name of the files through which a start's ranks on this host meet, and the launcher's round."""
    values: dict[str, str] = {}
    for names in _HOST_NAMES:
        values = {name: environment[name] for name in names if environment.get(name, "none") != "none"}
        if names[0] in values:
            break
    digest = hashlib.sha256(json.dumps([job, world_size, values], sort_keys=True).encode()).hexdigest()
    count = environment.get(_ROUND, "0")
    return f"{job[:16]}-host-{digest[:16]}of{world_size}", int(count) if count.isdigit() else 0


def _nest(environment: Mapping[str, str]) -> list[_Variables]:
    """The launchers to consider here, the innermost first."""
    return [_TORCH, *_MPI, *([_SLURM] if _in_slurm_step(environment) else [])]


def _launcher_rank(environment: Mapping[str, str]) -> _Claim | None:
    """The claim of the launcher that started this process; None if there is none."""
    torch = _claim(environment, _TORCH)
    if torch is not None and (torch.rank is None or torch.size is None):
        raise PlanError(
            f"RANK and WORLD_SIZE must both be set in the environment: got only {torch}. Set or unset both, or "
            f"{_REMEDY}"
        )
    if torch is not None and "TORCHELASTIC_RUN_ID" in environment:
        return torch  # set by torchrun for this very process, whatever started torchrun
    mpi = _innermost([claim for each in _MPI if (claim := _claim(environment, each)) is not None])
    slurm = _claim(environment, _SLURM) if _in_slurm_step(environment) else None
    if torch is not None:
        for outer in (mpi, slurm) if mpi is None else (mpi,):
            _refuse_contradiction(torch, outer, same_order=True)
        return torch
    if mpi is not None:
        _refuse_contradiction(mpi, slurm, same_order=mpi.size is None)
        return _complete(mpi if mpi.size is not None or slurm is None else slurm)
    if slurm is not None:
        return _complete(slurm)
    _refuse_local_launch(environment)
    return None


def _innermost(claims: list[_Claim]) -> _Claim | None:
    """The claim of the layers of one MPI launch, which must be equal."""
    if not claims:
        return None
    first = next((claim for claim in claims if claim.size is not None), claims[0])
    for claim in claims:
        for one, other in ((first.rank, claim.rank), (first.size, claim.size)):
            if one is not None and other is not None and one != other:
                raise _contradiction(first, claim)
    return first


def _refuse_contradiction(inner: _Claim, outer: _Claim | None, *, same_order: bool) -> None:
    """Raise if two nested launchers contradict each other: the inner one has at least as many processes as the outer;
    if as many, they are the same ones, with the same ranks if `same_order` (torchrun numbers its ranks by itself)."""
    # torchrun with 8 ranks in an srun of 2 tasks: right. One rank of 1 in each of 8 tasks, or rank 0 of 8 in the task
    # 5 of 8: each would train on the rows of others.
    if outer is None or outer.rank is None or outer.size is None or inner.rank is None:
        return
    size = outer.size if inner.size is None else inner.size
    if size < outer.size or (same_order and size == outer.size and inner.rank != outer.rank):
        raise _contradiction(inner, outer)


def _contradiction(inner: _Claim, outer: _Claim) -> PlanError:
    return PlanError(
        f"the environment contradicts itself: got {inner} and {outer}, expected one rank. Unset the wrong one, or "
        f"{_REMEDY}"
    )


def _complete(claim: _Claim) -> _Claim:
    if claim.rank is not None and claim.size is not None:
        return claim
    if claim.size == 1:
        return _Claim(0, 1, claim.rank_name, claim.size_name)
    raise PlanError(
        f"the launcher does not say which rank of how many this is: got {claim}, expected {claim.rank_name} and "
        f"{claim.size_name or 'a world size'}. Set both, or {_REMEDY}"
    )


def _refuse_local_launch(environment: Mapping[str, str]) -> None:
    """Raise if LOCAL_RANK or LOCAL_WORLD_SIZE imply several processes, but no rank is set."""
    for name, alone in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)):
        if (value := _integer(environment, name)) is not None and value > alone:
            raise PlanError(
                f"the launcher does not say which rank of how many this is: got {name}={value}, expected RANK and "
                f"WORLD_SIZE besides. Set both, or {_REMEDY}"
            )


def _claim(environment: Mapping[str, str], variables: _Variables) -> _Claim | None:
    size_name = next((name for name in variables.size if name in environment), (*variables.size, "")[0])
    rank, size = _integer(environment, variables.rank), _integer(environment, size_name)
    return None if rank is None and size is None else _Claim(rank, size, variables.rank, size_name)


def _in_slurm_step(environment: Mapping[str, str]) -> bool:
    """Whether srun started this process. The body of an sbatch script has SLURM_PROCID and SLURM_NTASKS, too."""
    step = _integer(environment, "SLURM_STEP_ID")
    return step is not None and step < _FIRST_OWN_STEP


def _local_ranks(environment: Mapping[str, str]) -> int | None:
    """The number of ranks on this host, from the innermost launcher that sets it."""
    local_ranks = _first(environment, [each.local_ranks for each in _nest(environment)])
    if local_ranks is not None:
        return local_ranks
    if _in_slurm_step(environment):
        counts = _tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
        node = _integer(environment, "SLURM_NODEID") or 0
        if 0 <= node < len(counts):
            return counts[node]
    return _integer(environment, "SLURM_NTASKS_PER_NODE")


def _tasks_per_node(value: str) -> list[int]:
    """`4(x2),3` as [4, 4, 3]; an empty list if malformed."""
    counts: list[int] = []
    for part in value.split(","):
        count, _, times = part.removesuffix(")").partition("(x")
        if not count.isdigit() or not (times or "1").isdigit():
            return []
        counts += [int(count)] * int(times or 1)
    return counts


def _first(environment: Mapping[str, str], names: list[str | None]) -> int | None:
    return next((value for name in names if name and (value := _integer(environment, name)) is not None), None)


def _integer(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise PlanError(f"the environment's {name} must be an integer: got {value!r}. Unset or correct it") from None
