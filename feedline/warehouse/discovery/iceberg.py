"""List the files of an Iceberg table at one of its snapshots.

Runs where a snapshot is taken. The package `pyiceberg` (the extra `iceberg`) reads metadata and manifests. A table is
named by its folder (then the metadata that version-hint.text names, else the file with the highest number) or by one
metadata.json; catalogs are not used. Partition transforms have no effect; a column of an identity transform that files
lack is a partition key. Files without field ids have the names of `schema.name-mapping.default`; without one, any
earlier name of a column.

Refused are position and equality deletes, deletion vectors, files that are not Parquet, and what `table_log` refuses.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.types as pat

from feedline.errors import TableError, TableNotFoundError
from feedline.extras import extra
from feedline.warehouse.discovery.hive import ColumnHistory, Listing
from feedline.warehouse.discovery.table_log import declared_listing, moment_of, plain
from feedline.warehouse.storage.faults import explain_errors, safe_message
from feedline.warehouse.storage.locations import absolute, ancestor, join, locate, redact, split_options
from feedline.warehouse.storage.retry import with_retries

_METADATA = re.compile(r"v?(\d+)(?:-[0-9a-f-]+)?(?:\.gz)?\.metadata\.json(?:\.gz)?\Z")
_HINT = "version-hint.text"
# pyarrow's URI options and pyiceberg's names for them; credentials come from the environment.
_OPTIONS = {"region": "s3.region", "endpoint_override": "s3.endpoint"}


def list_iceberg(table: str, *, snapshot_id: int | None = None, as_of: str | None = None) -> Listing:
    """List the files of a snapshot (None: the newest), or of the snapshot that was the newest at an ISO time.

    A time without a zone is UTC. Raises TableNotFoundError if there is no table, snapshot or file, TableError for a
    table that cannot be read, TableChangedError for files that were deleted since.
    """
    with extra("iceberg", "format iceberg", TableError):
        import pyiceberg.exceptions  # noqa: PLC0415 -- an extra: needed only for tables of this format
        from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415 -- likewise
        from pyiceberg.table import StaticTable  # noqa: PLC0415 -- likewise
    uri, metadata = _metadata_of(absolute(table))
    try:
        log = StaticTable.from_metadata(metadata, properties=_options(uri))
        scan = log.scan(snapshot_id=_snapshot_id(log, uri, snapshot_id, as_of))
        tasks = list(scan.plan_files())
        schema = schema_to_pyarrow(scan.projection(), include_field_ids=True)
        specs = [log.specs()[number] for number in {task.file.spec_id for task in tasks}]
        histories = _histories(log, scan.projection(), specs)
    except (pyiceberg.exceptions.ValidationError, OSError, ValueError, TypeError) as error:
        if isinstance(error, TableError):
            raise
        if "equality delete" in str(error):
            raise _deletes_error(uri, "equality deletes") from error
        raise TableError(f"{redact(uri)} cannot be read as an Iceberg table: {safe_message(error)}") from error
    _refuse(tasks, uri)
    files = [task.file for task in tasks]
    partition = _identity_keys(files, log, scan.projection(), schema, uri)
    paths = [file.file_path for file in files]
    listing = declared_listing(uri, paths, partition)
    return replace(listing, source_names=f"iceberg {uri}", schema=schema, histories=histories)


def _metadata_of(uri: str) -> tuple[str, str]:
    """The table's folder and its metadata file, both as a URI or an absolute path."""
    address = split_options(uri)[0]
    if address.endswith((".metadata.json", ".metadata.json.gz")):
        return ancestor(uri, 2), address
    location = locate(uri)
    folder = join(location.path, "metadata")
    store, selector = location.filesystem, pafs.FileSelector(folder, allow_not_found=True)
    with explain_errors(redact(uri)):
        infos = with_retries(lambda: store.get_file_info(selector), store, redact(uri), verb="listed")
    names = {info.base_name for info in infos if info.type == pafs.FileType.File}
    hint = None
    if _HINT in names:
        with explain_errors(redact(uri)):
            hint = with_retries(lambda: _read(store, join(folder, _HINT)), store, redact(uri)).decode().strip()
    return uri, f"{address}/metadata/{newest_metadata(names, hint, redact(uri))}"


