"""List the files of an Iceberg table at one of its snapshots.

Runs where a snapshot is taken. Metadata and manifests are read by the package `pyiceberg` (the extra `iceberg`); files
and columns come from them, statistics from the files' own footers. A table is named by its folder (the newest metadata
there: by version-hint.text, else the one file with the highest number) or by one metadata.json; a catalog is
not asked. Partition transforms change nothing, as files hold the columns that they are made of; the exception are files
of an identity transform that lack the column: then it is a partition key.

Refused: position and equality deletes, deletion vectors, files that are not Parquet, and (in `table_log`)
columns that were renamed, or dropped and added again, or have an initial default, as long as files from before are in
the table. Files without field ids have the names that `schema.name-mapping.default` says; without one, any that a
column ever had.
"""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.types as pat

from feedline.errors import TableError, TableNotFoundError
from feedline.warehouse.discovery.hive import ColumnPast, Listing
from feedline.warehouse.discovery.table_log import declared_listing, package_missing, plain
from feedline.warehouse.storage.faults import explain_errors, safe_message
from feedline.warehouse.storage.locations import absolute, ancestor, is_uri, join, locate, redact
from feedline.warehouse.storage.retry import with_retries

_METADATA = re.compile(r"v?(\d+)(?:-[0-9a-f-]+)?(?:\.gz)?\.metadata\.json(?:\.gz)?\Z")
_HINT = "version-hint.text"
# What the URI says of its store, as pyarrow.fs has it, in pyiceberg's words; credentials come from the environment.
_OPTIONS = {"region": "s3.region", "endpoint_override": "s3.endpoint"}


def list_iceberg(table: str, *, snapshot_id: int | None = None, as_of: str | None = None) -> Listing:
    """The files of a snapshot (None: the newest), or of the snapshot that was the newest at an ISO time.

    A time without a zone is UTC. Raises TableNotFoundError where no table, no snapshot or no file is, TableError for
    what cannot be read, TableChangedError for files that were deleted since.
    """
    try:
        import pyiceberg.exceptions  # noqa: PLC0415 -- an extra: only where a table of this format is asked for
        from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415 -- likewise
        from pyiceberg.table import StaticTable  # noqa: PLC0415 -- likewise
    except ImportError:
        raise package_missing("pyiceberg", "iceberg") from None
    uri, metadata = _metadata_of(absolute(table))
    try:
        log = StaticTable.from_metadata(metadata, properties=_options(uri))
        scan = log.scan(snapshot_id=_snapshot_id(log, uri, snapshot_id, as_of))
        tasks = list(scan.plan_files())
        schema = schema_to_pyarrow(scan.projection(), include_field_ids=True)
        specs = [log.specs()[number] for number in {task.file.spec_id for task in tasks}]
        pasts = _pasts(log, scan.projection(), specs)
    except (pyiceberg.exceptions.ValidationError, OSError, ValueError, TypeError) as error:
        if isinstance(error, TableError):
            raise
        if "equality delete" in str(error):
            raise _deletes(uri, "equality deletes") from error
        raise TableError(f"{redact(uri)} cannot be read as an Iceberg table: {safe_message(error)}") from error
    _refuse(tasks, uri)
    files = [task.file for task in tasks]
    partition = _identity_keys(files, log, scan.projection(), schema, uri)
    paths = [file.file_path for file in files]
    return declared_listing(uri, paths, partition, schema, format="iceberg", pasts=pasts)


