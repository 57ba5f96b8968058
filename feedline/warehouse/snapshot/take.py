"""Take the snapshot of a table: list it, read the footers of new files, and save it for the next time.

Runs once per job, in the process that plans. The facts of files that are the same as in the table's last snapshot under
the same `work_dir` (`file_identity`) are reused. Where the youngest file was written a moment ago, a snapshot waits
until a file that is written later has another time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, StoreError, TableError, TableNotFoundError
from feedline.progress import report_progress
from feedline.version import VERSION
from feedline.warehouse.discovery.hive import Listing, discover
from feedline.warehouse.discovery.partitions import refine
from feedline.warehouse.discovery.table_log import unite_schemas
from feedline.warehouse.parquet.schemas import SchemaRules
from feedline.warehouse.snapshot.column_facts import HeldKey, contiguous, held_keys, order_by_keys, with_path_values
from feedline.warehouse.snapshot.column_files import same_column_files, with_column_facts, with_own_column_files
from feedline.warehouse.snapshot.footer_tasks import FOOTERS, FooterResult, read_footers
from feedline.warehouse.snapshot.packed_facts import (
    Assembly,
    FactBlock,
    SnapshotPart,
    assemble,
    carry_over,
    group_by_schema,
    in_order,
    join_fact_columns,
    part_of_schema,
    part_without_files,
    unchanged_files,
)
from feedline.warehouse.snapshot.snapshot import Snapshot, identity
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.content_store import KeptWaves
from feedline.warehouse.storage.file_identity import is_settled, mark_unknown, tags_of, unsettled_ns
from feedline.warehouse.storage.locations import absolute, join, locate, redact
from feedline.warehouse.storage.parallel import Map
from feedline.warehouse.storage.retry import is_local

# --------------------------------------------------------------------------------------------------------------------
# Read the footers of a large table in waves, and keep those of finished waves so that an interrupted snapshot
# resumes. Runs where a snapshot is taken. A table of more than one wave keeps what each wave read in
# `work_dir/footers`, under a name that covers the wave's files with their sizes, times and etags, until the snapshot
# is saved. A wave with a file that may have been replaced while it was read (no time or etag, or younger than the
# clock's grain) is not kept.

_VERSION = 2  # of what a wave keeps
_WAVE_FILES = 16_384  # 40 s of one core: an interruption loses little
_PARTS = 3  # tables of a block
_FOLDER = "footers"


@dataclass(slots=True, kw_only=True)
class FooterWaves:
    """The footers of some files of a listing. indices: of the files; now_ns: when the listing was made."""

    listing: Listing
    indices: npt.NDArray[np.int64]
    kept: KeptWaves
    now_ns: int
    map: Map | None
    done: int = 0  # files

    def read(self) -> Iterator[FooterResult]:
        """The footers, from kept waves where there are any. Raises as `read_footers`."""
        for start in range(0, len(self.indices), _WAVE_FILES):
            part = self.indices[start : start + _WAVE_FILES]
            yield from self._wave(part) if len(self.indices) > _WAVE_FILES else self._read(part)

    def forget(self) -> None:
        """Remove the kept waves, as the snapshot is saved, and those of other snapshots that are a week old."""
        if len(self.indices) > _WAVE_FILES:
            self.kept.forget(_FOLDER)

    def _wave(self, indices: npt.NDArray[np.int64]) -> list[FooterResult]:
        files = self.listing.files.take(pa.array(indices)).combine_chunks()
        if not _is_settled(files, self.now_ns):
            return list(self._read(indices))
        name = _name(self.listing, indices, files)
        tables = self.kept.load(name)
        if tables is not None:
            result = _result(tables)
            self._report(result.files)
        else:
            results = list(self._read(indices))
            result = FooterResult(
                blocks=tuple(block for each in results for block in each.blocks),
                corrupt=tuple(found for each in results for found in each.corrupt),
            )
            self.kept.save(name, _tables(result), compression=None)
        return [result]

    def _read(self, indices: npt.NDArray[np.int64]) -> Iterator[FooterResult]:
        files = self.listing.files.select(["path", "bytes"]).take(pa.array(indices))
        values = zip(indices.tolist(), files["path"].to_pylist(), files["bytes"].to_pylist(), strict=True)
        self._report(0)
        for result in read_footers(self.listing.uri, list(values), self.map, stored_names=self.listing.stored_names):
            self._report(result.files)
            yield result

    def _report(self, files: int) -> None:
        self.done += files
        report_progress(FOOTERS, self.done, len(self.indices), "files")


def _is_settled(files: pa.Table, now_ns: int) -> bool:
    return bool(((tags_of(files) != "") | is_settled(files["mtime_ns"].to_numpy(), now_ns)).all())


def _name(listing: Listing, indices: npt.NDArray[np.int64], files: pa.Table) -> str:
    identity = files.select([name for name in ("path", "bytes", "mtime_ns", "etag") if name in files.schema.names])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, identity.schema) as writer:
        writer.write_table(identity)
    digest = hashlib.sha256(f"{_VERSION} {VERSION} {pa.__version__} {listing.uri} ".encode())
    if listing.stored_names is not None:
        digest.update(listing.stored_names.text.encode())
    digest.update(indices.tobytes())
    digest.update(memoryview(sink.getvalue()))
    return f"{_FOLDER}/{digest.hexdigest()}.arrow"


def _tables(result: FooterResult) -> Iterator[pa.Table]:
    corrupt = {"file": [index for index, _ in result.corrupt], "message": [text for _, text in result.corrupt]}
    yield pa.table(corrupt, pa.schema({"file": pa.int64(), "message": pa.string()}))
    for block in result.blocks:
        yield block.files
        yield block.row_groups
        columns = pa.array([column.to_pybytes() for column in block.columns], pa.large_binary())
        yield pa.table({"column": columns}).replace_schema_metadata({"schema": block.schema.serialize().to_pybytes()})


def _result(tables: Sequence[pa.Table]) -> FooterResult:
    corrupt, *parts = tables
    blocks = []
    for first in range(0, len(parts), _PARTS):
        files, row_groups, columns = parts[first : first + _PARTS]
        schema = pa.ipc.read_schema(pa.py_buffer(columns.schema.metadata[b"schema"]))
        packed = tuple(value.as_buffer() for value in columns["column"])
        blocks.append(FactBlock(schema=schema, files=files, row_groups=row_groups, columns=packed))
    corrupt_files = zip(corrupt["file"].to_pylist(), corrupt["message"].to_pylist(), strict=True)
    return FooterResult(blocks=tuple(blocks), corrupt=tuple(corrupt_files))


# --------------------------------------------------------------------------------------------------------------------
# Keep the facts of a large table within a memory budget while its snapshot is taken. Runs where a snapshot is taken.
# Blocks are held in memory up to a budget; beyond it they are merged column by column and written to an unlinked
# file, from which columns are read on demand, and which disappears with the last snapshot that reads it.

HELD_BYTES = 128 << 20  # nine million chunks: few tables have more. Written together, so that reads are long


class Overflow:
    """Blocks of a table: up to `held_bytes` in memory, the rest in a file below `folder`."""

    def __init__(self, folder: str, *, held_bytes: int | None = None) -> None:
        self._folder = folder
        self._limit = HELD_BYTES if held_bytes is None else held_bytes
        self._blocks: list[FactBlock] = []
        self._held_bytes = 0
        self._moved_parts: list[SnapshotPart] = []
        self._file: _UnlinkedFile | None = None

    def add(self, blocks: Iterable[FactBlock]) -> None:
        for block in blocks:
            self._blocks.append(block)
            self._held_bytes += block.nbytes
            if self._held_bytes > self._limit:
                self._write()

    @property
    def is_in_memory(self) -> bool:
        return self._file is None

    def parts(self) -> list[SnapshotPart]:
        return [*self._moved_parts, *(block.part() for block in self._blocks)]

    def _write(self) -> None:
        self._file = self._file or _UnlinkedFile(self._folder)
        self._moved_parts += [_move(blocks, self._file) for blocks in group_by_schema(self._blocks)]
        self._blocks, self._held_bytes = [], 0


def overflow_folder(work_dir: str | None) -> str:
    """The folder for a snapshot's overflow: `work_dir` if it is a local folder, else that for temporary files."""
    location = None if work_dir is None else locate(absolute(work_dir))
    return tempfile.gettempdir() if location is None or not is_local(location.filesystem) else location.path


