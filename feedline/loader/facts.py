"""How do people hear of the bad files that a plan leaves out?

Runs in: the trainer, the CLI, `Pipeline`. Pure: from what a plan's facts say (path, reason, rows) to text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SHOWN = 20  # files that a text lists


def warning_of(bad_files: Sequence[Mapping[str, Any]]) -> str:
    """The whole message, one line per file."""
    return f"{summary_of(bad_files)}:\n" + "\n".join(lines_of(bad_files))


def summary_of(bad_files: Sequence[Mapping[str, Any]]) -> str:
    """How much is left out."""
    rows = sum(bad["rows"] or 0 for bad in bad_files)
    unknown = sum(bad["rows"] is None for bad in bad_files)
    note = f", besides those of {unknown:,} whose footer cannot be read" if unknown else ""
    files = "1 bad file" if len(bad_files) == 1 else f"{len(bad_files):,} bad files"
    return f"{files} left out of the plan, {rows:,} rows{note}"


def lines_of(bad_files: Sequence[Mapping[str, Any]]) -> list[str]:
    """Path and reason, the first of very many."""
    lines = [f"  {bad['path']}: {bad['reason']}" for bad in bad_files[:_SHOWN]]
    return lines if len(bad_files) <= _SHOWN else [*lines, f"  and {len(bad_files) - _SHOWN:,} more"]
