"""A frozen table: its files, row groups, rows, bytes and statistics at one moment, saved and loaded by its id.

Pure, except for the files below `work_dir` that it is saved to (`take` takes one). The id is the sha256 of everything
that determines the table's rows: the schema, and for each file its path below the root, size, modification time, etag
(if the store has one), footer digest and rows per row group, and its column files; also partition values and names of
columns in files that a table's log holds. The root is not part of it.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, TableError, TableNotFoundError
from feedline.resources.cgroups import available_cores
from feedline.warehouse.cache.cache_folder import CacheRef
from feedline.warehouse.discovery.column_log import COLUMN_FILES, column_file_names
from feedline.warehouse.discovery.partitions import keys_of_path
from feedline.warehouse.parquet.stored_names import StoredNames
from feedline.warehouse.snapshot.column_facts import Facts, Part, arrange_facts, contiguous
from feedline.warehouse.snapshot.history_ref import HistoryRef
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.content_store import StoredFile
from feedline.warehouse.storage.locations import absolute, join, locate, redact, split_options
from feedline.warehouse.storage.parallel import in_threads
from feedline.warehouse.storage.retry import is_local

_VERSION = 1
_ID = re.compile(r"[0-9a-f]{64}")
# Columns of a saved snapshot that are read at once, where one takes longer than a thread's start: each is decompressed
# and verified by itself, and holds a few hundred megabytes per ten million row groups.
_READ_THREADS, _MANY_ROW_GROUPS = 4, 100_000
_FEW_CHUNKS = 65_536  # column chunks of a table, at most 100 bytes of facts each
_SHOWN_PATHS = 3  # in a message
_TABLES = ("head", "files", "row_groups", "schemas")  # a saved snapshot's first; a table of facts per column follows


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplodedLists:
    """The columns of lists whose elements are a snapshot's rows. schema: of them, in the files' types, in Arrow's IPC
    format."""

    names: tuple[str, ...]
    schema: bytes = field(repr=False)

    @classmethod
    def of(cls, lists: pa.Schema) -> Self:
        return cls(names=tuple(lists.names), schema=lists.remove_metadata().serialize().to_pybytes())

    @property
    def fields(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """A frozen table.

    `uri`: the root. `schema`: the files' columns, then the partition columns. `files`: path (below the root), bytes,
    mtime_ns, etag (if the store has tags, or there is no time; see `file_identity`), column_files (if the table has
    any; see `column_log`), footer_digest (binary), footer_bytes, rows, row_groups, schema (int32, an index of
    `file_schemas`) and, if the table has partition keys, the struct `partition`, and if files hold keys that their
    paths lack (`held_keys`), the struct `path_keys` of the paths' values. `row_groups`: file, row_group (within the
    file), rows, bytes. `facts`: of every column, see `column_facts`. `file_schemas`, and the bytes of row groups, are
    those of files with their column files. `ignored`: the number of files skipped because of their suffix. `logged`:
    partition values come from a table's log, not from the paths. `stored_names`: of the columns in files, if the log
    maps them (None: those of `schema`). `exploded`: lists of its files whose elements are its rows (see
    `exploded_lists`). `home`: the work_dir that it was loaded from.

    Of what reads its files, and no part of what is saved: `decoder`, as `source.decoder`; `source_cache`, which keeps
    the column chunks of files in a store (None: nothing is kept); `histories`, of which its rows get lists of events;
    `recent_files`, what the fragments of some files have in common (a block's request would look up as much for each
    piece).
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
    stored_names: StoredNames | None = None
    exploded: ExplodedLists | None = None
    decoder: str = "auto"
    source_cache: CacheRef | None = None
    histories: tuple[HistoryRef, ...] = ()
    home: str | None = None
    recent_files: dict[int, dict[str, Any]] = field(default_factory=dict, init=False, repr=False)

    @property
    def rows(self) -> int:
        return int(self.rows_per_row_group.sum())

    @property
    def rows_per_row_group(self) -> npt.NDArray[np.int64]:
        """int64 [row groups]: rows stored."""
        return np.asarray(contiguous(self.row_groups["rows"]))

    @property
    def file_of_row_group(self) -> npt.NDArray[np.int32]:
        """int32 [row groups]: index of each one's file."""
        return np.asarray(contiguous(self.row_groups["file"]))

    @property
    def row_group_in_file(self) -> npt.NDArray[np.int32]:
        """int32 [row groups]: index of each one within its file."""
        return np.asarray(contiguous(self.row_groups["row_group"]))

    def row_groups_of(self, file: int) -> npt.NDArray[np.int64]:
        """int64: a file's row groups, as indices of the table's. By bisection, so that a loop over files is linear."""
        files = self.file_of_row_group
        # for needles of another type numpy would convert, and so copy, the whole array
        first, stop = np.searchsorted(files, np.array([file, file + 1], files.dtype))
        return np.arange(first, stop)

    @property
    def has_few_facts(self) -> bool:
        """Whether the facts of all columns may stay in memory: a few megabytes."""
        return len(self.row_groups) * len(self.file_columns) <= _FEW_CHUNKS

    @property
    def file_columns(self) -> tuple[str, ...]:
        return tuple(self.schema.names[: len(self.schema.names) - len(self.partition_columns)])

    @property
    def path_keys(self) -> tuple[str, ...]:
        """The file columns whose values the path has of some files, and the file of others."""
        names = self.files.schema.names
        return tuple(part.name for part in self.files.schema.field("path_keys").type) if "path_keys" in names else ()

    def partition_column(self, name: str) -> pa.Array:
        """A partition key's value of each file."""
        return pc.struct_field(self.files["partition"], name).combine_chunks()

    def partition_of(self, file: int) -> tuple[tuple[str, object], ...]:
        """The keys whose values the file's path has, not the file, with these."""
        keys: list[tuple[str, object]] = []
        if self.partition_columns:
            values = contiguous(self.files["partition"])[file].as_py()
            keys += [(name, values[name]) for name in self.partition_columns]
        if names := self.path_keys:
            values, spelled = contiguous(self.files["path_keys"])[file].as_py(), keys_of_path(self.path_of(file))
            keys += [(name, values[name]) for name in names if name in spelled]
        return tuple(keys)

    def stored_type(self, name: str) -> pa.DataType:
        """The type of a column in files: of an exploded one, that of its lists."""
        lists = None if self.exploded is None else self.exploded.fields
        schema = lists if lists is not None and name in lists.names else self.schema
        return schema.field(name).type

    def path_of(self, file: int) -> str:
        return str(self.files["path"][file].as_py())

    def column_facts(self, name: str) -> pa.StructArray:
        """A file column's bytes, nulls (< 0: unknown) and, depending on its type, min, max and exact, per row group."""
        return self.facts.column(self.schema.field(name))

    def without(self, paths: Collection[str]) -> Snapshot:
        """The snapshot without some files (paths below the root), with the same schema.

        Raises TableError if no file remains.
        """
        gone = pc.is_in(self.files["path"], value_set=pa.array(sorted(paths), pa.string())).to_numpy()
        files_left = np.flatnonzero(~gone)
        if not len(files_left):
            raise TableError(f"{redact(self.uri)} has no file left: got {len(gone)} to leave out of {len(gone)}")
        groups = np.flatnonzero(~gone[self.file_of_row_group])
        # files [0, 1, 2] without 1 -> the row groups of file 2 are those of file 1 now
        file = (np.cumsum(~gone) - 1).astype(np.int32)[self.file_of_row_group[groups]]
        files = self.files.take(pa.array(files_left)).combine_chunks()
        row_groups = self.row_groups.take(pa.array(groups)).combine_chunks()
        row_groups = row_groups.set_column(0, "file", pa.array(file))
        id = identity(self.schema, files, row_groups, logged=self.logged, stored_names=self.stored_names)
        facts = self.facts.take(groups)
        return dataclasses.replace(self, id=id, files=files, row_groups=row_groups, facts=facts, home=None)

    def column_part(self, name: str, part: Part) -> npt.NDArray[np.int64]:
        """int64 [row groups]: a file column's bytes or nulls (below 0: unknown). Reads less than `column_facts`."""
        return self.facts.part(self.schema.field(name), part)

    def column_parts(
        self, names: Collection[str], part: Part, *, threads: int | None = None
    ) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
        """Yield `column_part` of each column, in order; those of a large table are read by a few threads (default: as
        many as there are cores, at most four), a few columns ahead."""
        if threads is None:
            threads = min(available_cores(), _READ_THREADS) if len(self.row_groups) >= _MANY_ROW_GROUPS else 1
        if threads < 2 or len(names) < 2:
            yield from ((name, self.column_part(name, part)) for name in names)
            return
        for start in range(0, len(names), 2 * threads):
            some = list(names)[start : start + 2 * threads]
            read = in_threads(lambda name: self.column_part(name, part), some, threads=threads)
            yield from zip(some, read, strict=True)

    @property
    def file_name(self) -> str:
        """The snapshot's file below a `work_dir` that it is saved in."""
        return _name(self.id)

    def save(self, work_dir: str) -> str:
        """Write the snapshot below `work_dir`, unless an undamaged one is there; returns its id, for `load`."""
        if self.home != absolute(work_dir) and not _is_whole(work_dir, _name(self.id), self.uri):
            self.write(work_dir, _name(self.id))
        return self.id

    def write(self, folder: str, name: str, notes: Mapping[str, str] | None = None) -> None:
        """Write the snapshot as the file `name` below a folder; `read` returns the `notes`."""
        content_store.create(folder, name, self._tables(dict(notes or {})))

    @classmethod
    def load(cls, work_dir: str, id: str) -> Snapshot:
        """Load the snapshot of that id.

        Raises TableNotFoundError if `work_dir` has none, CorruptFileError if its file is damaged; the facts of a column
        are read and verified on demand.
        """
        try:
            snapshot, _ = cls.read(work_dir, _name(id))
        except FileNotFoundError:
            raise TableNotFoundError(
                f"snapshot {id} is not in {redact(work_dir)}: expected the file {_name(id)}. "
                "Name the work_dir of the job that took it"
            ) from None
        if snapshot.id != id:
            raise CorruptFileError(f"snapshot {id} holds another snapshot: got {snapshot.id}. Delete its file")
        return dataclasses.replace(snapshot, home=absolute(work_dir))

    @classmethod
    def read(cls, folder: str, name: str) -> tuple[Snapshot, dict[str, str]]:
        """Read a snapshot that `write` wrote, and its notes.

        Raises FileNotFoundError if there is no file, CorruptFileError if its bytes are not those that were written.
        """
        stored = content_store.find(folder, name)
        foreign = CorruptFileError(f"{redact(join(folder, name))} is not a snapshot. Name a file that holds one")
        if len(stored) < len(_TABLES):
            raise foreign
        head, files, row_groups, schemas = (table.combine_chunks() for table in stored.tables(len(_TABLES)))
        metadata = head.schema.metadata or {}
        if metadata.get(b"version") != str(_VERSION).encode():
            raise foreign
        schema, logged = head.schema.remove_metadata(), b"logged" in metadata
        names = StoredNames(metadata[b"stored_names"].decode()) if b"stored_names" in metadata else None
        lists = base64.b64decode(metadata[b"exploded"]) if b"exploded" in metadata else None
        snapshot = cls(
            id=metadata[b"id"].decode(),  # verified as all content
            uri=metadata[b"uri"].decode(),
            schema=schema,
            partition_columns=tuple(json.loads(metadata[b"partition_columns"])),
            files=files,
            row_groups=row_groups,
            facts=_stored_facts(stored, schema, contiguous(row_groups["rows"])),
            file_schemas=tuple(pa.ipc.read_schema(pa.py_buffer(data)) for data in schemas["schema"].to_pylist()),
            ignored=int(metadata[b"ignored"]),
            logged=logged,
            stored_names=names,
            exploded=None if lists is None else ExplodedLists.of(pa.ipc.read_schema(pa.py_buffer(lists))),
        )
        return snapshot, json.loads(metadata[b"notes"])

    def _tables(self, notes: dict[str, str]) -> Iterator[pa.Table]:
        head = {
            b"version": str(_VERSION).encode(),
            b"id": self.id.encode(),
            b"uri": self.uri.encode(),
            b"partition_columns": json.dumps(self.partition_columns).encode(),
            b"ignored": str(self.ignored).encode(),
            b"notes": json.dumps(notes).encode(),
            **({b"logged": b"partition"} if self.logged else {}),
            **({b"stored_names": self.stored_names.text.encode()} if self.stored_names is not None else {}),
            **({b"exploded": base64.b64encode(self.exploded.schema)} if self.exploded is not None else {}),
        }
        schemas = [schema.serialize().to_pybytes() for schema in self.file_schemas]
        yield self.schema.with_metadata(head).empty_table()
        yield self.files
        yield self.row_groups
        yield pa.table({"schema": pa.array(schemas, pa.binary())})
        fetch = self.facts.column if self.has_few_facts else self.facts.fetch
        for name in self.file_columns:
            facts = fetch(self.schema.field(name))
            yield pa.Table.from_arrays(facts.flatten(), names=[part.name for part in facts.type])


