"""How does a trainer start a feeder of its own, and learn why it died?

Runs in: the trainer. The feeder is `python -m feedline feed` with one end of a socket pair; it ends when that
connection does. What it prints is kept in an unlinked file, whose end is shown when it dies.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.loader.channel import pair
from feedline.overrides import CommandLineOverrides
from feedline.processor import chosen, variables
from feedline.resources import available_cores
from feedline.spec import PipelineSpec

# -P: a file of the working directory that is named like a module (queue.py, types.py) is not the feeder's.
FEED = (sys.executable, "-P", "-m", "feedline", "feed")
SCRATCH_VARIABLE = "DASK_TEMPORARY_DIRECTORY"
# Blocks of tens of megabytes come and go for as long as a feeder lives. Allocators that give memory back to the kernel
# at once pay for it again page by page: with these settings a block takes 20 % (in order) to 40 % (shuffled) less CPU
# time. See docs/decisions/0003-keep-freed-memory.md. They are read when a process starts, so they travel in its
# environment; what the user has set stays.
ALLOCATOR_ENVIRONMENT = {
    "MIMALLOC_PURGE_DELAY": "-1",  # Arrow's pool: never purge
    "MALLOC_TRIM_THRESHOLD_": str(2**30),  # numpy's memory, by glibc: keep up to 1 GiB of free heap,
    "MALLOC_MMAP_THRESHOLD_": str(2**25),  # take arrays up to 32 MiB (the most glibc allows) from the heap,
    "MALLOC_TOP_PAD_": str(2**26),  # which grows in steps of 64 MiB
}
# A feeder that serves ends within a second of its connection; one that plans has to be told.
_NOTICE_S, _EXIT_S = 2.0, 5.0
_LAST_WORDS_BYTES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederCommand:
    """How to start a feeder: its arguments after `python -m feedline feed`, its environment, and where one may wait."""

    arguments: Sequence[str]
    environment: dict[str, str]
    attach_path: Path | None


class FeederProcess:
    """A feeder that this process started."""

    def __init__(self, command: FeederCommand) -> None:
        self.channel, theirs = pair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the process that writes it
        self._scratch = make_scratch()
        own = own_arguments(self._scratch)
        line = [*FEED, *command.arguments, *own, "--fd", str(theirs.fileno())]
        self._process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **command.environment, SCRATCH_VARIABLE: self._scratch},
        )
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def last_words(self) -> str:
        """The end of what the feeder printed, and its exit status."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_S)
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LAST_WORDS_BYTES))
        text = self._log.read().decode(errors="replace").strip()
        return f"{text or '(none)'}\n(exit status {self._process.returncode})"

    def end(self) -> None:
        """See the process out: its connection is closed, so it ends by itself; else it is told to, and then killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_NOTICE_S)
        end_process(self._process, within_s=_EXIT_S)
        self._log.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def end_process(process: subprocess.Popen[Any], *, within_s: float) -> None:
    """End a process: politely, then not."""
    try:
        process.terminate()
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def make_scratch() -> str:
    """A folder for what Dask's workers of a feeder keep on disk. Both remove it, whoever dies: feeder and parent."""
    return tempfile.mkdtemp(prefix="feedline-")


def own_arguments(scratch: str) -> list[str]:
    """The arguments that tie a feeder to this process."""
    return ["--parent", str(os.getpid()), "--scratch", scratch]


def feeder_arguments(path: Path, *, rank: int, world_size: int, overrides: dict[str, object]) -> list[str]:
    """The arguments of `python -m feedline feed`."""
    values = json.dumps(overrides, default=_plain)
    typed = ["--from-command-line"] if isinstance(overrides, CommandLineOverrides) else []
    return [str(path), "--rank", str(rank), "--world-size", str(world_size), "--overrides", values, *typed]


def _plain(value: object) -> object:
    """What an override may be, and JSON does not know: a path, another integer than Python's, another mapping."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return dict(value) if isinstance(value, Mapping) else operator.index(value)  # type: ignore[arg-type]


def feeder_threads(spec: PipelineSpec, *, local_ranks: int) -> int:
    """Dask threads of the feeder, or of each worker process: what is asked, or its share of this host's cores."""
    threads = spec.cluster.threads
    if threads != "auto":
        return threads
    return max(1, available_cores() // local_ranks // (spec.cluster.workers or 1))


def feeder_environment(spec: PipelineSpec, *, local_ranks: int) -> dict[str, str]:
    """What has to be set before a feeder starts: allocators, and Polars' pool of a thread per Dask thread, not core;
    numpy's instructions as `cluster.cpu` says, whatever this process was started with.

    Raises ClusterError where this machine does not have the level that is asked for.
    """
    wanted = {"POLARS_MAX_THREADS": str(feeder_threads(spec, local_ranks=local_ranks)), **ALLOCATOR_ENVIRONMENT}
    kept = {name: os.environ.get(name, value) for name, value in wanted.items()}
    return {**kept, **variables(chosen(spec.cluster.cpu, shared=spec.cluster.scheduler is not None))}