def _move(blocks: Sequence[FactBlock], file: _UnlinkedFile) -> SnapshotPart:
    ends = np.array([file.size, *(file.append(column) for column in join_fact_columns(blocks))])
    return part_of_schema(
        blocks[0].schema,
        pa.concat_tables([block.files for block in blocks]).combine_chunks(),
        pa.concat_tables([block.row_groups for block in blocks]).combine_chunks(),
        lambda column: file.read(int(ends[column]), int(ends[column + 1])),
    )


class _UnlinkedFile:
    """A file without a name, closed when nothing refers to it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.size = 0
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 -- open for as long as this object
        except OSError as error:
            raise self._full(error) from error
        self._descriptor = file.fileno()
        weakref.finalize(self, file.close)

    def append(self, content: pa.Buffer) -> int:
        """Write at the end; returns the file's new size."""
        rest = memoryview(content)
        try:
            while rest:
                count = os.pwrite(self._descriptor, rest, self.size)
                self.size, rest = self.size + count, rest[count:]
        except OSError as error:
            raise self._full(error) from error
        return self.size

    def read(self, start: int, stop: int) -> pa.Buffer:
        return pa.py_buffer(os.pread(self._descriptor, stop - start, start))

    def _full(self, error: OSError) -> StoreError:
        return StoreError(
            f"the statistics of the table's footers do not fit in memory and cannot be written to {self._folder}: "
            f"got {error}, expected room for more than {self.size:,} bytes. Make room, or name another folder for "
            "work_dir (TMPDIR where that is no local folder)"
        )


