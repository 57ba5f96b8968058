"""Is a column in every file that may be read? What `source.schema: {missing: error}` asks before a plan is made.

Pure; runs where a plan is made. Files that the partition keys alone rule out are not asked: nobody reads them.
Row-group statistics rule out no file here, as one without the filter's own column would be ruled out by its absence.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce

import numpy as np

from feedline.expressions import BoundExpression
from feedline.projection import source_columns
from feedline.warehouse.pruning import prune
from feedline.warehouse.snapshot import Snapshot
from feedline.warehouse.statistics import statistics_of


def first_absence(
    snapshot: Snapshot, columns: Collection[str], where: BoundExpression | None
) -> tuple[str, str, int] | None:
    """The first of these columns that a file to be read lacks, that file's path, and how many files lack it.

    A part of a column is lacking where a file has neither the column nor, for a key of a map, the key's own.
    """
    asked = np.ones(len(snapshot.files), np.bool_)
    keys = set() if where is None else where.columns.intersection(snapshot.partition_columns)
    if where is not None and keys:
        pruned = prune(where.predicate, statistics_of(snapshot, keys)).by_partition
        asked[:] = False
        asked[snapshot.file_of_row_group[~pruned]] = True
    for name in sorted(columns):
        if name in snapshot.partition_columns:
            continue
        places = source_columns(snapshot.schema, [name])
        lacking = reduce(np.intersect1d, [snapshot.files_without(place) for place in places])
        lacking = lacking[asked[lacking]]
        if len(lacking):
            return name, str(snapshot.files["path"][int(lacking[0])].as_py()), len(lacking)
    return None
