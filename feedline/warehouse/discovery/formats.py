"""List the files of a table of any format.

Runs where a snapshot is taken, for `Table` and for a pipeline's `source`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

from feedline.errors import SpecError, TableError, TableNotFoundError
from feedline.warehouse.discovery import logs
from feedline.warehouse.discovery.delta import list_delta
from feedline.warehouse.discovery.hive import Listing, discover
from feedline.warehouse.discovery.iceberg import list_iceberg
from feedline.warehouse.discovery.manifest import discover_manifest
from feedline.warehouse.storage.locations import absolute, locate

FORMATS = ("auto", "hive", "manifest", "delta", "iceberg")


class TableState(TypedDict, total=False):
    """An older state of a table with a log: of delta a `version`, of iceberg a `snapshot_id`, of both an ISO time
    `as_of`."""

    version: int | None
    snapshot_id: int | None
    as_of: str | None


def list_table(
    table: str | Sequence[str],
    *,
    format: str = "auto",
    partitions: Mapping[str, str] | None = None,
    apart: Mapping[str, str] | None = None,
    **state: Unpack[TableState],
) -> Listing:
    """List a table: `hive` lists folders, a `manifest` names files, `delta` and `iceberg` read the table's log; `auto`
    reads the log of a folder that has one, and lists others.

    `partitions`: types of the keys of `hive` and `manifest`; the other formats have a schema. `apart`: as in
    `hive.discover`. Raises SpecError for arguments that exclude each other, and the errors of the format's listing.
    """
    names = [name for name, value in state.items() if value is not None]
    _refuse_mixtures(table, format, names, partitions)
    if format == "auto":
        if names or _is_metadata(table):
            format = {"version": "delta", "snapshot_id": "iceberg"}.get("".join(names)) or _format_of(table, None)
        else:
            try:
                return discover(table, partitions=partitions, apart=apart)
            except TableError as error:
                format = _format_of(table, error)
        _refuse_mixtures(table, format, names, partitions)
    if format == "hive":
        return discover(table, partitions=partitions, apart=apart)
    assert isinstance(table, str)
    if format == "manifest":
        return discover_manifest(table, partitions=partitions)
    if format == "delta":
        return list_delta(table, version=state.get("version"), as_of=state.get("as_of"))
    return list_iceberg(table, snapshot_id=state.get("snapshot_id"), as_of=state.get("as_of"))


def _is_metadata(table: str | Sequence[str]) -> bool:
    return isinstance(table, str) and table.partition("?")[0].endswith(logs.METADATA_NAMES)


def _format_of(table: str | Sequence[str], error: TableError | None) -> str:
    """The format of a table that is not made of folders. error: of listing them, raised if there is no log either."""
    mark = None
    if isinstance(table, str) and not _is_metadata(table):
        if error is None or isinstance(error, TableNotFoundError):  # a log may name no file
            mark = logs.log_of_folder(table)
        elif isinstance(error, logs.LogFoundError) and error.root == locate(absolute(table)).path:
            mark = error.mark
    elif error is None:
        mark = logs.ICEBERG
    format = {logs.DELTA: "delta", logs.ICEBERG: "iceberg"}.get(mark or "")
    if format is None and error is not None:
        raise error
    return format or "hive"


def _refuse_mixtures(
    table: str | Sequence[str], format: str, names: Sequence[str], partitions: Mapping[str, str] | None
) -> None:
    if format not in FORMATS:
        raise SpecError(f"format is unknown: got {format!r}, expected one of {', '.join(FORMATS)}")
    meaning = {
        "auto": ("version", "snapshot_id", "as_of"),
        "delta": ("version", "as_of"),
        "iceberg": ("snapshot_id", "as_of"),
    }.get(format, ())
    for name in names:
        if name not in meaning:
            raise SpecError(f"{name} has no meaning with format {format}: expected none. Leave it out")
    if len(names) > 1:
        raise SpecError(f"{names[1]} contradicts {names[0]}: each names one state of the table. Leave one of them out")
    if format not in ("auto", "hive") and not isinstance(table, str):
        raise SpecError(f"format {format} reads one table: got a list of {len(table)} paths, expected one")
    if format in ("delta", "iceberg") and partitions:
        raise SpecError(f"partitions has no meaning with format {format}: the table's own schema types its keys")
