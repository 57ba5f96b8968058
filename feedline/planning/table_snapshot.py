"""Take the snapshot of the table that `source` names, or read a saved one.

Runs in: the process that takes the snapshot (the feeder, the CLI, `Pipeline.batches`). The file of a saved snapshot
also holds the `source` that it was taken from, so that a snapshot of another source is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from feedline.config import PipelineSpec
from feedline.config.cache_section import CacheSpec
from feedline.config.source_section import LOG, SourceSpec, parse_type
from feedline.errors import CorruptFileError, FeedlineError, PlanError, StateError, TableArgumentError, TableError
from feedline.planning.histories import with_histories
from feedline.warehouse.bad_files import BadFilesFoundError, ForgivingMap
from feedline.warehouse.cache.cache_folder import CacheRef
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.discovery.table_log import moment_of
from feedline.warehouse.parquet.request_rows import impression_schema
from feedline.warehouse.parquet.schemas import SchemaRules, extra_column_message, storage_type
from feedline.warehouse.selection.impressions import exploded, refuse_columns
from feedline.warehouse.snapshot.arrived_files import Landing, LandingRule, landed
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import OnBad, snapshot_of
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, ancestor, below, redact
from feedline.warehouse.storage.parallel import Map


def snapshot_of_source(
    spec: PipelineSpec,
    *,
    map: Map | None = None,
    on_bad: OnBad | None = None,
    filter_listing: Callable[[Listing], Listing] | None = None,
) -> Snapshot:
    """The saved snapshot that `source` names, or else a new one of its table.

    `map` runs the reading of footers (default: threads). `on_bad`: see `snapshot_of`. `filter_listing` may leave files
    out before their footers are read. A saved snapshot needs neither a listing nor footers.
    """
    if spec.source.snapshot is not None:
        return as_read(spec, _read_saved(spec, spec.source.snapshot))
    return fresh_snapshot(spec, map=map, on_bad=on_bad, filter_listing=filter_listing)


def fresh_snapshot(
    spec: PipelineSpec,
    *,
    map: Map | None = None,
    on_bad: OnBad | None = None,
    filter_listing: Callable[[Listing], Listing] | None = None,
    unread: Callable[[Listing], Listing] | None = None,
    rules: SchemaRules | None = None,
) -> Snapshot:
    """A new snapshot of the table that `source` names, whatever `source.snapshot` says; of a followed table, of what
    has landed. `unread`: leaves out what earlier epochs have read. `rules`: in place of `source.schema`'s."""
    listing = landed_listing(spec) if spec.source.follow is not None else listing_of_source(spec)
    for keep in (unread, filter_listing):
        listing = keep(listing) if keep is not None else listing
    rules = schema_rules(spec.source) if rules is None else rules
    snapshot = snapshot_of(listing, rules=rules, work_dir=spec.work_dir, map=map, on_bad=on_bad)
    if spec.source.explode is None or on_bad is None:
        return as_read(spec, snapshot, map=map)
    forgiving = ForgivingMap(map)
    while True:
        try:
            return as_read(spec, snapshot, map=forgiving)
        except BadFilesFoundError as error:
            for path, reason in error.reasons.items():
                on_bad(path, CorruptFileError(reason))
            snapshot = snapshot.without(error.reasons)


def landing_of(spec: PipelineSpec, *, now_ns: Callable[[], int] = time.time_ns) -> Landing:
    """Which files of a followed table have landed, and which partitions have not. Raises SpecError where the table does
    not fit `source.follow.landed`."""
    source, follow, now = spec.source, spec.source.follow, now_ns()
    assert follow is not None
    until_ns = None if follow.until is None else int(moment_of(follow.until).timestamp() * 1e9)
    logged = follow.landed == LOG
    ended = logged and until_ns is not None and now > until_ns
    listing = listing_of_source(spec, source.model_copy(update={"as_of": follow.until}) if ended else source)
    rule = LandingRule(logged=logged, quiet_s=follow.quiet_s, now_ns=now, until_ns=until_ns)
    try:
        return landed(listing, rule)
    except TableError as error:
        raise spec.error(("source", "follow", "landed"), str(error)) from error


def landed_listing(spec: PipelineSpec) -> Listing:
    """The files of a followed table that have landed. Raises PlanError where none has."""
    landing = landing_of(spec)
    if not len(landing.listing.files):
        raise PlanError(
            f"nothing of {redact(landing.listing.uri)} has landed: {landing.describe()}. Wait for a first partition, "
            "or change source.follow.landed"
        )
    return landing.listing


def as_read(
    spec: PipelineSpec, snapshot: Snapshot, generations: Mapping[str, str] | None = None, *, map: Map | None = None
) -> Snapshot:
    """The snapshot, whose files are read by the pipeline's decoder and through its cache of sources, whose rows are the
    elements of exploded lists, and get lists of events from its histories. generations: see `with_histories`. map: runs
    the counting of elements (default: threads)."""
    snapshot = _exploded(spec, snapshot, map)
    cache = cache_ref(spec.cache) if spec.cache is not None and spec.cache.mode == "source" else None
    return with_histories(spec, replace(snapshot, decoder=spec.source.decoder, source_cache=cache), generations)


def _exploded(spec: PipelineSpec, snapshot: Snapshot, map: Map | None) -> Snapshot:
    """The snapshot with the rows of `source.explode`. Raises SpecError for columns that cannot be exploded, StateError
    where a run's snapshot has other rows."""
    names = spec.source.explode
    if snapshot.exploded is not None:
        if snapshot.exploded.names != names:
            raise StateError(
                f"the snapshot is of another plan: its rows are the elements of "
                f"{', '.join(snapshot.exploded.names)}, and pipeline.yaml explodes {', '.join(names or ('nothing',))}. "
                "Use the pipeline.yaml of the run that took it"
            )
        return snapshot
    if names is None:
        return snapshot
    try:
        return exploded(snapshot, names, work_dir=spec.work_dir, map=map)
    except TableArgumentError as error:
        raise spec.error(("source", "explode"), str(error)) from error


