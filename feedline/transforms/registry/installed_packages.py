"""Find which installed distribution a module's file belongs to, and the versions that its code depends on.

Runs in: every process that loads users' functions. `importlib.metadata.packages_distributions` parses the records of
all distributions, which takes a second; here records are searched as bytes, and only for modules that are asked for.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SEPARATORS = re.compile(r"[-_.]+")


def distribution_of(file: str) -> str | None:
    """The folder of the metadata of the distribution that has installed a file; None: none has, or one of local
    sources, whose version may stay while the files change."""
    for entry in sys.path:
        if entry and file.startswith(entry.rstrip("/") + "/"):
            found = _owner(entry, os.path.relpath(file, entry))
            if found is not None:
                return found if _origin(found) is not None else None
    return None


def package_version(folder: str) -> tuple[str, str]:
    return _facts(folder)[:2]


def changed_ns(folder: str) -> int | None:
    """When a distribution was installed, given by the folder of its metadata, in nanoseconds; None if it is no longer.
    Of the folder, as the files in it may be links that other environments share."""
    try:
        status = Path(folder).stat()
    except OSError:
        return None
    return max(status.st_mtime_ns, status.st_ctime_ns)


def forget_packages() -> None:
    """Look all distributions up again, as in a new process."""
    for function in (_owner, _metadata_folders, _origin, _facts, _named):
        function.cache_clear()


def required_versions(folders: Iterable[str]) -> dict[str, str]:
    """The versions of distributions, given by the folders of their metadata, and of those that they require, directly
    or not, extras included, as far as they are installed."""
    versions: dict[str, str] = {}
    rest = [_facts(folder) for folder in sorted(folders)]
    while rest:
        name, version, requires = rest.pop()
        if name not in versions:
            versions[name] = version
            rest += [found for each in requires if each not in versions and (found := _named(each)) is not None]
    return versions


def _plain(name: str) -> str:
    return _SEPARATORS.sub("-", name).lower()


@functools.cache
def _owner(entry: str, path: str) -> str | None:
    likely = _plain(path.partition("/")[0].removesuffix(".py")) + "-"
    line = f"{path},".encode()
    for folder in sorted(_metadata_folders(entry), key=lambda each: not _plain(Path(each).name).startswith(likely)):
        try:
            record = Path(folder, "RECORD").read_bytes()
        except OSError:
            continue
        if record.startswith(line) or b"\n" + line in record:
            return folder
    return None


@functools.cache
def _metadata_folders(entry: str) -> tuple[str, ...]:
    try:
        with os.scandir(entry) as found:
            return tuple(sorted(each.path for each in found if each.name.endswith(".dist-info")))
    except OSError:
        return ()


@functools.cache
def _origin(folder: str) -> str | None:
    return _origin_of(importlib.metadata.Distribution.at(folder))


def _origin_of(found: importlib.metadata.Distribution) -> str | None:
    """What tells apart builds of one version: a commit or a hash, if it comes from a URL; None for local sources."""
    try:
        content = found.read_text("direct_url.json")
        if content is None:
            return ""
        origin = json.loads(content)
    except (OSError, ValueError):
        return None
    build = origin.get("vcs_info", {}).get("commit_id") or origin.get("archive_info")
    return json.dumps(build, sort_keys=True) if build else None


@functools.cache
def _facts(folder: str) -> tuple[str, str, tuple[str, ...]]:
    return _describe(importlib.metadata.Distribution.at(folder), _origin(folder) or "")


@functools.cache
def _named(name: str) -> tuple[str, str, tuple[str, ...]] | None:
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    return _describe(found, _origin_of(found) or "")


def _describe(found: importlib.metadata.Distribution, origin: str) -> tuple[str, str, tuple[str, ...]]:
    requires = {_plain(match[0]) for each in found.requires or () if (match := _NAME.match(each)) is not None}
    return _plain(found.name), f"{found.version} {origin}".strip(), tuple(sorted(requires))
