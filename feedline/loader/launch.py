"""How does a trainer start a feeder of its own, and learn why it died?

Runs in: the trainer. The feeder is `python -m feedline feed` with one end of a socket pair; it ends when that
connection does. What it prints is kept in an unlinked file, whose end is shown when it dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.loader.channel import pair
from feedline.resources import available_cores
from feedline.spec import PipelineSpec

_EXIT_S = 5.0
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
        # Dask's workers want a folder; ours to remove, so that a killed feeder leaves nothing either.
        self._scratch = tempfile.TemporaryDirectory(prefix="feedline-", ignore_cleanup_errors=True)
        line = [sys.executable, "-m", "feedline", "feed", *command.arguments, "--fd", str(theirs.fileno())]
        self._process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **command.environment, "DASK_TEMPORARY_DIRECTORY": self._scratch.name},
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
        """See the process out: its connection is closed, so it ends by itself, or is killed after a few seconds."""
        try:
            self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._scratch.cleanup()


def feeder_arguments(path: Path, *, rank: int, world_size: int, overrides: dict[str, Any]) -> list[str]:
    """The arguments of `python -m feedline feed`."""
    return [str(path), "--rank", str(rank), "--world-size", str(world_size), "--overrides", json.dumps(overrides)]


def feeder_threads(spec: PipelineSpec, *, local_ranks: int) -> int:
    """Dask threads of a feeder that does the work itself: the rank's share of this host's cores, or what is asked."""
    threads = spec.cluster.threads
    return max(1, available_cores() // local_ranks) if threads == "auto" else threads


def feeder_environment(spec: PipelineSpec, *, local_ranks: int) -> dict[str, str]:
    """What has to be set before the feeder imports Polars: its pool has a thread per Dask thread, not per core."""
    threads = feeder_threads(spec, local_ranks=local_ranks)
    return {"POLARS_MAX_THREADS": os.environ.get("POLARS_MAX_THREADS", str(threads))}
