"""What a table is, frozen: its files, row groups, rows, bytes and statistics, at one moment.

Taken once per job (`take_snapshot`: one listing, then the footers of files that an earlier snapshot of the table under
the same `work_dir` does not know) and saved under `work_dir`; all other processes, and every resume, load it by its id
and never list the table.

The id is the sha256 of what decides the table's bytes: the schema, and for each file its path below the root, size,
modification time, etag (where the store gives one), footer digest and rows per row group. Partition values follow from
the paths and the schema, statistics from the footers; where a table's log says the partition values, they are in the
id too. The root itself is left out: the same files mounted elsewhere are the same snapshot.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from feedline.errors import CorruptFileError, TableError, TableNotFoundError
from feedline.warehouse.discovery.hive import Listing, discover
from feedline.warehouse.discovery.partitions import refined
from feedline.warehouse.discovery.table_log import united
from feedline.warehouse.parquet.schemas import SchemaRules
from feedline.warehouse.snapshot.assembly import Assembled, SnapshotPart, assembled
from feedline.warehouse.snapshot.column_facts import Facts, arranged
from feedline.warehouse.snapshot.footer_tasks import read_footers
from feedline.warehouse.snapshot.overflow import Overflow, overflow_folder
from feedline.warehouse.snapshot.remembered import taken_over, unchanged
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.content_store import StoredFile
from feedline.warehouse.storage.locations import absolute, join, shown
from feedline.warehouse.storage.parallel import Map

OnBad: TypeAlias = Callable[[str, CorruptFileError], None]

_VERSION = 1
_ID = re.compile(r"[0-9a-f]{64}")
_TABLES = ("head", "files", "row_groups", "schemas")  # of a saved snapshot; the facts of one column each follow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """A frozen table.

    `uri`: the root. `schema`: the files' columns, then the partition columns. `files`: path (below the root), bytes,
    mtime_ns, where the store gives one etag, footer_digest (binary), footer_bytes, rows, row_groups, schema (int32:
    which of `file_schemas` it has) and, where the table has partition keys, the struct `partition`. `row_groups`:
    file, row_group (within the file), rows, bytes. `facts`: of every column, see `column_facts`. `ignored`: files left
    out of the table because of their suffix. `logged`: partition values are those of a table's log, not of the paths.
    `home`: the work_dir whose file it was loaded from.
    """

    id: str
    uri: str
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    files: pa.Table
    row_groups: pa.Table
    facts: Facts = field(repr=False)
    file_schemas: tuple[pa.Schema, ...] = field(repr=False)
    ignored: int = 0
    logged: bool = False
    home: str | None = None

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

    def row_groups_of(self, file: int) -> npt.NDArray[np.int64]:
        """int64: a file's row groups, as indices of the table's. Bisected, so that a loop over files stays linear."""
        files = self.file_of_row_group
        # needles of another type would have numpy convert, and so copy, the whole array
        first, stop = np.searchsorted(files, np.array([file, file + 1], files.dtype))
        return np.arange(first, stop)

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
        """A file column's bytes, nulls (-1: unknown) and, where kept, min, max and exact, one per row group."""
        return self.facts.column(self.schema.field(name))

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
        id = _identity(self.schema, files, row_groups, logged=self.logged)
        facts = self.facts.picked(groups)
        return dataclasses.replace(self, id=id, files=files, row_groups=row_groups, facts=facts, home=None)

    def save(self, work_dir: str) -> str:
        """Write the snapshot below `work_dir`, where any host can `load` it by the id that is returned.

        A whole one that lies there already is left alone.
        """
        if self.home != absolute(work_dir) and not _is_whole(work_dir, _name(self.id), self.uri):
            self.write(work_dir, _name(self.id))
        return self.id

    def write(self, folder: str, name: str, notes: Mapping[str, str] | None = None) -> None:
        """Write the snapshot as the file `name` below a folder; `notes` come back with `read`."""
        content_store.create(folder, name, self._tables(dict(notes or {})))

    @classmethod
    def load(cls, work_dir: str, id: str) -> Snapshot:
        """The snapshot of that id.

        Raises TableNotFoundError where `work_dir` has none, CorruptFileError where its file is damaged; the facts of a
        column are read, and seen to be damaged, when they are asked for.
        """
        try:
            snapshot, _ = cls.read(work_dir, _name(id))
        except FileNotFoundError:
            raise TableNotFoundError(
                f"snapshot {id} is not in {shown(work_dir)}: expected the file {_name(id)}. "
                "Name the work_dir of the job that took it"
            ) from None
        if snapshot.id != id:
            raise CorruptFileError(f"snapshot {id} holds another snapshot: got {snapshot.id}. Delete its file")
        return dataclasses.replace(snapshot, home=absolute(work_dir))

    @classmethod
    def read(cls, folder: str, name: str) -> tuple[Snapshot, dict[str, str]]:
        """The snapshot in a file that `write` wrote, and its notes.

        Raises FileNotFoundError where there is none, CorruptFileError where its bytes are not those that were written.
        """
        artifact = content_store.find(folder, name)
        if len(artifact) < len(_TABLES):
            raise CorruptFileError(f"{shown(join(folder, name))} is not a snapshot. Name a file that holds one")
        head, files, row_groups, schemas = (table.combine_chunks() for table in artifact.tables(len(_TABLES)))
        known = head.schema.metadata or {}
        if known.get(b"version") != str(_VERSION).encode():
            raise CorruptFileError(f"{shown(join(folder, name))} is not a snapshot. Name a file that holds one")
        schema, logged = head.schema.remove_metadata(), b"logged" in known
        snapshot = cls(
            id=_identity(schema, files, row_groups, logged=logged),
            uri=known[b"uri"].decode(),
            schema=schema,
            partition_columns=tuple(json.loads(known[b"partition_columns"])),
            files=files,
            row_groups=row_groups,
            facts=_stored_facts(artifact, schema, _array(row_groups, "rows")),
            file_schemas=tuple(pa.ipc.read_schema(pa.py_buffer(text)) for text in schemas["schema"].to_pylist()),
            ignored=int(known[b"ignored"]),
            logged=logged,
        )
        return snapshot, json.loads(known[b"notes"])

    def _tables(self, notes: dict[str, str]) -> Iterator[pa.Table]:
        head = {
            b"version": str(_VERSION).encode(),
            b"uri": self.uri.encode(),
            b"partition_columns": json.dumps(self.partition_columns).encode(),
            b"ignored": str(self.ignored).encode(),
            b"notes": json.dumps(notes).encode(),
            **({b"logged": b"partition"} if self.logged else {}),
        }
        schemas = [schema.serialize().to_pybytes() for schema in self.file_schemas]
        yield self.schema.with_metadata(head).empty_table()
        yield self.files
        yield self.row_groups
        yield pa.table({"schema": pa.array(schemas, pa.binary())})
        for name in self.file_columns:
            facts = self.facts.fetch(self.schema.field(name))
            yield pa.Table.from_arrays(facts.flatten(), names=[part.name for part in facts.type])


