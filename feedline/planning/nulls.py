"""Find, before a run starts, the nulls that its features cannot hold and the columns that files lack.

Runs in: the feeder, the CLI, `Pipeline`. Footers say how many nulls the selected rows hold
(`warehouse/selection/null_counts`), compiled features which of them remain (`transforms/compile/null_probe`); no data
is read. Nulls that footers do not count (within lists, in files without statistics) fail the batch that holds them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.dataclass import dataclass
from feedline.errors import DataError
from feedline.expressions import BoundExpression
from feedline.expressions.column_parts import not_null
from feedline.planning.histories import list_columns
from feedline.planning.read_columns import ReadColumns
from feedline.transforms.compile.null_probe import null_leaks
from feedline.warehouse.selection.null_counts import AbsentColumn, absent_columns, null_counts
from feedline.warehouse.snapshot.snapshot import Snapshot

_MAX_LINES = 20  # lines in one message


@dataclass(frozen=True, slots=True, kw_only=True)
class NullFinding:
    """A feature that is null where a column is: in at least `least` and at most `most` of the selected rows. files:
    those with selected rows that hold such nulls, of `read` in all; file: the first of them."""

    feature: str
    column: str
    least: int
    most: int
    files: int
    read: int
    file: str

    def line(self) -> str:
        rows = f"{self.most:,}" if self.least == self.most else f"up to {self.most:,}"
        of = "" if self.column == self.feature else f" (column {self.column!r})"
        return (
            f"feature {self.feature!r}{of} holds nulls: got {rows} in {_files(self.files, self.read)} (first: "
            f"{self.file}), expected none. Add fill_null to its ops, or "
            f"`{not_null([self.column])}` to source.where"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Nulls that features cannot hold, and columns that files lack."""

    nulls: tuple[NullFinding, ...] = ()
    absent: tuple[AbsentColumn, ...] = ()

    def facts(self) -> dict[str, Any]:
        """The findings as plain values, for `--json`."""
        return {
            "nulls": [{**asdict(finding), "text": finding.line()} for finding in self.nulls],
            "absent": [{**asdict(absence), "text": absence_line(absence)} for absence in self.absent],
        }

    def warnings(self) -> list[str]:
        return first_lines([finding.line() for finding in self.nulls])

    def notes(self) -> list[str]:
        return first_lines([absence_line(absence) for absence in self.absent])

    def refuse(self, rows_dropped: int) -> None:
        """Raise DataError where an epoch is certain to contain a null, whichever rows its tail drops."""
        certain = [finding for finding in self.nulls if finding.least > rows_dropped]
        if certain:
            raise DataError("\n".join(first_lines([finding.line() for finding in certain])))


def find_gaps(
    columns: ReadColumns, snapshot: Snapshot, rows: npt.NDArray[np.int64], where: BoundExpression | None
) -> Gaps:
    """The gaps of the selected rows. `rows`: int64, per row group; negative where they were not counted."""
    features = columns.features
    names = dict.fromkeys(name for output in features.outputs if output.group != "extra" for name in output.reads)
    names = {name: None for name in names if name not in list_columns(columns.spec)}
    counts = null_counts(snapshot, names, rows, where)
    nulls = []
    for leak in null_leaks(features, counts):
        count = counts[leak.column]
        facts = {name: getattr(count, name) for name in ("most", "files", "read", "file")}
        least = count.least if leak.always else 0
        nulls.append(NullFinding(feature=leak.feature, column=leak.column, least=least, **facts))
    parts = columns.parts(snapshot.schema)
    return Gaps(nulls=tuple(nulls), absent=tuple(absent_columns(snapshot, parts, rows)))


def absence_line(absence: AbsentColumn) -> str:
    """`C4 is missing in 1 of 3 files, 2,000 rows: null (first: day=1/a.parquet)`."""
    return (
        f"{absence.column} is missing in {_files(absence.files, absence.read)}, {absence.rows:,} rows: null "
        f"(first: {absence.file})"
    )


def _files(files: int, read: int) -> str:
    return f"{files:,} of {read:,} files"


def first_lines(lines: list[str]) -> list[str]:
    """The first lines, and how many more there are."""
    return lines if len(lines) <= _MAX_LINES else [*lines[:_MAX_LINES], f"and {len(lines) - _MAX_LINES:,} more"]
