"""The command that starts a feeder process, its environment and its log.

Runs in: the trainer and `feedline run`; `shorten_log` in the feeder. The feeder is `python -m feedline feed` (or
FEEDLINE_COMMAND). It gets the spec that its trainer holds, on standard input: the file and variables may have changed
since, and every user of the host can read arguments, which must hold no credentials. The end of its log is shown if it
dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from feedline.config import PipelineSpec
from feedline.dataclass import dataclass
from feedline.errors import FeederError
from feedline.loader.launcher import RankInfo, meeting_name
from feedline.loader.ring.rendezvous import job_fingerprint, socket_paths
from feedline.resources.allocators import own_or_users
from feedline.resources.cgroups import available_cores, available_memory_bytes, launcher_affinity, rank_cores
from feedline.resources.instructions import choose_cpu, cpu_environment
from feedline.resources.scratch import SCRATCH_VARIABLE, ScratchFolder

COMMAND_VARIABLE = "FEEDLINE_COMMAND"
# After so many deaths without a batch in between, another feeder would die as well.
FUTILE_DEATHS = 3
# A feeder that was sent SIGTERM ends within this time.
EXIT_S = 5.0
# One that starts a cluster of a class waits until it has started, and undoes it.
_PROVIDER_EXIT_S = 45.0
_LAST_WORDS_BYTES = 4000
# Default memory of a rank's blocks and ring: this, or its share of half of the free memory if that is less.
_MEMORY_BYTES = 4 * 2**30
# Of libraries, code and buffers that a worker process has for itself.
_PROCESS_BYTES = 256 * 2**20
_FEW_THREADS = 2  # which one interpreter serves, unless blocks hold its lock most of the time
# How long a thread of a feeder keeps the interpreter's lock while others wait for it. By default 5 ms: as long as a
# block of narrow rows, whose thread asks for it after each native call, while Dask is imported and the loop delivers
# beside it.
LOCK_S = 0.0005
# A log beyond the first size is cut to the second.
_LOG_NAME = "feeder.log"
LOG_BYTES, LOG_KEPT_BYTES = 16 * 2**20, 2**20


@dataclass(slots=True)
class FeederDeaths:
    """The feeders of some ranks that died one after the other: how many in all, and how many since the last batch."""

    total: int = 0
    futile: int = 0

    def add(self, *, had_batch: bool) -> bool:
        """Count one. had_batch: whether one came since the last death. Returns whether another is to be started; after
        three deaths without a batch it would die as well."""
        self.total += 1
        self.futile = 1 if had_batch else self.futile + 1
        return self.futile < FUTILE_DEATHS


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederCommand:
    """How to start a feeder: arguments after `python -m feedline feed`, its pipeline as `PipelineSpec.packed`,
    environment variables. exit_s: after SIGTERM, until it is killed."""

    arguments: Sequence[str]
    pipeline: bytes
    environment: Mapping[str, str]
    exit_s: float = EXIT_S

    def start(
        self, words: Sequence[str], *, scratch: ScratchFolder, descriptors: Sequence[int] = (), **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a feeder. words: further arguments. descriptors: those that it inherits. options: of Popen. Raises
        FeederError if it cannot be started."""
        line = [*feeder_words(os.environ), *self.arguments, "--scratch", scratch.path, *words]
        try:
            with standard_input(self.pipeline) as pipeline:
                return subprocess.Popen(
                    line,
                    stdin=pipeline,
                    pass_fds=[*descriptors, scratch.lock],
                    env={**os.environ, **self.environment, SCRATCH_VARIABLE: scratch.path},
                    **options,
                )
        except OSError as error:
            raise FeederError(f"the feeder cannot be started: {error}. See {COMMAND_VARIABLE}") from error


def feeder_words(environment: Mapping[str, str], executable: str | None = sys.executable) -> list[str]:
    """The command that starts a feeder, without its arguments. Raises FeederError if there is no valid command."""
    command = environment.get(COMMAND_VARIABLE, "").strip()
    if command:
        try:
            return [*shlex.split(command), "feed"]
        except ValueError as error:
            raise FeederError(
                f"{COMMAND_VARIABLE} is not a command: got {command!r} ({error}), expected shell words"
            ) from None
    if not executable:
        raise FeederError(
            f"no Python is known that could start a feeder: got sys.executable={executable!r}. Set "
            f"{COMMAND_VARIABLE} to a command that runs feedline"
        )
    # -P: files in the working directory named like a module (queue.py, types.py) are not imported.
    return [executable, "-P", "-m", "feedline", "feed"]