def take_snapshot(
    table: str | Sequence[str],
    *,
    partitions: Mapping[str, str] | None = None,
    rules: SchemaRules | None = None,
    on_bad: OnBad | None = None,
    work_dir: str | None = None,
    map: Map | None = None,
) -> Snapshot:
    """List a table (see `discover`) and freeze what was found (see `snapshot_of`)."""
    listing = discover(table, partitions=partitions)
    return snapshot_of(listing, rules=rules, on_bad=on_bad, work_dir=work_dir, map=map)


def snapshot_of(
    listing: Listing,
    *,
    rules: SchemaRules | None = None,
    on_bad: OnBad | None = None,
    work_dir: str | None = None,
    map: Map | None = None,
) -> Snapshot:
    """The snapshot of the files listed; `map` runs the reading of footers (default: threads of this process).

    `work_dir`: where the snapshot is saved and remembered. Files that the table's last snapshot there has with the
    same size, time and etag are not read again. `on_bad`: called with a file's path below the root and the error where
    its footer is corrupt; the file is left out.

    Raises TableNotFoundError, CorruptFileError (naming the file), or TableError for files that contradict each other.
    Warns where a partition key is also a column in the files: the key of the path wins.
    """
    if not len(listing.files):
        raise TableNotFoundError(f"{shown(listing.uri)} is empty: expected at least one file")
    now_ns = time.time_ns()
    last = None if work_dir is None else _recalled(work_dir, listing)
    sources, unread = ([], np.arange(len(listing.files))) if last is None else _known(listing, *last)
    corrupt: dict[int, str] = {}
    overflow = Overflow(overflow_folder(work_dir))
    for result in read_footers(listing.uri, _listed(listing, unread), map):
        overflow.add(result.blocks)
        corrupt |= dict(result.corrupt)
        if corrupt and on_bad is None:
            raise CorruptFileError(next(iter(corrupt.values())))
    sources += overflow.sources()
    if on_bad is not None and corrupt:
        for place, message in sorted(corrupt.items()):
            on_bad(listing.files["path"][place].as_py(), CorruptFileError(message))
        listing, sources = _spared(listing, sources, np.array(sorted(corrupt), np.int64))
    snapshot = _frozen(listing, assembled(sources), rules or SchemaRules())
    if work_dir is None:
        return snapshot
    changed = last is None or (last[0].id, last[0].uri) != (snapshot.id, snapshot.uri)
    if changed:
        snapshot.save(work_dir)
    if changed or len(unread):
        _remember(work_dir, listing, snapshot.id, now_ns)
    found = Snapshot.load(work_dir, snapshot.id) if changed or last is None else last[0]
    return dataclasses.replace(found, ignored=listing.ignored)