def retimed_text(snapshot: Snapshot, retimed: npt.NDArray[np.bool_], treatment: str) -> str:
    """A line on files that have the size and footer of earlier ones, and another time or tag: how they are treated."""
    paths = snapshot.files["path"].filter(pa.array(retimed))
    some = ", ".join(paths.slice(0, _SHOWN_PATHS).to_pylist())
    more = f" and {len(paths) - _SHOWN_PATHS:,} more" if len(paths) > _SHOWN_PATHS else ""
    return (
        f"{len(paths):,} {'file is' if len(paths) == 1 else 'files are'} {treatment}, as the time or tag is another, "
        f"though size and footer are equal: {some}{more}. Copies that keep times (cp -p, rsync -t) are recognised"
    )


def _stored_facts(file: StoredFile, schema: pa.Schema, rows: pa.Array) -> Facts:
    columns = schema.names[: len(file) - len(_TABLES)]
    parts = {name: part for part, name in enumerate(columns, len(_TABLES))}

    def fetch(field: pa.Field) -> pa.StructArray:
        part = parts.get(field.name)
        if part is None:
            return arrange_facts(None, rows, field)
        table = file.table(part)
        return arrange_facts({name: contiguous(table[name]) for name in table.schema.names}, rows, field)

    def fetch_part(field: pa.Field, name: Part) -> pa.Array:
        part = parts.get(field.name)
        if part is None:
            return arrange_facts(None, rows, field).field(name)
        return contiguous(file.table(part, [name])[name])

    return Facts(fetch, fetch_part)


