"""List the files of a table of any format.

Runs where a snapshot is taken, for `Table` and for a pipeline's `source`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from feedline.errors import SpecError
from feedline.warehouse.discovery.delta import list_delta
from feedline.warehouse.discovery.hive import Listing, discover
from feedline.warehouse.discovery.iceberg import list_iceberg
from feedline.warehouse.discovery.manifest import discover_manifest

FORMATS = ("hive", "manifest", "delta", "iceberg")


def list_table(
    table: str | Sequence[str],
    *,
    format: str = "hive",
    version: int | None = None,
    snapshot_id: int | None = None,
    as_of: str | None = None,
    partitions: Mapping[str, str] | None = None,
) -> Listing:
    """List a table: `hive` lists folders, a `manifest` names files, `delta` and `iceberg` read the table's log.

    `version` (delta), `snapshot_id` (iceberg) and `as_of` (both) name an older state. `partitions`: types of the keys
    of `hive` and `manifest`; the other formats have a schema. Raises SpecError for arguments that exclude each other,
    and the errors of the format's listing.
    """
    _refuse_mixtures(table, format, {"version": version, "snapshot_id": snapshot_id, "as_of": as_of}, partitions)
    if format == "hive":
        return discover(table, partitions=partitions)
    assert isinstance(table, str)
    if format == "manifest":
        return discover_manifest(table, partitions=partitions)
    if format == "delta":
        return list_delta(table, version=version, as_of=as_of)
    return list_iceberg(table, snapshot_id=snapshot_id, as_of=as_of)


def _refuse_mixtures(
    table: str | Sequence[str], format: str, states: Mapping[str, object], partitions: Mapping[str, str] | None
) -> None:
    if format not in FORMATS:
        raise SpecError(f"format is unknown: got {format!r}, expected one of {', '.join(FORMATS)}")
    meaning = {"delta": ("version", "as_of"), "iceberg": ("snapshot_id", "as_of")}.get(format, ())
    names = [name for name, value in states.items() if value is not None]
    for name in names:
        if name not in meaning:
            raise SpecError(f"{name} has no meaning with format {format}: expected none. Leave it out")
    if len(names) > 1:
        raise SpecError(f"{names[1]} contradicts {names[0]}: each names one state of the table. Leave one of them out")
    if format != "hive" and not isinstance(table, str):
        raise SpecError(f"format {format} reads one table: got a list of {len(table)} paths, expected one")
    if format in ("delta", "iceberg") and partitions:
        raise SpecError(f"partitions has no meaning with format {format}: the table's own schema types its keys")
