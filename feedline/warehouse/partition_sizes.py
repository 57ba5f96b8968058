"""Does a partition of a Dask DataFrame fit into a worker's memory? An estimate, made before anything is read.

Runs where a frame is made. Columns of fixed width take what their type says; of the others only the compressed bytes
are known, and decoded they are taken to be four times that, besides their offsets. The share of a worker is its memory
divided by its threads, as each thread holds a partition: that of the current default client's smallest worker, else of
this machine by its cores.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.resources import available_cores, available_memory_bytes
from feedline.warehouse.reading.columns import part_bytes
from feedline.warehouse.reading.fragment import field_of
from feedline.warehouse.selection.select import Selection
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.splits import plan_splits

_DECODED = 4  # bytes per compressed byte of strings and lists: between 2 (random ids) and 10 (dictionaries) in practice
_OFFSET_BYTES = 8

Int64s = npt.NDArray[np.int64]


def warn_of_large_partitions(
    snapshot: Snapshot, selection: Selection, columns: Sequence[str], split_rows: int, schema: pa.Schema
) -> None:
    """Warn where the largest partition is larger than a worker's share of memory; `schema` has all of `columns`."""
    largest = int(partition_bytes(snapshot, selection, columns, split_rows, schema).max(initial=0))
    share, whose = memory_share()
    if largest > share:
        warnings.warn(
            f"the largest partition takes about {largest:,} bytes: expected at most {share:,}, the share of a thread "
            f"of {whose}. Name fewer columns or a smaller split_rows; a row group is the least: where those are large, "
            "rewrite the table with smaller ones",
            UserWarning,
            stacklevel=4,
        )


def partition_bytes(
    snapshot: Snapshot, selection: Selection, columns: Sequence[str], split_rows: int, schema: pa.Schema | None = None
) -> Int64s:
    """int64 [partitions]: decoded bytes of the rows that are, or may be, kept; see the module for how it is guessed."""
    stored = snapshot.rows_per_row_group
    schema = snapshot.schema if schema is None else schema
    kept = np.where(selection.rows < 0, stored, selection.rows)
    splits = plan_splits(kept, snapshot.file_of_row_group, split_rows)
    fixed, guessed = 0.0, np.zeros(len(stored))
    for name in columns:
        width = _width(field_of(schema, name).type)
        fixed += _OFFSET_BYTES if width is None else width
        if width is None:
            guessed += _DECODED * part_bytes(snapshot, [name])
    decoded = kept * fixed + guessed * kept / np.maximum(stored, 1)
    ends = np.concatenate(([0.0], np.cumsum(decoded)))
    sizes: Int64s = (ends[splits.stop_row_group] - ends[splits.first_row_group]).astype(np.int64)
    return sizes


def memory_share() -> tuple[int, str]:
    """Bytes that one thread of a worker may use, and whose they are."""
    distributed = sys.modules.get("distributed")  # a client there can only be where it is loaded already
    if distributed is not None:
        try:
            workers = distributed.default_client().scheduler_info(n_workers=-1)["workers"].values()
        except ValueError:
            workers = ()
        shares = [int(worker["memory_limit"]) // worker["nthreads"] for worker in workers if worker["memory_limit"]]
        if shares:
            return min(shares), "the Dask cluster's smallest worker"
    return available_memory_bytes() // available_cores(), "this machine"


def _width(kind: pa.DataType) -> float | None:
    """Bytes of a value; None for types whose values differ in length."""
    try:
        return max(1.0, int(kind.bit_width) / 8)
    except ValueError:
        return None
