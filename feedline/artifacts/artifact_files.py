"""Read and write the files of a folder of artifacts: JSON documents and Parquet tables, checked before use.

Runs in: every process that reads or writes artifacts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from feedline.errors import CorruptFileError, FeedlineError, SpecError
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, join, locate, redact
from feedline.warehouse.storage.retry import with_retries

FORMAT = 1  # of all JSON documents


def list_files(folder: str, name: str) -> list[pafs.FileInfo]:
    """The files and folders in a subfolder, by name; none if it does not exist. Raises as `read_file`."""
    try:
        location = locate(absolute(folder))
        selector = pafs.FileSelector(join(location.path, name), allow_not_found=True)
        infos = with_retries(
            lambda: location.filesystem.get_file_info(selector), location.filesystem, redact(location.uri)
        )
        return sorted(infos, key=lambda info: info.base_name)
    except FeedlineError:
        raise
    except OSError as error:
        raise _unreadable_error(join(folder, name), error) from error


def list_names(folder: str, name: str, suffix: str) -> list[str]:
    """The files with a suffix in a subfolder, relative to the folder. Raises as `read_file`."""
    return [f"{name}/{info.base_name}" for info in list_files(folder, name) if info.base_name.endswith(suffix)]


def read_file(folder: str, name: str) -> bytes | pa.Buffer | None:
    """Read a file below the folder; None if it does not exist. Raises SpecError if the folder cannot be read."""
    try:
        return content_store.get(locate(absolute(folder)), name)
    except FileNotFoundError:
        return None
    except FeedlineError:
        raise
    except OSError as error:
        raise _unreadable_error(join(folder, name), error) from error


def read_checked(folder: str, name: str, sha256: str, *, expected: str) -> bytes | pa.Buffer:
    """Read a file with this digest. Raises CorruptFileError if it is missing or has another one.

    expected: what it holds, for the message.
    """
    content = read_file(folder, name)
    if content is None:
        raise CorruptFileError(f"{redact(join(folder, name))} is gone: expected {expected}. Fit again: feedline fit")
    if content_digest(content) != sha256:
        raise altered_error(join(folder, name))
    return content


def write_file(folder: str, name: str, content: bytes | pa.Buffer) -> None:
    """Write a file below the folder, replacing an existing one atomically."""
    content_store.put(locate(absolute(folder)), name, [content])


def content_digest(content: bytes | pa.Buffer) -> str:
    """The SHA-256 of a file's content, in hex."""
    return hashlib.sha256(memoryview(content)).hexdigest()


def parse_json(content: bytes | pa.Buffer, path: str, required: Mapping[str, type]) -> dict[str, Any]:
    """Parse a JSON document of this format. Raises CorruptFileError, SpecError for another version."""
    try:
        body = json.loads(bytes(content))
        version = body["format"]
    except (ValueError, KeyError, TypeError):
        raise altered_error(path) from None
    if version != FORMAT:
        raise SpecError(
            f"artifacts at {redact(path)} have another format: got version {version!r}, expected {FORMAT}. Fit again, "
            "with this version of Feedline: feedline fit"
        )
    if not all(isinstance(body.get(key), kind) for key, kind in required.items()):
        raise altered_error(path)
    document: dict[str, Any] = body
    return document


def parquet_bytes(table: pa.Table) -> pa.Buffer:
    """A table as the Parquet file of golden vectors and records of types."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", version="2.6", use_dictionary=False)
    return sink.getvalue()


def parsed_parquet(content: bytes | pa.Buffer, path: str) -> pq.ParquetFile:
    """Open the content of a Parquet file. Raises CorruptFileError if it is none."""
    try:
        return pq.ParquetFile(pa.BufferReader(content))
    except (pa.ArrowException, OSError) as error:
        raise altered_error(path) from error


def altered_error(path: str) -> CorruptFileError:
    """The error for a file whose digest or structure is wrong."""
    return CorruptFileError(
        f"{redact(path)} does not hold what was written: it is truncated or altered. Write it again with `feedline fit`"
    )


def _unreadable_error(path: str, error: OSError) -> SpecError:
    return SpecError(f"artifacts cannot be read: {redact(path)}: {error}. Name a readable folder in `artifacts`")