def _metadata_of(uri: str) -> tuple[str, str]:
    """The table's folder and its metadata file, both as a URI or an absolute path."""
    address = uri.partition("?")[0] if is_uri(uri) else uri
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
    """Which of the files in a folder of metadata is the table's newest.

    A hint that is a number is one that the table had reached: a table without a catalog writes it after the next
    `v<number>.metadata.json`, so that a higher one in a row is newer. Without a hint numbers decide, if they can.
    Raises TableNotFoundError where there is no metadata, TableError where nothing says which is the newest.
    """
    numbers = {name: int(found[1]) for name in names if (found := _METADATA.match(name))}
    if not numbers:
        raise TableNotFoundError(
            f"{table} is no Iceberg table: expected a folder with metadata/*.metadata.json, or such a file. For a "
            "table that only a catalog knows, name the metadata.json that the catalog shows as its metadata location"
        )
    by_number: dict[tuple[bool, int], list[str]] = defaultdict(list)
    for name, number in sorted(numbers.items()):
        by_number[name.startswith("v"), number].append(name)
    kinds = {versioned for versioned, _ in by_number}
    if hint is not None:
        named = next((name for name in (hint, f"{hint}.metadata.json") if name in names), None)
        if named is not None:
            return named
        number = int(hint) if hint.isdecimal() else -1
        while {(True, number), (True, number + 1)} <= by_number.keys():
            number += 1
        newest = by_number.get((True, number)) or by_number.get((False, number)) or []
        reason = f"{_HINT} says {hint!r}"
    elif len(kinds) == 1:
        newest, reason = by_number[max(by_number)], f"no {_HINT} decides"
    else:
        newest = [max(numbers, key=lambda name: (name.startswith("v") == kind, numbers[name])) for kind in kinds]
        reason = "numbered in two ways"
    if len(newest) != 1:
        raise TableError(
            f"{table} has no one newest metadata file: got {' and '.join(newest) or 'none'} ({reason}), expected one. "
            "Name the metadata.json that the table's catalog shows as its metadata location"
        )
    return newest[0]


def _read(store: pafs.FileSystem, path: str) -> bytes:
    with store.open_input_stream(path) as source:
        return bytes(source.read())


def _snapshot_id(log: Any, uri: str, snapshot_id: int | None, as_of: str | None) -> int | None:
    if snapshot_id is not None and log.snapshot_by_id(snapshot_id) is None:
        known = ", ".join(str(one.snapshot_id) for one in log.snapshots()[-5:]) or "none"
        raise TableNotFoundError(
            f"{redact(uri)} has no snapshot {snapshot_id}: its last ones are {known}. Expired ones are gone for good"
        )
    if as_of is None:
        if snapshot_id is None and log.current_snapshot() is None:
            raise TableNotFoundError(f"{redact(uri)} is empty: expected at least one snapshot")
        return snapshot_id
    moment = datetime.datetime.fromisoformat(as_of)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    found = log.snapshot_as_of_timestamp(int(moment.timestamp() * 1000))
    if found is None:
        raise TableError(f"{redact(uri)} has no snapshot of {as_of} or before. Name a later time")
    return int(found.snapshot_id)


def _refuse(tasks: Sequence[Any], uri: str) -> None:
    for task in tasks:
        kinds = {
            "deletion vectors" if file.file_format.value.upper() == "PUFFIN" else _content(file)
            for file in task.delete_files
        }
        if kinds:
            raise _deletes(uri, " and ".join(sorted(kinds)))
        if task.file.file_format.value.upper() != "PARQUET":
            raise TableError(
                f"{redact(uri)} has a file that is not Parquet: got {task.file.file_format.value} in "
                f"{redact(task.file.file_path)}. Rewrite the table as Parquet"
            )


def _content(file: Any) -> str:
    return "equality deletes" if file.content.name == "EQUALITY_DELETES" else "position deletes"


def _deletes(uri: str, what: str) -> TableError:
    return TableError(
        f"{redact(uri)} has {what}, which take rows out of its files: expected none. Run rewrite_data_files, which "
        "writes the files anew without those rows"
    )


