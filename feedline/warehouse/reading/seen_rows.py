"""Mark the rows that a fit has seen: rows of its files that its filter and its sample kept.

Pure; runs where a plan is made and wherever rows are read. Snapshots do not matter: a row written after the fit counts
as seen if files, filter and sample would have included it. The rule is encoded in the name of a Boolean column, which
the reader fills for every row; so fingerprints, which hash names, cover the whole rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.expressions import bind_where
from feedline.warehouse.discovery.hive import matches_any
from feedline.warehouse.reading.row_filter import RowFilter
from feedline.warehouse.reading.sample import Sample, bind_sample
from feedline.warehouse.storage.locations import absolute, join, redact


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """Rows of a table, described by the conditions that select them.

    root: the table's URI, as shown in messages. sources: the files, folders and globs of the table; none: everything
    below the root. where, sample: which of their rows.
    """

    root: str
    sources: tuple[str, ...] = ()
    where: str | None = None
    sample: Sample | None = None

    def covers(self, uri: str) -> bool:
        return matches_any(uri, self.sources or (self.root,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A Boolean column: whether a fit has seen the row. files: the fit's, None if they are those being read. others: of
    a fit that has learnt from several sources, whose rows it has seen, too."""

    name: str
    files: TableRows | None
    row_filter: RowFilter
    others: tuple[Mark, ...] = ()

    @property
    def parts(self) -> frozenset[str]:
        """The columns and column parts to read."""
        return self.row_filter.parts.union(*(other.parts for other in self.others))

    @property
    def columns(self) -> frozenset[str]:
        where, sample = self.row_filter.where, self.row_filter.sample
        names = frozenset[str]().union(*(one.columns for one in (where, sample) if one is not None))
        return names.union(*(other.columns for other in self.others))

    @property
    def samples(self) -> bool:
        """Whether it depends on where rows stand in their files."""
        return any(mark.row_filter.sample is not None for mark in (self, *self.others))

    def of(self, data: pa.RecordBatch, table: str, path: str, first_row: int) -> pl.Series:
        """Boolean [rows]: `data` holds rows of the file at `path` below `table`, from the row `first_row` of it on."""
        marks = self._own(data, table, path, first_row)
        for other in self.others:
            marks |= other.of(data, table, path, first_row)
        return marks

    def _own(self, data: pa.RecordBatch, table: str, path: str, first_row: int) -> pl.Series:
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
    """Return a table's names for `TableRows.sources`; none for a manifest, since only the manifest lists its files."""
    if format == "manifest":
        return ()
    return tuple(sorted({redact(absolute(name)) for name in ([table] if isinstance(table, str) else table)}))


def rows_seen(fit: TableRows, read: TableRows) -> bool | str:
    """Whether a fit has seen the rows that are read: all (True), none (False), or those marked in the column named."""
    same_files = fit.root == read.root and (not fit.sources or fit.sources == read.sources)
    roots = join(fit.root, ""), join(read.root, "")
    if not same_files and not (roots[0].startswith(roots[1]) or roots[1].startswith(roots[0])):
        return False
    if same_files and (fit.where, fit.sample) in ((None, None), (read.where, read.sample)):
        return True
    sample = None if fit.sample is None else fit.sample.to_json()
    files = None if same_files else [fit.root, *fit.sources]
    return f"seen by {json.dumps([files, fit.where, sample], separators=(',', ':'))}"


def rows_seen_by_any(fits: Sequence[TableRows], read: TableRows) -> bool | str:
    """The same of a fit that has learnt from several sources."""
    verdicts = dict.fromkeys(rows_seen(each, read) for each in fits)
    if True in verdicts:
        return True
    marks = [each for each in verdicts if isinstance(each, str)]
    if len(marks) < 2:
        return next(iter(marks), False)
    rules = [json.loads(mark.removeprefix("seen by ")) for mark in marks]
    return f"seen by any {json.dumps(rules, separators=(',', ':'))}"


def bind_marks(names: Iterable[str], schema: pa.Schema) -> tuple[Mark, ...]:
    """Bind the columns that `rows_seen` named to a table's columns.

    Raises ExpressionError or SpecError if the rule uses a column that the table lacks or has with another type.
    """
    return tuple(_bind(name, schema) for name in names)


def _bind(name: str, schema: pa.Schema) -> Mark:
    if name.startswith("seen by any "):
        rules = json.loads(name.removeprefix("seen by any "))
        first, *others = (_bind_rule(name, rule, schema) for rule in rules)
        return replace(first, others=tuple(others))
    return _bind_rule(name, json.loads(name.removeprefix("seen by ")), schema)


def _bind_rule(name: str, rule: Sequence[Any], schema: pa.Schema) -> Mark:
    files, where, sample = rule
    fit_sample = None if sample is None else Sample(**{**sample, "key": tuple(sample["key"])})
    return Mark(
        name=name,
        files=None if files is None else TableRows(root=files[0], sources=tuple(files[1:])),
        row_filter=RowFilter(
            where=None if where is None else bind_where(where, schema),
            sample=None if fit_sample is None else bind_sample(fit_sample, schema),
        ),
    )
