"""Count the impressions of every row group of a request table, for `source.explode`.

Runs where a plan is made; its tasks wherever `map` runs them, in waves (`waves`). Files that `feedline optimize --rows
request` wrote say it in their footers; of others the lists are read, and refused where their lengths differ. Counts are
kept in `work_dir/impressions`, named by snapshot and lists; of a table that grows, only new files are counted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import TableArgumentError, TableError
from feedline.warehouse.parquet.open_file import OpenFile
from feedline.warehouse.parquet.request_rows import common_lengths, impressions_of, refuse_no_lists
from feedline.warehouse.parquet.schemas import child_fields, is_list
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, fragment_at, nearest_hint
from feedline.warehouse.reading.read import ReadRequest, batches
from feedline.warehouse.selection.select import Int64s, carried_counts, same_types
from feedline.warehouse.selection.waves import Pass, measure_in_waves
from feedline.warehouse.snapshot.exploded_lists import exploded_view
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.content_store import KeptWaves
from feedline.warehouse.storage.faults import label
from feedline.warehouse.storage.locations import redact
from feedline.warehouse.storage.parallel import Map, in_threads

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpressionTask:
    """Row groups to count: a small picklable value. lists: the columns, in the files' types."""

    fragments: tuple[Fragment, ...]
    lists: pa.Schema


def exploded(snapshot: Snapshot, names: Sequence[str], *, work_dir: str, map: Map | None = None) -> Snapshot:
    """The snapshot whose rows are the elements of these lists, saved in work_dir.

    Raises TableArgumentError for columns that cannot be exploded, and what reading raises.
    """
    refuse_columns(snapshot.schema, snapshot.partition_columns, names)
    lists = pa.schema([snapshot.schema.field(name) for name in names])

    def fragment(groups: Int64s) -> Fragment:
        file = int(snapshot.file_of_row_group[groups[0]])
        return fragment_at(snapshot, file, groups, np.full(len(groups), UNCOUNTED))

    row_groups = np.flatnonzero(snapshot.rows_per_row_group)
    request = Pass(
        snapshot=snapshot,
        name=_counts_name(snapshot.id, names),
        columns=("impressions",),
        phase="counting impressions",
        fragment=fragment,
        task=ImpressionTask(fragments=(), lists=lists),
        run=count_impressions,
        work_dir=work_dir,
        map=map or in_threads,
    )

    def known(kept: KeptWaves) -> pa.Table:
        """The counts of files that the last snapshot of the table has."""
        before = _load_last(work_dir, snapshot, names)
        if before is None or not same_types(before, snapshot, names):
            return request.table()
        return carried_counts(request, before, request.load(kept, _counts_name(before.id, names), before), row_groups)

    counts, was_kept = measure_in_waves(request, row_groups, known)
    impressions = np.zeros(len(snapshot.rows_per_row_group), np.int64)
    impressions[row_groups] = counts[:, 0]
    if not was_kept:
        snapshot.save(work_dir)
        content_store.create(work_dir, _last_name(snapshot.uri, names), [pa.table({"snapshot": [snapshot.id]})])
    view = exploded_view(snapshot, names, impressions)
    view.save(work_dir)
    return view


def refuse_columns(schema: pa.Schema, keys: Sequence[str], names: Sequence[str]) -> None:
    """Raise TableArgumentError for columns of a table that cannot be exploded. keys: of its partitions."""
    for name in names:
        if name not in schema.names:
            raise TableArgumentError(f"column {name!r} is not in the table. {nearest_hint(name, schema.names)}")
        kind = schema.field(name).type
        if name in keys:
            raise TableArgumentError(f"column {name!r} is a partition key, expected a list. Leave it out")
        if (reason := refuse_no_lists(schema, [name])) is not None:
            raise TableArgumentError(f"{reason}. Leave it out")
        if child_fields(kind.value_type) and not is_list(kind.value_type):
            raise TableArgumentError(
                f"column {name!r} holds lists of {kind.value_type}, expected lists of scalars or of lists. Store each "
                "field as a list of its own"
            )


def count_impressions(task: ImpressionTask) -> Int64s:
    """Run one task: int64 [row groups of all fragments, 1]."""
    counted = [_counts_of(fragment, task.lists) for fragment in task.fragments]
    return np.concatenate(counted).reshape(-1, 1) if counted else np.zeros((0, 1), np.int64)


def _counts_of(fragment: Fragment, lists: pa.Schema) -> Int64s:
    with fragment.open() as file:
        stored = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        noted = impressions_of(file.metadata.metadata, lists.names, stored)
        flat = [field.name for field in lists if not is_list(field.type.value_type)]  # the footer has their lengths
        if noted is not None and not (flat and all(_holds(file, name, noted) for name in flat)):
            noted = None  # another tool has written the file anew, with its metadata
        present = [name for name in lists.names if name in file.stored]
    if noted is not None:
        return noted[list(fragment.row_groups)]
    counts = np.zeros(len(fragment.row_groups), np.int64)
    if present:
        requests = [0] * len(counts)
        for batch in batches(fragment, ReadRequest(present, lists), [0] * len(counts)):
            position, data = batch.position, batch.data
            place = label(fragment.uri, fragment.row_groups[position])
            columns = dict(zip(data.schema.names, data.columns, strict=True))
            counts[position] += int(common_lengths(columns, place, requests[position]).sum())
            requests[position] += data.num_rows
    return counts


def _holds(file: OpenFile, name: str, impressions: Int64s) -> bool:
    """Whether the row groups of a file have that many values of a column of lists, none of which is empty."""
    leaves = file.stored.get(name)
    if leaves is None:
        return False
    groups = range(file.metadata.num_row_groups)
    values = [file.metadata.row_group(group).column(leaves.start).num_values for group in groups]
    return bool(np.array_equal(values, impressions))


def _load_last(work_dir: str, snapshot: Snapshot, names: Sequence[str]) -> Snapshot | None:
    """The snapshot of the table whose impressions were counted last; None without one."""
    try:
        (entry,) = content_store.load(work_dir, _last_name(snapshot.uri, names), tables=1)
        return Snapshot.load(work_dir, entry["snapshot"][0].as_py())
    except (FileNotFoundError, TableError):
        return None


def _last_name(uri: str, names: Sequence[str]) -> str:
    content = json.dumps([_VERSION, redact(uri), list(names)])
    return f"impressions/{hashlib.sha256(content.encode()).hexdigest()}.last.arrow"


def _counts_name(id: str, names: Sequence[str]) -> str:
    content = json.dumps([_VERSION, id, list(names)])
    return f"impressions/{hashlib.sha256(content.encode()).hexdigest()}.arrow"
