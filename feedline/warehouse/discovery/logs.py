"""Recognize folders of tables with a log of their own: Delta Lake, Iceberg, Hudi, Spark sinks.

Runs where a snapshot is taken. Read as a plain folder such a table gives wrong rows silently: files that the log
replaced or deleted are still there, and so are those of failed jobs. A format is recognized by a hidden folder, or by
the names of its metadata files.

A listing of a folder shows all logs in it. For what is named inside a table (a partition's folder, files, a glob) the
folders above are looked at: on a local disk all of them, in a store those up to the first that is not `key=value`, and
the one above a folder `data`, where Iceberg keeps its files. Nothing is asked for a folder that is neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import pyarrow.fs as pafs

from feedline.errors import TableError
from feedline.warehouse.discovery.partitions import is_hidden, is_partition
from feedline.warehouse.storage.faults import explain_errors, is_denied
from feedline.warehouse.storage.locations import Location, join, redact, uri_on
from feedline.warehouse.storage.retry import is_local, with_retries

DELTA, ICEBERG, HUDI, SPARK_SINK = "_delta_log", "metadata/*.metadata.json", ".hoodie", "_spark_metadata"
_HIDDEN = (DELTA, HUDI, SPARK_SINK)
_METADATA = (".metadata.json", ".metadata.json.gz")

_MANIFEST = "or name its files in a manifest (`format: manifest`)"
_MEANINGS = {
    DELTA: ("a Delta Lake table", f"Write `format: delta`, {_MANIFEST}"),
    ICEBERG: ("an Iceberg table", f"Write `format: iceberg`, {_MANIFEST}"),
    HUDI: ("a Hudi table, which Feedline cannot read by its log", f"Export it as Parquet, {_MANIFEST}"),
    SPARK_SINK: (
        "the sink of a Spark stream",
        f"Copy it with Spark, {_MANIFEST}, or delete {SPARK_SINK} if every file counts",
    ),
}


def logs_below(root: str, folders: Iterable[str], files: Iterable[str]) -> dict[str, str]:
    """The folders with a log, each with its mark, by what a listing of `root` shows.

    `folders`: the hidden ones, and those in hidden ones; a log in a hidden folder is nobody's. `files`: those in other
    folders that are no Parquet files.
    """
    found = {}
    for path in files:
        folder, _, name = path.rpartition("/")
        if name.endswith(_METADATA) and folder.rpartition("/")[2] == "metadata":
            found[folder.rpartition("/")[0]] = ICEBERG
    for folder in folders:
        segments = folder[len(root) :].lstrip("/").split("/")
        place = next(place for place, segment in enumerate(segments) if is_hidden(segment))
        if segments[place] in _HIDDEN:
            found[join(root, "/".join(segments[:place])) if place else root] = segments[place]
    return found


def logs_above(
    location: Location, folders: Iterable[str], *, listed: Collection[str] = (), name: str
) -> dict[str, str]:
    """The folders that hold these folders, or are one of them, and have a log: path and mark.

    `location`: a place on their store. `listed`: folders whose listing has shown it. `name`: how messages call what is
    looked for. A folder that may not be looked at is taken to have none.
    """
    everything = is_local(location.filesystem)
    above = dict.fromkeys(root for folder in folders for root in _roots(folder, everything=everything))
    found = {root: _log_in(location, root, name) for root in above if root not in listed}
    return {root: mark for root, mark in found.items() if mark is not None}


def refuse_logged(location: Location, files: Iterable[str], logs: Mapping[str, str]) -> None:
    """Raise TableError where one of the files lies below a root that has a log, unless a hidden folder is between."""
    for root, mark in logs.items():
        start = join(root, "")
        for path in files:
            if path.startswith(start) and not any(is_hidden(part) for part in path[len(start) :].split("/")[:-1]):
                what, remedy = _MEANINGS[mark]
                raise TableError(
                    f"{redact(uri_on(location, root))} is {what}: {mark} there says which of its files count, so its "
                    f"folders cannot be read as they are (format hive). {remedy}"
                )


def _roots(folder: str, *, everything: bool) -> Iterator[str]:
    """The folder and those above it that may be the root of the table that it lies in."""
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

    def look() -> str | None:
        infos = filesystem.get_file_info([*hidden, metadata])
        there = [info.type == pafs.FileType.Directory for info in infos]
        if True in there[:-1]:
            return _HIDDEN[there.index(True)]
        inside = filesystem.get_file_info(pafs.FileSelector(metadata)) if there[-1] else []
        return ICEBERG if any(info.base_name.endswith(_METADATA) for info in inside) else None

    def looked() -> str | None:
        try:
            return look()
        except Exception as error:
            if is_denied(error):
                return None
            raise

    with explain_errors(name):
        return with_retries(looked, filesystem, name, verb="listed")
