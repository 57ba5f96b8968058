"""Measure a plan's deduplicated groups on a sample of its rows, in bytes of a slot.

Runs in: the process of `feedline plan`. The sample is the beginning of a few blocks, evenly spaced over the first
lane's epoch, in the order in which tasks read them; only columns of deduplicated features are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.blocks.compute import first_block_rows
from feedline.blocks.jobs import CompiledPart, compile_job
from feedline.blocks.request import BlockRequest, Job
from feedline.config.features import FeatureSpec
from feedline.dataclass import dataclass
from feedline.errors import DataError
from feedline.expressions.column_parts import has_column, part_of
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.layout import BatchSchema
from feedline.planning.dedup.column_changes import (
    INVERSE_BYTES,
    ColumnChanges,
    factor_of,
    find_changes,
    without_worst,
)
from feedline.planning.source_plan import SourcePlan
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.warehouse.reading.read import stored_columns

WORTHWHILE = 0.1  # the share of its bytes that a group has to save
_BLOCKS, _ROWS = 4, 32_768  # of a sample: how many blocks, and the rows of each
_LIST_BYTES = 4 + 8  # of a sparse feature per row: its length and its offset
Frames = Sequence[tuple[pl.DataFrame, Sequence[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMeasure:
    """One group on a sample; bytes are per row of the table.

    session_rows: S, the mean rows of a session; None without `shuffle.by`. repeated: d, the share of rows in which a
    column repeats the row above it, weighted by the bytes of features. worst: the column without which the factor would
    be highest, and that factor. bytes_plain, bytes: of the group's features without deduplication, and with it, inverse
    included; None where rows of the sample cannot be computed: `error` says why.
    """

    name: str
    columns: tuple[str, ...]
    features: tuple[str, ...]
    rows: int
    unique_rows: int
    session_rows: float | None
    repeated: float
    worst: tuple[str, float] | None
    bytes_plain: float | None = None
    bytes: float | None = None
    error: str | None = None

    @property
    def factor(self) -> float:
        """Rows by unique rows."""
        return self.rows / self.unique_rows

    @property
    def formula(self) -> float | None:
        """The factor that S and d give, if all columns changed in the same rows."""
        return None if self.session_rows is None else factor_of(self.session_rows, self.repeated)

    @property
    def bytes_saved(self) -> float | None:
        """Bytes per row; negative where the inverse is larger than what is saved."""
        return None if self.bytes_plain is None or self.bytes is None else self.bytes_plain - self.bytes

    @property
    def worth_it(self) -> bool | None:
        """Whether it saves enough; None if that is unknown."""
        if self.bytes_saved is None or self.bytes_plain is None:
            return None
        return self.bytes_saved >= WORTHWHILE * self.bytes_plain

    def facts(self) -> dict[str, Any]:
        names = ("factor", "formula", "bytes_saved", "worth_it")
        worst = None if self.worst is None else {"column": self.worst[0], "factor_without": self.worst[1]}
        lists = {"columns": list(self.columns), "features": list(self.features), "worst": worst}
        return {**asdict(self), **lists, **{name: getattr(self, name) for name in names}}


def describe_groups(plan: SourcePlan) -> dict[str, Any] | None:
    """Measure the plan's groups, as plain values; None if it has none."""
    features = [feature for feature in plan.features.features if feature.dedup is not None]
    if not features:
        return None
    job = job_of(plan, features)
    frames = rows_to_measure(plan, job)
    return {
        **sample_facts(plan, frames),
        "groups": [measure.facts() for measure in measure_groups(job, frames)],
    }


def measure_groups(job: Job, frames: Frames) -> list[GroupMeasure]:
    """Measure each group of a job's features on frames of its rows."""
    compiled = compile_job(job)
    groups = zip(compiled.layout.schema.dedup, compiled.parts[1:], strict=True)
    return [_measure(name, part, frames, job.by) for name, part in groups]


def job_of(plan: SourcePlan, features: Sequence[FeatureSpec]) -> Job:
    """The plan's job for some features, with all columns in its schema: missing fits name some that no block reads."""
    return replace(
        plan.job, features=tuple(features), record=None, schema=plan.features.schema.serialize().to_pybytes()
    )


def rows_to_measure(plan: SourcePlan, job: Job) -> Frames:
    """The first rows of some blocks in the order of the table, each with the rows at which a piece begins."""
    return [first_block_rows(job, request, _ROWS) for request in _sampled_blocks(plan)]


