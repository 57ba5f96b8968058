"""What a table is, frozen: its files, row groups, rows, bytes and statistics, at one moment.

Taken once per job (`take_snapshot`: one listing, every footer once, in threads) and saved under `work_dir`; all other
processes, and every resume, load it by its id and never list the table.

The id is the sha256 of what decides the table's bytes: the schema, and for each file its path below the root, size,
modification time, footer digest and rows per row group. Partition values follow from the paths, statistics from the
footers. The root itself is left out: the same files mounted elsewhere are the same snapshot.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from feedline.errors import CorruptFileError, TableError, TableNotFoundError
from feedline.warehouse import store
from feedline.warehouse.discovery import Listing, discover
from feedline.warehouse.footers import FileFacts, file_facts
from feedline.warehouse.locations import join, locate, shown
from feedline.warehouse.schemas import SchemaRules, union
from feedline.warehouse.tallies import Tally

OnBad: TypeAlias = Callable[[str, CorruptFileError], None]
Map: TypeAlias = Callable[[Callable[[Any], Any], list[Any]], Iterable[Any]]

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

    def without(self, paths: Collection[str]) -> Snapshot:
        """The table without some files (paths below the root); its schema stays as it is.

        Raises TableError where no file is left.
        """
        gone = pc.is_in(self.files["path"], value_set=pa.array(sorted(paths), pa.string())).to_numpy()
        kept = np.flatnonzero(~gone)
        if not len(kept):
            raise TableError(f"{shown(self.uri)} has no file left: got {len(gone)} to leave out of {len(gone)}")
        groups = np.flatnonzero(~gone[self.file_of_row_group])
        file = (np.cumsum(~gone) - 1).astype(np.int32)[self.file_of_row_group[groups]]
        files = self.files.take(pa.array(kept)).combine_chunks()
        row_groups = self.row_groups.take(pa.array(groups)).combine_chunks()
        row_groups = row_groups.set_column(0, "file", pa.array(file))
        id = _identity(self.schema, files, row_groups)
        return dataclasses.replace(self, id=id, files=files, row_groups=row_groups)

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


def take_snapshot(
    table: str | Sequence[str],
    *,
    rules: SchemaRules | None = None,
    on_bad: OnBad | None = None,
    work_dir: str | None = None,
    map: Map | None = None,
) -> Snapshot:
    """List a table and read every footer; see `snapshot_of`."""
    return snapshot_of(discover(table), rules=rules, on_bad=on_bad, work_dir=work_dir, map=map)


def snapshot_of(
    listing: Listing,
    *,
    rules: SchemaRules | None = None,
    on_bad: OnBad | None = None,
    work_dir: str | None = None,
    map: Map | None = None,
) -> Snapshot:
    """Read the footers of the files listed.

    `on_bad`: called with a file's path below the root and the error where its footer is corrupt; the file is left out.

    Raises TableNotFoundError, CorruptFileError (naming the file), or TableError for files that contradict each other.
    Warns where a partition key is also a column in the files: the key of the path wins.
    """
    tally = Tally()
    digests: list[bytes] = []
    footer_bytes: list[int] = []
    schemas: list[tuple[str, pa.Schema]] = []
    bad: list[int] = []
    for index, (name, facts) in enumerate(_footers(listing)):
        if isinstance(facts, CorruptFileError):
            if on_bad is None:
                raise facts
            on_bad(listing.files["path"][index].as_py(), facts)
            bad.append(index)
            continue
        tally.add(facts)
        digests.append(facts.digest)
        footer_bytes.append(facts.footer_bytes)
        if all(facts.schema != known for _, known in reversed(schemas)):
            schemas.append((name, facts.schema))
    if bad:
        listing = _left(listing, np.delete(np.arange(len(listing.files)), bad))
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


def _left(listing: Listing, places: npt.NDArray[np.int64]) -> Listing:
    kept = pa.array(places)
    if not len(kept):
        raise TableError(f"{shown(listing.uri)} has no good file: got a corrupt footer in each of {len(listing.files)}")
    partition = {name: column.take(kept) for name, column in listing.partition.items()}
    return dataclasses.replace(listing, files=listing.files.take(kept).combine_chunks(), partition=partition)


def _footers(listing: Listing) -> Iterator[tuple[str, FileFacts | CorruptFileError]]:
    location = locate(listing.uri)
    paths = listing.files["path"].to_pylist()
    names = [join(shown(listing.uri), path) for path in paths]

    def facts(path: str, size: int, name: str) -> FileFacts | CorruptFileError:
        try:
            return file_facts(location.filesystem, join(location.path, path), size, name)
        except CorruptFileError as error:
            return error

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="feedline-footers") as pool:
        try:
            yield from zip(names, pool.map(facts, paths, listing.files["bytes"].to_pylist(), names), strict=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _without_keys(schema: pa.Schema, listing: Listing) -> pa.Schema:
    both = [name for name in schema.names if name in listing.partition]
    if both:
        warnings.warn(
            f"{shown(listing.uri)} has {', '.join(both)} both as partition key and as a column in its files: "
            "the partition key is used",
            UserWarning,
            stacklevel=4,
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
