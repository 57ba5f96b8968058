"""The rows that a fit was learnt from, as manifests record them.

Runs in: every process that compiles features. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from feedline.dataclass import dataclass
from feedline.warehouse.reading.sample import Sample
from feedline.warehouse.reading.seen_rows import TableRows


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOrigin:
    """The rows that a fit was learnt from: table, snapshot, selection and row count.

    where, sample: the selection applied. pipeline: the one that fitted.
    fit_where: its `fit.where`. named: the files, folders and globs of the table; empty if it is everything below
    `table`. exclude: the id of the exclusion that left out bad rows; None without one.
    """

    table: str
    snapshot: str
    where: str | None
    sample: Mapping[str, Any] | None
    rows: int
    pipeline: str = ""
    fit_where: str | None = None
    named: tuple[str, ...] = ()
    exclude: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields, without `exclude` where there is none."""
        facts = asdict(self)
        return facts if self.exclude is not None else {name: facts[name] for name in facts if name != "exclude"}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> FitOrigin:
        """The rows that a manifest records."""
        return cls(**{**entry, "named": tuple(entry["named"])})

    def same_rows(self, other: FitOrigin) -> bool:
        """Whether both are the same rows of the same table."""
        return replace(self, rows=other.rows) == other

    @property
    def table_rows(self) -> TableRows:
        """The same rows, independent of the snapshot."""
        sample = None if self.sample is None else Sample(**{**self.sample, "key": tuple(self.sample["key"])})
        return TableRows(root=self.table, sources=self.named, where=self.where, sample=sample)
