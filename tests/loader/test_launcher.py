"""The rank comes from the first source that sets it; contradictions are errors."""

from __future__ import annotations

import math

import pytest

from feedline.errors import PlanError
from feedline.loader.launcher import RankInfo, data_rank_of, detect_rank, with_data_rank

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_RUN_ID": "none",
}
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_RANK": "5",
}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
LAUNCHERS = {
    "torchrun": TORCHRUN,
    "a launcher that sets torch's variables": {k: v for k, v in TORCHRUN.items() if k != "TORCHELASTIC_RUN_ID"},
    "srun": SLURM,
    "srun --mpi=pmix": {**SLURM, "PMIX_RANK": "5"},
    "srun --mpi=pmi2": {**SLURM, "PMI_RANK": "5", "PMI_SIZE": "8"},
    "srun, and a script that exports torch's": {**SLURM, "RANK": "5", "WORLD_SIZE": "8"},
    "srun within a larger job": {**SLURM, "SLURM_NTASKS": "64"},
    "mpirun": OPEN_MPI,
    "mpirun, and a script that exports torch's": {**OPEN_MPI, "RANK": "5", "WORLD_SIZE": "8"},
    "mpirun in the body of an sbatch script": {**OPEN_MPI, "SLURM_PROCID": "0", "SLURM_NTASKS": "8"},
    "mpirun, whose daemons srun starts": {**OPEN_MPI, **SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    "mpirun, one rank per daemon": {**OPEN_MPI, **SLURM, "SLURM_PROCID": "2"},
    "mpiexec": HYDRA,
    "torchrun on each node of an srun": {**TORCHRUN, **SLURM, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
    "torchrun, one per task, its own order": {**TORCHRUN, **SLURM, "SLURM_PROCID": "2"},
    "torchrun --standalone in each task of a srun --mpi=pmix": {**TORCHRUN, **SLURM, "PMIX_RANK": "1"},
    "a launcher like torchrun on each node of an srun": {
        **{k: v for k, v in TORCHRUN.items() if k != "TORCHELASTIC_RUN_ID"},
        **SLURM,
        "SLURM_PROCID": "1",
        "SLURM_STEP_NUM_TASKS": "2",
    },
}


def detect(rank=None, world_size=None, distributed=None, environment=None) -> RankInfo:
    return detect_rank(rank=rank, world_size=world_size, distributed=distributed, environment=environment or {})


@pytest.mark.parametrize("environment", LAUNCHERS.values(), ids=LAUNCHERS)
def test_a_launchers_rank_is_found(environment: dict[str, str]):
    """All of these are the same place: the second of four on a host, the sixth of eight in the world."""
    found = detect(environment=environment)
    assert (found.rank, found.world_size) == (5, 8), found.source
    assert (found.local_rank, found.local_ranks) == (1, 4)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "7"},
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # the body of an sbatch script
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"},  # the same, numbered
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"},  # salloc's shell
        {"SLURM_STEP_ID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},  # srun -n 1
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"PMI_SIZE": "1"},
        {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
    ],
)
def test_without_a_launcher_a_trainer_is_alone(environment: dict[str, str]):
    found = detect(environment=environment)
    assert (found.rank, found.world_size, found.local_ranks) == (0, 1, 1)


UNKNOWN = {
    "Slurm's size alone": {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8"},
    "Open MPI's size alone": {"OMPI_COMM_WORLD_SIZE": "8"},
    "a size of MPICH alone": {"PMI_SIZE": "2"},
    "PMIx' rank alone": {"PMIX_RANK": "0"},
    "a rank of MPICH alone": {"PMI_RANK": "3"},
    "a neighbour on this host": {"LOCAL_RANK": "1"},
    "neighbours on this host": {"LOCAL_WORLD_SIZE": "4"},
}


@pytest.mark.parametrize("environment", UNKNOWN.values(), ids=UNKNOWN)
def test_several_processes_without_a_rank_are_refused(environment: dict[str, str]):
    """Each would take itself for the only one, and train on all the data."""
    with pytest.raises(PlanError, match=r"does not say which rank of how many this is: got .*rank=0, world_size=1"):
        detect(environment=environment)
    assert detect(0, 1, environment=environment).source == "arguments"
    assert detect(distributed=(1, 2), environment=environment).rank == 1


CONTRADICTIONS = {
    "one rank for all tasks of an srun": {**SLURM, "RANK": "0", "WORLD_SIZE": "8"},
    "a world of one in each task of an srun": {**SLURM, "RANK": "0", "WORLD_SIZE": "1"},
    "one rank for all of an mpirun": {**OPEN_MPI, "RANK": "0", "WORLD_SIZE": "8"},
    "two MPIs": {**OPEN_MPI, "PMI_RANK": "4", "PMI_SIZE": "8"},
    "two MPIs of two sizes": {**OPEN_MPI, "PMI_RANK": "5", "PMI_SIZE": "16"},
    "PMIx and Slurm": {**SLURM, "PMIX_RANK": "0"},
    "what an mpirun left to an srun": {**SLURM, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
}


@pytest.mark.parametrize("environment", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictions_are_refused_with_both_sides(environment: dict[str, str]):
    with pytest.raises(PlanError, match=r"contradicts itself: got \w+=\d.* and \w+=\d.*, expected one"):
        detect(environment=environment)
    assert detect(0, 1, environment=environment).world_size == 1
    assert detect(distributed=(1, 2), environment=environment).rank == 1


def test_both_sides_of_a_contradiction_are_named():
    with pytest.raises(PlanError, match="RANK=0, WORLD_SIZE=1 and SLURM_PROCID=5, SLURM_STEP_NUM_TASKS=8"):
        detect(environment={**SLURM, "RANK": "0", "WORLD_SIZE": "1"})


def test_arguments_take_precedence():
    found = detect(2, 3, (0, 2), TORCHRUN)
    assert (found.rank, found.world_size, found.source) == (2, 3, "arguments")
    assert found.local_ranks == 3, "never more on this host than there are in the world"


def test_torch_distributed_precedes_the_environment():
    found = detect(distributed=(1, 2), environment=TORCHRUN)
    assert (found.rank, found.world_size, found.local_ranks, found.source) == (1, 2, 2, "torch.distributed")


def test_the_source_names_the_variables():
    assert detect(environment=TORCHRUN).source == "RANK and WORLD_SIZE"
    assert detect(environment=SLURM).source == "SLURM_PROCID and SLURM_STEP_NUM_TASKS"
    assert detect(environment={"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}).source == (
        "SLURM_PROCID and SLURM_NTASKS"
    )
    assert detect().source == "no launcher found"


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        ({"SLURM_NTASKS_PER_NODE": "8"}, 8),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2"}, 3),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "1"}, 4),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "5"}, 5),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NODEID": "1"}, 1),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "many"}, 1),
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
    ],
)
def test_local_ranks_by_launcher(environment: dict[str, str], ranks: int):
    assert detect(1, 16, environment=environment).local_ranks == ranks


