"""Measure from footers the bytes of a table on disk and the bytes fetched to read some of its columns.

Runs where a report is made (`footprint`) and in its tasks (`measure_files`). Requests are those that Feedline would
send to an object store for a projection, row group by row group (`storage/ranges`): neighbouring column chunks are one
request that spans the hole between them. The bytes fetched include these holes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial

from feedline.dataclass import dataclass
from feedline.progress import track
from feedline.warehouse.optimize.survey import file_fragment, footer_of
from feedline.warehouse.parquet.dedup_columns import METADATA_KEY, DedupMetadata, flag_column
from feedline.warehouse.parquet.footer import chunk_ranges, column_leaves
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import Map
from feedline.warehouse.storage.ranges import coalesce

Notes = Mapping[bytes, bytes]

_TASK_FILES = 64
_OF_LEVELS = {"RLE", "BIT_PACKED"}
_CODECS = {"UNCOMPRESSED": "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionCost:
    """Reading the projected columns of the whole table: bytes of their chunks, requests, bytes of the requests."""

    bytes: int
    requests: int
    requested_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The size of a table: files, their bytes, row groups, rows, bytes of column chunks before and after compression.

    `column_bytes`: compressed bytes by column. `column_encodings`: encodings and codecs of a column, of all leaves and
    row groups: `dictionary zstd`. `groups`, `runs`: by group, the columns that some file stores once per run, and their
    runs. `notes`: the key-value metadata that all files have in common.
    """

    files: int
    bytes: int
    row_groups: int
    rows: int
    uncompressed_bytes: int
    compressed_bytes: int
    projection: ProjectionCost
    column_bytes: Mapping[str, int] = field(default_factory=dict)
    column_encodings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    notes: Notes = field(default_factory=dict, repr=False)

    @property
    def ratio(self) -> float:
        return self.uncompressed_bytes / self.compressed_bytes if self.compressed_bytes else 1.0

    @property
    def requests_per_row_group(self) -> float:
        """Mean requests per row group for the projection."""
        return self.projection.requests / self.row_groups if self.row_groups else 0.0


@dataclass(slots=True)
class FootprintSums:
    """Sums over some files. `sizes`: bytes `uncompressed`; of the projection `projected` bytes of chunks, `requests`,
    `requested` bytes."""

    sizes: Counter[str] = field(default_factory=Counter)
    columns: Counter[str] = field(default_factory=Counter)
    encodings: defaultdict[str, set[tuple[str, ...]]] = field(default_factory=lambda: defaultdict(set))
    groups: defaultdict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    runs: Counter[str] = field(default_factory=Counter)
    notes: dict[bytes, bytes] | None = None

    def add(self, other: FootprintSums) -> None:
        self.sizes.update(other.sizes)
        self.columns.update(other.columns)
        self.runs.update(other.runs)
        for name, members in other.groups.items():
            self.groups[name] |= members
        for name, encodings in other.encodings.items():
            self.encodings[name] |= encodings
        self.agree(other.notes)

    def agree(self, notes: Mapping[bytes, bytes] | None) -> None:
        """Keep only the notes that other files share."""
        if notes is not None:
            common = notes if self.notes is None else self.notes
            self.notes = {key: value for key, value in common.items() if notes.get(key) == value}


def footprint(snapshot: Snapshot, projection: Sequence[str], *, map: Map) -> Footprint:
    """Measure a table; in the projection, partition keys and missing columns cost nothing.

    A projected column that is stored once per run is read with its flags.
    """
    fragments = [file_fragment(snapshot, file) for file in range(len(snapshot.files))]
    parts = [tuple(fragments[start : start + _TASK_FILES]) for start in range(0, len(fragments), _TASK_FILES)]
    total, measure = FootprintSums(), partial(measure_files, columns=tuple(projection))
    for measured in track(map(measure, parts), "measuring files", [len(part) for part in parts], "files"):
        total.add(measured)
    return Footprint(
        files=len(fragments),
        bytes=sum(fragment.bytes for fragment in fragments),
        row_groups=len(snapshot.row_groups),
        rows=snapshot.rows,
        uncompressed_bytes=total.sizes["uncompressed"],
        compressed_bytes=total.columns.total(),
        projection=ProjectionCost(
            bytes=total.sizes["projected"],
            requests=total.sizes["requests"],
            requested_bytes=total.sizes["requested"],
        ),
        column_bytes=dict(total.columns),
        column_encodings={name: _encodings(found) for name, found in total.encodings.items()},
        groups={name: tuple(members) for name, members in total.groups.items()},
        runs=dict(total.runs),
        notes=total.notes or {},
    )


def measure_files(fragments: Sequence[Fragment], *, columns: Sequence[str]) -> FootprintSums:
    """Measure some files, with the columns of the projection."""
    total = FootprintSums()
    for fragment in fragments:
        metadata, schema = footer_of(fragment)
        total.agree(metadata.metadata or {})
        leaves_of = dict(zip(schema.names, column_leaves(schema, metadata.num_columns, fragment.uri), strict=True))
        projected = dict.fromkeys(columns)
        if content := (metadata.metadata or {}).get(METADATA_KEY):
            for name, group in DedupMetadata.from_json(content, fragment.uri).groups.items():
                total.groups[name] |= dict.fromkeys(group.columns)
                total.runs[name] += sum(one.runs for one in group.row_groups)
                projected |= {flag_column(name): None} if projected.keys() & set(group.columns) else {}
        leaves = [leaf for name in projected for leaf in leaves_of.get(name, ())]
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            chunks = [group.column(leaf) for leaf in range(group.num_columns)]
            requests = coalesce(chunk_ranges(metadata, index, leaves, fragment.bytes))
            total.sizes["uncompressed"] += sum(chunk.total_uncompressed_size for chunk in chunks)
            total.sizes["projected"] += sum(chunks[leaf].total_compressed_size for leaf in leaves)
            total.sizes["requests"] += len(requests)
            total.sizes["requested"] += sum(stop - start for start, stop in requests)
            for name, column in leaves_of.items():
                total.columns[name] += sum(chunks[leaf].total_compressed_size for leaf in column)
                total.encodings[name].update((chunks[leaf].compression, *chunks[leaf].encodings) for leaf in column)
    return total


def _encodings(chunks: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Name codecs and encodings of chunks as `optimize` does, ignoring the encodings of levels."""
    names = set()
    for codec, *encodings in chunks:
        data = sorted(set(encodings) - _OF_LEVELS) or ["RLE"]
        name = "dictionary" if any("DICTIONARY" in one for one in data) else " ".join(data).lower()
        names.add(f"{name} {_CODECS.get(codec, codec.lower())}")
    return tuple(sorted(names))
