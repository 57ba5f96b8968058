"""Resolve a path or URI to a pyarrow filesystem and a path on it, and list what lies below.

Runs in every process. A table, a file and a `work_dir` are all named by a local path, by any URI that `pyarrow.fs`
knows, or else by one that fsspec knows. Relative local paths are made absolute once, where the user's string comes
in, so that workers with another working directory resolve them alike. Filesystems are made once per process and URI:
an S3 client costs milliseconds and holds connections.

Credentials come from where each store's own tools look for them (environment, profiles, the machine's role), never
from a URI: URIs are written into plans, snapshots, messages and logs.
"""

from __future__ import annotations

import atexit
import errno
import importlib
import os
import re
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from feedline.errors import FeedlineError, TableError
from feedline.warehouse.storage.faults import Outlook, explain_errors, last_words, outlook
from feedline.warehouse.storage.retry import is_local, retry_transient, with_retries

# One request of the SDK is one attempt: repeating is `retry`'s. The SDK's own retries stop for good after the
# first hundred (pyarrow never hands its quota back), and until then would multiply with ours.
_SDK_ATTEMPTS = 1
# A connection that takes longer is to a host that is not there; a transfer that stands still for longer is dead
# (the SDK's defaults, 1 s and 3 s, give up on an S3 that is merely slow under load).
CONNECT_TIMEOUT_S = 5.0
STALL_TIMEOUT_S = 20.0
# Google's client repeats by itself, by default for minutes.
_GCS_RETRY_S = 10
# What an S3 URI may say that `S3FileSystem` cannot be told: such a URI keeps the file system that pyarrow makes of it.
_S3_URI_ONLY = re.compile(r"[?&](tls_verify_certificates|tls_ca_dir_path|smart_defaults)=")

_ARROW_SCHEMES = {"file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "mock"}
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
# A password may hold slashes: `key:ab/cd@bucket`. A port is no password.
_PASSWORD = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/@]*:(?!\d*(/|$))[^@]*@")
_SECRET_OPTION = re.compile(
    r"[?&]((?:x-amz-(?:signature|credential|security-token)|sig|signature|[^=&]*(?:secret|password|token|_key|apikey)))=",
    re.IGNORECASE,
)

# Two threads that drop the same listing at once may fail: fsspec's `DirCache.pop` looks first and deletes then.
_forgetting = threading.Lock()


@dataclass(frozen=True, slots=True)
class Location:
    """A URI (or absolute local path), its filesystem, and the path on that filesystem."""

    uri: str
    filesystem: pafs.FileSystem
    path: str


def is_uri(text: str) -> bool:
    """Whether the string names its filesystem (`s3://…`), rather than being a local path."""
    return _SCHEME.match(text) is not None


def absolute(text: str) -> str:
    """The path or URI in a form that means the same in every process: local paths absolute, no trailing slash."""
    if not text:
        raise TableError("path is empty: expected a local path or a URI such as s3://bucket/table")
    if not is_uri(text):
        return os.path.normpath(Path(text).expanduser().absolute())
    if _PASSWORD.match(text):
        raise TableError(
            f"URI holds a password: got {redact(text)}, expected none. "
            "Leave credentials to the environment, the profile or the instance's role"
        )
    if (secret := _SECRET_OPTION.search(text)) is not None:
        raise TableError(
            f"URI holds a credential: got the option {secret[1]!r} in {redact(text)}, expected none. "
            "Leave credentials to the environment, the profile or the instance's role"
        )
    address, mark, options = text.partition("?")
    return address.rstrip("/") + mark + options


def redact(uri: str) -> str:
    """The URI for messages: without a password and without connection options."""
    if not is_uri(uri):
        return uri
    address = uri.partition("?")[0]
    return address if _PASSWORD.match(uri) is None else re.sub(r"://[^@]*@", "://", uri).partition("?")[0]


@lru_cache(maxsize=64)
def locate(uri: str) -> Location:
    """The filesystem and path of an absolute path or URI.

    Raises TableError for a URI that cannot be parsed, or whose scheme neither pyarrow nor fsspec knows, naming the
    package to install where fsspec names one.
    """
    try:
        filesystem, path = _with_limits(uri) if _is_arrow(uri) else _by_fsspec(uri)
    except FeedlineError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        # without its cause: pyarrow prints the URI whole
        raise TableError(f"{redact(uri)} names no place that pyarrow or fsspec can open: {last_words(error)}") from None
    return Location(uri, filesystem, path.rstrip("/") if is_uri(uri) else path)


def _is_arrow(uri: str) -> bool:
    return not is_uri(uri) or uri.partition("://")[0].lower() in _ARROW_SCHEMES


def _with_limits(uri: str) -> tuple[pafs.FileSystem, str]:
    """pyarrow's file system of a URI, with our limits of time and attempts where it has any."""
    scheme = uri.partition("://")[0].lower()
    if scheme in ("gs", "gcs") and "retry_limit_seconds=" not in uri:
        uri += f"{'&' if '?' in uri else '?'}retry_limit_seconds={_GCS_RETRY_S}"
    # parses the options, and asks S3 for the bucket's region where neither URI nor environment has it
    filesystem, path = retry_transient(lambda: pafs.FileSystem.from_uri(uri), redact(uri), "found")
    if scheme == "s3" and _S3_URI_ONLY.search(uri) is None:
        make, (options,) = filesystem.__reduce__()  # all that pyarrow made of the URI and the environment
        limits = {
            "connect_timeout": CONNECT_TIMEOUT_S,
            "request_timeout": STALL_TIMEOUT_S,
            "retry_strategy": pafs.AwsStandardS3RetryStrategy(max_attempts=_SDK_ATTEMPTS),
            "allow_delayed_open": True,  # a small object is one PUT, not three requests
        }
        filesystem = make({**options, **limits})
    return filesystem, path