# --------------------------------------------------------------------------------------------------------------------

OnBad: TypeAlias = Callable[[str, CorruptFileError], None]


def take_snapshot(
    table: str | Sequence[str],
    *,
    partitions: Mapping[str, str] | None = None,
    rules: SchemaRules | None = None,
    on_bad: OnBad | None = None,
    work_dir: str | None = None,
    map: Map | None = None,
) -> Snapshot:
    """List a table (see `discover`) and take its snapshot (see `snapshot_of`)."""
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
    """Take the snapshot of listed files; `map` reads their footers (default: threads of this process).

    `work_dir`: where the snapshot is saved; the footers of files that are the same as in the table's last snapshot
    there are not read again. `on_bad`: called with the path below the root and the error of each file
    with a corrupt footer, which is left out (default: raise).

    Raises TableNotFoundError, CorruptFileError (naming the file), or TableError for files that contradict each other.
    Warns if a partition key is also a column in the files: the key of the path is used. Files whose path lacks the key
    have the column's values.
    """
    if not len(listing.files) and listing.schema is None:
        raise TableNotFoundError(f"{redact(listing.uri)} is empty: expected at least one file")
    now_ns = time.time_ns()
    last = None if work_dir is None else _load_last(work_dir, listing)
    parts, unread = ([], np.arange(len(listing.files))) if last is None else _reuse_facts(listing, *last)
    corrupt: dict[int, str] = {}
    overflow = Overflow(overflow_folder(work_dir))
    waves = FooterWaves(listing=listing, indices=unread, kept=KeptWaves(work_dir), now_ns=now_ns, map=map)
    for result in waves.read():
        overflow.add(result.blocks)
        corrupt |= dict(result.corrupt)
        if corrupt and on_bad is None:
            raise CorruptFileError(next(iter(corrupt.values())))
    parts += overflow.parts()
    fresh = np.zeros(len(listing.files), np.bool_)
    fresh[unread] = True
    if on_bad is not None and corrupt:
        for index, message in sorted(corrupt.items()):
            on_bad(listing.files["path"][index].as_py(), CorruptFileError(message))
        if len(corrupt) == len(listing.files):
            first = corrupt[min(corrupt)]
            raise TableError(
                f"{redact(listing.uri)} has no good file: got a corrupt footer in each of {len(corrupt):,}. The first: "
                f"{first}"
            )
        listing, parts = _leave_out(listing, parts, np.array(sorted(corrupt), np.int64))
        fresh = np.delete(fresh, sorted(corrupt))
    base = assemble(parts or [part_without_files()])
    listing = with_own_column_files(listing, base)
    joined = with_column_facts(listing, base, fresh, map)
    listing, assembly = _identify(listing, joined, now_ns)
    snapshot = _freeze(listing, assembly, rules or SchemaRules())
    if work_dir is None:
        return snapshot
    changed = last is None or (last[0].id, last[0].uri) != (snapshot.id, snapshot.uri)
    if changed:
        snapshot.save(work_dir)
    if changed or len(unread):
        _save_last(work_dir, listing, snapshot.id, now_ns)
    waves.forget()
    loaded = Snapshot.load(work_dir, snapshot.id) if changed or last is None else last[0]
    if changed and overflow.is_in_memory and snapshot.has_few_facts:
        # they were saved a moment ago: reading them again takes 0.2 ms a column, for a plan that reads all of them
        loaded = dataclasses.replace(loaded, facts=snapshot.facts)
    return dataclasses.replace(loaded, ignored=listing.ignored)


