"""The values of new columns: of an expression over the table's own columns, or of another table, joined by key.

Pure, but for reading the other table, which a process reads once. Runs wherever tasks of `columns add` run. A source is
small and picklable: it names the columns that it reads, and computes a row group's new columns from theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.errors import DataError, TableArgumentError, TableChangedError
from feedline.expressions import bind_expression, parse
from feedline.expressions.extraction import project
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.discovery.table_log import plain
from feedline.warehouse.parquet.schemas import is_list
from feedline.warehouse.reading.fragment import field_of
from feedline.warehouse.reading.read import ReadRequest, read_arrow
from feedline.warehouse.selection.select import SPLIT_ROWS, plan_fragments, screen_rows
from feedline.warehouse.snapshot.take import snapshot_of
from feedline.warehouse.storage.locations import redact


class ColumnSource(Protocol):
    """Where new columns come from. text: as a person wrote it, for the log."""

    @property
    def text(self) -> str: ...

    def inputs(self, schema: pa.Schema) -> tuple[str, ...]:
        """The table's columns that are read, at least one. Raises SpecError where these do not fit."""

    def compute(self, rows: pa.Table) -> pa.Table:
        """The new columns of some rows, in their order. rows: the inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpressionValues:
    """One column, of an expression such as `price / clicks`."""

    expression: str
    name: str

    @property
    def text(self) -> str:
        return f"{self.expression} as {self.name}"

    def inputs(self, schema: pa.Schema) -> tuple[str, ...]:
        bound = bind_expression(parse(self.expression), schema)
        return tuple(name for name in schema.names if name in bound.columns)

    def compute(self, rows: pa.Table) -> pa.Table:
        bound = bind_expression(parse(self.expression), rows.schema)
        frame = project(rows, bound.schema.names)
        return arrow_columns(frame.lazy().select(bound.polars.alias(self.name)).collect(engine="in-memory"))


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedValues:
    """Columns of another table: of the row that has the same key, null where none has. version: the id of its snapshot,
    so that a process that has read an older one reads it again."""

    table: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    version: str

    @property
    def text(self) -> str:
        return f"{redact(self.table)} by {', '.join(self.key)}: {', '.join(self.columns)}"

    def inputs(self, schema: pa.Schema) -> tuple[str, ...]:
        other = _keyed(self)
        for name in self.key:
            own, its = field_of(schema, name).type, other.schema[name]
            dtype = pl.from_arrow(pa.array([], own)).dtype  # type: ignore[union-attr]
            if not (dtype == its or (dtype.is_integer() and its.is_integer())):
                raise TableArgumentError(
                    f"key {name!r} has other types in the two tables: got {its} in {redact(self.table)}, expected "
                    f"{dtype}. Join by columns of one type"
                )
        return self.key

    def compute(self, rows: pa.Table) -> pa.Table:
        frame, other = project(rows, self.key), _keyed(self)
        wide = [pl.col(name).cast(pl.Int64) for name in self.key if frame.schema[name].is_integer()]
        joined = frame.with_columns(wide).join(
            other.with_columns(wide), on=list(self.key), how="left", maintain_order="left"
        )
        return arrow_columns(joined.select(self.columns))


def joined_values(table: str, key: Sequence[str], columns: Sequence[str]) -> JoinedValues:
    """The columns of a table, as it is now. Raises TableArgumentError for unknown columns."""
    snapshot = snapshot_of(list_table(table))
    for name in (*key, *columns):
        field_of(snapshot.schema, name)
    return JoinedValues(table=table, key=tuple(key), columns=tuple(columns), version=snapshot.id)


@lru_cache(maxsize=2)
def _keyed(source: JoinedValues) -> pl.DataFrame:
    """The key and columns of the other table, in memory. Raises DataError where two rows have one key."""
    snapshot = snapshot_of(list_table(source.table))
    if snapshot.id != source.version:
        raise TableChangedError(
            f"{redact(source.table)} changed while its columns were joined: got another snapshot. Run the command again"
        )
    names = list(dict.fromkeys([*source.key, *source.columns]))
    schema = pa.schema([field_of(snapshot.schema, name) for name in names])
    fragments = plan_fragments(snapshot, screen_rows(snapshot, None), SPLIT_ROWS)
    parts = [read_arrow(fragment, ReadRequest(names, snapshot.schema)) for fragment in fragments]
    frame = project(pa.concat_tables([schema.empty_table(), *parts]), names).drop_nulls(source.key)
    repeated = frame.height - frame.n_unique(source.key)
    if repeated:
        raise DataError(
            f"key {', '.join(source.key)} is not unique in {redact(source.table)}: got {repeated:,} rows with the key "
            "of another, expected none. Name the columns that identify a row, or keep one row of each key"
        )
    return frame


def arrow_columns(frame: pl.DataFrame) -> pa.Table:
    """The columns of a frame, with the types that other writers give them: narrow strings and lists."""
    table = frame.to_arrow()
    kinds = [pa.field(field.name, plain(field.type)) for field in table.schema]
    return table.cast(pa.schema(kinds))


def refuse_kind(field: pa.Field) -> None:
    """Raise TableArgumentError for a type that a column file does not hold."""
    kind = field.type.value_type if is_list(field.type) else field.type
    if pat.is_nested(kind) or pat.is_null(kind) or pat.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
        raise TableArgumentError(
            f"column {field.name!r} has a type that column files do not hold: got {field.type}, expected a number, "
            "string, boolean, time, or a list of these. Add its parts as columns of their own"
        )