def _by_fsspec(uri: str) -> tuple[pafs.FileSystem, str]:
    try:
        filesystem, path = importlib.import_module("fsspec.core").url_to_fs(uri)  # 20 ms that few runs need
    except ImportError as error:
        raise TableError(f"{redact(uri)} needs a package that is not installed: {last_words(error)}") from None
    return pafs.PyFileSystem(_Handler(filesystem)), path


class _Handler(pafs.FSSpecHandler):  # type: ignore[misc]
    """fsspec's files without their read-ahead: we ask for the ranges that we want.

    And without what fsspec remembers: most of its file systems keep the listings that they once saw, one instance
    serves the whole process, and an answer from there would prove nothing about a file that another process replaced.
    So whatever looks at the store first drops what is kept of that place.
    """

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        self._forget(paths)
        infos: list[pafs.FileInfo] = super().get_file_info(paths)
        return infos

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        self._forget_all()
        infos: list[pafs.FileInfo] = super().get_file_info_selector(selector)
        return infos

    def open_input_file(self, path: str) -> pa.PythonFile:
        self._forget([path])  # or the file would end where a file of that name once ended
        if not self.fs.isfile(path):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return pa.PythonFile(self.fs.open(path, mode="rb", cache_type="none"), mode="r")

    def open_input_stream(self, path: str) -> pa.PythonFile:
        self._forget([path])
        return super().open_input_stream(path)

    def delete_file(self, path: str) -> None:
        self._forget([path])
        super().delete_file(path)

    def delete_dir(self, path: str) -> None:
        self._forget_all()
        super().delete_dir(path)

    def _forget(self, paths: list[str]) -> None:
        """Some fsspec classes drop the folders above a path as well, others exactly what is named."""
        with _forgetting:
            for place in {*paths, *(path.rstrip("/").rpartition("/")[0] for path in paths)}:
                self.fs.invalidate_cache(place)

    def _forget_all(self) -> None:
        """Not only what is kept of a folder: few fsspec classes drop what lies below a path."""
        with _forgetting:
            self.fs.invalidate_cache()


# pyarrow shuts its S3 subsystem down at exit; a client that outlives it can hang the process (arrow#50482).
atexit.register(locate.cache_clear)


def join(folder: str, relative: str) -> str:
    """A path below a folder, on any filesystem."""
    if not folder:
        return relative
    return f"{folder}{relative}" if folder.endswith("/") else f"{folder}/{relative}"


def below(uri: str, relative: str) -> str:
    """The URI of a path below a folder, keeping the URI's options."""
    address, mark, options = uri.partition("?") if is_uri(uri) else (uri, "", "")
    return join(address, relative) + mark + options


def ancestor(uri: str, levels: int) -> str:
    """The URI of the folder `levels` above, keeping the URI's options."""
    if levels <= 0:
        return uri
    address, mark, options = uri.partition("?") if is_uri(uri) else (uri, "", "")
    parent = address.rsplit("/", levels)[0]
    return (parent or "/") + mark + options


def uri_on(location: Location, path: str) -> str:
    """The URI of another path on a location's store."""
    if not is_uri(location.uri):
        return path
    address, mark, options = location.uri.partition("?")
    top = ancestor(address, len([part for part in location.path.split("/") if part]))
    return f"{top.rstrip('/')}/{path.lstrip('/')}{mark}{options}"


def list_tree(location: Location) -> list[pafs.FileInfo]:
    """All that lies below a folder, in no particular order.

    An object store lists a thousand names per request, and pyarrow begins a listing anew where one of its requests
    fails: with hundreds of pages and a store that fails now and then it would never end. So a listing that fails is
    taken apart: the folder alone, then each folder in it by itself, and so on down.

    Raises StoreError where a part could not be listed for too long, and what `faults.explain_errors` raises.
    """
    if is_local(location.filesystem):
        return _file_infos(location.filesystem, location.path, recursive=True)
    with explain_errors(redact(location.uri), fetching=True, doing="listed"):
        return _list_folder(location.filesystem, location.path, redact(location.uri))


def _list_folder(filesystem: pafs.FileSystem, path: str, name: str) -> list[pafs.FileInfo]:
    try:
        return _file_infos(filesystem, path, recursive=True)
    except Exception as error:
        if outlook(error) is Outlook.FINAL:
            raise
    found = with_retries(lambda: _file_infos(filesystem, path, recursive=False), filesystem, name, doing="listed")
    folders = [info for info in found if info.type == pafs.FileType.Directory]
    for folder in folders:
        found += _list_folder(filesystem, folder.path, join(name, folder.base_name))
    return found


def _file_infos(filesystem: pafs.FileSystem, path: str, *, recursive: bool) -> list[pafs.FileInfo]:
    infos: list[pafs.FileInfo] = filesystem.get_file_info(pafs.FileSelector(path, recursive=recursive))
    return infos
