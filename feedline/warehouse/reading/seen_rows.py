"""Tell rows that a fit has seen from all others: rows of its files that its filter and its sample kept.

Pure; runs where a plan is made and wherever rows are read. Snapshots do not matter: a row that was written after the
fit counts as seen where files, filter and sample would have let it in. What decides travels as the name of a Boolean
column, which a reader fills for every row, so that the name stands for the whole rule in fingerprints, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import polars as pl
import pyarrow as pa

from feedline.expressions import bind_where
from feedline.warehouse.discovery.hive import matches_any
from feedline.warehouse.reading.row_filter import RowFilter
from feedline.warehouse.reading.sample import Sample, bind_sample
from feedline.warehouse.storage.locations import absolute, join, redact


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """Some rows of a table, by the conditions that select them.

    root: the table's URI, as messages show it. named: the files, folders and globs that make it; none for all below the
    root. where, sample: which rows of them.
    """

    root: str
    named: tuple[str, ...] = ()
    where: str | None = None
    sample: Sample | None = None

    def covers(self, uri: str) -> bool:
        """Whether a file is one of the table's."""
        return matches_any(uri, self.named or (self.root,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A Boolean column that says of each row whether a fit has seen it. files: None where those read are the fit's."""

    name: str
    files: TableRows | None
    row_filter: RowFilter

    @property
    def parts(self) -> frozenset[str]:
        """What has to be read to decide: columns, and parts of columns."""
        return self.row_filter.parts

    @property
    def columns(self) -> frozenset[str]:
        """The same by whole columns."""
        where, sample = self.row_filter.where, self.row_filter.sample
        return frozenset[str]().union(*(one.columns for one in (where, sample) if one is not None))

    def of(self, data: pa.RecordBatch, table: str, path: str, first_row: int) -> pl.Series:
        """Boolean [rows]: `data` are rows of the file at `path` below `table`, `first_row` the first one's index."""
        if self.files is not None:
            uri = join(redact(table), path)
            if not self.files.covers(uri):
                return pl.repeat(value=False, n=data.num_rows, dtype=pl.Boolean, eager=True).alias(self.name)
            path = uri.removeprefix(join(self.files.root, ""))
        stays = self.row_filter.apply(data, path, first_row).stays
        if stays is None:
            return pl.repeat(value=True, n=data.num_rows, dtype=pl.Boolean, eager=True).alias(self.name)
        return pl.Series(self.name, stays)


def source_names(table: str | Sequence[str], format: str) -> tuple[str, ...]:
    """The names of a table for `TableRows.named`; none for a manifest, which alone knows its files."""
    if format == "manifest":
        return ()
    return tuple(sorted({redact(absolute(name)) for name in ([table] if isinstance(table, str) else table)}))


def rows_seen(fit: TableRows, read: TableRows) -> bool | str:
    """Which of the rows that are read a fit has seen: all, none, or those that a column of that name marks."""
    same_files = fit.root == read.root and (not fit.named or fit.named == read.named)
    if not same_files and not _nest(fit.root, read.root):
        return False
    if same_files and (fit.where, fit.sample) in ((None, None), (read.where, read.sample)):
        return True
    sample = None if fit.sample is None else asdict(fit.sample)
    files = None if same_files else [fit.root, *fit.named]
    return f"seen by {json.dumps([files, fit.where, sample], separators=(',', ':'))}"


def bind_marks(names: Iterable[str], schema: pa.Schema) -> tuple[Mark, ...]:
    """The columns that `rows_seen` named, over a table's columns.

    Raises ExpressionError, SpecError where the rule names a column that the table has not, or has otherwise.
    """
    return tuple(_bind(name, schema) for name in names)


def _bind(name: str, schema: pa.Schema) -> Mark:
    files, where, sample = json.loads(name.removeprefix("seen by "))
    asked = None if sample is None else Sample(**{**sample, "key": tuple(sample["key"])})
    return Mark(
        name=name,
        files=None if files is None else TableRows(root=files[0], named=tuple(files[1:])),
        row_filter=RowFilter(
            where=None if where is None else bind_where(where, schema),
            sample=None if asked is None else bind_sample(asked, schema),
        ),
    )


def _nest(one: str, other: str) -> bool:
    """Whether one of two folders is the other, or holds it."""
    first, second = join(one, ""), join(other, "")
    return first.startswith(second) or second.startswith(first)
