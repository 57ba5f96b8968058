"""Read the rows of one row group that a plan selects, in another way than blocks do, so that a fault of theirs shows.

Runs in: the CLI (`plan --step`). pyarrow reads the row group at once, and the conditions of filter and sample
are evaluated for each of its rows. Only what the file does not store in the table's type (partition keys, parts of maps
and structs, columns of older types) comes from the reader of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.errors import DataError
from feedline.planning.source_plan import SourcePlan
from feedline.warehouse.parquet.dedup_columns import METADATA_KEY, DedupMetadata, flag_column
from feedline.warehouse.reading.fragment import Fragment, fragment_at
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.reading.row_filter import RowFilter
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT
from feedline.warehouse.reading.seen_rows import Mark
from feedline.warehouse.storage.faults import explain_errors, label
from feedline.warehouse.storage.locations import join, locate


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRows:
    """The rows of a row group that filter and sample keep, without excluded ones. rows: int64, their indices in the row
    group."""

    rows: NDArray[np.int64]
    frame: pl.DataFrame


def read_kept_rows(plan: SourcePlan, group: int, columns: Sequence[str], marks: Sequence[Mark] = ()) -> KeptRows:
    """The selected rows of a row group (an index in the snapshot) in some columns, and the columns of `marks`. Raises
    DataError where they are not as many as the plan counted, and the errors of reading."""
    snapshot, selection = plan.snapshot, plan.selection
    file, rows = int(snapshot.file_of_row_group[group]), snapshot.rows_per_row_group
    fragment = fragment_at(snapshot, file, np.array([group]), rows[[group]])
    weigh = SAMPLE_WEIGHT in columns and plan.sample is not None
    conditions = RowFilter(where=plan.where, sample=plan.sample, weigh=weigh)
    stored = [name for name in columns if not (weigh and name == SAMPLE_WEIGHT)]
    names = list(dict.fromkeys([*stored, *sorted(conditions.parts)]))
    frame = _read_row_group(plan, fragment, names, marks)
    stays = np.ones(frame.height, np.bool_)
    if not conditions.idle:
        first_row = int(rows[int(snapshot.row_groups_of(file)[0]) : group].sum())
        result = conditions.apply(_record_batch(frame, names), fragment.path, first_row)
        stays = stays if result.stays is None else result.stays
        if weigh:
            frame = frame.with_columns(pl.Series(SAMPLE_WEIGHT, result.weights))
    kept, excluded = np.flatnonzero(stays), selection.excluded_mask(group)
    if len(kept) != len(excluded):
        raise DataError(
            f"the filter keeps another number of rows of {label(fragment.uri, fragment.row_groups[0])} than was "
            f"counted: got {len(kept)}, expected {len(excluded)}. Delete the counts in work_dir and run again"
        )
    kept = kept[~excluded]
    selected = np.zeros(frame.height, np.bool_)
    selected[kept] = True
    return KeptRows(
        rows=kept, frame=frame.select([*columns, *(mark.name for mark in marks)]).filter(pl.Series(selected))
    )


def _read_row_group(plan: SourcePlan, fragment: Fragment, names: Sequence[str], marks: Sequence[Mark]) -> pl.DataFrame:
    """All rows of a row group: columns that the file stores in the table's type by pyarrow alone, others by blocks'
    reader."""
    location, schema = locate(fragment.table), plan.snapshot.schema
    with (
        explain_errors(fragment.uri, row_group=fragment.row_groups[0], listed=True),
        pq.ParquetFile(join(location.path, fragment.path), filesystem=location.filesystem) as file,
    ):
        plain = [name for name in names if _stored_as(schema, file.schema_arrow, name)]
        plain = plain if fragment.stored_names is None else []
        direct = _read_expanded(file, fragment.row_groups[0], plain) if plain else None
        if fragment.exploded is not None:
            lists = [name for name in fragment.exploded.names if name in file.schema_arrow.names]
            same = [name for name in lists if file.schema_arrow.field(name).type == plan.snapshot.stored_type(name)]
            plain = [name for name in names if name in plain or name in same]
            stored = list(dict.fromkeys([*plain, *lists]))
            direct = _explode(_read_expanded(file, fragment.row_groups[0], stored), lists).select(plain)
            direct = direct if plain else None
    others = [name for name in names if name not in plain]
    if direct is not None and not others and not marks:
        return _frame(direct).select(names)
    chunks = read_fragment(fragment, ReadRequest(others or names, schema, marks=marks))
    frame = pl.concat([chunk.frame for chunk in chunks])
    return frame if direct is None else frame.with_columns(_frame(direct))


def _read_expanded(file: pq.ParquetFile, row_group: int, names: Sequence[str]) -> pa.Table:
    """Columns of a row group in all its rows: where they are stored once per run, the rows that repeat get the value of
    the run's start."""
    content = (file.metadata.metadata or {}).get(METADATA_KEY)
    groups = DedupMetadata.from_json(content, "the file").groups if content else {}
    flag_of = {column: flag_column(name) for name, group in groups.items() for column in group.columns}
    flags = dict.fromkeys(flag_of[name] for name in names if name in flag_of)
    table = file.read_row_group(row_group, columns=[*names, *flags], use_threads=False)
    for flag in flags:
        starts = table[flag].to_numpy()
        above = pa.array(np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0)))
        for name in [name for name in names if flag_of.get(name) == flag]:
            table = table.set_column(table.schema.get_field_index(name), name, table[name].take(above))
    return table.select(names)


def _explode(table: pa.Table, lists: Sequence[str]) -> pa.Table:
    """A row of each element of these lists, by Polars; none of an empty or null one."""
    frame = _frame(table)
    return frame.filter(pl.col(lists[0]).list.len() > 0).explode(lists).to_arrow() if lists else table.slice(0, 0)


def _stored_as(table: pa.Schema, file: pa.Schema, name: str) -> bool:
    """Whether a file stores a column under this name in the table's type. A dot may also separate a struct's field."""
    places = table.get_field_index(name), file.get_field_index(name)
    return "." not in name and min(places) >= 0 and table.field(places[0]).type == file.field(places[1]).type


def _frame(table: pa.Table) -> pl.DataFrame:
    frame: pl.DataFrame = pl.from_arrow(table)  # type: ignore[assignment]
    return frame


def _record_batch(frame: pl.DataFrame, names: Sequence[str]) -> pa.RecordBatch:
    table = frame.select(names).rechunk().to_arrow()
    [batch] = table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    return batch
