"""Keep the results of a long pass wave by wave, so that an interrupted one resumes, and report its progress.

Runs where a snapshot is taken and where a plan is made. A wave's results are tables in a file of `work_dir`, whose name
covers all that they depend on; they are removed when the result of the whole pass is saved.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from feedline.errors import TableError
from feedline.warehouse.storage import content_store

logger = logging.getLogger(__name__)

_ABANDONED_S = 7 * 86_400.0  # waves of a pass that was not resumed, such as over a table that has changed since


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveProgress:
    """Progress of a pass: `done` of `total`, of what it does (`counted`, `rows`)."""

    verb: str
    unit: str
    done: int
    total: int

    def text(self) -> str:
        """The progress as a sentence: `counted 1,000 of 2,000 rows`."""
        return f"{self.verb} {self.done:,} of {self.total:,} {self.unit}"


Say: TypeAlias = Callable[[WaveProgress], None]
_listener: ContextVar[Say | None] = ContextVar("feedline_wave_listener", default=None)


@contextmanager
def on_wave_progress(say: Say) -> Iterator[None]:
    """Call `say` after every wave of a pass that runs in this thread inside the block."""
    before = _listener.set(say)
    try:
        yield
    finally:
        _listener.reset(before)


def report_progress(progress: WaveProgress) -> None:
    """Report progress to `on_wave_progress`, or else to the log."""
    say = _listener.get()
    if say is not None:
        say(progress)
    else:
        logger.info("%s", progress.text())


class KeptWaves:
    """The results of a pass's finished waves, in `work_dir` (None: nowhere)."""

    def __init__(self, work_dir: str | None) -> None:
        self._work_dir = work_dir
        self._names: set[str] = set()

    def load(self, name: str) -> list[pa.Table] | None:
        """The tables kept under a name (`folder/file`); None where there are none, or they are damaged."""
        if self._work_dir is None:
            return None
        try:
            tables = content_store.find(self._work_dir, name).tables()
        except (FileNotFoundError, TableError):
            return None
        self._names.add(name)
        return tables

    def save(self, name: str, tables: Iterable[pa.Table], *, compression: str | None = "zstd") -> None:
        if self._work_dir is not None:
            content_store.create(self._work_dir, name, tables, compression=compression)
            self._names.add(name)

    def forget(self, folder: str | None = None) -> None:
        """Remove the results: the whole is saved, or never will be. folder: remove abandoned ones there, too."""
        if self._work_dir is None:
            return
        abandoned = [] if folder is None else content_store.older_than(self._work_dir, folder, _ABANDONED_S)
        for name in [*self._names, *abandoned]:
            content_store.remove(self._work_dir, name)