def _is_whole(work_dir: str, name: str, uri: str) -> bool:
    try:
        file = content_store.find(work_dir, name)
        file.verify()
        return bool(file.table(0).schema.metadata[b"uri"] == uri.encode())
    except (FileNotFoundError, CorruptFileError):
        return False


def identity(
    schema: pa.Schema, files: pa.Table, row_groups: pa.Table, *, logged: bool, stored_names: StoredNames | None = None
) -> str:
    """The id of a snapshot (see the module's docstring)."""
    schema = pa.ipc.read_schema(schema.serialize())  # as it will be loaded: field names inside a map's type are lost
    columns = [[field.name, str(field.type), field.nullable] for field in schema]
    digest = hashlib.sha256(json.dumps([_VERSION, columns, files["path"].to_pylist()]).encode())
    for table, name in ((files, "bytes"), (files, "mtime_ns"), (files, "row_groups"), (row_groups, "rows")):
        digest.update(contiguous(table[name]).to_numpy().astype("<i8").tobytes())
    digest.update(b"".join(files["footer_digest"].to_pylist()))
    if "etag" in files.schema.names:
        digest.update(json.dumps(files["etag"].to_pylist()).encode())
    if "path_keys" in files.schema.names:
        digest.update(json.dumps([part.name for part in files.schema.field("path_keys").type]).encode())
    if logged and "partition" in files.schema.names:
        for values in contiguous(files["partition"]).flatten():
            coded = values.dictionary_encode()
            digest.update(json.dumps(coded.dictionary.to_pylist(), default=str).encode())
            digest.update(coded.indices.fill_null(-1).to_numpy().astype("<i8").tobytes())
    if stored_names is not None:
        digest.update(stored_names.text.encode())
    if COLUMN_FILES in files.schema.names:
        digest.update(json.dumps(column_file_names(files)).encode())
    return digest.hexdigest()