def newest_metadata(names: Collection[str], hint: str | None, table: str) -> str:
    """The newest of the files in a metadata folder.

    A numeric hint may be behind: a table without a catalog writes `v<number>.metadata.json` first and the hint then, so
    consecutive higher versions are newer. Without a hint the highest number counts.
    Raises TableNotFoundError if there is no metadata, TableError if the newest is ambiguous.
    """
    numbers = {name: int(match[1]) for name in names if (match := _METADATA.match(name))}
    if not numbers:
        raise TableNotFoundError(
            f"{table} is not an Iceberg table: expected a folder with metadata/*.metadata.json, or such a file. For a "
            "table in a catalog, name the metadata.json that the catalog shows as its metadata location"
        )
    by_number: dict[tuple[bool, int], list[str]] = defaultdict(list)
    for name, number in sorted(numbers.items()):
        by_number[name.startswith("v"), number].append(name)
    kinds = {versioned for versioned, _ in by_number}
    if hint is not None:
        named = next((name for name in (hint, f"{hint}.metadata.json") if name in names), None)
        if named is not None:
            return named
        number = int(hint) if hint.isdecimal() else -1  # files v1, v2, v3 and v5, hint 2 -> v3
        while {(True, number), (True, number + 1)} <= by_number.keys():
            number += 1
        newest = by_number.get((True, number)) or by_number.get((False, number)) or []
        reason = f"{_HINT} says {hint!r}"
    elif len(kinds) == 1:
        newest, reason = by_number[max(by_number)], f"there is no {_HINT}"
    else:
        newest = [max(numbers, key=lambda name: (name.startswith("v") == kind, numbers[name])) for kind in kinds]
        reason = "numbered in two ways"
    if len(newest) != 1:
        raise TableError(
            f"{table} has no single newest metadata file: got {' and '.join(newest) or 'none'} ({reason}), expected "
            "one. Name the metadata.json that the table's catalog shows as its metadata location"
        )
    return newest[0]


def _read(store: pafs.FileSystem, path: str) -> bytes:
    with store.open_input_stream(path) as source:
        return bytes(source.read())


def _snapshot_id(log: Any, uri: str, snapshot_id: int | None, as_of: str | None) -> int | None:
    if snapshot_id is not None and log.snapshot_by_id(snapshot_id) is None:
        last = ", ".join(str(one.snapshot_id) for one in log.snapshots()[-5:]) or "none"
        raise TableNotFoundError(
            f"{redact(uri)} has no snapshot {snapshot_id}: its last ones are {last}. Expired ones cannot be restored"
        )
    if as_of is None:
        return snapshot_id
    snapshot = log.snapshot_as_of_timestamp(int(moment_of(as_of).timestamp() * 1000))
    if snapshot is None:
        raise TableError(f"{redact(uri)} has no snapshot of {as_of} or before. Name a later time")
    return int(snapshot.snapshot_id)


def _refuse(tasks: Sequence[Any], uri: str) -> None:
    for task in tasks:
        kinds = {
            "deletion vectors" if file.file_format.value.upper() == "PUFFIN" else _content(file)
            for file in task.delete_files
        }
        if kinds:
            raise _deletes_error(uri, " and ".join(sorted(kinds)))
        if task.file.file_format.value.upper() != "PARQUET":
            raise TableError(
                f"{redact(uri)} has a file that is not Parquet: got {task.file.file_format.value} in "
                f"{redact(task.file.file_path)}. Rewrite the table as Parquet"
            )


def _content(file: Any) -> str:
    return "equality deletes" if file.content.name == "EQUALITY_DELETES" else "position deletes"


def _deletes_error(uri: str, what: str) -> TableError:
    return TableError(
        f"{redact(uri)} has {what}, which remove rows from its files: expected none. Run rewrite_data_files, which "
        "rewrites the files without those rows"
    )


