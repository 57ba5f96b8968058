"""Start a feeder beside a trainer, and find out why it died.

Runs in: the trainer; the feeder keeps its log short. The feeder is `python -m feedline feed`, or what FEEDLINE_COMMAND
says in place of `python -m feedline`, with one end of a socket pair; it ends when that connection does. Overrides may
hold keys of a store: they go to its standard input, not in its arguments, which every user of the host can read.
What it prints goes to a file in its scratch folder, whose end is shown when it dies.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.errors import FeederError
from feedline.loader.ring.channel import pair
from feedline.resources import (
    ALLOCATOR_ENVIRONMENT,
    SCRATCH_VARIABLE,
    available_cores,
    choose_cpu,
    cpu_environment,
    make_scratch,
)
from feedline.spec import PipelineSpec
from feedline.spec.overrides import CommandLineOverrides

COMMAND_VARIABLE = "FEEDLINE_COMMAND"
# A feeder that serves ends within a second of its connection; one that plans has to be told.
_NOTICE_S, _EXIT_S = 2.0, 5.0
_LAST_WORDS_BYTES = 4000
# A feeder's log: shortened to its last part when it has grown to so much.
_LOG_NAME = "feeder.log"
LOG_BYTES, LOG_KEPT_BYTES = 16 * 2**20, 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederCommand:
    """How to start a feeder: its arguments after `python -m feedline feed`, the overrides as JSON, its environment; and
    the sockets at which one may wait."""

    arguments: Sequence[str]
    overrides: str
    environment: dict[str, str]
    attach_paths: Sequence[Path] = ()


def feeder_words(environment: Mapping[str, str], executable: str | None = sys.executable) -> list[str]:
    """The words that start a feeder, but for its arguments. Raises FeederError where nobody says how."""
    command = environment.get(COMMAND_VARIABLE, "").strip()
    if command:
        try:
            return [*shlex.split(command), "feed"]
        except ValueError as error:
            raise FeederError(
                f"{COMMAND_VARIABLE} is no command: got {command!r} ({error}), expected words as in a shell"
            ) from None
    if not executable:
        raise FeederError(
            f"there is no Python to start a feeder with: got sys.executable={executable!r}. Set {COMMAND_VARIABLE} to "
            f"a command that runs feedline"
        )
    # -P: a file of the working directory that is named like a module (queue.py, types.py) is not the feeder's.
    return [executable, "-P", "-m", "feedline", "feed"]


@contextlib.contextmanager
def standard_input(text: str) -> Iterator[int]:
    """A descriptor for a process to read a text from, which no other process sees."""
    blob = os.memfd_create("feedline-overrides", os.MFD_CLOEXEC)
    try:
        os.write(blob, text.encode())
        os.lseek(blob, 0, os.SEEK_SET)
        yield blob
    finally:
        os.close(blob)


class FeederProcess:
    """A feeder that this process started, in a session of its own: signals for this one's group are not for it."""

    def __init__(self, command: FeederCommand) -> None:
        words = feeder_words(os.environ)
        self._scratch = make_scratch()
        self.channel, theirs = pair()
        self.log_path = log_path(self._scratch)
        self._log = open(self.log_path, "a+b", buffering=0)  # noqa: SIM115 -- lives as long as the process
        line = [*words, *command.arguments, *own_arguments(self._scratch), "--fd", str(theirs.fileno())]
        try:
            with standard_input(command.overrides) as overrides:
                self._process = subprocess.Popen(
                    line,
                    stdin=overrides,
                    stdout=self._log,
                    stderr=self._log,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **command.environment, SCRATCH_VARIABLE: self._scratch},
                    start_new_session=True,
                )
        except BaseException as error:
            self._forget()
            self.channel.close()
            if isinstance(error, OSError):
                raise FeederError(f"the feeder cannot be started: {error}. See {COMMAND_VARIABLE}") from error
            raise
        finally:
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
        if "No module named feedline" in text:
            text += f"\nThis Python does not find feedline by itself: set {COMMAND_VARIABLE} to a command that runs it"
        return f"{text or '(none)'}\n(exit status {self._process.returncode})"

    def end(self) -> None:
        """See the process out: its connection is closed, so it ends by itself; else it is told to, and then killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_NOTICE_S)
        end_process(self._process, within_s=_EXIT_S)
        self._forget()

    def _forget(self) -> None:
        self._log.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def log_path(scratch: str) -> Path:
    """Where a feeder that a dataset started prints, for as long as it lives."""
    return Path(scratch, _LOG_NAME)


def shorten_log(descriptor: int, *, limit_bytes: int = LOG_BYTES, kept_bytes: int = LOG_KEPT_BYTES) -> bool:
    """Cut a log that has grown beyond its limit down to its last part. Whoever appends meanwhile appends to that."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size <= limit_bytes:
        return False
    kept = os.pread(descriptor, kept_bytes, status.st_size - kept_bytes)
    os.ftruncate(descriptor, 0)
    whole = kept[kept.find(b"\n") + 1 :]
    os.write(descriptor, f"({status.st_size - len(whole):,} bytes of this log are gone)\n".encode() + whole)
    return True


def end_process(process: subprocess.Popen[Any], *, within_s: float) -> None:
    """End a process: politely, then not."""
    try:
        process.terminate()
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def own_arguments(scratch: str) -> list[str]:
    """The arguments that tie a feeder to this process."""
    return ["--parent", str(os.getpid()), "--scratch", scratch]


def feeder_arguments(path: Path, *, rank: int, world_size: int) -> list[str]:
    """The arguments of `python -m feedline feed`."""
    return [str(path), "--rank", str(rank), "--world-size", str(world_size)]


def overrides_text(overrides: Mapping[str, object]) -> str:
    """Overrides as JSON, for a feeder to read, and whether they were typed: errors about them say how."""
    typed = isinstance(overrides, CommandLineOverrides)
    return json.dumps({"from_command_line": typed, "overrides": dict(overrides)}, default=_plain)


def read_overrides(text: bytes) -> dict[str, object]:
    """What `overrides_text` made; none where nothing was said."""
    said = json.loads(text or b'{"from_command_line": false, "overrides": {}}')
    values: dict[str, object] = said["overrides"]
    return CommandLineOverrides(values) if said["from_command_line"] else values


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
    return {**kept, **cpu_environment(choose_cpu(spec.cluster.cpu, shared=spec.cluster.scheduler is not None))}