@contextlib.contextmanager
def standard_input(content: bytes) -> Iterator[int]:
    """A descriptor from which a child process reads the content, hidden from other processes."""
    blob = os.memfd_create("feedline-pipeline", os.MFD_CLOEXEC)
    try:
        os.write(blob, content)
        os.lseek(blob, 0, os.SEEK_SET)
        yield blob
    finally:
        os.close(blob)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLaunch:
    """The feeder that the ranks of a host share: how to start it, the name by which they meet, the launcher's round."""

    name: str
    round: int
    command: FeederCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederAccess:
    """How a trainer gets a feeder: one that waits on a socket, else its host's, else one of its own."""

    command: FeederCommand
    attach_paths: Sequence[Path] = ()
    host: HostLaunch | None = None


def end_of_log(log: IO[bytes]) -> str:
    """The last lines of a feeder's log, with a remedy for the most frequent ones."""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _LAST_WORDS_BYTES))
    text = log.read().decode(errors="replace").strip()
    if "No module named feedline" in text:
        text += f"\nThis Python cannot import feedline: set {COMMAND_VARIABLE} to a command that runs it"
    return text or "(none)"


def log_path(scratch: str) -> Path:
    """The log of a feeder that a dataset started; it is removed with the feeder."""
    return Path(scratch, _LOG_NAME)


