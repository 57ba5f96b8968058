"""Find the tables of a pipeline's histories as they are, and write those in another layout anew, in work_dir.

Runs in: the feeder, the CLI, `Pipeline`, where a plan is made. A table that `feedline optimize --history` wrote for the
key and the order that pipeline.yaml names is read as it is.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from feedline.config import PipelineSpec
from feedline.config.features import FeatureSpec
from feedline.config.histories import HistoryRead, HistorySpec
from feedline.errors import FeedlineError, TableArgumentError
from feedline.resources.cgroups import available_cores
from feedline.warehouse.discovery.column_log import column_file_names
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.histories.event_index import read_event_index
from feedline.warehouse.histories.join import HistoryJoin
from feedline.warehouse.histories.stored_events import ranges_of
from feedline.warehouse.optimize.optimize import TaskRunner, optimize
from feedline.warehouse.optimize.recipe import Settings
from feedline.warehouse.reading.fragment import fragment_at
from feedline.warehouse.snapshot.history_ref import EventColumns, HistoryRef
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of
from feedline.warehouse.storage.locations import absolute, below, locate, redact
from feedline.warehouse.storage.retry import is_local

logger = logging.getLogger(__name__)

_VERSION = 1  # of the layout in work_dir


def with_histories(spec: PipelineSpec, snapshot: Snapshot, generations: Mapping[str, str] | None = None) -> Snapshot:
    """The snapshot of a table, whose rows get lists of events. generations: the snapshots of the events that a run
    reads, by name, which it keeps as long as their files are there. Raises SpecError where pipeline.yaml does not match
    the columns of the events or the table's."""
    reads: dict[str, dict[HistoryRead, None]] = {}
    for feature in spec.features:
        if feature.history is not None:
            reads.setdefault(feature.history.history, {})[feature.history] = None
    if not reads:
        return snapshot
    kept = generations or {}
    refs = [_history(spec, name, tuple(own), snapshot.schema, kept.get(name)) for name, own in reads.items()]
    return replace(snapshot, histories=tuple(refs))


def stored_columns(spec: PipelineSpec, names: Iterable[str]) -> tuple[str, ...]:
    """The columns of a table that these are read from: of a list of events, those that decide which ones it holds."""
    own: dict[str, tuple[str, ...]] = {}
    for feature in spec.features:
        if (read := feature.history) is not None:
            history = spec.histories[read.history]
            own[read.name] = (history.on or history.key, *read.row_columns)
    return tuple(dict.fromkeys(column for name in names for column in own.get(name, (name,))))


def list_bytes(features: Iterable[FeatureSpec]) -> int:
    """An upper bound of what a row's lists of events take, as codes, which all columns of the same events share."""
    selections = {feature.history.selection for feature in features if feature.history is not None}
    return sum(4 * selection.most for selection in selections)


def list_columns(spec: PipelineSpec) -> Collection[str]:
    """The columns of lists that rows get from histories."""
    return {feature.history.name for feature in spec.features if feature.history is not None}


def _history(
    spec: PipelineSpec, name: str, reads: tuple[HistoryRead, ...], rows: pa.Schema, generation: str | None
) -> HistoryRef:
    history, path = spec.histories[name], ("histories", name)
    try:
        listing = list_table(history.table, format=history.format, apart={"work_dir": spec.work_dir})
        events = _kept(listing, spec.work_dir, generation) or snapshot_of(listing, work_dir=spec.work_dir)
        events.save(spec.work_dir)
        columns = event_columns(name, history)
        HistoryJoin(columns, reads, rows, events.schema)  # raises where columns do not fit
        stored = events if _is_laid_out(events, history) else _laid_out(spec, events, columns)
        ranges_of(stored, spec.work_dir)  # once, for all workers
    except TableArgumentError as error:
        raise spec.error(path, str(error)) from error
    return HistoryRef(
        columns=columns,
        reads=reads,
        schema=stored.schema.serialize().to_pybytes(),
        events=events.id,
        work_dir=spec.work_dir,
        snapshot=stored.id,
        memory=history.memory,
    )


def _kept(listing: Listing, work_dir: str, generation: str | None) -> Snapshot | None:
    """The snapshot of events of that id, if the table still has all its files; else None."""
    if generation is None:
        return None
    try:
        events = Snapshot.load(work_dir, generation)
    except FeedlineError:
        return None
    there, then = (set(_identities(files)) for files in (listing.files, events.files))
    return events if there.issuperset(then) else None


def _identities(files: pa.Table) -> Iterator[tuple[object, ...]]:
    facts = (files[name].to_pylist() for name in ("path", "bytes", "mtime_ns"))
    return zip(*facts, column_file_names(files), strict=True)


def event_columns(name: str, history: HistorySpec) -> EventColumns:
    """The columns of a history that say whose, and when, an event is."""
    return EventColumns(
        name=name,
        key=history.key,
        on=history.on or history.key,
        time=history.time,
        known_at=history.known_at,
        tie_break=history.tie_break,
    )


def _is_laid_out(events: Snapshot, history: HistorySpec) -> bool:
    """Whether a table's first file was written for the history's key and order; blocks refuse a file that was not."""
    groups = events.row_groups_of(0)
    fragment = fragment_at(events, 0, groups, events.rows_per_row_group[groups])
    with fragment.open() as file:
        index = read_event_index(file.metadata.metadata, fragment.uri)
    if index is None or index.key != history.key:
        return False
    return index.sort_by[: len(history.sort_by)] == history.sort_by


def _laid_out(spec: PipelineSpec, events: Snapshot, columns: EventColumns) -> Snapshot:
    """The events in the layout of histories, written to work_dir unless an earlier plan has done so."""
    content = json.dumps([_VERSION, events.id, columns.key, columns.sort_by])
    folder = below(absolute(spec.work_dir), f"histories/{hashlib.sha256(content.encode()).hexdigest()[:32]}")
    stored = _stored(folder, spec.work_dir)
    if stored is not None:
        return stored
    sort_by = ",".join(columns.sort_by)
    advice = f"feedline optimize {redact(events.uri)} OUT --history {columns.key} --sort-by {sort_by}"
    logger.warning(
        "history %s: %s is not in the layout of histories, so its %s events are written to %s first; `%s` does it once",
        columns.name,
        redact(events.uri),
        f"{events.rows:,}",
        redact(folder),
        advice,
    )
    start = time.monotonic()
    local = is_local(locate(folder).filesystem)
    target = f"{folder}.{secrets.token_hex(4)}" if local else folder
    settings = Settings.of(history=columns.key, sort_by=columns.sort_by)
    optimize(
        events, target, settings, source=(events.uri,), projection=(), runner=TaskRunner(threads=available_cores())
    )
    if local:
        try:
            Path(locate(target).path).rename(locate(folder).path)
        except OSError:
            if _stored(folder, spec.work_dir) is None:  # else another process has written it
                raise
    logger.warning("history %s: written in %.1f s", columns.name, time.monotonic() - start)
    stored = _stored(folder, spec.work_dir)
    assert stored is not None
    return stored


def _stored(folder: str, work_dir: str) -> Snapshot | None:
    """The table in a folder; None where there is none."""
    try:
        snapshot = snapshot_of(list_table(folder), work_dir=work_dir)
    except FeedlineError:
        return None
    snapshot.save(work_dir)
    return snapshot