def _frozen(listing: Listing, parts: Assembled, rules: SchemaRules) -> Snapshot:
    names = [join(shown(listing.uri), listing.files["path"][place].as_py()) for place in parts.first]
    schemas = list(zip(names, parts.schemas, strict=True))
    whole = united(listing, schemas, rules)
    partition = partition_beside(listing, whole)
    schema = pa.schema(
        [
            *_without_keys(whole, listing, _doubtful(whole, partition, parts)),
            *(pa.field(name, column.type) for name, column in partition.items()),
        ]
    )
    files = listing.files
    for name in parts.files.schema.names:
        files = files.append_column(name, parts.files[name])
    if partition:
        keys = pa.StructArray.from_arrays(list(partition.values()), names=list(partition))
        files = files.append_column("partition", keys)
    logged = listing.schema is not None
    return Snapshot(
        id=_identity(schema, files, parts.row_groups, logged=logged),
        uri=listing.uri,
        schema=schema,
        partition_columns=tuple(partition),
        files=files,
        row_groups=parts.row_groups,
        facts=parts.facts,
        file_schemas=parts.schemas,
        ignored=listing.ignored,
        logged=logged,
    )


def partition_beside(listing: Listing, schema: pa.Schema) -> dict[str, pa.Array]:
    """The partition keys' values; one whose type only paths decided has that of a column in the files, if there is."""
    partition = dict(listing.partition)
    for name in listing.inferred.intersection(schema.names):
        paths = listing.files["path"].to_pylist()
        partition[name] = refined(partition[name], name, schema.field(name).type, paths)
    return partition


def _doubtful(schema: pa.Schema, partition: Mapping[str, pa.Array], parts: Assembled) -> list[str]:
    """The columns that are partition keys too and, for all that statistics say, may have other values than these."""
    rows, file = _array(parts.row_groups, "rows"), _array(parts.row_groups, "file")
    found = []
    for name in schema.names:
        if name not in partition:
            continue
        field, key = schema.field(name), partition[name].take(file)
        facts = parts.facts.fetch(field)
        told = {facts.type.field(place).name: facts.field(place) for place in range(facts.type.num_fields)}
        if field.type != key.type or "min" not in told:
            found.append(name)
            continue
        value = pc.and_(pc.equal(told["min"], key), pc.equal(told["max"], key))
        value = pc.and_(value, pc.equal(told["nulls"], 0))
        value = pc.and_(value, told["exact"]) if "exact" in told else value
        null = pc.and_(key.is_null(), pc.equal(told["nulls"], rows))
        if not pc.all(pc.or_(pc.fill_null(value, False), null), min_count=0).as_py():
            found.append(name)
    return found


def _without_keys(schema: pa.Schema, listing: Listing, both: Sequence[str]) -> pa.Schema:
    if both:
        warnings.warn(
            f"{shown(listing.uri)} has {', '.join(both)} both as partition key and as a column in its files: "
            "the partition key is used",
            UserWarning,
            stacklevel=5,
        )
    kept = [field for field in schema if field.name not in listing.partition]
    if not kept:
        raise TableError(f"{shown(listing.uri)} has no column in its files: expected at least one besides its keys")
    return pa.schema(kept)


def _listed(listing: Listing, places: npt.NDArray[np.int64]) -> list[tuple[int, str, int]]:
    files = listing.files.select(["path", "bytes"]).take(pa.array(places))
    return list(zip(places.tolist(), files["path"].to_pylist(), files["bytes"].to_pylist(), strict=True))


