"""Recognize folders of tables with a log of their own: Delta Lake, Iceberg, Hudi, Spark sinks.

Runs where a snapshot is taken. Read as a plain folder such a table gives wrong rows: files that the log replaced are
still there. A format is recognized by a hidden folder, or by the names of its metadata files. For a name inside a table
the folders above are checked: on a local disk all, in a store those up to the first that is not `key=value`, and the
one above a folder `data`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import pyarrow.fs as pafs

from feedline.errors import TableError
from feedline.warehouse.discovery.partitions import is_hidden, is_partition
from feedline.warehouse.storage.faults import explain_errors, is_denied
from feedline.warehouse.storage.locations import (
    Location,
    absolute,
    infos_of,
    join,
    locate,
    redact,
    split_options,
    uri_on,
)
from feedline.warehouse.storage.retry import is_local, with_retries

DELTA, ICEBERG, HUDI, SPARK_SINK = "_delta_log", "metadata/*.metadata.json", ".hoodie", "_spark_metadata"
_HIDDEN = (DELTA, HUDI, SPARK_SINK)
METADATA_NAMES = (".metadata.json", ".metadata.json.gz")

_MANIFEST = "or name its files in a manifest (`format: manifest`)"
_MEANINGS = {
    DELTA: ("a Delta Lake table", f"Name that folder, whose log is read then, {_MANIFEST}"),
    ICEBERG: ("an Iceberg table", f"Name that folder, whose log is read then, {_MANIFEST}"),
    HUDI: ("a Hudi table, whose log Feedline cannot read", f"Export it as Parquet, {_MANIFEST}"),
    SPARK_SINK: (
        "the sink of a Spark stream",
        f"Copy it with Spark, {_MANIFEST}, or delete {SPARK_SINK} if every file counts",
    ),
}


class LogFoundError(TableError):
    """Files of a table with a log were named as such. root: the table's folder, on its filesystem; mark: its log's."""

    def __init__(self, message: str, root: str, mark: str) -> None:
        super().__init__(message)
        self.root = root
        self.mark = mark


def log_of_folder(table: str) -> str | None:
    """The mark of the log in a folder; None for a folder without one, and for anything else."""
    uri = absolute(table)
    address = split_options(uri)[0]
    if any(wildcard in address for wildcard in "*?[") or address.endswith(".parquet"):
        return None
    location = locate(uri)
    return _log_in(location, location.path, redact(uri))


def logs_below(root: str, folders: Iterable[str], files: Iterable[str]) -> dict[str, str]:
    """The folders with a log, each with its mark, in a listing of `root`.

    `folders`: hidden ones, and those in hidden ones, in which logs do not count. `files`: those in other folders that
    are not Parquet.
    """
    logs = {}
    for path in files:
        folder, _, name = path.rpartition("/")
        if name.endswith(METADATA_NAMES) and folder.rpartition("/")[2] == "metadata":
            logs[folder.rpartition("/")[0]] = ICEBERG
    for folder in folders:
        segments = folder[len(root) :].lstrip("/").split("/")
        first = next(index for index, segment in enumerate(segments) if is_hidden(segment))
        if segments[first] in _HIDDEN:
            logs[join(root, "/".join(segments[:first])) if first else root] = segments[first]
    return logs


def logs_above(
    location: Location, folders: Iterable[str], *, listed: Collection[str] = (), name: str
) -> dict[str, str]:
    """The logs in these folders and in those above them: mark by folder.

    `location`: any on their store. `listed`: folders to skip, as their listing has been checked. `name`: the table, for
    messages. A folder that may not be read counts as one without a log.
    """
    everything = is_local(location.filesystem)
    above = dict.fromkeys(root for folder in folders for root in _roots(folder, everything=everything))
    logs = {root: _log_in(location, root, name) for root in above if root not in listed}
    return {root: mark for root, mark in logs.items() if mark is not None}


def refuse_files_with_log(location: Location, files: Iterable[str], logs: Mapping[str, str]) -> None:
    """Raise LogFoundError if one of the files is below a folder with a log, with no hidden folder in between."""
    for root, mark in logs.items():
        start = join(root, "")
        for path in files:
            if path.startswith(start) and not any(is_hidden(part) for part in path[len(start) :].split("/")[:-1]):
                what, remedy = _MEANINGS[mark]
                raise LogFoundError(
                    f"{redact(uri_on(location, root))} is {what}: its {mark} defines which of its files are current, "
                    f"so its folders cannot be read as they are. {remedy}",
                    root,
                    mark,
                )


def _roots(folder: str, *, everything: bool) -> Iterator[str]:
    """The folder and those above it that may be the root of its table."""
    while folder:
        parent, _, name = folder.rpartition("/")
        if is_hidden(name):
            return
        if everything or not is_partition(name):
            yield folder
        if not (everything or is_partition(name) or name == "data"):
            return
        folder = parent


def _log_in(location: Location, root: str, name: str) -> str | None:
    filesystem = location.filesystem
    hidden, metadata = [join(root, mark) for mark in _HIDDEN], join(root, "metadata")

    def find_mark() -> str | None:
        infos = infos_of(filesystem, [*hidden, metadata])
        exists = [info.type == pafs.FileType.Directory for info in infos]
        if True in exists[:-1]:
            return _HIDDEN[exists.index(True)]
        inside = filesystem.get_file_info(pafs.FileSelector(metadata)) if exists[-1] else []
        return ICEBERG if any(info.base_name.endswith(METADATA_NAMES) for info in inside) else None

    def find_mark_if_allowed() -> str | None:
        try:
            return find_mark()
        except Exception as error:
            if is_denied(error):
                return None
            raise

    with explain_errors(name):
        return with_retries(find_mark_if_allowed, filesystem, name, verb="listed")
