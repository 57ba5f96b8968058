"""What does a table take on disk, and what does reading some of its columns fetch? Counted from footers.

Runs where a report is made (`footprint`) and in its tasks (`measure_files`). Requests are those that Feedline would
make of an object store for a projection, row group by row group (`fetching`): neighbouring column chunks are one
request over the hole between them. The bytes fetched are those of the requests, holes included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from feedline.warehouse.fetching import chunk_ranges, coalesced
from feedline.warehouse.footers import column_leaves
from feedline.warehouse.reading import Fragment
from feedline.warehouse.snapshot import Snapshot
from feedline.warehouse.survey import footer_of, whole_file

Map = Callable[[Callable[[Any], Any], list[Any]], Iterable[Any]]

_TASK_FILES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """What reading the projected columns of the whole table fetches: their chunks' bytes, requests, bytes of those."""

    bytes: int
    requests: int
    requested_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """A table: files and their bytes, row groups, rows, bytes of column chunks before and after compression."""

    files: int
    bytes: int
    row_groups: int
    rows: int
    uncompressed_bytes: int
    compressed_bytes: int
    projection: Projected

    @property
    def ratio(self) -> float:
        """Uncompressed over compressed."""
        return self.uncompressed_bytes / self.compressed_bytes if self.compressed_bytes else 1.0

    @property
    def requests_per_row_group(self) -> float:
        """Of the projection."""
        return self.projection.requests / self.row_groups if self.row_groups else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FootprintTask:
    """Files to look at, and the columns of the projection."""

    fragments: tuple[Fragment, ...]
    columns: tuple[str, ...]


def footprint(snapshot: Snapshot, projection: Sequence[str], *, map: Map) -> Footprint:
    """Measure a table; columns of the projection that are partition keys, or not there, cost nothing."""
    fragments = [whole_file(snapshot, file) for file in range(len(snapshot.files))]
    parts = [tuple(fragments[start : start + _TASK_FILES]) for start in range(0, len(fragments), _TASK_FILES)]
    tasks = [FootprintTask(fragments=part, columns=tuple(projection)) for part in parts]
    uncompressed, compressed, chunk_bytes, requests, requested = (
        sum(column) for column in zip(*map(measure_files, tasks), strict=True)
    )
    return Footprint(
        files=len(fragments),
        bytes=sum(fragment.bytes for fragment in fragments),
        row_groups=len(snapshot.row_groups),
        rows=snapshot.rows,
        uncompressed_bytes=uncompressed,
        compressed_bytes=compressed,
        projection=Projected(bytes=chunk_bytes, requests=requests, requested_bytes=requested),
    )


def measure_files(task: FootprintTask) -> tuple[int, int, int, int, int]:
    """Run one task: uncompressed and compressed bytes; of the projection chunk bytes, requests, requested bytes."""
    totals = [0, 0, 0, 0, 0]
    for fragment in task.fragments:
        metadata, schema = footer_of(fragment)
        places = dict(zip(schema.names, column_leaves(schema, metadata.num_columns, fragment.uri), strict=True))
        leaves = [leaf for name in task.columns for leaf in places.get(name, ())]
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            chunks = [group.column(leaf) for leaf in range(group.num_columns)]
            found = coalesced(chunk_ranges(metadata, index, leaves, fragment.bytes))
            totals[0] += sum(chunk.total_uncompressed_size for chunk in chunks)
            totals[1] += sum(chunk.total_compressed_size for chunk in chunks)
            totals[2] += sum(chunks[leaf].total_compressed_size for leaf in leaves)
            totals[3] += len(found)
            totals[4] += sum(stop - start for start, stop in found)
    first, second, third, fourth, fifth = totals
    return first, second, third, fourth, fifth