def _spared(
    listing: Listing, sources: Sequence[SnapshotPart], corrupt: npt.NDArray[np.int64]
) -> tuple[Listing, list[SnapshotPart]]:
    """The listing without the corrupt files, and the sources with the places that the others have in it."""
    good = np.delete(np.arange(len(listing.files)), corrupt)
    if not len(good):
        raise TableError(f"{shown(listing.uri)} has no good file: got a corrupt footer in each of {len(listing.files)}")
    moved = []
    for source in sources:
        place = np.searchsorted(good, source.files["file"].to_numpy())
        moved.append(dataclasses.replace(source, files=source.files.set_column(0, "file", pa.array(place))))
    return listing.picked(good), moved


# -- what an earlier run knew -----------------------------------------------------------------------------------------


def _recalled(work_dir: str, listing: Listing) -> tuple[Snapshot, int] | None:
    """The table's last snapshot there and when it was taken; None where there is none that can be read."""
    try:
        (entry,) = content_store.load(work_dir, _entry(listing), tables=1)
        return Snapshot.load(work_dir, entry["snapshot"][0].as_py()), int(entry["taken_ns"][0].as_py())
    except (FileNotFoundError, TableError):
        return None


def _remember(work_dir: str, listing: Listing, id: str, taken_ns: int) -> None:
    content_store.create(work_dir, _entry(listing), [pa.table({"snapshot": [id], "taken_ns": [taken_ns]})])


def _entry(listing: Listing) -> str:
    name = hashlib.sha256(json.dumps([listing.uri, listing.asked]).encode()).hexdigest()
    return f"tables/{name}.arrow"


def _known(listing: Listing, last: Snapshot, taken_ns: int) -> tuple[list[SnapshotPart], npt.NDArray[np.int64]]:
    """The files that the last snapshot knows, and the places of those that have to be read."""
    known = SnapshotPart(files=last.files, schemas=last.file_schemas, row_groups=last.row_groups, facts=last.facts)
    old = unchanged(listing, known, kept={*last.file_columns, *listing.partition}, taken_ns=taken_ns)
    return ([taken_over(known, old)] if (old >= 0).any() else []), np.flatnonzero(old < 0)


def _stored_facts(artifact: StoredFile, schema: pa.Schema, rows: pa.Array) -> Facts:
    """Facts in the parts of a saved snapshot: one per file column, in the schema's order."""
    stored = schema.names[: len(artifact) - len(_TABLES)]
    places = {name: part for part, name in enumerate(stored, len(_TABLES))}

    def fetch(field: pa.Field) -> pa.StructArray:
        part = places.get(field.name)
        if part is None:
            return arranged(None, rows, field)
        table = artifact.table(part).combine_chunks()
        return arranged({name: _array(table, name) for name in table.schema.names}, rows, field)

    return Facts(fetch)


def _is_whole(work_dir: str, name: str, uri: str) -> bool:
    """Whether a snapshot of that name lies there undamaged, and says the same place for its files."""
    try:
        artifact = content_store.find(work_dir, name)
        artifact.prove()
        return bool(artifact.table(0).schema.metadata[b"uri"] == uri.encode())
    except (FileNotFoundError, CorruptFileError):
        return False


def _identity(schema: pa.Schema, files: pa.Table, row_groups: pa.Table, *, logged: bool) -> str:
    schema = pa.ipc.read_schema(schema.serialize())  # as it is loaded: the names inside a map's type do not survive
    columns = [[field.name, str(field.type), field.nullable] for field in schema]
    digest = hashlib.sha256(json.dumps([_VERSION, columns, files["path"].to_pylist()]).encode())
    for table, name in ((files, "bytes"), (files, "mtime_ns"), (files, "row_groups"), (row_groups, "rows")):
        digest.update(_array(table, name).to_numpy().astype("<i8").tobytes())
    digest.update(b"".join(files["footer_digest"].to_pylist()))
    if "etag" in files.schema.names:
        digest.update(json.dumps(files["etag"].to_pylist()).encode())
    if logged and "partition" in files.schema.names:
        for values in _array(files, "partition").flatten():
            coded = values.dictionary_encode()
            digest.update(json.dumps(coded.dictionary.to_pylist(), default=str).encode())
            digest.update(coded.indices.fill_null(-1).to_numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def _array(table: pa.Table, name: str) -> pa.Array:
    """A column as one array; without a copy where it is one chunk, as it is in every snapshot."""
    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _name(id: str) -> str:
    if not _ID.fullmatch(id):
        raise TableError(f"snapshot id is not one: got {id[:80]!r}, expected 64 hexadecimal digits")
    return f"snapshots/{id}.arrow"
