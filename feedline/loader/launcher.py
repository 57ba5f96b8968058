"""Read what launchers say in environment variables: this process's rank, its host's ranks, the name of the start.

Runs in: the trainer, the feeder, and `feedline run`, to notice a launcher that starts several of it. Pure: the
environment is an argument. Launchers nest (Slurm starts torchrun or mpirun, which starts the ranks), so the innermost
one that sets its variables decides. Several processes without a rank each, and launchers that contradict each other,
are errors: a process that believes to be alone would train on all the data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class _Variables:
    """A launcher's names of rank, world size, local rank and local world size; of several, the first that is set."""

    rank: str
    size: tuple[str, ...]
    local_rank: str | None = None
    local_ranks: str | None = None


_TORCH = _Variables("RANK", ("WORLD_SIZE",), "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_MPI = (
    _Variables(
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Variables(
        "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",), "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"
    ),
    _Variables("PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH, Intel MPI, Cray
    _Variables("PMIX_RANK", ()),
    _Variables("JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_SIZE",), "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
    _Variables("HOROVOD_RANK", ("HOROVOD_SIZE",), "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
)
_SLURM = _Variables("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_LOCALID")


@dataclass(frozen=True, slots=True)
class Claim:
    """The rank and world size that one launcher sets, and the names of its variables."""

    rank: int | None
    size: int | None
    rank_name: str
    size_name: str

    def __str__(self) -> str:
        parts = ((self.rank_name, self.rank), (self.size_name, self.size))
        return ", ".join(f"{name}={value}" for name, value in parts if value is not None)


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


def launcher_rank(environment: Mapping[str, str]) -> Claim | None:
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


def _innermost(claims: list[Claim]) -> Claim | None:
    """The claim of the layers of one MPI launch, which must be equal."""
    if not claims:
        return None
    first = next((claim for claim in claims if claim.size is not None), claims[0])
    for claim in claims:
        for one, other in ((first.rank, claim.rank), (first.size, claim.size)):
            if one is not None and other is not None and one != other:
                raise _contradiction(first, claim)
    return first


def _refuse_contradiction(inner: Claim, outer: Claim | None, *, same_order: bool) -> None:
    """Raise if two nested launchers contradict each other: the inner one has at least as many processes as the outer;
    if as many, they are the same ones, with the same ranks if `same_order` (torchrun numbers its ranks by itself)."""
    if outer is None or outer.rank is None or outer.size is None or inner.rank is None:
        return
    size = outer.size if inner.size is None else inner.size
    if size < outer.size or (same_order and size == outer.size and inner.rank != outer.rank):
        raise _contradiction(inner, outer)


def _contradiction(inner: Claim, outer: Claim) -> PlanError:
    return PlanError(
        f"the environment contradicts itself: got {inner} and {outer}, expected one rank. Unset the wrong one, or "
        f"{_REMEDY}"
    )


def _complete(claim: Claim) -> Claim:
    if claim.rank is not None and claim.size is not None:
        return claim
    if claim.size == 1:
        return Claim(0, 1, claim.rank_name, claim.size_name)
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


def _claim(environment: Mapping[str, str], variables: _Variables) -> Claim | None:
    size_name = next((name for name in variables.size if name in environment), (*variables.size, "")[0])
    rank, size = _integer(environment, variables.rank), _integer(environment, size_name)
    return None if rank is None and size is None else Claim(rank, size, variables.rank, size_name)


def _in_slurm_step(environment: Mapping[str, str]) -> bool:
    """Whether srun started this process. The body of an sbatch script has SLURM_PROCID and SLURM_NTASKS, too."""
    step = _integer(environment, "SLURM_STEP_ID")
    return step is not None and step < _FIRST_OWN_STEP


def local_rank_of(environment: Mapping[str, str]) -> int | None:
    """This rank's index on this host, from the innermost launcher that sets it."""
    return _first(environment, [each.local_rank for each in _nest(environment)])


def local_ranks_of(environment: Mapping[str, str]) -> int | None:
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