def _identify(listing: Listing, parts: Assembly, now_ns: int) -> tuple[Listing, Assembly]:
    """The files with what tells them from later ones: the tags of those that were opened, or times, of which a file
    that is written now has others, or else a mark."""
    files, tags = listing.files, parts.files["etag"].combine_chunks()
    if "etag" in files.schema.names:
        tags = pc.coalesce(tags, contiguous(files["etag"]))
        files = files.drop_columns("etag")
    mtime_ns = contiguous(files["mtime_ns"]).to_numpy()
    time.sleep(unsettled_ns(mtime_ns[tags.is_null().to_numpy(zero_copy_only=False)], time.time_ns()) / 1e9)
    marked = mark_unknown(files, tags, now_ns)
    files = files if marked is None else files.append_column("etag", marked)
    parts = dataclasses.replace(parts, files=parts.files.drop_columns("etag"))
    return dataclasses.replace(listing, files=files), parts


def _freeze(listing: Listing, parts: Assembly, rules: SchemaRules) -> Snapshot:
    names = [join(redact(listing.uri), listing.files["path"][index].as_py()) for index in parts.first]
    schemas = list(zip(names, parts.schemas, strict=True))
    kind_of_file = contiguous(parts.files["schema"]).to_numpy()
    kinds = [(schema, np.flatnonzero(kind_of_file == index)) for index, schema in enumerate(parts.schemas)]
    held_by_files = held_keys(listing, kinds)
    keyed = dataclasses.replace(
        listing, partition={k: v for k, v in listing.partition.items() if k not in held_by_files}
    )
    whole = unite_schemas(keyed, schemas, rules)
    if held_by_files:
        held_by_files = held_keys(listing, kinds, whole)
        order = order_by_keys(
            listing, held_by_files, {name: _least(parts, whole.field(name)) for name in held_by_files}
        )
        if (np.diff(order) != 1).any():
            return _freeze(listing.take(order), in_order(parts, order), rules)
    partition = partition_values(keyed, whole)
    doubtful = _doubtful_keys(
        whole, {**partition, **{name: key.values for name, key in held_by_files.items()}}, parts, held_by_files
    )
    schema = pa.schema(
        [
            *_without_keys(whole, keyed, doubtful),
            *(pa.field(name, column.type) for name, column in partition.items()),
        ]
    )
    files = listing.files
    for name in parts.files.schema.names:
        files = files.append_column(name, parts.files[name])
    facts = parts.facts
    for column, keys in (
        ("partition", partition),
        ("path_keys", {name: key.values for name, key in held_by_files.items()}),
    ):
        if keys:
            files = files.append_column(column, pa.StructArray.from_arrays(list(keys.values()), names=list(keys)))
    if held_by_files:
        file, rows = contiguous(parts.row_groups["file"]).to_numpy(), contiguous(parts.row_groups["rows"])
        facts = with_path_values(facts, held_by_files, file, rows)
    logged = listing.schema is not None
    return Snapshot(
        id=identity(schema, files, parts.row_groups, logged=logged, stored_names=listing.stored_names),
        uri=listing.uri,
        schema=schema,
        partition_columns=tuple(partition),
        files=files,
        row_groups=parts.row_groups,
        facts=facts,
        file_schemas=parts.schemas,
        ignored=listing.ignored,
        logged=logged,
        stored_names=listing.stored_names,
    )


def _least(parts: Assembly, field: pa.Field) -> npt.NDArray[np.object_]:
    """object [files]: the least value of a column in each file, by statistics; None where they do not have it."""
    facts, least = parts.facts.fetch(field), np.full(len(parts.files), None, np.object_)
    if facts.type.get_field_index("min") < 0:
        return least
    for file, value in zip(parts.row_groups["file"].to_pylist(), facts.field("min").to_pylist(), strict=True):
        if value is not None and (least[file] is None or value < least[file]):
            least[file] = value
    return least


def partition_values(listing: Listing, schema: pa.Schema) -> dict[str, pa.Array]:
    """The partition keys' values; a key whose type was inferred from paths gets that of the files' column, if any."""
    partition = dict(listing.partition)
    for name in listing.inferred_keys.intersection(schema.names, partition):
        paths = listing.files["path"].to_pylist()
        partition[name] = refine(partition[name], name, schema.field(name).type, paths)
    return partition