def impressions_schema(spec: PipelineSpec, schema: pa.Schema) -> pa.Schema:
    """The columns of a table, of those of `source.explode` the elements. Raises SpecError as `as_read`."""
    try:
        refuse_columns(schema, (), spec.source.explode or ())
    except TableArgumentError as error:
        raise spec.error(("source", "explode"), str(error)) from error
    return impression_schema(schema, spec.source.explode or ())


def cache_ref(cache: CacheSpec) -> CacheRef:
    """The folder of a cache and its limits, as processes open it."""
    return CacheRef(
        folder=cache.folder, size=cache.size, free=cache.free, shared=cache.shared, write_budget=cache.write_budget
    )


def listing_of_source(spec: PipelineSpec, source: SourceSpec | None = None) -> Listing:
    """The files that `source` names (default: the spec's). Raises TableArgumentError where the pipeline writes files
    that would be the table's."""
    source = spec.source if source is None else source
    apart = {"work_dir": spec.work_dir}
    if spec.artifacts.folder is not None:
        apart["artifacts"] = spec.artifacts.folder
    if spec.cache is not None:
        apart["cache.dir"] = spec.cache.folder
    return list_table(
        source.table,
        format=source.format,
        version=source.version,
        snapshot_id=source.snapshot_id,
        as_of=source.as_of,
        partitions=source.partitions,
        apart=apart,
    )


def schema_rules(source: SourceSpec) -> SchemaRules:
    """The rules of `source.schema` for files whose schemas differ."""
    rules = source.schema_rules
    return SchemaRules(
        missing_error=rules.missing == "error",
        extra_error=rules.extra == "error",
        columns={name: storage_type(parse_type(kind)) for name, kind in (rules.columns or {}).items()},
    )


def freeze(spec: PipelineSpec, file: str) -> Snapshot:
    """Take a snapshot of the pipeline's table and write it as one file, a local path or a URI. Raises TableError where
    the file cannot be written."""
    snapshot = fresh_snapshot(spec)
    folder, name = _split_path(file)
    try:
        snapshot.write(folder, name, _origin(spec.source))
    except FeedlineError:
        raise
    except OSError as error:
        raise TableError(f"{redact(file)} cannot be written: {error}. Name another file") from error
    return snapshot


def save_for_runs(spec: PipelineSpec, snapshot: Snapshot) -> str:
    """Write a snapshot of the pipeline's table to a file in `work_dir`, for `source.snapshot`; returns its path."""
    name = f"planned/{snapshot.id}.arrow"
    with writing_to_work_dir(spec):
        snapshot.write(spec.work_dir, name, _origin(spec.source))
    return below(absolute(spec.work_dir), name)


@contextmanager
def writing_to_work_dir(spec: PipelineSpec) -> Iterator[None]:
    """Raise SpecError where `work_dir` cannot be written."""
    try:
        yield
    except FeedlineError:
        raise
    except OSError as error:
        raise spec.error(("work_dir",), f"cannot be written: {error}. Name a writable folder") from error


def _read_saved(spec: PipelineSpec, file: str) -> Snapshot:
    path = ("source", "snapshot")
    folder, name = _split_path(file)
    try:
        content_store.find(folder, name).verify()
        snapshot, origin = Snapshot.read(folder, name)
    except FileNotFoundError:
        raise spec.error(
            path, f"{redact(file)} does not exist: expected a file that `feedline snapshot` wrote. Write it"
        ) from None
    except (FeedlineError, OSError) as error:
        raise spec.error(path, f"no snapshot can be read from {redact(file)}: {error}") from error
    _refuse_other_source(spec, origin)
    _refuse_extra(spec, snapshot)
    return snapshot


def _refuse_other_source(spec: PipelineSpec, origin: Mapping[str, str]) -> None:
    for key, mine in _origin(spec.source).items():
        theirs = origin.get(key)
        if key == "format" and "auto" in (theirs, mine):
            continue
        if theirs != mine:
            raise spec.error(
                ("source", "snapshot"),
                f"the snapshot was taken from another source: its {key} is {theirs}, pipeline.yaml's is {mine}. Name "
                "the file that belongs to this pipeline, or write it again with `feedline snapshot`",
            )


def _refuse_extra(spec: PipelineSpec, snapshot: Snapshot) -> None:
    """Refuse extra columns: `extra: error` may be newer than the snapshot."""
    rules = schema_rules(spec.source)
    for name in snapshot.file_columns if rules.extra_error else ():
        if name not in rules.columns:
            text = extra_column_message(name, redact(spec.source.snapshot or ""), rules.columns)
            raise spec.error(("source", "schema", "extra"), text)


def _origin(source: SourceSpec) -> dict[str, str]:
    """The keys of `source` that decide which table it is and which types its columns have."""
    tables = [source.table] if isinstance(source.table, str) else list(source.table)
    return {
        "table": ", ".join(redact(absolute(table)) for table in tables),
        "format": source.format,
        "version": json.dumps([source.version, source.snapshot_id, source.as_of]),
        "partitions": json.dumps(source.partitions or {}, sort_keys=True),
        **({} if source.explode is None else {"explode": ", ".join(source.explode)}),
        "schema.columns": json.dumps(
            {name: str(kind) for name, kind in schema_rules(source).columns.items()}, sort_keys=True
        ),
    }


def _split_path(file: str) -> tuple[str, str]:
    uri = absolute(file)
    return ancestor(uri, 1), uri.partition("?")[0].rpartition("/")[2]
