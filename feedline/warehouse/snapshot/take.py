"""Take the snapshot of a table: list it, read the footers of new files, and save it for the next time.

Runs once per job, in the process that plans. The facts of files that are the same as in the table's last snapshot under
the same `work_dir` (`file_identity`) are reused. Where the youngest file was written a moment ago, a snapshot waits
until a file that is written later has another time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from feedline.errors import CorruptFileError, TableError, TableNotFoundError
from feedline.warehouse.discovery.hive import Listing, discover
from feedline.warehouse.discovery.partitions import refine
from feedline.warehouse.discovery.table_log import unite_schemas
from feedline.warehouse.parquet.schemas import SchemaRules, storage_schema
from feedline.warehouse.snapshot.assembly import Assembly, SnapshotPart, assemble, carry_over, in_order, unchanged_files
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.snapshot.footer_waves import FooterWaves
from feedline.warehouse.snapshot.held_keys import HeldKey, held_keys, order_by_keys, with_path_values
from feedline.warehouse.snapshot.overflow import Overflow, overflow_folder
from feedline.warehouse.snapshot.packed_facts import part_without_files
from feedline.warehouse.snapshot.snapshot import Snapshot, identity
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.file_identity import mark_unknown, unsettled_ns
from feedline.warehouse.storage.locations import join, redact
from feedline.warehouse.storage.parallel import Map

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
    waves = FooterWaves(listing, unread, work_dir=work_dir, now_ns=now_ns, map=map)
    for result in waves.read():
        overflow.add(result.blocks)
        corrupt |= dict(result.corrupt)
        if corrupt and on_bad is None:
            raise CorruptFileError(next(iter(corrupt.values())))
    parts += overflow.parts()
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
    listing, assembly = _identify(listing, assemble(parts or [part_without_files()]), now_ns)
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
    held = held_keys(listing, kinds)
    keyed = dataclasses.replace(listing, partition={k: v for k, v in listing.partition.items() if k not in held})
    whole = unite_schemas(keyed, schemas, rules)
    if held:
        held = held_keys(listing, kinds, whole)
        order = order_by_keys(listing, held, {name: _least(parts, whole.field(name)) for name in held})
        if (np.diff(order) != 1).any():
            return _freeze(listing.take(order), in_order(parts, order), rules)
    partition = partition_values(keyed, whole)
    doubtful = _doubtful_keys(whole, {**partition, **{name: key.values for name, key in held.items()}}, parts, held)
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
    for column, keys in (("partition", partition), ("path_keys", {name: key.values for name, key in held.items()})):
        if keys:
            files = files.append_column(column, pa.StructArray.from_arrays(list(keys.values()), names=list(keys)))
    if held:
        file, rows = contiguous(parts.row_groups["file"]).to_numpy(), contiguous(parts.row_groups["rows"])
        facts = with_path_values(facts, held, file, rows)
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
    facts, found = parts.facts.fetch(field), np.full(len(parts.files), None, np.object_)
    if facts.type.get_field_index("min") < 0:
        return found
    for file, value in zip(parts.row_groups["file"].to_pylist(), facts.field("min").to_pylist(), strict=True):
        if value is not None and (found[file] is None or value < found[file]):
            found[file] = value
    return found


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
    kept = [field for field in schema if field.name not in listing.partition]
    if not kept:
        raise TableError(f"{redact(listing.uri)} has no column in its files: expected at least one besides its keys")
    return pa.schema(kept)


def _leave_out(
    listing: Listing, parts: Sequence[SnapshotPart], corrupt: npt.NDArray[np.int64]
) -> tuple[Listing, list[SnapshotPart]]:
    """The listing without the corrupt files, and the parts with the indices of that listing."""
    good = np.delete(np.arange(len(listing.files)), corrupt)
    renumbered = []
    for part in parts:
        index = np.searchsorted(good, part.files["file"].to_numpy())
        renumbered.append(dataclasses.replace(part, files=part.files.set_column(0, "file", pa.array(index))))
    return listing.take(good), renumbered


def _load_last(work_dir: str, listing: Listing) -> tuple[Snapshot, int] | None:
    """The table's last snapshot and when it was taken; None if none can be read."""
    try:
        (entry,) = content_store.load(work_dir, _last_name(listing), tables=1)
        last = Snapshot.load(work_dir, entry["snapshot"][0].as_py())
    except (FileNotFoundError, TableError):
        return None
    if any(storage_schema(schema) is not schema for schema in last.file_schemas):
        return None  # by a version that kept types of files which no column of a table has
    return last, int(entry["taken_ns"][0].as_py())


def _save_last(work_dir: str, listing: Listing, id: str, taken_ns: int) -> None:
    content_store.create(work_dir, _last_name(listing), [pa.table({"snapshot": [id], "taken_ns": [taken_ns]})])


def _last_name(listing: Listing) -> str:
    names = [] if listing.stored_names is None else [listing.stored_names.text]
    name = hashlib.sha256(json.dumps([listing.uri, listing.source_names, *names]).encode()).hexdigest()
    return f"tables/{name}.arrow"


def _reuse_facts(listing: Listing, last: Snapshot, taken_ns: int) -> tuple[list[SnapshotPart], npt.NDArray[np.int64]]:
    """The facts of unchanged files from the last snapshot, and the indices of the files to read."""
    part = SnapshotPart(files=last.files, schemas=last.file_schemas, row_groups=last.row_groups, facts=last.facts)
    # of a key that files may hold, the facts must be there
    keys = {name for name, values in listing.partition.items() if not values.null_count or listing.schema is not None}
    old = unchanged_files(listing, part, kept={*last.file_columns, *keys}, taken_ns=taken_ns)
    return ([carry_over(part, old)] if (old >= 0).any() else []), np.flatnonzero(old < 0)
