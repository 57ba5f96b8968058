"""Resolve a path or URI to a pyarrow filesystem and a path on it, and list folders.

Runs in every process. A table, a file and a `work_dir` are named by a local path, by any URI that `pyarrow.fs`
supports, or else by one that fsspec supports. Relative local paths are made absolute where the user's string enters.
Filesystems are created once per process and URI. Credentials come from the sources that each store's own tools use,
never from a URI.
"""

from __future__ import annotations

import atexit
import errno
import importlib
import os
import re
import threading
from contextlib import suppress
from functools import lru_cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs

from feedline.dataclass import dataclass
from feedline.errors import FeedlineError, TableError
from feedline.warehouse.storage.faults import Outlook, explain_errors, outlook, safe_message
from feedline.warehouse.storage.retry import is_local, retry_transient, with_retries

# `retry` repeats requests, not the SDK, whose own retries stop for good after the first hundred (pyarrow never refills
# its quota), and until then would multiply with ours.
_SDK_ATTEMPTS = 1
# A host that takes longer to connect is not there; a transfer without progress for longer is dead (the SDK's defaults,
# 1 s and 3 s, give up on an S3 that is merely slow under load).
CONNECT_TIMEOUT_S = 5.0
STALL_TIMEOUT_S = 20.0
# Google's client retries by itself, by default for minutes.
_GCS_RETRY_S = 10
# What Azure's own tools read an account's key or signature from. pyarrow takes them from arguments alone, and ours come
# from no URI. Without them it asks for a token: of a service principal, a managed identity, `az login`.
_AZURE_KEYS = {
    "account_key": ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"),
    "sas_token": ("AZURE_STORAGE_SAS_TOKEN",),
}
# Options of an S3 URI that `S3FileSystem` has no argument for: such a URI keeps the filesystem that pyarrow makes.
_S3_URI_ONLY = re.compile(r"[?&](tls_verify_certificates|tls_ca_dir_path|smart_defaults)=")

_ARROW_SCHEMES = {"file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "mock"}
_SAME_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs", "adl": "abfs"}
_AZURE_HOSTS = (".blob.core.windows.net", ".dfs.core.windows.net")
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
# A password may contain slashes: `key:ab/cd@bucket`. A port is not a password.
_PASSWORD = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/@]*:(?!\d*(/|$))[^@]*@")
_SECRET_OPTION = re.compile(
    r"[?&]((?:x-amz-(?:signature|credential|security-token)|sig|signature|[^=&]*(?:secret|password|token|_key|apikey)))=",
    re.IGNORECASE,
)

# Two threads that drop the same listing at once may fail: fsspec's `DirCache.pop` checks first and deletes then.
_cache_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Location:
    """A URI (or absolute local path), its filesystem, and the path on that filesystem."""

    uri: str
    filesystem: pafs.FileSystem
    path: str


def is_uri(name: str) -> bool:
    """Whether the string is a URI (`s3://…`), rather than a local path."""
    return _SCHEME.match(name) is not None


def split_options(name: str) -> tuple[str, str]:
    """A path or URI without its options, and these, from the question mark on."""
    address, mark, options = name.partition("?") if is_uri(name) else (name, "", "")
    return address, mark + options


def absolute(name: str) -> str:
    """The path or URI in a form that means the same in every process: local paths absolute, no trailing slash."""
    if not name:
        raise TableError("path is empty: expected a local path or a URI such as s3://bucket/table")
    if not is_uri(name):
        return os.path.normpath(Path(name).expanduser().absolute())
    if _PASSWORD.match(name):
        raise TableError(
            f"URI holds a password: got {redact(name)}, expected none. "
            "Leave credentials to the environment, the profile or the instance's role"
        )
    if (secret := _SECRET_OPTION.search(name)) is not None:
        raise TableError(
            f"URI holds a credential: got the option {secret[1]!r} in {redact(name)}, expected none. "
            "Leave credentials to the environment, the profile or the instance's role"
        )
    address, options = split_options(name)
    return address.rstrip("/") + options


def redact(uri: str) -> str:
    """Remove password and connection options from a URI, for messages."""
    if not is_uri(uri):
        return uri
    return split_options(uri if _PASSWORD.match(uri) is None else re.sub(r"://[^@]*@", "://", uri))[0]


def real_name(name: str) -> str:
    """The one name of a file or folder, whichever link or form of a URI leads to it: to compare, not to open.

    Links of this host are followed as far as they lead now. Account, port and options of a URI are left out.
    """
    address = split_options(redact(absolute(name)))[0]
    if not is_uri(address):
        return os.path.realpath(address)
    scheme, _, rest = address.partition("://")
    authority, slash, path = rest.partition("/")
    if scheme.lower() in ("file", "local"):
        return os.path.realpath(unquote(slash + path))
    user, at, host = authority.rpartition("@")
    # of Azure's names, container@account.dfs.core.windows.net and account.blob.core.windows.net/container
    root = user if at and "." in host else "" if host.endswith(_AZURE_HOSTS) else host.partition(":")[0]
    scheme = _SAME_SCHEMES.get(scheme.lower(), scheme.lower())
    return f"{scheme}://" + re.sub("/+", "/", f"{root}/{unquote(path)}").strip("/")


