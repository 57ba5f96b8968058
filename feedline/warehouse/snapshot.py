"""What a table is, frozen: its files, row groups, rows, bytes and statistics, at one moment.

Taken once per job (`take_snapshot`: one listing, every footer once, in threads) and saved under `work_dir`; all other
processes, and every resume, load it by its id and never list the table.

The id is the sha256 of what decides the table's bytes: the schema, and for each file its path below the root, size,
modification time, footer digest and rows per row group. Partition values follow from the paths, statistics from the
footers. The root itself is left out: the same files mounted elsewhere are the same snapshot.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.errors import CorruptFileError, TableError, TableNotFoundError
from feedline.warehouse import store
from feedline.warehouse.discovery import Listing, discover
from feedline.warehouse.footers import FileFacts, file_facts
from feedline.warehouse.locations import join, locate, shown
from feedline.warehouse.retrying import interruptible
from feedline.warehouse.schemas import union
from feedline.warehouse.tallies import Tally

_VERSION = 1
_ID = re.compile(r"[0-9a-f]{64}")
_THREADS = 16  # footers in flight: hides an object store's latency, and more would only queue for the GIL


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """A frozen table.

    `uri`: the root. `schema`: the files' columns, then the partition columns. `files`: path (below the root), bytes,
    mtime_ns, footer_digest (binary), footer_bytes, rows, row_groups and, where the table has partition keys, the
    struct `partition`. `row_groups`: file, row_group (within the file), rows, bytes, and the struct `columns` with
    bytes, nulls (-1: unknown) and, where kept, min and max of every column (see `tallies.Tally.table`).
    `ignored`: files left out of the table because of their suffix.
    """

    id: str
    uri: str
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    files: pa.Table
    row_groups: pa.Table
    ignored: int = 0

    @property
    def rows(self) -> int:
        """Rows of the whole table."""
        return int(self.rows_per_row_group.sum())

    @property
    def rows_per_row_group(self) -> npt.NDArray[np.int64]:
        """int64 [row groups]: rows stored."""
        rows: npt.NDArray[np.int64] = _array(self.row_groups, "rows").to_numpy()
        return rows

    @property
    def file_of_row_group(self) -> npt.NDArray[np.int32]:
        """int32 [row groups]: index of the file each one lies in."""
        file: npt.NDArray[np.int32] = _array(self.row_groups, "file").to_numpy()
        return file

    @property
    def row_group_in_file(self) -> npt.NDArray[np.int32]:
        """int32 [row groups]: index of each one within its file."""
        place: npt.NDArray[np.int32] = _array(self.row_groups, "row_group").to_numpy()
        return place

    @property
    def file_columns(self) -> tuple[str, ...]:
        """The columns that are stored in files."""
        return tuple(self.schema.names[: len(self.schema.names) - len(self.partition_columns)])

    def partition_of(self, file: int) -> tuple[tuple[str, object], ...]:
        """A file's partition keys and their typed values."""
        if not self.partition_columns:
            return ()
        values = _array(self.files, "partition")[file].as_py()
        return tuple((name, values[name]) for name in self.partition_columns)

    def column_facts(self, name: str) -> pa.StructArray:
        """A file column's bytes, nulls, min and max, one per row group."""
        return _array(self.row_groups, "columns").field(name)

    def save(self, work_dir: str) -> str:
        """Write the snapshot below `work_dir`, where any host can `load` it by the id that is returned."""
        facts = {
            b"version": str(_VERSION).encode(),
            b"uri": self.uri.encode(),
            b"partition_columns": json.dumps(self.partition_columns).encode(),
            b"ignored": str(self.ignored).encode(),
        }
        head = self.schema.with_metadata(facts).empty_table()
        store.create(work_dir, _name(self.id), [head, self.files, self.row_groups])
        return self.id

    @classmethod
    def load(cls, work_dir: str, id: str) -> Snapshot:
        """The snapshot of that id.

        Raises TableNotFoundError where `work_dir` has none, CorruptFileError where its file is damaged.
        """
        try:
            head, files, row_groups = store.load(work_dir, _name(id), tables=3)
        except FileNotFoundError:
            raise TableNotFoundError(
                f"snapshot {id} is not in {shown(work_dir)}: expected the file {_name(id)}. "
                "Name the work_dir of the job that took it"
            ) from None
        facts = head.schema.metadata
        snapshot = cls(
            id=id,
            uri=facts[b"uri"].decode(),
            schema=head.schema.remove_metadata(),
            partition_columns=tuple(json.loads(facts[b"partition_columns"])),
            files=files.combine_chunks(),
            row_groups=row_groups.combine_chunks(),
            ignored=int(facts[b"ignored"]),
        )
        found = _identity(snapshot.schema, snapshot.files, snapshot.row_groups)
        if found != id:
            raise CorruptFileError(f"snapshot {id} holds another snapshot: got {found}. Delete its file")
        return snapshot


