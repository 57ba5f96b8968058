"""Which nulls will a run meet that its features cannot hold, and which columns do files lack? Known before it starts.

Runs in: the feeder, the CLI, `Pipeline`. Footers say how many nulls the selected rows hold (`warehouse.null_counts`),
and the features which of them they leave (`transforms.null_probe`); nothing of the table is read. What footers do not
say (nulls within lists, files without statistics) is met when its batch is made.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.errors import DataError
from feedline.expressions import BoundExpression
from feedline.expressions.column_parts import not_null
from feedline.planning.binding import ReadColumns
from feedline.transforms.compile.null_probe import null_leaks
from feedline.warehouse.selection.null_counts import AbsentColumn, absent_columns, null_counts
from feedline.warehouse.snapshot.snapshot import Snapshot

_SHOWN = 20  # lines of a message


@dataclass(frozen=True, slots=True, kw_only=True)
class NullFinding:
    """A feature that nulls of a column make null: at least and at most in so many selected rows.

    files, read: how many files with selected rows hold such nulls, of how many; file: the first of them.
    """

    feature: str
    column: str
    least: int
    most: int
    files: int
    read: int
    file: str

    def line(self) -> str:
        """The finding as a sentence, with the remedy."""
        rows = f"{self.most:,}" if self.least == self.most else f"up to {self.most:,}"
        of = "" if self.column == self.feature else f" (column {self.column!r})"
        return (
            f"feature {self.feature!r}{of} holds nulls: got {rows} in {_files(self.files, self.read)} (first: "
            f"{self.file}), expected none. Add fill_null to its ops, or "
            f"`{not_null([self.column])}` to source.where"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """What a selection lacks: nulls that features cannot hold, and columns that files do not have."""

    nulls: tuple[NullFinding, ...] = ()
    absent: tuple[AbsentColumn, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Plain numbers and strings, for `--json`."""
        return {
            "nulls": [{**asdict(found), "text": found.line()} for found in self.nulls],
            "absent": [{**asdict(found), "text": absence_line(found)} for found in self.absent],
        }

    def warnings(self) -> list[str]:
        """The first nulls as sentences."""
        return first_lines([found.line() for found in self.nulls])

    def notes(self) -> list[str]:
        """The first columns that files lack."""
        return first_lines([absence_line(found) for found in self.absent])

    def refuse(self, rows_dropped: int) -> None:
        """Raise DataError where an epoch is certain to meet a null, whichever rows its tail drops."""
        certain = [found for found in self.nulls if found.least > rows_dropped]
        if certain:
            raise DataError("\n".join(first_lines([found.line() for found in certain])))


def find_gaps(
    columns: ReadColumns, snapshot: Snapshot, rows: npt.NDArray[np.int64], where: BoundExpression | None
) -> Gaps:
    """The gaps of the selected rows. `rows`: int64, per row group; below 0 where nobody counted."""
    features = columns.features
    read = dict.fromkeys(name for output in features.outputs if output.group != "extra" for name in output.reads)
    counts = null_counts(snapshot, read, rows, where)
    nulls = []
    for leak in null_leaks(features, counts):
        count = counts[leak.column]
        facts = {name: getattr(count, name) for name in ("most", "files", "read", "file")}
        least = count.least if leak.always else 0
        nulls.append(NullFinding(feature=leak.feature, column=leak.column, least=least, **facts))
    parts = columns.parts(snapshot.schema)
    return Gaps(nulls=tuple(nulls), absent=tuple(absent_columns(snapshot, parts, rows)))


def absence_line(found: AbsentColumn) -> str:
    """`C4 is missing in 1 of 3 files, 2,000 rows: null (first: day=1/a.parquet)`."""
    return (
        f"{found.column} is missing in {_files(found.files, found.read)}, {found.rows:,} rows: null "
        f"(first: {found.file})"
    )


def _files(files: int, read: int) -> str:
    return f"{files:,} of {read:,} files"


def first_lines(lines: list[str]) -> list[str]:
    """The first of very many lines, and how many there are besides."""
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"and {len(lines) - _SHOWN:,} more"]