def _identity_keys(files: Sequence[Any], log: Any, columns: Any, schema: pa.Schema, uri: str) -> dict[str, pa.Array]:
    """The columns that some file lacks because its partition has their value: one value per file."""
    missing: dict[str, None] = {}
    values: list[dict[str, Any]] = []
    for file in files:
        identities = _identities(file, log, columns)
        values.append(identities)
        present = {*(file.column_sizes or ()), *(file.value_counts or ())}
        if present:  # a file without any counts holds all columns, by the specification
            missing.update({name: None for name in identities if columns.find_field(name).field_id not in present})
    keys = {}
    for name in schema.names:
        if name in missing:
            if not all(name in identities for identities in values):
                raise TableError(
                    f"column {name!r} of {redact(uri)} is a partition's value for some files and a column in others: "
                    "expected one of the two. Rewrite the old files"
                )
            keys[name] = _convert_types([identities[name] for identities in values], plain(schema.field(name).type))
    return keys


def _identities(file: Any, log: Any, columns: Any) -> dict[str, Any]:
    spec = log.specs()[file.spec_id]
    values = {}
    for index, field in enumerate(spec.fields):
        name = columns.find_column_name(field.source_id)
        if str(field.transform) == "identity" and name is not None:
            values[name] = file.partition[index]
    return values


def _histories(log: Any, columns: Any, specs: Sequence[Any]) -> dict[int, ColumnHistory]:
    """The histories of columns and struct fields by field id, for files that lack them or their field ids."""
    names: dict[int, set[str]] = defaultdict(set)
    owners: dict[tuple[int, str], set[int]] = defaultdict(set)
    for schema in [*log.metadata.schemas, columns]:
        for parent, field in _fields(schema.as_struct(), 0):
            names[field.field_id].add(field.name)
            owners[parent, field.name].add(field.field_id)
    mapping = log.metadata.name_mapping()
    names_by_id = None if mapping is None else dict(_names_by_id(mapping.root))
    everywhere = [{field.source_id for field in spec.fields if str(field.transform) == "identity"} for spec in specs]
    partition_ids = set.intersection(*everywhere) if everywhere else set()
    histories = {}
    for parent, field in _fields(columns.as_struct(), 0):
        id = field.field_id
        earlier = names[id] if names_by_id is None else names_by_id.get(id, set())
        histories[id] = ColumnHistory(
            names=frozenset(earlier),
            ambiguous=len(owners[parent, field.name]) > 1 if names_by_id is None else field.name not in earlier,
            default=None if field.initial_default is None else repr(field.initial_default),
            in_partitions=id in partition_ids,
        )
    return histories


def _fields(struct: Any, parent: int) -> Iterator[tuple[int, Any]]:
    """The fields of a struct, recursively, each with the field id of its parent."""
    for field in struct.fields:
        yield parent, field
        inner, id = field.field_type, field.field_id
        while (kind := next((kind for kind in ("element", "value") if hasattr(inner, f"{kind}_type")), "")) != "":
            id, inner = getattr(inner, f"{kind}_id"), getattr(inner, f"{kind}_type")
        if inner.is_struct:
            yield from _fields(inner, id)


def _names_by_id(fields: Sequence[Any]) -> Iterator[tuple[int, set[str]]]:
    for field in fields:
        if field.field_id is not None:
            yield field.field_id, set(field.names)
        yield from _names_by_id(field.fields)


def _convert_types(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Partition values as an array; dates and times are integers, in days or microseconds."""
    numeric = pat.is_date(kind) or pat.is_timestamp(kind) or pat.is_time(kind)
    if numeric and all(value is None or isinstance(value, int) for value in values):
        return pa.array(values, pa.int32() if pat.is_date32(kind) else pa.int64()).cast(kind)
    return pa.array(values, kind)


def _options(uri: str) -> dict[str, str]:
    query = dict(parse_qsl(split_options(uri)[1].removeprefix("?")))
    options = {_OPTIONS[name]: value for name, value in query.items() if name in _OPTIONS}
    if "s3.endpoint" in options:
        options["s3.endpoint"] = f"{query.get('scheme', 'https')}://{query['endpoint_override']}"
    return options