@lru_cache(maxsize=64)
def locate(uri: str) -> Location:
    """The filesystem and path of an absolute path or URI.

    Raises TableError for a URI that cannot be parsed, or whose scheme neither pyarrow nor fsspec supports, naming the
    package to install where fsspec names one.
    """
    try:
        filesystem, path = _with_limits(uri) if not is_uri(uri) or _scheme(uri) in _ARROW_SCHEMES else _by_fsspec(uri)
    except FeedlineError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        # without its cause: pyarrow's message has the whole URI
        raise TableError(f"{redact(uri)} cannot be opened by pyarrow or fsspec: {safe_message(error)}") from None
    return Location(uri, filesystem, path.rstrip("/") if is_uri(uri) else path)


def _scheme(uri: str) -> str:
    return uri.partition("://")[0].lower()


def _with_limits(uri: str) -> tuple[pafs.FileSystem, str]:
    """pyarrow's filesystem of a URI, with our limits of time and attempts where it supports them."""
    scheme = _scheme(uri)
    if scheme in ("gs", "gcs") and "retry_limit_seconds=" not in uri:
        uri += f"{'&' if '?' in uri else '?'}retry_limit_seconds={_GCS_RETRY_S}"
    # parses the options, and requests the bucket's region from S3 where neither URI nor environment has it
    filesystem, path = retry_transient(lambda: pafs.FileSystem.from_uri(uri), redact(uri), "found")
    if scheme == "s3" and _S3_URI_ONLY.search(uri) is None:
        make, (options,) = filesystem.__reduce__()  # all options, from the URI and the environment
        limits = {
            "connect_timeout": CONNECT_TIMEOUT_S,
            "request_timeout": STALL_TIMEOUT_S,
            "retry_strategy": pafs.AwsStandardS3RetryStrategy(max_attempts=_SDK_ATTEMPTS),
            "allow_delayed_open": True,  # a small object is one PUT, not three requests
        }
        filesystem = make({**options, **limits})
    if scheme in ("abfs", "abfss") and "credential_kind=" not in uri:
        make, (options,) = filesystem.__reduce__()
        if os.environ.get("AZURE_STORAGE_ACCOUNT") in (None, "", options["account_name"]):
            # one of the two, as pyarrow takes no more
            keys = [(name, os.environ[of]) for name, names in _AZURE_KEYS.items() for of in names if os.environ.get(of)]
            filesystem = make({**options, **dict(keys[:1])})
    return filesystem, path


def _by_fsspec(uri: str) -> tuple[pafs.FileSystem, str]:
    try:
        filesystem, path = importlib.import_module("fsspec.core").url_to_fs(uri)  # an import of 20 ms that few need
    except ImportError as error:
        raise TableError(f"{redact(uri)} needs a package that is not installed: {safe_message(error)}") from None
    return pafs.PyFileSystem(_Handler(filesystem)), path


class _Handler(pafs.FSSpecHandler):  # type: ignore[misc]
    """fsspec's files without read-ahead (we request exact ranges) and without cached listings.

    Most fsspec file systems cache listings, one instance serves the whole process, and an answer from the cache would
    say nothing about a file that another process replaced. So every look at the store first drops the cached listings
    of that path.
    """

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        self._forget(paths)
        infos: list[pafs.FileInfo] = super().get_file_info(paths)
        return infos

    def details(self, path: str) -> dict[str, Any]:
        """All that the store says of a file."""
        self._forget([path])
        details: dict[str, Any] = self.fs.info(path)
        return details

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        self._forget_all()
        infos: list[pafs.FileInfo] = super().get_file_info_selector(selector)
        return infos

    def open_input_file(self, path: str) -> pa.PythonFile:
        self._forget([path])  # else the file would have the size of a replaced file of that name
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
        """Drop cached listings of paths and their folders, as only some fsspec classes drop the folders as well."""
        with _cache_lock:
            for folder in {*paths, *(path.rstrip("/").rpartition("/")[0] for path in paths)}:
                self.fs.invalidate_cache(folder)

    def _forget_all(self) -> None:
        """Drop all cached listings, as few fsspec classes drop those of the folders below a path."""
        with _cache_lock:
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
    address, options = split_options(uri)
    return join(address, relative) + options


def ancestor(uri: str, levels: int) -> str:
    """The URI of the folder `levels` above, keeping the URI's options."""
    if levels <= 0:
        return uri
    address, options = split_options(uri)
    return (address.rsplit("/", levels)[0] or "/") + options


