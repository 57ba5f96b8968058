"""Write a copy of a table that is cheap to read: the steps of `feedline optimize`.

Runs in the caller's process; the work is done by small picklable tasks that any `map` may run. Steps:

1. survey the table: which columns hold no null, and which map keys become columns (`survey`, `flattening`);
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

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from feedline.errors import FeedlineError
from feedline.expressions.column_parts import flattened_name
from feedline.progress import report_progress
from feedline.resources.cgroups import available_cores, available_memory_bytes
from feedline.warehouse.optimize.footprint import Footprint, footprint
from feedline.warehouse.optimize.landing import Target, TargetFile, is_complete, refuse_overlap, room_for, target_at
from feedline.warehouse.optimize.recipe import Settings, check_settings, recipe_for
from feedline.warehouse.optimize.repeated_columns import DedupGroups, GroupSaving, group_savings
from feedline.warehouse.optimize.rewrite import PartitionTask, Recipe, rewrite_units
from feedline.warehouse.optimize.units import Partition, Sizes, partitions_of, sample_rows, small_units, write_large
from feedline.warehouse.parquet.dedup_columns import dedup_table
from feedline.warehouse.parquet.encodings import Choice, Goal, choose
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.warehouse.storage.parallel import Map, in_threads

_UNIT_BYTES = 2 << 30  # at most, so that the offsets of a unit's lists fit 32 bits
_LEAST_UNIT_BYTES = 64 << 20  # partitions are not divided further just to use more cores
_WAVES, _WAVE_TASKS = 20, 8  # most progress reports, and fewest tasks per thread between two
_WRITING = "writing"  # the phase of progress


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeReport:
    """The result of `optimize`: partitions written, already finished and removed; the table before and after.

    `outdated`: finished partitions whose encodings were measured with another decoder than `decoder`, if that matters.
    `choices`: per Parquet column (empty if nothing had to be written). `flattened`: columns made from map keys.
    `columns`: the target's, in order. `non_null`: those that are not nullable. `projection`: the columns whose bytes
    and requests `before` and `after` measure. `dedup`: the groups of columns stored once per run. `measuring_s`,
    `writing_s`: seconds for choosing encodings, for writing.
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
    map: Map | None = None,
    threads: int | None = None,
    memory_bytes: int | None = None,
) -> OptimizeReport:
    """Write the snapshot's rows to `target`, a folder or URI, with the same partition folders.

    `source`: the table's names as the user gave them (default: its root); the target must not overlap any of them.
    `projection`: columns whose reading the report compares. `map` runs the tasks, `threads` of them at a time, within
    `memory_bytes` (default: half of the free memory here). Raises TableError (settings that do not fit the table, a
    target not written by `optimize`, no space left), DataError, and what reading raises; finished partitions stay.
    """
    threads = threads or available_cores()
    run = map or partial(in_threads, threads=threads)
    check_settings(snapshot, settings, projection)
    refuse_overlap(source or [snapshot.uri], target)
    old_files = (destination := target_at(target)).files_by_folder()
    with _claimed(destination):
        before = footprint(snapshot, projection, map=run)
        recipe = recipe_for(snapshot, destination.claim, settings, before, map=run)
        partitions = partitions_of(snapshot)
        choices: list[Choice] = []
        finished = {one.folder for one in partitions if _is_finished(one, old_files, recipe)}
        pending = [one for one in partitions if one.folder not in finished]
        started_s = measured_s = time.perf_counter()
        if pending:
            recipe, sizes, choices = _measure(snapshot, pending, recipe, settings.goal, memory_bytes, threads)
            measured_s = time.perf_counter()
            _write(snapshot, destination, recipe, pending, sizes, settings, run, threads)
        written_s = time.perf_counter()
        gone = sorted(set(old_files) - {one.folder for one in partitions})
        for folder in gone:
            destination.remove_partition(folder)
    return OptimizeReport(
        source=snapshot.uri,
        target=destination.uri,
        written=len(pending),
        finished=len(finished),
        outdated=0 if settings.goal == "size" else _outdated(finished, old_files, recipe),
        decoder=recipe.decoder,
        taken_away=len(gone),
        columns=tuple(recipe.target.names),
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


def _is_finished(partition: Partition, old_files: dict[str, list[TargetFile]], recipe: Recipe) -> bool:
    return is_complete(old_files.get(partition.folder, []), recipe.settings, partition.sources)


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


def _outdated(finished: Iterable[str], old_files: dict[str, list[TargetFile]], recipe: Recipe) -> int:
    return sum(any(file.note.get("decoder") != recipe.decoder for file in old_files[folder]) for folder in finished)


def _measure(
    snapshot: Snapshot, pending: Sequence[Partition], recipe: Recipe, goal: Goal, memory: int | None, threads: int
) -> tuple[Recipe, Sizes, list[Choice]]:
    """Return the recipe with encodings, and decoded sizes, both from a sample of the largest partition."""
    largest = max(pending, key=lambda one: one.rows)
    sample, row_bytes = sample_rows(snapshot, largest, recipe)
    if recipe.dedup:
        sample, _ = dedup_table(sample, dict(recipe.dedup), recipe.cluster_by)
    repeated = {name for _, columns in recipe.dedup for name in columns}
    choices = choose(sample, goal, repeated=repeated)
    unit_bytes = min(_UNIT_BYTES, (memory or available_memory_bytes() // 2) // (2 * threads))
    ratio = row_bytes * largest.rows / max(largest.bytes, 1)
    if len(pending) < threads:  # smaller units, so that no core is idle
        decoded = row_bytes * sum(one.rows for one in pending)
        unit_bytes = min(unit_bytes, max(_LEAST_UNIT_BYTES, int(decoded / threads)))
    sizes = Sizes(unit_bytes=max(unit_bytes, 1), row_bytes=row_bytes, decoded_per_stored=ratio)
    return replace(recipe, encodings=tuple(choice.encoding for choice in choices)), sizes, choices


def _write(
    snapshot: Snapshot,
    destination: Target,
    recipe: Recipe,
    pending: Sequence[Partition],
    sizes: Sizes,
    settings: Settings,
    run: Map,
    threads: int,
) -> None:
    small: list[tuple[Partition, PartitionTask]] = []
    large: list[Partition] = []
    for partition in pending:
        keep = settings.small_partitions == "keep" and partition.rows < settings.row_group_rows
        units = small_units(snapshot, partition, recipe, sizes, keep_files=keep)
        if units is None:
            large.append(partition)
        else:
            small.append((partition, partition.task(recipe, *units)))
    small.sort(key=lambda each: -sum(fragment.bytes for unit in each[1].units for fragment in unit.fragments))
    wave = max(_WAVE_TASKS * threads, math.ceil(len(small) / _WAVES))
    done, total = 0, sum(partition.rows for partition in pending)
    report_progress(_WRITING, done, total, "rows")
    for start in range(0, len(small), wave):  # sorted by size: the tasks of a wave end together
        partitions, tasks = zip(*small[start : start + wave], strict=True)
        for partition, files in zip(partitions, run(rewrite_units, list(tasks)), strict=True):
            with room_for(destination.uri):
                destination.land(partition.folder, partition.slug, [file.name for file in files], alone=partition.alone)
            done += partition.rows
            report_progress(_WRITING, done, total, "rows")
    for partition in large:
        write_large(snapshot, destination, partition, recipe, sizes, run)
        done += partition.rows
        report_progress(_WRITING, done, total, "rows")
