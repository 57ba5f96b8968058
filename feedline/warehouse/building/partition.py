"""Build one partition: plan its tasks, run them, write its files, and land them with their record.

Runs in the process of the build; the work is done by small picklable tasks that any `map` may run (`joins`, `rows`,
`optimize.rewrite`). The bytes of the files depend on the rows of the logs alone: how often a partition is divided
follows from its rows, encodings are chosen by size, and rows have a total order.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.progress import track
from feedline.resources.cgroups import available_memory_bytes
from feedline.warehouse.building.design import Design
from feedline.warehouse.building.joins import (
    FindTask,
    FoundRows,
    JoinTask,
    PartitionJob,
    ReadTask,
    Spilled,
    find_rows,
    join_features,
    join_outcomes,
    scatter_features,
    scatter_impressions,
    scatter_outcomes,
)
from feedline.warehouse.building.logs import LogTimes
from feedline.warehouse.building.periods import MARKER, Window
from feedline.warehouse.building.record import RECORD, Counts, OutcomeCounts, Record, summed
from feedline.warehouse.building.rows import MadeRows, RowsTask, make_rows
from feedline.warehouse.optimize.clustering import Gatherer, row_order
from feedline.warehouse.optimize.landing import Target, room_for
from feedline.warehouse.optimize.optimize import TaskRunner, as_stored, join_buckets
from feedline.warehouse.optimize.rewrite import PartitionTask, Recipe, Unit, read_buckets, rewrite_units
from feedline.warehouse.parquet.encodings import choose
from feedline.warehouse.parquet.writer import Limits, upload
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.storage.claim import Claim
from feedline.warehouse.storage.parallel import Map

# What decides bytes: none of these follows from threads or memory.
UNIT_BYTES = 128 << 20  # decoded rows of a unit, which becomes files of its own
_BUCKET_OF_ROWS = 32_768  # rows of a bucket of the clustering key, of which a unit has some
_MAX_BUCKETS = 4096
_SAMPLE_ROWS, _SAMPLE_BYTES = 65_536, 128 << 20  # on which encodings are measured
_LIMITS = Limits(row_group_rows=65_536, row_group_bytes=None, file_bytes=256 << 20)

# What decides memory: a bucket of a join holds its rows about three times.
_JOIN_ROW_BYTES = 600
_LEAST_JOIN_ROWS, _MOST_JOIN_ROWS = 32_768, 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Build:
    """What all partitions of a run have in common. times: of each log, by name. spec: the digest of samples.yaml."""

    claim: Claim
    design: Design
    times: dict[str, LogTimes]
    spec: str
    runner: TaskRunner

    @property
    def join_rows(self) -> int:
        """Rows of a bucket that is joined."""
        memory = self.runner.memory_bytes or available_memory_bytes() // 2
        return min(_MOST_JOIN_ROWS, max(_LEAST_JOIN_ROWS, memory // (self.runner.threads * _JOIN_ROW_BYTES)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scattered:
    """The spill files of the partition's impressions, of each outcome and of each table of features."""

    impressions: tuple[Spilled, ...]
    outcomes: tuple[tuple[Spilled, ...], ...]
    features: tuple[tuple[Spilled, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buckets:
    """How many buckets of hashes impressions, each outcome and each table of features are spread over."""

    impressions: int
    outcomes: tuple[int, ...]
    features: tuple[int, ...]


def build_partition(build: Build, period: int) -> Record:
    """Build and land a partition; returns its record. Raises what reading and writing raise."""
    folder = build.design.timeline.folder(period)
    slug = hashlib.sha256(folder.encode()).hexdigest()[:16]
    target = Target(build.claim)
    windows = build.design.windows(period)
    start, stop = build.design.timeline.bounds(period)
    own, own_rows = build.times["impressions"].runs(Window(start=start, stop=stop))
    own = own or [()]  # where a filter leaves none, outcomes are counted all the same
    job = PartitionJob(claim=build.claim, slug=slug, design=build.design, period=period, tasks=len(own))
    run = _Run(build, job, folder)
    scattered, buckets = run.scatter(own, own_rows, windows)
    found = run.find(scattered, buckets)
    made, outcome_counts = run.join(scattered, found, buckets, own)
    names = run.write(made) if sum(sum(each.bucket_rows) for each in made) else []
    record = _record(build, job, windows, scattered, found, made, outcome_counts)
    with room_for(target.uri):
        land(target, folder, slug, names, record)
        target.remove(target.spill(slug))
    return record


def land(target: Target, folder: str, slug: str, names: Sequence[str], record: Record) -> None:
    """Make a partition visible at once, with its record and, at last, its marker."""
    stage = target.stage(slug)
    for name, content in ((RECORD, record.to_json()), (MARKER, b"")):
        upload(target.filesystem, f"{stage}/{name}", pa.py_buffer(content))
    target.land(folder, slug, names, alone=True, beside=(RECORD, MARKER))


class _Run:
    """The steps of one partition, with what they share."""

    def __init__(self, build: Build, job: PartitionJob, folder: str) -> None:
        self._build, self._job, self._folder = build, job, folder
        self._map: Map = build.runner.run

    def scatter(
        self, own: list[tuple[Fragment, ...]], own_rows: int, windows: dict[str, Window]
    ) -> tuple[_Scattered, _Buckets]:
        """Read the logs into buckets."""
        design, times = self._job.design, self._build.times
        start, stop = self._job.bounds
        whole = windows["impressions"]
        around = (Window(start=whole.start, stop=start), Window(start=stop, stop=whole.stop)) if design.outcomes else ()
        near = [(window, *times["impressions"].runs(window)) for window in around]
        touches = own_rows + sum(rows for *_, rows in near)
        of_outcomes = [times[each.log.name].runs(windows[each.log.name]) for each in design.outcomes]
        of_features = [times[each.log.name].runs(windows[each.log.name]) for each in design.features]
        count = partial(_buckets, self._build.join_rows)
        buckets = _Buckets(
            impressions=count(touches),
            outcomes=tuple(count(touches + rows) for _, rows in of_outcomes),
            features=tuple(count(own_rows + rows) for _, rows in of_features),
        )
        task = partial(ReadTask, job=self._job, buckets=buckets.impressions)
        tasks = [task(fragments=run, window=Window(start=start, stop=stop), number=at) for at, run in enumerate(own)]
        others = [(window, run) for window, runs, _ in near for run in runs]
        tasks += [task(fragments=run, window=each, number=at, is_own=False) for at, (each, run) in enumerate(others)]
        scattered = _Scattered(
            impressions=tuple(self._track("reading impressions of", scatter_impressions, tasks)),
            outcomes=tuple(
                self._read(scatter_outcomes, runs, windows[each.log.name], index, buckets.outcomes[index])
                for index, (each, (runs, _)) in enumerate(zip(design.outcomes, of_outcomes, strict=True))
            ),
            features=tuple(
                self._read(scatter_features, runs, windows[each.log.name], index, buckets.features[index])
                for index, (each, (runs, _)) in enumerate(zip(design.features, of_features, strict=True))
            ),
        )
        return scattered, buckets

    def _read(
        self,
        scatter: Callable[[ReadTask], Spilled],
        runs: list[tuple[Fragment, ...]],
        window: Window,
        index: int,
        buckets: int,
    ) -> tuple[Spilled, ...]:
        tasks = [
            ReadTask(job=self._job, fragments=run, window=window, number=number, buckets=buckets, index=index)
            for number, run in enumerate(runs or [()])
        ]
        what = "reading outcomes of" if scatter is scatter_outcomes else "reading features of"
        return tuple(self._track(what, scatter, tasks))

    def find(self, scattered: _Scattered, buckets: _Buckets) -> list[FoundRows]:
        """Decide which impressions are rows."""
        spills = tuple(each.path for each in scattered.impressions)
        tasks = [
            FindTask(
                job=self._job,
                bucket=bucket,
                spills=spills,
                outcome_buckets=buckets.outcomes,
                feature_buckets=buckets.features,
            )
            for bucket in range(buckets.impressions)
        ]
        return list(self._track("finding rows of", find_rows, tasks))

    def join(
        self, scattered: _Scattered, found: list[FoundRows], buckets: _Buckets, own: list[tuple[Fragment, ...]]
    ) -> tuple[list[MadeRows], list[dict[str, int]]]:
        """Join outcomes and features with the rows, and make these; returns the counts of each outcome, too."""
        labels, counts, features = [], [], []
        for index, spilled in enumerate(scattered.outcomes):
            touches = tuple(each.touches[index] for each in found)
            tasks = self._joins(index, buckets.outcomes[index], touches, spilled)
            joined = list(self._track("joining outcomes of", join_outcomes, tasks))
            labels.append(tuple(each.path for each in joined))
            counts.append(summed([each.counts for each in joined]))
        for index, spilled in enumerate(scattered.features):
            seekers = tuple(each.seekers[index] for each in found)
            tasks = self._joins(index, buckets.features[index], seekers, spilled)
            features.append(tuple(each.path for each in self._track("joining features of", join_features, tasks)))
        kept = sum(each.count for each in found)
        count = min(_MAX_BUCKETS, max(1, math.ceil(kept / _BUCKET_OF_ROWS)))
        rows = [
            RowsTask(
                job=self._job,
                number=number,
                fragments=run,
                rows=tuple(each.rows for each in found),
                labels=tuple(labels),
                features=tuple(features),
                buckets=count,
            )
            for number, run in enumerate(own)
        ]
        return list(self._track("making rows of", make_rows, rows)), counts

    def _joins(
        self, index: int, buckets: int, impressions: tuple[str, ...], others: tuple[Spilled, ...]
    ) -> list[JoinTask]:
        paths = tuple(each.path for each in others)
        return [
            JoinTask(job=self._job, index=index, bucket=bucket, impressions=impressions, others=paths)
            for bucket in range(buckets)
        ]

    def write(self, made: list[MadeRows]) -> list[str]:
        """Write the partition's files into its stage; returns their names."""
        rows = np.array([each.bucket_rows for each in made], np.int64).sum(axis=0)
        row_bytes = sum(each.bytes for each in made) / max(int(rows.sum()), 1)
        ranges = join_buckets(rows.tolist(), max(1, int(UNIT_BYTES / max(row_bytes, 1))))
        spills = tuple(each.path for each in made)
        recipe = self._with_encodings(self._recipe(), spills, rows.tolist(), row_bytes)
        tasks = [
            PartitionTask(
                recipe=recipe,
                slug=self._job.slug,
                sources=self._build.spec,
                units=(Unit(number=number, units=len(ranges), spills=spills, first=first, stop=stop),),
            )
            for number, (first, stop) in enumerate(ranges)
        ]
        return [file.name for files in self._track("writing", rewrite_units, tasks) for file in files]

    def _recipe(self) -> Recipe:
        design = self._job.design
        return Recipe(
            claim=self._job.claim,
            source=design.schema,
            target=design.schema,
            encodings=(),
            limits=_LIMITS,
            cluster_by=design.cluster_by,
            sort_by=design.sort_by,
            flatten=(),
            dedup=design.dedup,
            history=None,
            requests=design.requests,
            rows="keep" if design.requests is None else "request",
            keep_small=False,
            settings=self._build.spec,
            decoder="",  # encodings are chosen by size, whatever decodes them
        )

    def _with_encodings(
        self, recipe: Recipe, spills: Sequence[str], bucket_rows: Sequence[int], row_bytes: float
    ) -> Recipe:
        """The recipe with the encodings that have the fewest bytes, by the first rows of the partition."""
        most = max(1, min(_SAMPLE_ROWS, int(_SAMPLE_BYTES / max(row_bytes, 1))))
        stop = int(np.searchsorted(np.cumsum(bucket_rows), most)) + 1
        target = Target(self._job.claim)
        parts = [read_buckets(target, path, 0, min(stop, len(bucket_rows))) for path in spills]
        tables = [pa.concat_tables([recipe.target.empty_table(), *parts])]
        del parts
        keys = list(dict.fromkeys([*recipe.cluster_by, *recipe.sort_by]))
        order = row_order(tables[0].select(keys), recipe.cluster_by, recipe.sort_by)[:most]
        sample, limits = as_stored(recipe, Gatherer(tables).take(order))
        repeated = {name for _, columns in recipe.dedup for name in columns}
        choices = choose(sample, "size", repeated=repeated, timed=False)
        return replace(recipe, limits=limits, encodings=tuple(choice.encoding for choice in choices))

    def _track(self, what: str, function: Any, tasks: list[Any]) -> Any:
        return track(self._map(function, tasks), f"{what} {self._folder}", [1] * len(tasks), "tasks")


def _buckets(join_rows: int, rows: int) -> int:
    return max(1, math.ceil(rows / join_rows))


def _record(
    build: Build,
    job: PartitionJob,
    windows: dict[str, Window],
    scattered: _Scattered,
    found: list[FoundRows],
    made: list[MadeRows],
    joined: list[dict[str, int]],
) -> Record:
    """The record of a partition that is built."""
    outcomes = {
        each.name: OutcomeCounts(
            logged=sum(spilled.own for spilled in own),
            keyless=sum(spilled.keyless for spilled in own),
            **counts,
        )
        for each, own, counts in zip(job.design.outcomes, scattered.outcomes, joined, strict=True)
    }
    counts = Counts(
        impressions=sum(each.own for each in scattered.impressions),
        keyless=sum(each.keyless for each in scattered.impressions),
        duplicates=sum(each.duplicates for each in found),
        conflicting=sum(each.conflicting for each in found),
        sampled_away=sum(each.sampled_away for each in made),
        rows=sum(sum(each.bucket_rows) for each in made),
        outcomes=outcomes,
    )
    spilled = [scattered.impressions, *scattered.outcomes, *scattered.features]
    inputs = {
        log.name: build.times[log.name].inputs(windows[log.name], sum(each.read for each in parts))
        for log, parts in zip(job.design.logs, spilled, strict=True)
    }
    return Record(spec=build.spec, counts=counts, inputs=inputs)