def shorten_log(descriptor: int, *, limit_bytes: int = LOG_BYTES, kept_bytes: int = LOG_KEPT_BYTES) -> bool:
    """Cut a log that exceeds its limit to its last lines; writes continue after them. Returns whether it was cut."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size <= limit_bytes:
        return False
    end = os.pread(descriptor, kept_bytes, status.st_size - kept_bytes)
    os.ftruncate(descriptor, 0)
    lines = end[end.find(b"\n") + 1 :]
    os.write(descriptor, f"({status.st_size - len(lines):,} bytes of this log are gone)\n".encode() + lines)
    return True


def await_end(process: subprocess.Popen[Any], *, within_s: float) -> None:
    """Wait for a process that was sent SIGTERM; SIGKILL it if it lives on after `within_s`."""
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederTask:
    """What a feeder serves, and with what: its ranks (none: the trainers name them), the number of ranks in all and on
    this host, the cores that it may use, the CPUs that it runs on (default: those of the process that starts it), the
    features of the column group whose trainers it waits for, and the epochs that it serves in all (0: its trainers
    decide)."""

    ranks: Sequence[int]
    world_size: int
    local_ranks: int
    cores: int
    cpus: Collection[int] = ()
    column_group: Sequence[str] = ()
    epochs: int = 0


def feeder_command(spec: PipelineSpec, task: FeederTask) -> FeederCommand:
    """How to start a feeder of a spec. The first argument names the pipeline in lists of processes."""
    lists = {"--ranks": task.ranks, "--cpus": sorted(task.cpus)}
    words = [word for name, each in lists.items() if each for word in (name, ",".join(map(str, each)))]
    words += ["--features", json.dumps(list(task.column_group))] if task.column_group else []
    counts = {"--world-size": task.world_size, "--local-ranks": task.local_ranks}
    counts |= {"--cores": task.cores, "--epochs": task.epochs}
    return FeederCommand(
        arguments=[str(Path(spec.file).absolute()), *words, *(str(word) for item in counts.items() for word in item)],
        pipeline=spec.packed(),
        environment=feeder_environment(spec, cores=task.cores),
        exit_s=_PROVIDER_EXIT_S if spec.cluster.kind == "provider" else EXIT_S,
    )


def feeder_access(spec: PipelineSpec, ranks: RankInfo, column_group: Sequence[str] = ()) -> FeederAccess:
    """How this rank gets its feeder: one of `feedline run` that waits, its host's, or its own; each serves ranks of the
    same column group."""
    cores = rank_cores(ranks.local_ranks)
    task = FeederTask(ranks=[ranks.rank], world_size=ranks.world_size, local_ranks=ranks.local_ranks, cores=cores)
    job, host = job_fingerprint(spec, column_group), None
    if spec.feeder == "host" and ranks.local_ranks > 1:
        name, round = meeting_name(job, ranks.world_size, os.environ)
        cpus = launcher_affinity()  # the rank that starts the feeder may be bound to a few of them
        of_host = replace(task, ranks=(), cores=available_cores(cpus), cpus=cpus)
        host = HostLaunch(name=name, round=round, command=feeder_command(spec, of_host))
    return FeederAccess(
        command=feeder_command(spec, task),
        attach_paths=socket_paths(job, ranks.rank, ranks.world_size),
        host=host,
    )


def feeder_threads(spec: PipelineSpec, *, cores: int) -> int:
    """Block threads of the feeder and its processes, or of each worker of Dask's: those of `cluster`, or its share of
    the feeder's cores."""
    cluster = spec.cluster
    workers = cluster.processes or cluster.most_workers
    threads = max(1, cores // workers) if cluster.threads == "auto" else cluster.threads
    return threads * (cluster.processes or 1)


def begins_with_threads(spec: PipelineSpec, *, cores: int) -> bool:
    """Whether the feeder computes blocks in threads of its own as long as these do not wait for each other, before it
    has processes: two threads rarely do, and the memory of a process is fresh for its first seconds."""
    cluster = spec.cluster
    return cluster.kind == "pool" and cluster.processes is None and feeder_threads(spec, cores=cores) <= _FEW_THREADS


def pool_processes(threads: int, *, memory_bytes: int) -> int:
    """The processes of a pool of so many threads: of one each, which never wait for a lock, unless memory is short."""
    # 64 threads on a host with 8 GB free: 32 processes of two threads each.
    most = max(1, memory_bytes // _PROCESS_BYTES)
    return -(-threads // -(-threads // most))


def describe_workers(spec: PipelineSpec, *, cores: int) -> str:
    """What computes the blocks of a feeder with so many cores. Raises nothing."""
    cluster, threads = spec.cluster, feeder_threads(spec, cores=cores)
    match cluster.kind:
        case "pool":
            processes = cluster.processes or pool_processes(threads, memory_bytes=available_memory_bytes())
            if begins_with_threads(spec, cores=cores):
                return f"threads of the feeder: {threads}; {processes} process(es) once they wait for each other"
            return f"processes of the feeder: {processes} of {-(-threads // processes)} thread(s), on {cores} core(s)"
        case "threads":
            return f"threads of the feeder: {threads}"
        case "processes":
            return f"Dask workers on this host: up to {cluster.most_workers} of {threads} thread(s)"
        case "scheduler":
            return f"Dask workers of {cluster.scheduler}"
        case "provider":
            return f"Dask workers of {cluster.provider}"


def memory_share(spec: PipelineSpec, *, local_ranks: int) -> int:
    """Bytes that one rank's ring and blocks in flight may take: its share of `memory`."""
    if spec.memory is not None:
        return spec.memory // local_ranks
    return min(_MEMORY_BYTES, available_memory_bytes() // 2 // local_ranks)


def feeder_environment(spec: PipelineSpec, *, cores: int) -> dict[str, str]:
    """The environment variables of a new feeder, after those set here: allocators, a Polars thread per Dask thread, no
    pool for linear algebra, which no op uses, no plugins of pydantic, which take 8 ms to look for. Before them: numpy's
    instructions by `cluster.cpu`.

    Raises ClusterError if this machine lacks those.
    """
    threads = feeder_threads(spec, cores=cores)
    pools = {"POLARS_MAX_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
    defaults = {**pools, "PYDANTIC_DISABLE_PLUGINS": "1"}
    variables = {name: os.environ.get(name, value) for name, value in defaults.items()}
    return {
        **variables,
        **own_or_users(threads, os.environ),
        **cpu_environment(choose_cpu(spec.cluster.cpu, shared=spec.cluster.is_elsewhere)),
    }
