"""Where does a pipeline's table come from? From `source` to a snapshot: the one place that knows table formats.

Runs in: whichever process takes the snapshot (the feeder, the CLI, `Pipeline.batches`).
"""

from __future__ import annotations

from collections.abc import Callable

from feedline.column_types import type_named
from feedline.spec import PipelineSpec
from feedline.warehouse.discovery import Listing
from feedline.warehouse.footer_tasks import Map
from feedline.warehouse.formats import list_table
from feedline.warehouse.schemas import SchemaRules
from feedline.warehouse.snapshot import OnBad, Snapshot, snapshot_of


def snapshot_of_source(
    spec: PipelineSpec,
    *,
    map: Map | None = None,
    on_bad: OnBad | None = None,
    sift: Callable[[Listing], Listing] | None = None,
) -> Snapshot:
    """The table that `source` names, as it is now.

    `map` runs the reading of footers (default: threads). `on_bad`: see `snapshot_of`. `sift` may leave files out of
    the listing before their footers are read.
    """
    listing = listing_of_source(spec)
    return snapshot_of(
        sift(listing) if sift else listing,
        rules=schema_rules(spec),
        work_dir=spec.work_dir,
        map=map,
        on_bad=on_bad,
    )


def listing_of_source(spec: PipelineSpec) -> Listing:
    """The files that `source` names."""
    source = spec.source
    return list_table(
        source.table,
        format=source.format,
        version=source.version,
        snapshot_id=source.snapshot_id,
        as_of=source.as_of,
        partitions=source.partitions,
    )


def schema_rules(spec: PipelineSpec) -> SchemaRules:
    """What `source.schema` says about files that differ."""
    rules = spec.source.schema_rules
    return SchemaRules(
        missing_error=rules.missing == "error",
        extra_error=rules.extra == "error",
        columns={name: type_named(kind) for name, kind in (rules.columns or {}).items()},
    )