def _doubtful_keys(
    schema: pa.Schema, partition: Mapping[str, pa.Array], parts: Assembly, held: Mapping[str, HeldKey]
) -> list[str]:
    """The partition keys that are also columns of files, and whose values there may differ according to statistics. Of
    `held` ones, files that lack the key or the column do not matter."""
    rows, file = contiguous(parts.row_groups["rows"]), contiguous(parts.row_groups["file"])
    doubtful = []
    for name in schema.names:
        if name not in partition:
            continue
        field, key = schema.field(name), partition[name].take(file)
        column = parts.facts.fetch(field)
        facts = dict(zip((part.name for part in column.type), column.flatten(), strict=True))
        if field.type != key.type or "min" not in facts:
            doubtful.append(name)
            continue
        value = pc.and_(pc.equal(facts["min"], key), pc.equal(facts["max"], key))
        value = pc.and_(value, pc.equal(facts["nulls"], 0))
        value = pc.and_(value, facts["exact"]) if "exact" in facts else value
        null = pc.and_(key.is_null(), pc.equal(facts["nulls"], rows))
        same = pc.or_(pc.fill_null(value, False), null)
        if name in held:
            has = np.array([name in kind.names for kind in parts.schemas], np.bool_)
            doubled = held[name].in_path & has[contiguous(parts.files["schema"]).to_numpy()]
            same = pc.or_(same, pa.array(~doubled[file.to_numpy()]))
        if not pc.all(same, min_count=0).as_py():
            doubtful.append(name)
    return doubtful


def _without_keys(schema: pa.Schema, listing: Listing, both: Sequence[str]) -> pa.Schema:
    if both:
        warnings.warn(
            f"{redact(listing.uri)} has {', '.join(both)} both as partition key and as a column in its files: "
            "the partition key is used",
            UserWarning,
            stacklevel=5,
        )
    fields = [field for field in schema if field.name not in listing.partition]
    if not fields:
        raise TableError(f"{redact(listing.uri)} has no column in its files: expected at least one besides its keys")
    return pa.schema(fields)


def _leave_out(
    listing: Listing, parts: Sequence[SnapshotPart], corrupt: npt.NDArray[np.int64]
) -> tuple[Listing, list[SnapshotPart]]:
    good = np.delete(np.arange(len(listing.files)), corrupt)
    renumbered = []
    for part in parts:
        index = np.searchsorted(good, part.files["file"].to_numpy())
        renumbered.append(dataclasses.replace(part, files=part.files.set_column(0, "file", pa.array(index))))
    return listing.take(good), renumbered


def _load_last(work_dir: str, listing: Listing) -> tuple[Snapshot, int] | None:
    try:
        (entry,) = content_store.load(work_dir, _last_name(listing), tables=1)
        last = Snapshot.load(work_dir, entry["snapshot"][0].as_py())
    except (FileNotFoundError, TableError):
        return None
    return last, int(entry["taken_ns"][0].as_py())


def _save_last(work_dir: str, listing: Listing, id: str, taken_ns: int) -> None:
    content_store.create(work_dir, _last_name(listing), [pa.table({"snapshot": [id], "taken_ns": [taken_ns]})])


def _last_name(listing: Listing) -> str:
    names = [] if listing.stored_names is None else [listing.stored_names.text]
    if listing.columns is not None:  # of dropped columns a snapshot has no facts
        names += sorted(listing.columns.hidden)
    name = hashlib.sha256(json.dumps([listing.uri, listing.source_names, *names]).encode()).hexdigest()
    return f"tables/{name}.arrow"


def _reuse_facts(listing: Listing, last: Snapshot, taken_ns: int) -> tuple[list[SnapshotPart], npt.NDArray[np.int64]]:
    part = SnapshotPart(files=last.files, schemas=last.file_schemas, row_groups=last.row_groups, facts=last.facts)
    # of a key that files may hold, the facts must be there
    keys = {name for name, values in listing.partition.items() if not values.null_count or listing.schema is not None}
    old = unchanged_files(listing, part, kept={*last.file_columns, *keys}, taken_ns=taken_ns)
    old = np.where(same_column_files(listing, last.files, old), old, -1)
    return ([carry_over(part, old)] if (old >= 0).any() else []), np.flatnonzero(old < 0)