def uri_on(location: Location, path: str) -> str:
    """The URI of another path on a location's store."""
    if not is_uri(location.uri):
        return path
    # s3://b/t/x?region=r at b/t/x, path b/t/y -> s3://b/t/y?region=r
    parts, target = ([part for part in each.split("/") if part] for each in (location.path, path))
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(parts, target, strict=False))))
    address, options = split_options(ancestor(location.uri, len(parts) - shared))
    return "/".join([address, *target[shared:]]) + options


def list_tree(location: Location) -> list[pafs.FileInfo]:
    """All files and folders below a folder, in no particular order.

    An object store lists a thousand names per request, and pyarrow restarts a listing when one of its requests fails:
    with hundreds of pages and a store that fails now and then it would never end. So a listing that fails is divided:
    the folder alone, then each folder in it, recursively.

    Raises StoreError where a part cannot be listed before the deadline, and what `faults.explain_errors` raises.
    """
    if is_local(location.filesystem):
        listing = partial(_file_infos, location.filesystem, location.path, recursive=True)
        return with_retries(listing, location.filesystem, redact(location.uri), verb="listed")
    with explain_errors(redact(location.uri), fetching=True, verb="listed"):
        return _list_folder(location.filesystem, location.path, redact(location.uri))


def _list_folder(filesystem: pafs.FileSystem, path: str, name: str) -> list[pafs.FileInfo]:
    try:
        return _file_infos(filesystem, path, recursive=True)
    except Exception as error:
        if outlook(error) is Outlook.FINAL:
            raise
    if filesystem.type_name == "gcs":  # lists no folders by which to divide; Google's client repeats a page itself
        return with_retries(lambda: _file_infos(filesystem, path, recursive=True), filesystem, name, verb="listed")
    infos = with_retries(lambda: _file_infos(filesystem, path, recursive=False), filesystem, name, verb="listed")
    folders = [info for info in infos if info.type == pafs.FileType.Directory]
    for folder in folders:
        infos += _list_folder(filesystem, folder.path, join(name, folder.base_name))
    return infos


def _file_infos(filesystem: pafs.FileSystem, path: str, *, recursive: bool) -> list[pafs.FileInfo]:
    infos: list[pafs.FileInfo] = filesystem.get_file_info(pafs.FileSelector(path, recursive=recursive))
    return infos


def list_folder(filesystem: pafs.FileSystem, path: str, *, allow_not_found: bool = False) -> list[pafs.FileInfo]:
    """The files and folders in a folder, in no particular order. Raises what the filesystem raises.

    pyarrow's GCS lists only folders that an empty object marks, which few writers leave: there all files below are
    listed, and the folders are those of their names.
    """
    virtual = filesystem.type_name == "gcs"
    selector = pafs.FileSelector(path, recursive=virtual, allow_not_found=allow_not_found)
    infos: list[pafs.FileInfo] = filesystem.get_file_info(selector)
    if not virtual:
        return infos
    # of b/t: b/t/, b/t/ds=1/a.parquet, b/t/b.parquet -> b/t/b.parquet, and the folder b/t/ds=1
    root = path.rstrip("/") + "/"
    names = [info.path[len(root) :].partition("/") for info in infos]
    is_inner = [slash or info.type == pafs.FileType.Directory for info, (_, slash, _) in zip(infos, names, strict=True)]
    files = [info for info, inner in zip(infos, is_inner, strict=True) if not inner]
    folders = {name for (name, _, _), inner in zip(names, is_inner, strict=True) if inner and name}
    return files + [pafs.FileInfo(root + name, pafs.FileType.Directory) for name in sorted(folders)]


def infos_of(filesystem: pafs.FileSystem, paths: list[str]) -> list[pafs.FileInfo]:
    """What is at each of some paths. Raises what the filesystem raises.

    pyarrow's GCS takes a folder that it fails to list for a missing one, so what is missing is listed again there: that
    raises the failure.
    """
    infos: list[pafs.FileInfo] = filesystem.get_file_info(paths)
    if filesystem.type_name != "gcs":
        return infos
    return [
        pafs.FileInfo(info.path, pafs.FileType.Directory)
        if info.type == pafs.FileType.NotFound and list_folder(filesystem, info.path, allow_not_found=True)
        else info
        for info in infos
    ]


def info_of(filesystem: pafs.FileSystem, path: str) -> pafs.FileInfo:
    """What is at a path, as `infos_of`."""
    return infos_of(filesystem, [path])[0]


def delete_folder(filesystem: pafs.FileSystem, path: str) -> None:
    """Delete a folder and all that it holds; one that is missing is none.

    pyarrow's GCS deletes the files, and then fails where no empty object marks the folder.
    """
    with suppress(FileNotFoundError):
        filesystem.delete_dir(path)
