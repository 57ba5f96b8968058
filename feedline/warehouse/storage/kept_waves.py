"""Keep the results of a long pass wave by wave, so that an interrupted one resumes.

Runs where a snapshot is taken and where a plan is made. A wave's results are tables in a file of `work_dir`, whose name
covers all that they depend on; they are removed when the result of the whole pass is saved.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from feedline.errors import TableError
from feedline.warehouse.storage import content_store

_ABANDONED_S = 7 * 86_400.0  # waves of a pass that was not resumed, such as over a table that has changed since


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