def _name(id: str) -> str:
    if not _ID.fullmatch(id):
        raise TableError(f"snapshot id is invalid: got {id[:80]!r}, expected 64 hexadecimal digits")
    return f"snapshots/{id}.arrow"


# --------------------------------------------------------------------------------------------------------------------
# Find the files that two snapshots share, whatever names their tables were given. Runs where a plan or a fit is made.
# Local files are the same by their real path, those of a store by store and path: a table may be named as a folder, a
# list, a glob, a `file://` URI or through a link, and its root may lie above another's.

Int64s = npt.NDArray[np.int64]


def same_files(one: Snapshot, other: Snapshot) -> Int64s:
    """int64 [files of `other`]: the index of the same file in `one`, -1 without one."""
    own_paths, paths = contiguous(one.files["path"]), contiguous(other.files["path"])
    if absolute(one.uri) == absolute(other.uri):
        return _with_same_columns(one, other, _filled(pc.index_in(paths, value_set=own_paths)))
    same = np.full(len(paths), -1, np.int64)
    places_of_one, places = _with_footers_of(one, other), _with_footers_of(other, one)  # a file has one footer
    names = _real_names(other, paths.take(pa.array(places)))
    index = _filled(pc.index_in(names, value_set=_real_names(one, own_paths.take(pa.array(places_of_one)))))
    same[places[index >= 0]] = places_of_one[index[index >= 0]]
    return _with_same_columns(one, other, same)


