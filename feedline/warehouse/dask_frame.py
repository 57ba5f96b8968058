"""A table as a Dask DataFrame: Arrow-typed columns, one partition per split, divisions unknown.

The graph is built in the caller's process; `FrameReader` runs in the worker that holds the partition. Dask passes the
columns that a computation needs as the reader's argument `columns`, so a projection reaches the Parquet file. `where`
is a field of the reader, as Dask does not push filters into `from_map`. A partition is at least one row group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.expressions.column_parts import source_columns
from feedline.warehouse.reading.fragment import Fragment, field_of
from feedline.warehouse.reading.read import ReadRequest, read_arrow
from feedline.warehouse.reading.sample import Sample, with_weight
from feedline.warehouse.selection.select import SPLIT_ROWS, Selection, bind_once, plan_fragments
from feedline.warehouse.snapshot.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class FrameReader:
    """Reads one fragment as a pandas frame of Arrow dtypes: small, stateless and picklable.

    `schema`: the table's columns that this frame, its filter and its sample need. `columns`: the frame's columns and
    column parts.
    """

    schema: pa.Schema
    columns: tuple[str, ...]
    where: str | None
    sample: Sample | None = None

    def __call__(self, fragment: Fragment, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The selected rows of a fragment; `columns`: Dask's projection, if any."""
        names = list(self.columns if columns is None else columns)
        where, sample = bind_once(self.where, self.sample, self.schema)
        # a projection to no column at all (len) still needs the rows: read one column and drop it
        table = read_arrow(fragment, ReadRequest(names or self.columns[:1], self.schema, where, sample=sample))
        return _pandas(table)[names]


def to_dask(
    snapshot: Snapshot,
    selection: Selection,
    columns: Sequence[str] | None,
    *,
    split_rows: int = SPLIT_ROWS,
) -> Any:
    """The selected rows as a `dask.dataframe.DataFrame`.

    `columns`: columns and column parts, in order (None: all columns, partition keys last). Row groups that were not
    counted are read and filtered, and split by the rows they store.
    """
    where, sample = selection.where, selection.sample
    whole = snapshot.schema if sample is None else with_weight(snapshot.schema, columns)
    names = tuple(snapshot.schema.names if columns is None else columns)
    meta = _pandas(pa.schema([field_of(whole, name) for name in names]).empty_table())
    conditions = [*(where.columns if where else ()), *(sample.columns if sample else ())]
    needed = source_columns(whole, [*names, *sorted(conditions)])
    schema = pa.schema([field_of(whole, name) for name in needed])
    reader = FrameReader(schema, names, where.text if where else None, sample.sample if sample else None)
    fragments = plan_fragments(snapshot, selection, split_rows)
    with dask.config.set({"dataframe.convert-string": False}):
        if not fragments:
            return dd.from_pandas(meta, npartitions=1)
        return dd.from_map(reader, fragments, meta=meta, label="feedline", enforce_metadata=False)


def _pandas(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype, ignore_metadata=True)
    return frame
