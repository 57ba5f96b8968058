"""The jobs that a process holds, each checked and compiled once.

Runs in: Dask workers, and the feeder, whose threads may be workers. A job is sent to each worker once, after planning;
tasks name it by its digest. A worker that joined later, or has evicted the job, raises UnknownJobError and gets the job
with the next attempt.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import polars as pl
import pyarrow as pa

from feedline.artifacts.store import StoredArtifactSet, check_files
from feedline.blocks.coded_chunks import CodedColumns
from feedline.blocks.environment import check_environment
from feedline.blocks.request import Balance, Buckets, Job
from feedline.blocks.single_flight import SingleFlight
from feedline.dataclass import dataclass
from feedline.errors import ClusterError, FeedlineError
from feedline.expressions import bind_where
from feedline.expressions.column_parts import not_null
from feedline.expressions.types import has_strings
from feedline.loader.encoding.layout import BatchSchema, SlotColumn, SlotLayout
from feedline.loader.encoding.quality import Observer
from feedline.transforms.compile.chains import chain_text
from feedline.transforms.compile.coded_features import coded_columns
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features, compile_some
from feedline.transforms.registry.user_functions import check_functions
from feedline.warehouse.reading.read import ReadRequest
from feedline.warehouse.reading.sample import bind_sample
from feedline.warehouse.reading.seen_rows import bind_marks

# --------------------------------------------------------------------------------------------------------------------
# The columns of a batch, from the outputs of compiled features.


def batch_schema(features: CompiledFeatures) -> BatchSchema:
    """The columns of a batch, from the features' outputs. `expanded` of it are those of plain rows."""
    columns: list[SlotColumn] = []
    widths: dict[tuple[str, str | None], int] = {}
    arrow_types: dict[pl.DataType, str] = {}
    for output, feature in zip(features.outputs, features.features, strict=True):
        dtype, unit = _fixed_dtype(output.group, output.dtype)
        if (arrow := arrow_types.get(output.dtype)) is None:
            arrow = arrow_types[output.dtype] = str(pl.Series([], dtype=output.dtype).to_arrow().type)
        matrix = output.group, feature.dedup if output.group in ("dense", "categorical") else None
        offset = widths.get(matrix, 0)
        width = output.dtype.size if isinstance(output.dtype, pl.Array) and output.group != "extra" else 1
        columns.append(
            SlotColumn(
                name=output.name,
                group=output.group,
                dtype=dtype,
                arrow=arrow,
                offset=offset,
                width=width,
                unit=unit,
                weighted=output.group == "sparse" and isinstance(output.dtype, pl.Struct),
                chain=chain_text(feature),
                on_nonfinite=feature.on_nonfinite,
                looks_up=bool(output.lookups),
                lookups=len(output.lookups),
                num_embeddings=output.num_embeddings if dtype == "int64" and output.group != "extra" else None,
                dedup=feature.dedup,
            )
        )
        widths[matrix] = offset + width
    return BatchSchema(tuple(columns))


def _fixed_dtype(group: str, dtype: pl.DataType) -> tuple[str, str | None]:
    """The numpy dtype of a feature's values ("" for extras that have no fixed width), and the unit of times."""
    if group in ("dense", "label"):
        return "float32", None
    if group == "categorical":
        return "int64", None
    if group == "sparse":
        return ("float32" if dtype == pl.List(pl.Float32()) else "int64"), None
    if isinstance(dtype, pl.Datetime | pl.Duration):
        return "int64", dtype.time_unit
    if dtype == pl.Date:
        return "int32", "D"
    if dtype == pl.Boolean:
        return "bool", None
    numeric = dtype.is_integer() or dtype.is_float()
    return (str(pl.Series([], dtype=dtype).to_numpy().dtype) if numeric else ""), None


# --------------------------------------------------------------------------------------------------------------------


class UnknownJobError(Exception):
    """A task names a job that this process does not hold: send the job with the next attempt."""


@dataclass(frozen=True, slots=True)
class CompiledPart:
    """The features of plain rows, or those of a deduplicated group, with their columns of a batch. columns: whose
    values decide whether a row repeats the row above it; empty for plain rows."""

    features: CompiledFeatures
    schema: BatchSchema
    columns: tuple[str, ...]
    coded_columns: CodedColumns


@dataclass(frozen=True, slots=True)
class CompiledJob:
    """A job's compiled features, and what is read for them, with the layout of its slots.

    parts: the features of plain rows, then those of each deduplicated group, in the layout's order. read: of it,
    `compact` has the columns that only deduplicated groups read, `coded` those of which features are computed value by
    value.
    """

    features: CompiledFeatures
    read: ReadRequest
    layout: SlotLayout
    parts: tuple[CompiledPart, ...]
    by: str | None
    filters: dict[str, str]  # by feature, the filter that would drop its columns' nulls
    observer: Observer  # of the features, without counts


_jobs: SingleFlight[str, Job] = SingleFlight()
_compiled: SingleFlight[str, CompiledJob] = SingleFlight()


def keep_job(job: Job) -> None:
    """Hold a job, so that tasks in this process can name it by its digest."""
    _jobs.get(job.digest, lambda: job)


