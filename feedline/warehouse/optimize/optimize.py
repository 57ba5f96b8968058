"""Write a copy of a table that is cheap to read: the steps of `feedline optimize`.

Runs in the caller's process; the work is done by small picklable tasks that any `map` may run. Steps:

1. survey the table: which columns hold no null, and which map keys become columns (`survey`);
2. derive the target's schema: those columns not nullable, in the requested order;
3. find finished partitions: their files have the fingerprints of these settings and of their sources;
4. sample rows, cluster and deduplicate them like the target, and choose each column's encoding (`encodings`);
5. write partitions, small ones in one task each, large ones one after the other in many (`rewrite`); each lands whole,
   by this process, while its run has the claim on the target;
6. remove partitions that the source no longer has, and the hidden folder.

A killed run leaves finished partitions and the hidden folder; the next run writes the rest. Encodings are no part of
the fingerprint.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import DataError, FeedlineError
from feedline.expressions.column_parts import flattened_name
from feedline.progress import report_progress
from feedline.resources.cgroups import available_cores, available_memory_bytes
from feedline.warehouse.discovery.column_log import column_file_names
from feedline.warehouse.discovery.partitions import keys_of_path
from feedline.warehouse.optimize.clustering import Gatherer, row_order
from feedline.warehouse.optimize.footprint import Footprint, footprint
from feedline.warehouse.optimize.landing import (
    Note,
    Target,
    is_complete,
    partition_folder,
    refuse_overlap,
    room_for,
    target_at,
)
from feedline.warehouse.optimize.recipe import Settings, check_settings, recipe_for, with_candidates
from feedline.warehouse.optimize.repeated_columns import DedupGroups, GroupSaving, group_savings
from feedline.warehouse.optimize.rewrite import (
    PartitionTask,
    Recipe,
    ScatterTask,
    Unit,
    rewrite_units,
    scatter,
    target_rows,
)
from feedline.warehouse.parquet.dedup_columns import dedup_table
from feedline.warehouse.parquet.encodings import Choice, Goal, choose
from feedline.warehouse.parquet.history_note import STRIPE_ROWS
from feedline.warehouse.parquet.key_hashes import key_hashes
from feedline.warehouse.parquet.request_rows import RequestColumns, as_requests, differing_columns
from feedline.warehouse.parquet.writer import Limits
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, fragment_at
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.warehouse.storage.file_identity import tags_of
from feedline.warehouse.storage.parallel import Map, in_threads

# --------------------------------------------------------------------------------------------------------------------
# Divide the work of `optimize` into partitions, units and buckets, sized by a sample of rows. Runs where `optimize`
# is planned. A partition is one task if its rows, decoded, fit a unit (and, without clustering, if they make few
# files); otherwise its units are tasks of their own, after a scattering pass if it is clustered.

_SAMPLE_ROWS = 65_536  # rows on which encodings are measured, or a row group's if that is less
_SAMPLE_READ_ROWS = 262_144  # rows read for the sample: it has whole keys, which may be spread over a file
_SAMPLE_BYTES = 128 << 20
_BUCKETS_PER_UNIT, _MAX_BUCKETS = 4, 4096  # several per unit, so that units come out even
_FILES_PER_TASK = 2  # an unclustered partition of more files is divided into several tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A Hive partition of the source: its folder, files (indices in the snapshot), rows and bytes.

    `sources`: the fingerprint of its files (path, bytes, time, footer). `alone`: no other partition lies in its folder.
    `slug`: the name of its scratch folders.
    """

    folder: str
    files: tuple[int, ...]
    rows: int
    bytes: int
    sources: str
    alone: bool

    @property
    def slug(self) -> str:
        return hashlib.sha256(self.folder.encode()).hexdigest()[:16]

    def task(self, recipe: Recipe, *units: Unit) -> PartitionTask:
        return PartitionTask(recipe=recipe, slug=self.slug, sources=self.sources, units=units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The decoded bytes that a unit may have; decoded bytes per row and per stored byte, from the sample."""

    unit_bytes: int
    row_bytes: float
    decoded_per_stored: float

    def decoded_bytes(self, rows: int, stored_bytes: int) -> float:
        """Estimate the bytes of these rows in memory: the larger of two estimates."""
        return max(rows * self.row_bytes, stored_bytes * self.decoded_per_stored)


def partitions_of(snapshot: Snapshot, *, as_one: bool = False) -> list[Partition]:
    """The Hive partitions of a source; `as_one`: all its files as one partition, without keys."""
    files_of: dict[str, list[int]] = {}
    for file, path in enumerate(snapshot.files["path"].to_pylist()):
        files_of.setdefault("" if as_one else _folder(snapshot, path), []).append(file)
    names = ("path", "bytes", "mtime_ns")
    facts = {name: snapshot.files[name].to_pylist() for name in (*names, "footer_digest", "rows")}
    tags, columns = tags_of(snapshot.files), column_file_names(snapshot.files)
    parents = {folder[:end] for folder in files_of for end, sign in enumerate(folder) if sign == "/"} | {""}
    partitions = []
    for folder, files in files_of.items():
        identity = [
            [
                *(facts[name][file] for name in names),
                facts["footer_digest"][file].hex(),
                *filter(None, [tags[file], columns[file]]),
            ]
            for file in files
        ]
        partitions.append(
            Partition(
                folder=folder,
                files=tuple(files),
                rows=sum(facts["rows"][file] for file in files),
                bytes=sum(facts["bytes"][file] for file in files),
                sources=hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32],
                alone=folder not in parents,
            )
        )
    return partitions


def _folder(snapshot: Snapshot, path: str) -> str:
    """The partition of a file, as the target's folders spell it.

    Where a log types the keys, `key=value` folders of other columns (which Iceberg's files hold) are no keys: there the
    target's folders are called otherwise.
    """
    folder = partition_folder(path)
    if not snapshot.logged or not folder:
        return folder
    keys = snapshot.partition_columns
    spelled = [(segment, next(iter(keys_of_path(f"{segment}/"))) in keys) for segment in folder.split("/")]
    return "/".join(part if is_key else part.replace("=", "-").lstrip("_.") for part, is_key in spelled)


def sample_rows(snapshot: Snapshot, partition: Partition, recipe: Recipe) -> tuple[pa.Table, float]:
    """Rows of a partition as the target orders them, in its order, and decoded bytes per row of the source.

    Clustered rows are those of a range of key hashes, so that keys are whole as far as they lie in the rows read.
    """
    sample_size = min(_SAMPLE_ROWS, recipe.limits.row_group_rows)
    groups = list(_row_groups(snapshot, partition))
    groups = groups[len(groups) // 2 :] + groups[: len(groups) // 2]
    stored = snapshot.rows_per_row_group
    rows_of = {snapshot.path_of(file): stored[snapshot.row_groups_of(file)] for file in partition.files}
    read, total = 0, min(partition.rows, _SAMPLE_READ_ROWS if recipe.cluster_by else sample_size)
    samples: list[pa.Table] = []
    row_bytes = 0.0
    for fragment in groups:
        if read >= total:
            break
        for table in target_rows(recipe, [fragment]):
            read += table.num_rows
            if not row_bytes and table.num_rows:
                row_bytes = table.nbytes / int(rows_of[fragment.path][fragment.row_groups[0]])
                sample_size = max(1, min(sample_size, int(_SAMPLE_BYTES * table.num_rows / max(table.nbytes, 1))))
            samples.append(_of_low_hash(table, recipe.cluster_by, min(1.0, sample_size / total)))
    tables = [pa.concat_tables([recipe.target.empty_table(), *samples])]
    if recipe.cluster_by:
        order = row_order(tables[0], recipe.cluster_by, recipe.sort_by)[:sample_size]
        return Gatherer(tables).take(order), row_bytes
    return tables[0].slice(0, sample_size), row_bytes


def small_units(snapshot: Snapshot, partition: Partition, recipe: Recipe, sizes: Sizes) -> list[Unit] | None:
    """Return the units of a partition that is one task; None if it is too large for that."""
    if not partition.rows:
        return [Unit(number=0, units=1)]
    if recipe.cluster_by and sizes.decoded_bytes(partition.rows, partition.bytes) > sizes.unit_bytes:
        return None
    if not recipe.cluster_by and partition.bytes > _FILES_PER_TASK * recipe.limits.file_bytes:
        return None
    groups = list(_row_groups(snapshot, partition))
    if not (recipe.keep_small and partition.rows < recipe.limits.row_group_rows) or not groups:
        return [Unit(number=0, units=1, fragments=tuple(groups))]
    files = [tuple(of_file) for _, of_file in itertools.groupby(groups, key=lambda group: group.path)]
    return [Unit(number=number, units=len(files), fragments=of_file) for number, of_file in enumerate(files)]


def write_large(
    snapshot: Snapshot, target: Target, partition: Partition, recipe: Recipe, sizes: Sizes, map: Map
) -> None:
    """Write and land a partition whose units are separate tasks."""
    groups = list(_row_groups(snapshot, partition))
    if recipe.cluster_by:
        units = _scatter_units(partition, groups, recipe, sizes, map)
    else:
        runs = list(_runs(groups, partition, lambda rows, stored: stored, recipe.limits.file_bytes))
        units = [Unit(number=index, units=len(runs), fragments=run) for index, run in enumerate(runs)]
    tasks = [partition.task(recipe, unit) for unit in units]
    names = [file.name for written in map(rewrite_units, tasks) for file in written]
    target.land(partition.folder, partition.slug, names, alone=partition.alone)
    target.remove(target.spill(partition.slug))


def join_buckets(sizes: Sequence[int], unit_bytes: int) -> list[tuple[int, int]]:
    """Group neighbouring buckets into ranges [first, stop) that fit a unit."""
    ranges: list[tuple[int, int]] = []  # of buckets of [3, 4, 2, 9] bytes, at most 7: [(0, 2), (2, 3), (3, 4)]
    first, total = 0, 0
    for bucket, size in enumerate(sizes):
        if total and total + size > unit_bytes:
            ranges.append((first, bucket))
            first, total = bucket, 0
        total += size
    return [*ranges, (first, len(sizes))]


def _scatter_units(
    partition: Partition, groups: Sequence[Fragment], recipe: Recipe, sizes: Sizes, map: Map
) -> list[Unit]:
    decoded_bytes = sizes.decoded_bytes(partition.rows, partition.bytes)
    buckets = min(_MAX_BUCKETS, math.ceil(_BUCKETS_PER_UNIT * decoded_bytes / sizes.unit_bytes))
    runs = _runs(groups, partition, sizes.decoded_bytes, sizes.unit_bytes)
    tasks = [
        ScatterTask(recipe=recipe, fragments=run, buckets=buckets, slug=partition.slug, number=number)
        for number, run in enumerate(runs)
    ]
    spills, sizes_of = zip(*map(scatter, tasks), strict=True)
    totals = np.array(sizes_of, np.int64).sum(axis=0)
    ranges = join_buckets(totals.tolist(), sizes.unit_bytes)
    return [
        Unit(number=number, units=len(ranges), spills=spills, first=first, stop=stop)
        for number, (first, stop) in enumerate(ranges)
    ]


def _runs(
    groups: Sequence[Fragment], partition: Partition, size: Callable[[int, int], float], limit: float
) -> Iterator[tuple[Fragment, ...]]:
    """Yield runs of row groups whose sizes stay below the limit, assuming even shares of the partition."""
    share = size(partition.rows, partition.bytes) / max(len(groups), 1)
    count = max(1, int(limit / max(share, 1e-9)))
    for start in range(0, len(groups), count):
        yield tuple(groups[start : start + count])


def _row_groups(snapshot: Snapshot, partition: Partition) -> Iterator[Fragment]:
    rows = snapshot.rows_per_row_group
    for file in partition.files:
        for group in snapshot.row_groups_of(file).tolist():
            if rows[group]:
                yield fragment_at(snapshot, file, np.array([group]), np.array([UNCOUNTED]))


def _of_low_hash(table: pa.Table, keys: Sequence[str], share: float) -> pa.Table:
    if not keys or share >= 1:
        return table
    kept = key_hashes(table, keys) < np.uint64(share * 2**64)
    return table.filter(pa.array(kept)) if kept.any() else table.slice(0, int(share * table.num_rows))


# --------------------------------------------------------------------------------------------------------------------

_UNIT_BYTES = 2 << 30  # at most, so that the offsets of a unit's lists fit 32 bits
_LEAST_UNIT_BYTES = 64 << 20  # partitions are not divided further just to use more cores
_WAVES, _WAVE_TASKS = 20, 8  # most progress reports, and fewest tasks per thread between two
_WRITING = "writing"  # the phase of progress


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRunner:
    """What runs the tasks: `map` (default: threads here), `threads` of them at a time, within `memory_bytes` (default:
    half of the free memory here)."""

    map: Map | None = None
    threads: int = field(default_factory=available_cores)
    memory_bytes: int | None = None

    @property
    def run(self) -> Map:
        return self.map or partial(in_threads, threads=self.threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeReport:
    """The result of `optimize`: partitions written, already finished and removed; the table before and after.

    `outdated`: finished partitions whose encodings were measured with another decoder than `decoder`, if that matters.
    `choices`: per Parquet column (empty if nothing had to be written). `flattened`: columns made from map keys.
    `columns`: the target's, in order. `non_null`: those that are not nullable. `projection`: the columns whose bytes
    and requests `before` and `after` measure. `dedup`: the groups of columns stored once per run. `requests`: the
    columns of a request table that was read or written. `measuring_s`, `writing_s`: seconds for choosing
    encodings, for writing.
    """

    source: str
    target: str
    written: int
    finished: int
    outdated: int = 0
    decoder: str = ""
    taken_away: int
    columns: tuple[str, ...]
    non_null: tuple[str, ...]
    flattened: tuple[str, ...]
    dedup: DedupGroups = ()
    requests: RequestColumns | None = None
    choices: tuple[Choice, ...]
    projection: tuple[str, ...]
    before: Footprint
    after: Footprint
    settings: Settings
    measuring_s: float
    writing_s: float

    @property
    def groups(self) -> tuple[GroupSaving, ...]:
        return group_savings(self.before, self.after, self.dedup)


def optimize(
    snapshot: Snapshot,
    target: str,
    settings: Settings,
    *,
    source: Sequence[str] = (),
    projection: Sequence[str] = (),
    runner: TaskRunner | None = None,
) -> OptimizeReport:
    """Write the snapshot's rows to `target`, a folder or URI, with the same partition folders (histories: with none).

    `source`: the table's names as the user gave them (default: its root); the target must not overlap any of them.
    `projection`: columns whose reading the report compares. Raises TableError (settings that do not fit the table, a
    target not written by `optimize`, no space left), DataError, and what reading raises; finished partitions stay.
    """
    runner = runner or TaskRunner()
    run = runner.run
    check_settings(snapshot, settings, projection)
    refuse_overlap(source or [snapshot.uri], target)
    old_notes = (destination := target_at(target)).notes_by_folder()
    with _claimed(destination):
        before = footprint(snapshot, projection, map=run)
        recipe = recipe_for(snapshot, destination.claim, settings, before, map=run)
        partitions = partitions_of(snapshot, as_one=settings.history is not None)
        if recipe.rows == "request":
            recipe = _with_requests(snapshot, recipe, partitions)
        choices: list[Choice] = []
        finished = {part.folder for part in partitions if _is_finished(part, old_notes, recipe)}
        pending = [part for part in partitions if part.folder not in finished]
        started_s = measured_s = time.perf_counter()
        if pending:
            recipe, sizes, choices = _measure(snapshot, pending, recipe, settings.goal, runner)
            measured_s = time.perf_counter()
            _write(snapshot, destination, recipe, pending, sizes, runner)
        written_s = time.perf_counter()
        gone = sorted(set(old_notes) - {part.folder for part in partitions})
        for folder in gone:
            destination.remove_partition(folder)
    return OptimizeReport(
        source=snapshot.uri,
        target=destination.uri,
        written=len(pending),
        finished=len(finished),
        outdated=0 if settings.goal == "size" else _outdated(finished, old_notes, recipe),
        decoder=recipe.decoder,
        taken_away=len(gone),
        columns=tuple(recipe.target.names),
        requests=recipe.requests,
        non_null=recipe.non_null,
        flattened=tuple(flattened_name(name, key) for name, keys in recipe.flatten for key in keys),
        dedup=recipe.dedup,
        choices=tuple(choices),
        projection=tuple(projection),
        before=before,
        after=footprint(take_snapshot(destination.uri), projection, map=run),
        settings=settings,
        measuring_s=measured_s - started_s,
        writing_s=written_s - measured_s,
    )


def _with_requests(snapshot: Snapshot, recipe: Recipe, partitions: Sequence[Partition]) -> Recipe:
    """The recipe of a request table, whose candidates are those named, or those that differ within the requests of a
    sample. Raises DataError where neither names one."""
    assert recipe.requests is not None
    if recipe.requests.candidates:
        return recipe
    sample, _ = sample_rows(snapshot, max(partitions, key=lambda part: part.rows), recipe)
    found = differing_columns(sample, recipe.requests.by)
    if not found:
        raise DataError(
            f"no column differs within a request of {', '.join(recipe.requests.by)}: got {sample.num_rows:,} sampled "
            "rows, expected requests of several candidates. Name them: --candidates item_id,clicked"
        )
    return with_candidates(recipe, found)


def _is_finished(partition: Partition, old_notes: dict[str, list[Note]], recipe: Recipe) -> bool:
    return is_complete(old_notes.get(partition.folder, []), recipe.settings, partition.sources)


@contextmanager
def _claimed(destination: Target) -> Iterator[None]:
    """Have the target alone; a run that is interrupted leaves its hidden folder, in which tasks may still write."""
    is_new = destination.is_local and not Path(destination.root).exists()
    with room_for(destination.uri):
        destination.claim.take()
    try:
        yield
    except FeedlineError:
        destination.claim.release()
        if is_new:
            with suppress(OSError):  # it holds finished partitions
                Path(destination.root).rmdir()
        raise
    destination.claim.release()


def _outdated(finished: Iterable[str], old_notes: dict[str, list[Note]], recipe: Recipe) -> int:
    return sum(any(note.get("decoder") != recipe.decoder for note in old_notes[folder]) for folder in finished)


def as_stored(recipe: Recipe, sample: pa.Table) -> tuple[pa.Table, Limits]:
    """A sample of rows as the recipe stores them, and its limits for such rows: a row group of requests has as many
    impressions as it would have rows."""
    limits = recipe.limits
    if recipe.requests is not None and recipe.rows == "request":
        rows = sample.num_rows
        sample = as_requests(sample, recipe.requests)
        limits = replace(limits, row_group_rows=max(1, limits.row_group_rows * sample.num_rows // max(rows, 1)))
    if recipe.dedup:
        sample, _ = dedup_table(sample, dict(recipe.dedup), recipe.cluster_by)
    return sample, limits


def _measure(
    snapshot: Snapshot, pending: Sequence[Partition], recipe: Recipe, goal: Goal, runner: TaskRunner
) -> tuple[Recipe, Sizes, list[Choice]]:
    """Return the recipe with encodings, and decoded sizes, both from a sample of the largest partition."""
    largest = max(pending, key=lambda part: part.rows)
    sample, row_bytes = sample_rows(snapshot, largest, recipe)
    sample, limits = as_stored(recipe, sample)
    repeated = {name for _, columns in recipe.dedup for name in columns}
    choices = choose(sample, goal, repeated=repeated, page_rows=None if recipe.history is None else STRIPE_ROWS)
    threads = runner.threads
    unit_bytes = min(_UNIT_BYTES, (runner.memory_bytes or available_memory_bytes() // 2) // (2 * threads))
    ratio = row_bytes * largest.rows / max(largest.bytes, 1)
    if len(pending) < threads:  # smaller units, so that no core is idle
        decoded = row_bytes * sum(part.rows for part in pending)
        unit_bytes = min(unit_bytes, max(_LEAST_UNIT_BYTES, int(decoded / threads)))
    sizes = Sizes(unit_bytes=max(unit_bytes, 1), row_bytes=row_bytes, decoded_per_stored=ratio)
    return replace(recipe, limits=limits, encodings=tuple(choice.encoding for choice in choices)), sizes, choices


def _write(
    snapshot: Snapshot,
    destination: Target,
    recipe: Recipe,
    pending: Sequence[Partition],
    sizes: Sizes,
    runner: TaskRunner,
) -> None:
    small: list[tuple[Partition, PartitionTask]] = []
    large: list[Partition] = []
    for partition in pending:
        units = small_units(snapshot, partition, recipe, sizes)
        if units is None:
            large.append(partition)
        else:
            small.append((partition, partition.task(recipe, *units)))
    small.sort(key=lambda pair: -sum(fragment.bytes for unit in pair[1].units for fragment in unit.fragments))
    wave = max(_WAVE_TASKS * runner.threads, math.ceil(len(small) / _WAVES))
    done, total = 0, sum(partition.rows for partition in pending)
    report_progress(_WRITING, done, total, "rows")
    for start in range(0, len(small), wave):  # sorted by size: the tasks of a wave end together
        partitions, tasks = zip(*small[start : start + wave], strict=True)
        for partition, files in zip(partitions, runner.run(rewrite_units, list(tasks)), strict=True):
            with room_for(destination.uri):
                destination.land(partition.folder, partition.slug, [file.name for file in files], alone=partition.alone)
            done += partition.rows
            report_progress(_WRITING, done, total, "rows")
    for partition in large:
        write_large(snapshot, destination, partition, recipe, sizes, runner.run)
        done += partition.rows
        report_progress(_WRITING, done, total, "rows")