def sample_facts(plan: SourcePlan, frames: Frames) -> dict[str, Any]:
    """The size of a sample, the column whose runs are its sessions, and the columns that all its files store once per
    run."""
    stored = [stored_columns(request.pieces[0].fragment) for request in _sampled_blocks(plan)]
    return {
        "rows": sum(frame.height for frame, _ in frames),
        "blocks": len(frames),
        "by": plan.job.by,
        "stored_once": sorted(frozenset.intersection(*stored)),
    }


def _sampled_blocks(plan: SourcePlan) -> list[BlockRequest]:
    schedule = plan.schedule(0)
    blocks = schedule.block_indices(0)
    chosen = np.unique(np.linspace(0, len(blocks) - 1, _BLOCKS).astype(int)).tolist()
    return [plan.request(schedule.block(0, blocks[index]), 0) for index in chosen]


def parts_by_column(features: CompiledFeatures) -> dict[str, list[str]]:
    """The parts of columns that features read, by the table's column; marks of seen rows by themselves."""
    found: dict[str, list[str]] = {}
    for name in features.parts:
        part = None if has_column(features.schema, name) else part_of(name)
        found.setdefault(name if part is None else part.column, []).append(name)
    return found | {mark: [mark] for mark in features.marks}


def feature_bytes(encoded: EncodedRows, schema: BatchSchema, repeats: NDArray[np.int64]) -> dict[str, int]:
    """The bytes of each feature in a slot, if each encoded row stands for so many rows: int64 [N]."""
    rows = int(repeats.sum())
    nbytes = {column.name: 4 * column.width * rows for column in schema.group("dense")}
    nbytes |= {column.name: 8 * rows for column in schema.group("categorical")}
    for index, column in enumerate(schema.sparse):
        values = int(np.dot(np.diff(encoded.offsets[index]), repeats))
        width = encoded.values[index].dtype.itemsize + (4 if column.weighted else 0)
        nbytes[column.name] = values * width + _LIST_BYTES * rows
    return nbytes


def _measure(name: str, part: CompiledPart, frames: Frames, by: str | None) -> GroupMeasure:
    changes = find_changes(frames, parts_by_column(part.features), by)
    marks = part.features.marks
    columns = tuple(name for name in changes.changes if name not in marks)
    compared = (*columns, *marks)
    starts = np.split(changes.first_rows(compared), np.cumsum([frame.height for frame, _ in frames])[:-1])
    index = [np.flatnonzero(each) for each in starts]
    measure = GroupMeasure(
        name=name,
        columns=columns,
        features=tuple(feature.name for feature in part.features.features),
        rows=changes.rows,
        unique_rows=changes.unique_rows(compared),
        session_rows=None if by is None else changes.session_rows,
        repeated=_mean_repeated(changes, dict.fromkeys(columns, 1.0)),
        worst=without_worst(changes, columns, marks),
    )
    try:
        return _with_bytes(measure, part, changes, [frame for frame, _ in frames], index)
    except DataError as error:
        return replace(measure, error=str(error).partition("\n")[0])


def _with_bytes(
    measure: GroupMeasure,
    part: CompiledPart,
    changes: ColumnChanges,
    frames: Sequence[pl.DataFrame],
    index: Sequence[NDArray[np.int64]],
) -> GroupMeasure:
    """The measure with bytes. index: of each frame, its unique rows. Raises DataError."""
    unique = [frame.select(part.columns)[rows] for frame, rows in zip(frames, index, strict=True)]
    plain: Counter[str] = Counter()
    nbytes = 0
    for frame, rows, whole in zip(unique, index, frames, strict=True):
        encoded = encode(part.features.apply(frame), part.schema)
        plain.update(feature_bytes(encoded, part.schema, np.diff(rows, append=whole.height)))
        nbytes += sum(feature_bytes(encoded, part.schema, np.ones_like(rows)).values())
    return replace(
        measure,
        bytes_plain=sum(plain.values()) / changes.rows,
        bytes=nbytes / changes.rows + INVERSE_BYTES,
        repeated=_mean_repeated(changes, bytes_by_column(part.features, plain)),
    )


def bytes_by_column(features: CompiledFeatures, nbytes: Mapping[str, float]) -> dict[str, float]:
    """The bytes of features by the columns that they read: those of a feature of several columns in equal shares."""
    columns_of = {part: name for name, parts in parts_by_column(features).items() for part in parts}
    found = dict.fromkeys(columns_of.values(), 0.0)
    for output in features.outputs:
        columns = {columns_of[part] for part in output.reads if part in columns_of}  # a fit may read more
        for name in columns:
            found[name] += nbytes[output.name] / len(columns)
    return found


def _mean_repeated(changes: ColumnChanges, weights: Mapping[str, float]) -> float:
    total = sum(weights.values())
    return sum(changes.repeated(name) * weight for name, weight in weights.items()) / total if total else 0.0
