"""Find out which rank this trainer is: arguments say so, then torch.distributed, then the launcher's environment.

Runs in: the trainer, and `feedline run`, which asks whether a launcher multiplies it. Pure: the environment comes in as
an argument. Launchers nest (Slurm starts torchrun or mpirun, which starts the ranks), so the innermost that speaks
decides; a launcher that starts several processes without saying which one this is, and two that cannot both be right,
are errors, because each process that takes itself for the only one trains on all the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from feedline.errors import PlanError

# Slurm numbers the steps that it makes itself (the batch script, an interactive shell) down from 2**32: one process.
_FIRST_OWN_STEP = 2**32 - 16
_REMEDY = "give rank and world_size (rank=0, world_size=1 for a training of its own)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """A rank, the world's size, how many ranks share this host, which of those this is (None: unknown), who said so."""

    rank: int
    world_size: int
    local_ranks: int
    source: str
    local_rank: int | None = None


@dataclass(frozen=True, slots=True)
class _Variables:
    """What a launcher calls rank, world size, rank and ranks on this host; the first of several names that is set."""

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
class _Claim:
    """What one launcher says, and the names of its variables."""

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
    """The rank from the first that knows: both arguments, torch.distributed's (rank, size), the environment.

    Raises PlanError where a launcher started several processes and this one's rank is unknown or contradictory.
    """
    if (rank is None) != (world_size is None):
        raise PlanError(f"rank and world_size come together: got rank={rank}, world_size={world_size}. Give both")
    if rank is not None and world_size is not None:
        found, source = (rank, world_size), "arguments"
    elif distributed is not None:
        found, source = distributed, "torch.distributed"
    elif (claim := _launcher_rank(environment)) is not None:
        assert claim.rank is not None
        assert claim.size is not None
        found, source = (claim.rank, claim.size), f"{claim.rank_name} and {claim.size_name}"
    else:
        found, source = (0, 1), "no launcher found"
    if not 0 <= found[0] < found[1]:
        raise PlanError(f"rank is out of range: got {found[0]}, expected 0 to {found[1] - 1} ({source})")
    return RankInfo(
        rank=found[0],
        world_size=found[1],
        local_ranks=max(1, min(_local_ranks(environment) or 1, found[1])),
        source=source,
        local_rank=_first(environment, [each.local_rank for each in _nest(environment)]),
    )


def _nest(environment: Mapping[str, str]) -> list[_Variables]:
    """The launchers that may speak here, the innermost first."""
    return [_TORCH, *_MPI, *([_SLURM] if _in_slurm_step(environment) else [])]


def _launcher_rank(environment: Mapping[str, str]) -> _Claim | None:
    """What the launcher that started this process says; None where there is none."""
    torch = _claim(environment, _TORCH)
    if torch is not None and (torch.rank is None or torch.size is None):
        raise PlanError(
            f"the environment's RANK and WORLD_SIZE come together: got only {torch}. Set or unset both, or {_REMEDY}"
        )
    if torch is not None and "TORCHELASTIC_RUN_ID" in environment:
        return torch  # set by torchrun for this very process, whatever started torchrun
    mpi = _agree([claim for each in _MPI if (claim := _claim(environment, each)) is not None])
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


def _agree(claims: list[_Claim]) -> _Claim | None:
    """What several layers of one MPI start say, which is the same."""
    if not claims:
        return None
    first = next((claim for claim in claims if claim.size is not None), claims[0])
    for claim in claims:
        for mine, theirs in ((first.rank, claim.rank), (first.size, claim.size)):
            if mine is not None and theirs is not None and mine != theirs:
                raise _contradiction(first, claim)
    return first


def _refuse_contradiction(inner: _Claim, outer: _Claim | None, *, same_order: bool) -> None:
    """Started by the outer launcher, the inner one makes at least as many processes as that; where it makes just as
    many, they are the same ones, in the `same_order` unless the inner one is known to number them by itself."""
    if outer is None or outer.rank is None or outer.size is None or inner.rank is None:
        return
    size = outer.size if inner.size is None else inner.size
    if size < outer.size or (same_order and size == outer.size and inner.rank != outer.rank):
        raise _contradiction(inner, outer)


def _contradiction(inner: _Claim, outer: _Claim) -> PlanError:
    return PlanError(
        f"the environment says two ranks: got {inner} and {outer}, expected one. Unset what is wrong, or {_REMEDY}"
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
    """LOCAL_RANK 1 has a neighbour, whoever it is."""
    for name, alone in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)):
        if (value := _number(environment, name)) is not None and value > alone:
            raise PlanError(
                f"the launcher does not say which rank of how many this is: got {name}={value}, expected RANK and "
                f"WORLD_SIZE besides. Set both, or {_REMEDY}"
            )


def _claim(environment: Mapping[str, str], variables: _Variables) -> _Claim | None:
    size_name = next((name for name in variables.size if name in environment), (*variables.size, "")[0])
    rank, size = _number(environment, variables.rank), _number(environment, size_name)
    return None if rank is None and size is None else _Claim(rank, size, variables.rank, size_name)


def _in_slurm_step(environment: Mapping[str, str]) -> bool:
    """Whether srun started this process. The body of an sbatch script has SLURM_PROCID and SLURM_NTASKS, too."""
    step = _number(environment, "SLURM_STEP_ID")
    return step is not None and step < _FIRST_OWN_STEP


def _local_ranks(environment: Mapping[str, str]) -> int | None:
    """Ranks on this host, as the innermost launcher that knows says."""
    said = _first(environment, [each.local_ranks for each in _nest(environment)])
    if said is not None:
        return said
    if _in_slurm_step(environment):
        counts = _tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
        node = _number(environment, "SLURM_NODEID") or 0
        if 0 <= node < len(counts):
            return counts[node]
    return _number(environment, "SLURM_NTASKS_PER_NODE")


def _tasks_per_node(text: str) -> list[int]:
    """`4(x2),3` as [4, 4, 3]; nothing for what is not of this form."""
    counts: list[int] = []
    for part in text.split(","):
        count, _, times = part.removesuffix(")").partition("(x")
        if not count.isdigit() or not (times or "1").isdigit():
            return []
        counts += [int(count)] * int(times or 1)
    return counts


def _first(environment: Mapping[str, str], names: list[str | None]) -> int | None:
    return next((value for name in names if name and (value := _number(environment, name)) is not None), None)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise PlanError(f"the environment's {name} is no number: got {text!r}. Unset it or set a number") from None