def _with_same_columns(one: Snapshot, other: Snapshot, same: Int64s) -> Int64s:
    """Without files that are read with other column files: a file that is named alone is read without any."""
    if not any(COLUMN_FILES in each.files.schema.names for each in (one, other)):
        return same
    names, others = (np.array(column_file_names(each.files), object) for each in (one, other))
    return np.where((same >= 0) & (names[same] == others), same, -1)


def _with_footers_of(snapshot: Snapshot, other: Snapshot) -> Int64s:
    """int64: the files with a footer that files of another snapshot have."""
    footers = (contiguous(each.files["footer_digest"]) for each in (snapshot, other))
    return np.flatnonzero(pc.is_in(next(footers), value_set=next(footers)).to_numpy(zero_copy_only=False))


def _real_names(snapshot: Snapshot, paths: pa.Array) -> pa.Array:
    """Names that are equal only for the same file."""
    location = locate(absolute(snapshot.uri))
    full = [join(location.path, path) for path in paths.to_pylist()]
    if is_local(location.filesystem):
        real_folder = cache(os.path.realpath)  # of thousands of files

        def real(path: str) -> str:
            folder, _, name = path.rpartition("/")
            return os.path.realpath(path) if Path(path).is_symlink() else f"{real_folder(folder)}/{name}"

        return pa.array(map(real, full), pa.string())
    options = parse_qs(split_options(snapshot.uri)[1].removeprefix("?"))
    store = [location.filesystem.type_name, *options.get("endpoint_override", ())]
    return pa.array([" ".join([*store, path]) for path in full], pa.string())


def _filled(index: pa.Array) -> Int64s:
    filled: Int64s = index.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return filled