def _identity_keys(files: Sequence[Any], log: Any, columns: Any, schema: pa.Schema, uri: str) -> dict[str, pa.Array]:
    """The columns that some file lacks because its partition says their value: one value per file."""
    lacking: dict[str, None] = {}
    values: list[dict[str, Any]] = []
    for file in files:
        known = _identities(file, log, columns)
        values.append(known)
        present = {*(file.column_sizes or ()), *(file.value_counts or ())}
        if present:  # without any counts nothing is known, and files hold all columns: that is the rule
            lacking.update({name: None for name in known if columns.find_field(name).field_id not in present})
    keys = {}
    for name in schema.names:
        if name in lacking:
            if not all(name in known for known in values):
                raise TableError(
                    f"column {name!r} of {redact(uri)} is a partition's value for some files and a column in others: "
                    "expected one of the two. Rewrite the old files"
                )
            keys[name] = _convert_types([known[name] for known in values], plain(schema.field(name).type))
    return keys


def _identities(file: Any, log: Any, columns: Any) -> dict[str, Any]:
    spec = log.specs()[file.spec_id]
    found = {}
    for place, field in enumerate(spec.fields):
        name = columns.find_column_name(field.source_id)
        if str(field.transform) == "identity" and name is not None:
            found[name] = file.partition[place]
    return found


def _pasts(log: Any, columns: Any, specs: Sequence[Any]) -> dict[int, ColumnPast]:
    """Earlier names and defaults of columns and struct fields, for files that lack them or their field ids."""
    names: dict[int, set[str]] = defaultdict(set)
    owners: dict[tuple[int, str], set[int]] = defaultdict(set)
    for schema in [*log.metadata.schemas, columns]:
        for parent, field in _fields(schema.as_struct(), 0):
            names[field.field_id].add(field.name)
            owners[parent, field.name].add(field.field_id)
    mapping = log.metadata.name_mapping()
    mapped = None if mapping is None else dict(_map(mapping.root))
    everywhere = [{field.source_id for field in spec.fields if str(field.transform) == "identity"} for spec in specs]
    partitioned = set.intersection(*everywhere) if everywhere else set()
    pasts = {}
    for parent, field in _fields(columns.as_struct(), 0):
        number = field.field_id
        known = names[number] if mapped is None else mapped.get(number, set())
        pasts[number] = ColumnPast(
            names=frozenset(known),
            ambiguous=len(owners[parent, field.name]) > 1 if mapped is None else field.name not in known,
            default=None if field.initial_default is None else repr(field.initial_default),
            in_partitions=number in partitioned,
        )
    return pasts


def _fields(struct: Any, parent: int) -> Iterator[tuple[int, Any]]:
    """The fields of a struct, and of structs inside, each with the number of what it is a field of."""
    for field in struct.fields:
        yield parent, field
        inner, number = field.field_type, field.field_id
        while (kind := next((kind for kind in ("element", "value") if hasattr(inner, f"{kind}_type")), "")) != "":
            number, inner = getattr(inner, f"{kind}_id"), getattr(inner, f"{kind}_type")
        if inner.is_struct:
            yield from _fields(inner, number)


def _map(fields: Sequence[Any]) -> Iterator[tuple[int, set[str]]]:
    """The names that a name mapping gives to each number."""
    for field in fields:
        if field.field_id is not None:
            yield field.field_id, set(field.names)
        yield from _map(field.fields)


def _convert_types(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Partition values, which are numbers of days or microseconds where they are dates or times."""
    numeric = pat.is_date(kind) or pat.is_timestamp(kind) or pat.is_time(kind)
    if numeric and all(value is None or isinstance(value, int) for value in values):
        return pa.array(values, pa.int32() if pat.is_date32(kind) else pa.int64()).cast(kind)
    return pa.array(values, kind)


def _options(uri: str) -> dict[str, str]:
    given = dict(parse_qsl(uri.partition("?")[2])) if is_uri(uri) else {}
    options = {_OPTIONS[name]: value for name, value in given.items() if name in _OPTIONS}
    if "s3.endpoint" in options:
        options["s3.endpoint"] = f"{given.get('scheme', 'https')}://{given['endpoint_override']}"
    return options
