"""The lines that benchmarks print: what is divided by what, the ratio, its aim and the figures behind it; and the bytes
of files, which many of them divide.

| measure | ratio | aim | figures |
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: what is divided by what, the ratio, its aim and the figures behind it."""

    measure: str
    ratio: float
    aim: str
    figures: str


def print_rows(setting: str, rows: Iterable[Row]) -> list[Row]:
    """Print rows as Markdown, each when it has been measured. setting: what is measured, for a line above."""
    print(f"{setting}\n\n| measure | ratio | aim | figures |\n|---|---|---|---|")
    found = []
    for row in rows:
        found.append(row)
        print(f"| {row.measure} | {row.ratio:.3f} | {row.aim} | {row.figures} |", flush=True)
    return found


def write_rows(path: Path | None, rows: Iterable[Row]) -> None:
    """Write rows as JSON, if a path is given."""
    if path is not None:
        path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


def bytes_below(folder: Path, pattern: str = "*.parquet") -> int:
    """The bytes of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())
