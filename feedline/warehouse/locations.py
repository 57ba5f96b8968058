"""Where is it: from a path or URI to a pyarrow filesystem and a path on it.

Runs in every process. A table, a file and a `work_dir` are all named by a local path or by any URI that `pyarrow.fs`
knows. Relative local paths are made absolute once, where the user's text comes in, so that workers with another
working directory mean the same place. Filesystems are made once per process and place: an S3 client costs
milliseconds and holds connections.
"""

from __future__ import annotations

import atexit
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from feedline.errors import TableError

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_PASSWORD = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/@]*:[^/@]*@")


@dataclass(frozen=True, slots=True)
class Location:
    """A place: the URI (or absolute local path) that names it, the filesystem, and the path on that filesystem."""

    uri: str
    filesystem: pafs.FileSystem
    path: str


def is_uri(text: str) -> bool:
    """Whether the text names its filesystem (`s3://…`), rather than being a local path."""
    return _SCHEME.match(text) is not None


def absolute(text: str) -> str:
    """The text as another process would have to be told it: local paths absolute, no trailing slash."""
    if not text:
        raise TableError("path is empty: expected a local path or a URI such as s3://bucket/table")
    if not is_uri(text):
        return os.path.normpath(Path(text).expanduser().absolute())
    if _PASSWORD.match(text):
        raise TableError(
            f"URI holds a password: got {shown(text)}, expected none. "
            "Leave credentials to the environment, the profile or the instance's role"
        )
    address, mark, options = text.partition("?")
    return address.rstrip("/") + mark + options


def shown(uri: str) -> str:
    """The URI as messages may show it: without a password and without connection options."""
    if not is_uri(uri):
        return uri
    return re.sub(r"://[^/@]*:[^/@]*@", "://", uri.partition("?")[0])


@lru_cache(maxsize=64)
def locate(uri: str) -> Location:
    """The filesystem and path of an absolute path or URI.

    Raises TableError for a scheme that pyarrow does not know or a URI that it cannot parse.
    """
    try:
        filesystem, path = pafs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise TableError(f"{shown(uri)} names no place that pyarrow can open: {error}") from error
    return Location(uri, filesystem, path.rstrip("/") if is_uri(uri) else path)


# pyarrow shuts its S3 subsystem down at exit; a client that outlives it can hang the process (arrow#50482).
atexit.register(locate.cache_clear)


def join(folder: str, relative: str) -> str:
    """The path of something below a folder, on any filesystem."""
    if not folder:
        return relative
    return f"{folder}{relative}" if folder.endswith("/") else f"{folder}/{relative}"


def ancestor(uri: str, levels: int) -> str:
    """The place `levels` folders above, keeping the URI's options."""
    if levels <= 0:
        return uri
    address, mark, options = uri.partition("?") if is_uri(uri) else (uri, "", "")
    parent = address.rsplit("/", levels)[0]
    return (parent or "/") + mark + options
