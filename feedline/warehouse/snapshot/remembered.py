"""Which files does an earlier snapshot already know, and what it knows of them, in the order of a new listing?

Pure; runs where a snapshot is taken. A file is the one it was if path, size, time and, where the store shows one, etag
are the same. No loop is over files: a table may have hundreds of thousands of them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.snapshot.assembly import SnapshotPart

_CLOCK_GRAIN_NS = 2 * 10**9  # of the coarsest file systems in use


def unchanged(listing: Listing, last: SnapshotPart, *, kept: set[str], taken_ns: int) -> npt.NDArray[np.int64]:
    """For each file listed, the file of an earlier snapshot that it still is; -1 where it has to be read.

    `last`: that snapshot, whose files have path, bytes, mtime_ns and maybe etag besides; it was taken at `taken_ns`. A
    file without a time and an etag cannot be told from its successor, and neither can one that was younger than the
    clock's grain when it was read. Nor is a file taken over that has a column other than `kept`: its facts are lost.
    Of a table whose log says its columns only those matter, not what files still hold of dropped ones.
    """
    files = listing.files
    found = pc.index_in(files["path"], value_set=last.files["path"])
    place = _array(found.fill_null(-1)).to_numpy().astype(np.int64)
    same = place >= 0
    for name in ("bytes", "mtime_ns"):
        same &= _array(files[name]).to_numpy() == _array(last.files[name]).to_numpy()[place]
    if "etag" in files.schema.names and "etag" in last.files.schema.names:
        tags = _array(files["etag"]), _array(last.files["etag"]).take(pa.array(np.maximum(place, 0)))
        same &= pc.fill_null(pc.equal(*tags), False).to_numpy(zero_copy_only=False)
    else:
        mtime_ns = _array(files["mtime_ns"]).to_numpy()
        same &= (mtime_ns >= 0) & (mtime_ns + _CLOCK_GRAIN_NS < taken_ns)
    whole = np.array([kept.issuperset(_wanted(schema, listing.schema)) for schema in last.schemas], np.bool_)
    same &= whole[_array(last.files["schema"]).to_numpy()[place]]
    return np.where(same, place, -1)


def _wanted(file: pa.Schema, declared: pa.Schema | None) -> Iterable[str]:
    return file.names if declared is None else set(file.names).intersection(declared.names)


def taken_over(last: SnapshotPart, old: npt.NDArray[np.int64]) -> SnapshotPart:
    """What is known of the files that are unchanged (`old`: see `unchanged`), by their places in the new listing."""
    kept = np.flatnonzero(old >= 0)
    place = np.full(len(last.files), -1, np.int64)
    place[old[kept]] = kept
    mine = np.flatnonzero(place >= 0)
    groups = np.flatnonzero(place[_array(last.row_groups["file"]).to_numpy()] >= 0)
    names = ["footer_digest", "footer_bytes", "rows", "row_groups", "schema"]
    files = last.files.select(names).take(pa.array(mine)).add_column(0, "file", pa.array(place[mine]))
    row_groups = last.row_groups.select(["rows", "bytes"]).take(pa.array(groups))
    return SnapshotPart(files=files, schemas=last.schemas, row_groups=row_groups, facts=last.facts.picked(groups))


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
