"""Write a table to a new place so that reading it is cheap: the steps of `feedline optimize`.

Runs in the caller's process; the work is done by small picklable tasks that any `map` may run, in threads here or on a
Dask cluster. Steps:

1. a survey: which columns hold no null at all, and which keys of maps become columns (`survey`, `flattening`);
2. the target's schema: those columns not nullable, in the order asked for;
3. which partitions are finished: those whose files carry the fingerprints of these settings and of their sources;
4. a sample of rows, clustered as the table will be, from which each column gets its encoding (`encodings`);
5. partitions, small ones a task each, larger ones one after the other in many tasks (`rewrite`); each lands whole;
6. partitions that the source no longer has are removed, and the hidden folder with them.

A run that was killed leaves finished partitions and the hidden folder; the next run begins with step 1 and does what is
left. Encodings are measured again then and are not part of the fingerprint: they may differ between partitions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from feedline.errors import FeedlineError
from feedline.expressions.column_parts import flattened_name
from feedline.resources import available_cores, available_memory_bytes
from feedline.warehouse.optimize.footprint import Footprint, footprint
from feedline.warehouse.optimize.landing import Target, TargetFile, is_complete, refuse_overlap
from feedline.warehouse.optimize.recipe import Settings, check_settings, recipe_for
from feedline.warehouse.optimize.rewrite import PartitionTask, Recipe, rewrite_partition
from feedline.warehouse.optimize.units import Partition, Sizes, partitions_of, sample_rows, small_units, write_large
from feedline.warehouse.parquet.encodings import Choice, Goal, choose
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.warehouse.storage.parallel import Map, in_threads

_UNIT_BYTES = 2 << 30  # at most: the offsets of a unit's lists fit 32 bits
_LEAST_UNIT_BYTES = 64 << 20  # a partition is not cut into smaller units to keep more cores busy
_WAVES, _WAVE_TASKS = 20, 8  # reports of progress, at most, and the least tasks per thread between two of them
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeReport:
    """The result of `optimize`: partitions written, already finished and removed; the table before and after.

    `choices`: per Parquet column (empty where nothing had to be written). `flattened`: the columns that maps became.
    `columns`: the target's, in order. `non_null`: those that are not nullable. `projection`: the columns whose bytes
    and requests `before` and `after` measure. `measuring_s`, `writing_s`: seconds for choosing encodings, for writing.
    """

    source: str
    target: str
    written: int
    finished: int
    taken_away: int
    columns: tuple[str, ...]
    non_null: tuple[str, ...]
    flattened: tuple[str, ...]
    choices: tuple[Choice, ...]
    projection: tuple[str, ...]
    before: Footprint
    after: Footprint
    settings: Settings
    measuring_s: float
    writing_s: float


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
    say: Say | None = None,
) -> OptimizeReport:
    """Write the snapshot's rows to `target`, a folder or URI; partition folders stay what they are.

    `source`: the table's names as the user gave them (default: its root); the target must not overlap any of them.
    `projection`: columns whose reading the report compares. `map` runs the tasks, `threads` of them at a time, within
    `memory_bytes` (default: half of what is free here). Raises TableError (settings that do not fit the table, a target
    that is not ours, no space left), DataError, and what reading raises; partitions that are finished by then stay.
    """
    threads = threads or available_cores()
    run = map or partial(in_threads, threads=threads)
    tell = say or (lambda _: None)
    check_settings(snapshot, settings, projection)
    refuse_overlap(source or [snapshot.uri], target)
    landed = (place := Target(target)).files_by_folder()
    place.clean()
    before = footprint(snapshot, projection, map=run)
    recipe = recipe_for(snapshot, place.uri, settings, map=run, notes=before.notes)
    partitions = partitions_of(snapshot)
    choices: list[Choice] = []
    pending = [one for one in partitions if not _is_finished(one, landed, recipe)]
    began = measured = time.perf_counter()
    if pending:
        unit_bytes = min(_UNIT_BYTES, (memory_bytes or available_memory_bytes() // 2) // (2 * threads))
        recipe, sizes, choices = _measure(snapshot, pending, recipe, settings.goal, unit_bytes, threads)
        measured = time.perf_counter()
        tell(f"{len(pending)} of {len(partitions)} partitions to write; {len(choices)} columns measured")
        try:
            _write(snapshot, place, recipe, pending, sizes, settings, run, threads, tell)
        except FeedlineError:
            place.clean()
            raise
    written = time.perf_counter()
    return OptimizeReport(
        source=snapshot.uri,
        target=place.uri,
        written=len(pending),
        finished=len(partitions) - len(pending),
        taken_away=_remove_gone(place, landed, partitions),  # before `after` is measured
        columns=tuple(recipe.target.names),
        non_null=tuple(field.name for field in recipe.target if not field.nullable),
        flattened=tuple(flattened_name(name, key) for name, keys in recipe.flatten for key in keys),
        choices=tuple(choices),
        projection=tuple(projection),
        before=before,
        after=footprint(take_snapshot(place.uri), projection, map=run),
        settings=settings,
        measuring_s=measured - began,
        writing_s=written - measured,
    )


def _remove_gone(place: Target, landed: dict[str, list[TargetFile]], partitions: Sequence[Partition]) -> int:
    """Delete the partitions that the source no longer has, and the hidden folder; returns how many."""
    gone = sorted(set(landed) - {one.folder for one in partitions})
    for folder in gone:
        place.remove_partition(folder)
    place.clean()
    return len(gone)


def _is_finished(partition: Partition, landed: dict[str, list[TargetFile]], recipe: Recipe) -> bool:
    return is_complete(landed.get(partition.folder, []), recipe.settings, partition.sources)


def _measure(
    snapshot: Snapshot, pending: Sequence[Partition], recipe: Recipe, goal: Goal, unit_bytes: int, threads: int
) -> tuple[Recipe, Sizes, list[Choice]]:
    """The recipe with encodings, and what rows take decoded, both from a sample of the largest partition."""
    largest = max(pending, key=lambda one: one.rows)
    sample, row_bytes = sample_rows(snapshot, largest, recipe)
    choices = choose(sample, goal)
    ratio = row_bytes * largest.rows / max(largest.bytes, 1)
    if len(pending) < threads:  # else cores would have nothing to do
        decoded = row_bytes * sum(one.rows for one in pending)
        unit_bytes = min(unit_bytes, max(_LEAST_UNIT_BYTES, int(decoded / threads)))
    sizes = Sizes(unit_bytes=max(unit_bytes, 1), row_bytes=row_bytes, decoded_per_stored=ratio)
    return replace(recipe, encodings=tuple(choice.encoding for choice in choices)), sizes, choices


def _write(
    snapshot: Snapshot,
    place: Target,
    recipe: Recipe,
    pending: Sequence[Partition],
    sizes: Sizes,
    settings: Settings,
    run: Map,
    threads: int,
    tell: Say,
) -> None:
    small: list[PartitionTask] = []
    large: list[Partition] = []
    for partition in pending:
        keep = settings.small_partitions == "keep" and partition.rows < settings.row_group_rows
        units = small_units(snapshot, partition, recipe, sizes, keep_files=keep)
        if units is None:
            large.append(partition)
        else:
            small.append(
                PartitionTask(
                    recipe=recipe,
                    folder=partition.folder,
                    slug=partition.slug,
                    sources=partition.sources,
                    alone=partition.alone,
                    units=tuple(units),
                )
            )
    small.sort(key=lambda task: -sum(fragment.bytes for unit in task.units for fragment in unit.fragments))
    wave = max(_WAVE_TASKS * threads, math.ceil(len(small) / _WAVES))
    for start in range(0, len(small), wave):  # sorted by size, so that the tasks of a wave end together
        list(run(rewrite_partition, small[start : start + wave]))
        tell(f"{min(start + wave, len(small))} of {len(pending)} partitions written")
    for number, partition in enumerate(large):
        tell(f"partition {partition.folder or 'without keys'} ({number + 1} of {len(large)} larger than a task)")
        write_large(snapshot, place, partition, recipe, sizes, run)
