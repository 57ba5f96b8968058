"""Profile a table: its footers, and a bounded sample of its rows.

Runs in: the process of `feedline profile` and of `feedline init`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from feedline.profiling.table_facts import TableFacts

ReportProgress: TypeAlias = Callable[[str, int, int], None]  # phase, done, total


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """What to profile. columns: those to read rows of, by name (default: all, or the first of very many). where: only
    rows that this expression keeps. label, time, session: chosen columns. values: keep frequent strings in the facts.
    sample_rows, sample_bytes: the most to read, bytes decoded. format, version, snapshot_id, as_of: see `Table`."""

    columns: tuple[str, ...] | None = None
    where: str | None = None
    label: str | None = None
    time: str | None = None
    session: str | None = None
    values: bool = False
    sample_rows: int = 131_072
    sample_bytes: int = 512 << 20
    format: str = "auto"
    version: int | None = None
    snapshot_id: int | None = None
    as_of: str | None = None


def profile_table(
    table: str | Sequence[str], options: ProfileOptions | None = None, *, progress: ReportProgress | None = None
) -> TableFacts:
    """Profile a table: a folder, file, glob or list, or a Delta or Iceberg table.

    Corrupt files are left out and listed; a table without rows, or without files but with a schema, has facts, too.
    Raises TableNotFoundError where there is nothing, and the errors of listing and reading.
    """
    raise NotImplementedError