def take_snapshot(table: str | Sequence[str]) -> Snapshot:
    """List a table and read every footer.

    Raises TableNotFoundError, CorruptFileError (naming the file), or TableError for files that contradict each other.
    Warns where a partition key is also a column in the files: the key of the path wins.
    """
    listing = discover(table)
    tally = Tally()
    digests: list[bytes] = []
    footer_bytes: list[int] = []
    schemas: list[tuple[str, pa.Schema]] = []
    for name, facts in _footers(listing):
        tally.add(facts)
        digests.append(facts.digest)
        footer_bytes.append(facts.footer_bytes)
        if all(facts.schema != known for _, known in reversed(schemas)):
            schemas.append((name, facts.schema))
    file_schema = _without_keys(union(schemas), listing)
    row_groups = tally.table(file_schema)
    files = listing.files
    added = {
        "footer_digest": pa.array(digests, pa.binary(32)),
        "footer_bytes": pa.array(footer_bytes, pa.int64()),
        "rows": pa.array(tally.rows_per_file, pa.int64()),
        "row_groups": pa.array(tally.row_groups_per_file, pa.int32()),
    }
    if listing.partition:
        added["partition"] = pa.StructArray.from_arrays(list(listing.partition.values()), names=list(listing.partition))
    for column, array in added.items():
        files = files.append_column(column, array)
    schema = pa.schema([*file_schema, *(pa.field(name, array.type) for name, array in listing.partition.items())])
    return Snapshot(
        id=_identity(schema, files, row_groups),
        uri=listing.uri,
        schema=schema,
        partition_columns=tuple(listing.partition),
        files=files,
        row_groups=row_groups,
        ignored=listing.ignored,
    )


def _footers(listing: Listing) -> Iterator[tuple[str, FileFacts]]:
    location = locate(listing.uri)
    paths = listing.files["path"].to_pylist()
    names = [join(shown(listing.uri), path) for path in paths]

    def facts(path: str, size: int, name: str) -> FileFacts:
        return file_facts(location.filesystem, join(location.path, path), size, name)

    with interruptible(_THREADS, "feedline-footers") as pool:
        yield from zip(names, pool.map(facts, paths, listing.files["bytes"].to_pylist(), names), strict=True)


def _without_keys(schema: pa.Schema, listing: Listing) -> pa.Schema:
    both = [name for name in schema.names if name in listing.partition]
    if both:
        warnings.warn(
            f"{shown(listing.uri)} has {', '.join(both)} both as partition key and as a column in its files: "
            "the partition key is used",
            UserWarning,
            stacklevel=3,
        )
    kept = [field for field in schema if field.name not in listing.partition]
    if not kept:
        raise TableError(f"{shown(listing.uri)} has no column in its files: expected at least one besides its keys")
    return pa.schema(kept)


def _identity(schema: pa.Schema, files: pa.Table, row_groups: pa.Table) -> str:
    columns = [[field.name, str(field.type), field.nullable] for field in schema]
    digest = hashlib.sha256(json.dumps([_VERSION, columns, files["path"].to_pylist()]).encode())
    for table, name in ((files, "bytes"), (files, "mtime_ns"), (files, "row_groups"), (row_groups, "rows")):
        digest.update(_array(table, name).to_numpy().astype("<i8").tobytes())
    digest.update(b"".join(files["footer_digest"].to_pylist()))
    return digest.hexdigest()


def _array(table: pa.Table, name: str) -> pa.Array:
    """A column as one array; without a copy where it is one chunk, as it is in every snapshot."""
    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _name(id: str) -> str:
    if not _ID.fullmatch(id):
        raise TableError(f"snapshot id is not one: got {id[:80]!r}, expected 64 hexadecimal digits")
    return f"snapshots/{id}.arrow"