@pytest.mark.parametrize("half", [{"rank": 1}, {"world_size": 2}])
def test_rank_without_world_size_is_refused(half: dict):
    with pytest.raises(PlanError, match="rank and world_size must be given together"):
        detect(**half)


@pytest.mark.parametrize("half", ["RANK", "WORLD_SIZE"])
def test_half_of_a_launchers_variables_is_refused(half: str):
    """Taking such a trainer for the only one would feed every rank the whole table."""
    with pytest.raises(PlanError, match=f"RANK and WORLD_SIZE must both be set in the environment: got only {half}"):
        detect(environment={half: "1"})
    assert detect(0, 1, environment={half: "1"}).source == "arguments"


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0), (0, -1)])
def test_a_rank_outside_of_its_world_is_refused(rank: int, size: int):
    with pytest.raises(PlanError, match="rank is out of range"):
        detect(rank, size)
    for names in (("RANK", "WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")):
        with pytest.raises(PlanError, match="rank is out of range"):
            detect(environment=dict(zip(names, (str(rank), str(size)), strict=True)))


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"])
def test_a_rank_that_is_not_an_integer_is_refused_by_name(name: str):
    with pytest.raises(PlanError, match=f"{name} must be an integer: got 'two'"):
        detect(environment={**TORCHRUN, name: "two"})


# -- data ranks ---------------------------------------------------------------------------------------------------

FIFTH = RankInfo(rank=5, world_size=8, local_ranks=4, source="torch.distributed", local_rank=1)


class FakeMesh:
    """The part of a DeviceMesh that is read; the real one needs a process group (tests/system/test_torchrun.py)."""

    def __init__(self, names: tuple[str, ...], shape: tuple[int, ...], coordinate: list[int] | None) -> None:
        self.mesh_dim_names, self.shape, self._coordinate = names, shape, coordinate

    def size(self) -> int:
        return math.prod(self.shape)

    def get_coordinate(self) -> list[int] | None:
        return self._coordinate


def test_a_data_rank_decides_which_rows_and_not_who_the_trainer_is():
    ranks = with_data_rank(FIFTH, 1, 4, "data_rank")
    assert (ranks.rank, ranks.world_size, ranks.trainer, ranks.trainers) == (1, 4, 5, 8)
    assert (ranks.local_ranks, ranks.local_rank) == (4, 1)
    assert ranks.source == "data_rank; trainer 5 of 8, torch.distributed"
    assert with_data_rank(FIFTH, None, None, "data_rank") is FIFTH


@pytest.mark.parametrize(
    ("data_rank", "size", "message"),
    [
        (1, None, "must be given together: got data_rank=1, data_world_size=None"),
        (4, 4, "data_rank is out of range: got 4, expected 0 to 3"),
        (-1, 4, "data_rank is out of range: got -1"),
        (1, 9, "more data ranks than trainers: got data_world_size=9"),
    ],
)
def test_data_ranks_that_cannot_be(data_rank: int | None, size: int | None, message: str):
    with pytest.raises(PlanError, match=message):
        with_data_rank(FIFTH, data_rank, size, "data_rank")


def test_the_data_rank_of_a_mesh():
    assert data_rank_of(None, None, FakeMesh(("dp",), (4,), [2])) == (2, 4, "mesh dp")
    hybrid = FakeMesh(("replicate", "shard"), (2, 4), [1, 2])
    assert data_rank_of(None, None, hybrid) == (6, 8, "mesh replicate, shard")
    assert data_rank_of(3, 4, None) == (3, 4, "data_rank")
    with pytest.raises(PlanError, match="exclude each other: got mesh dp, data_rank=2"):
        data_rank_of(2, 4, FakeMesh(("dp",), (4,), [2]))
    with pytest.raises(PlanError, match="not part of the mesh dp"):
        data_rank_of(None, None, FakeMesh(("dp",), (4,), None))
