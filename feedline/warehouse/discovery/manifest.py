"""List the files that a manifest names: a JSON list of paths, or a Parquet file with a column `path`.

Runs where a snapshot is taken. A JSON manifest is a list of paths, or of objects with a `path`; other keys are ignored.
Paths are relative to the manifest's folder, absolute, or URIs, all on one store. The table has its usual order. Files
of a table with a log are accepted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from feedline.errors import TableError, TableNotFoundError
from feedline.warehouse.discovery.hive import Listing, common_root, hive_listing, parent
from feedline.warehouse.discovery.partitions import links_among, refuse_same_files
from feedline.warehouse.storage.faults import explain_errors
from feedline.warehouse.storage.locations import (
    Location,
    absolute,
    ancestor,
    below,
    is_uri,
    join,
    locate,
    redact,
    uri_on,
)
from feedline.warehouse.storage.ranges import read_range
from feedline.warehouse.storage.retry import is_local, with_retries

_MAGIC = b"PAR1"


def discover_manifest(manifest: str, *, partitions: Mapping[str, str] | None = None) -> Listing:
    """List the files that a manifest names.

    Raises TableNotFoundError if the manifest or a file that it names does not exist, TableError if it is not a
    manifest, names no file, or names files on several stores.
    """
    location = locate(absolute(manifest))
    names = _names(location)
    folder = ancestor(location.uri, 1)
    uris = list(dict.fromkeys(_resolve(name, folder, redact(location.uri)) for name in names))
    first = locate(uris[0])
    paths = _paths(uris, first, redact(location.uri))
    with explain_errors(redact(first.uri)):
        files = first.filesystem
        infos = with_retries(lambda: files.get_file_info(paths), files, redact(first.uri), verb="listed")
    for info, uri in zip(infos, uris, strict=True):
        if info.type == pafs.FileType.NotFound:
            raise TableNotFoundError(
                f"{redact(uri)} does not exist: {redact(location.uri)} names it. Restore it, or rewrite the manifest"
            )
        if info.type != pafs.FileType.File:
            raise TableError(f"{redact(uri)} is a folder: expected only files in {redact(location.uri)}")
    if is_local(first.filesystem):
        refuse_same_files(paths, links_among(paths), {})
    root = common_root(sorted({parent(info.path) for info in infos}))
    listing = hive_listing(uri_on(first, root), root, {info.path: info for info in infos}, partitions)
    return replace(listing, source_names=location.uri)


def _names(location: Location) -> list[str]:
    where = redact(location.uri)
    with explain_errors(where):
        content = with_retries(lambda: _content(location, where), location.filesystem, where)
    data = content.to_pybytes()
    names = _parquet_names(content, where) if data.startswith(_MAGIC) else _json_names(data, where)
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise TableError(f"manifest {where} holds an entry that is not a path: got {name!r}, expected a string")
    if not names:
        raise TableError(f"manifest {where} is empty: expected at least one path")
    return names


def _content(location: Location, where: str) -> pa.Buffer:
    if location.filesystem.get_file_info(location.path).type == pafs.FileType.Directory:
        raise TableError(f"manifest {where} is a folder: expected a JSON or Parquet file")
    with location.filesystem.open_input_file(location.path) as source:
        if is_local(location.filesystem):
            return source.read_buffer()
        return pa.py_buffer(read_range(source, 0, source.size()))


def _parquet_names(content: pa.Buffer, where: str) -> list[Any]:
    with explain_errors(where):
        schema = pq.read_schema(pa.BufferReader(content))
        if "path" not in schema.names:
            raise TableError(f"manifest {where} has no column 'path': got {', '.join(schema.names[:20])}")
        names: list[Any] = pq.read_table(pa.BufferReader(content), columns=["path"])["path"].to_pylist()
    return names


def _json_names(content: bytes, where: str) -> list[Any]:
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise TableError(f"manifest {where} is neither JSON nor Parquet: {error}") from None
    if not isinstance(entries, list):
        raise TableError(
            f"manifest {where} is not a list: got {type(entries).__name__}, expected a JSON list of paths, or of "
            "objects with a `path`"
        )
    return [entry.get("path") if isinstance(entry, dict) else entry for entry in entries]


def _resolve(name: str, folder: str, where: str) -> str:
    if is_uri(name):
        return absolute(name)
    if not is_uri(folder):
        return absolute(join(folder, name) if not name.startswith("/") else name)
    if name.startswith("/"):
        raise TableError(f"manifest {where} names {name!r}: expected a path relative to its folder, or a URI")
    return below(folder, name)


def _paths(uris: Sequence[str], first: Location, where: str) -> list[str]:
    """The files' paths on their filesystem, which is created once per store, not per file."""
    paths = []
    stores: dict[tuple[str, ...], Location] = {}
    for uri in uris:
        if not is_uri(uri):
            location, path = locate(uri), uri
        elif "%" in uri or "?" in uri:
            location = locate(uri)
            path = location.path
        else:
            parts = urlsplit(uri)
            key = parts.scheme, parts.netloc
            if key not in stores:
                stores[key] = locate(f"{parts.scheme}://{parts.netloc}/")
            location = stores[key]
            path = join(location.path.rstrip("/"), parts.path.lstrip("/")) if location.path != "" else parts.path
        if not location.filesystem.equals(first.filesystem):
            raise TableError(
                f"manifest {where} names files on several stores: got {redact(first.uri)} and {redact(uri)}, expected "
                "one. Write one manifest for each"
            )
        paths.append(path)
    return paths