def find_job(job: Job | str) -> Job:
    """The job that a task brings, or names by its digest. Raises UnknownJobError."""
    if isinstance(job, Job):
        return _jobs.get(job.digest, lambda: job)

    def missing() -> Job:
        raise UnknownJobError(f"job {job} was not sent to {platform.node()}")

    return _jobs.get(job, missing)


def compile_job(job: Job, planned: CompiledFeatures | None = None) -> CompiledJob:
    """The job, compiled once per process. planned: its features as its plan compiled them, if none of them uses an
    artifact."""
    return _compiled.get(job.digest, lambda: _compile(job, planned))


def compile_like(job: Job, whole: CompiledJob) -> CompiledJob:
    """A job with some of another one's features, whose deduplicated groups have the runs that they have in that one,
    compiled once per process."""
    names = {feature.dedup for feature in job.features}
    of_groups = zip(whole.layout.schema.dedup, whole.parts[1:], strict=True)
    runs = {name: part.columns for name, part in of_groups if name in names}
    key = f"{job.digest} {sorted(runs.items())}" if runs else job.digest
    return _compiled.get(key, lambda: _compile(job, None, runs, frozenset(whole.features.marks)))


def _compile(
    job: Job,
    planned: CompiledFeatures | None,
    runs: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    marks_of_runs: frozenset[str] = frozenset(),
) -> CompiledJob:
    """runs: of deduplicated groups, columns and marks that decide their runs, if others than their features read."""
    check_functions(job.code)
    schema = pa.ipc.read_schema(pa.py_buffer(job.schema))
    artifacts = StoredArtifactSet(job.artifacts)
    if planned is None:
        features = compile_features(job.features, schema, artifacts)
    else:
        features = replace(planned, schema=schema, artifacts=artifacts)
    compared = dict.fromkeys(name for names in runs.values() for name in names)
    columns = dict.fromkeys(
        [*features.parts, *job.kept_columns, *(each for each in compared if each not in marks_of_runs)]
    )
    where = bind_where(job.where, schema) if job.where is not None else None
    sample = bind_sample(job.sample, schema) if job.sample is not None else None
    marks = bind_marks(dict.fromkeys([*features.marks, *(each for each in compared if each in marks_of_runs)]), schema)
    filters = {output.name: not_null(output.reads) for output in features.outputs if output.reads}
    columns_of_batch = batch_schema(features)
    parts = _compile_parts(job, features, columns_of_batch, schema, runs)
    layout = SlotLayout(columns_of_batch)
    plain = {*parts[0].features.parts, *job.kept_columns} or set(list(columns)[:1])  # a frame has at least one column
    read = ReadRequest(
        tuple(columns),
        schema,
        where,
        sample=sample,
        marks=marks,
        compact=frozenset(columns).difference(plain),
        coded={name: most for part in parts for name, most in part.coded_columns.columns.items()},
        expanded=frozenset[str]().union(*(part.coded_columns.expanded for part in parts)),
    )
    observer = Observer(columns_of_batch, [output.reads for output in features.outputs])
    return CompiledJob(
        features=features, read=read, layout=layout, parts=parts, by=job.by, filters=filters, observer=observer
    )


def _compile_parts(
    job: Job,
    features: CompiledFeatures,
    batch: BatchSchema,
    schema: pa.Schema,
    runs: Mapping[str, tuple[str, ...]],
) -> tuple[CompiledPart, ...]:
    """The features of plain rows, then those of each group. features: all of them. runs: as of `_compile`."""
    names = (None, *batch.dedup)
    of_parts = [features]
    if batch.dedup:
        chosen = [{feature.name for feature in job.features if feature.dedup == name} for name in names]
        of_parts = [compile_some(features, each) for each in chosen]
    compared = [() if name is None else runs.get(name, ()) for name in names]
    readers = Counter(
        column for own, more in zip(of_parts, compared, strict=True) for column in {*own.parts, *own.marks, *more}
    )
    identity = None if job.record is None else job.record.identity
    recorded = () if identity is None else (*identity.key, *(name for name, _ in identity.columns))
    whole = {*recorded, *(column for column, count in readers.items() if count > 1)}
    ordering = frozenset[str]() if job.order is None else frozenset({job.order.column})
    by = frozenset[str]() if isinstance(job.order, Balance | Buckets) else ordering
    whole |= {name for name in by if not has_strings(schema.field(name).type)}
    parts = []
    for name, own, part, more in zip(names, of_parts, batch.parts, compared, strict=True):
        found, expanded = coded_columns(own)
        coded = {column: 0 if column in ordering else most for column, most in found.items() if column not in whole}
        if name is not None:  # whole lists decide whether rows repeat; of unique rows, flat numbers are mostly distinct
            coded = {column: 0 for column in coded if not pa.types.is_primitive(schema.field(column).type)}
        columns = () if name is None else more or (*own.parts, *own.marks)
        parts.append(CompiledPart(own, part, columns, CodedColumns(coded, expanded | by, own)))
    return tuple(parts)


def check_job(job: Job) -> None:
    """Hold a job, after checking that this worker can compute it. Raises ClusterError for other versions or unreadable
    artifacts."""
    check_environment(job.environment)
    try:
        check_files(job.artifacts)
    except (FeedlineError, OSError) as error:
        raise ClusterError(f"a worker on {platform.node()} cannot read the artifacts: {error}") from error
    keep_job(job)
