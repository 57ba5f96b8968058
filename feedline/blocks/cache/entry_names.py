"""Name what a cache keeps of a job's blocks by everything that decides its bytes.

Runs in: every process that computes blocks. Pure. The name of a group covers the file, the rows of it that are selected
and what computes them; the name of a column the feature alone, so that jobs share those that they have in common. Not
in them, as the bytes do not depend on it: decoder, seed, epoch, lanes, batch size, job and other features.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from feedline.blocks.group_runs import RUN_ROWS
from feedline.blocks.jobs import CompiledJob, CompiledPart
from feedline.blocks.request import Job
from feedline.expressions import BoundExpression
from feedline.spec.features import FeatureSpec
from feedline.transforms.compile.compiled import CompiledFeatures, compile_some
from feedline.warehouse.cache.cache_folder import EntryGroup
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.sample import BoundSample
from feedline.warehouse.storage.locations import absolute, redact

# Raise it with any change of what is kept of a feature, or of the values that a decoder or an op without a new version
# gives: entries of other formats are not found any more.
CACHE_FORMAT = 2
# Selected rows of a larger row group are kept in segments of so many, so that a block computes few that it does not
# deliver.
SEGMENT_ROWS = 131_072
_DIGITS = 40


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a row group's selected rows: `rows` from `first` on, of which a block needs [start, stop)."""

    first: int
    rows: int
    start: int
    stop: int

    @property
    def is_whole(self) -> bool:
        """Whether all of its rows are needed."""
        return self.stop - self.start == self.rows


def segments(kept: int, start: int, stop: int) -> Iterator[Segment]:
    """The segments that hold rows [start, stop) of a row group of which `kept` are selected."""
    for first in range(start - start % SEGMENT_ROWS, stop, SEGMENT_ROWS):
        rows = min(SEGMENT_ROWS, kept - first)
        yield Segment(first, rows, max(start - first, 0), min(stop - first, rows))


class EntryNames:
    """The names of a job's entries.

    columns: the digest of each feature that is kept. Those are not that call users' functions: their source may import
    what no name covers. runs: that of each deduplicated group's runs, which the names of its features cover, too, as
    they have a row per run. by: that of `shuffle.by`, None without one.
    """

    def __init__(self, job: Job, compiled: CompiledJob) -> None:
        code = {function.op for function in job.code}
        self.by = None if job.by is None else _digest(["by", job.by, str(compiled.schema.field(job.by).type)])
        of_groups = zip(compiled.layout.schema.dedup, compiled.parts[1:], strict=True)
        runs = {name: _digest(["runs", RUN_ROWS, self.by, _compared(part)]) for name, part in of_groups}
        self.columns = {
            feature.name: _feature_digest(compiled.features, feature, runs.get(feature.dedup or ""))
            for feature in compiled.features.features
            if not code.intersection(_ops(feature))
        }
        groups = {feature.dedup for feature in compiled.features.features if feature.name in self.columns}
        self.runs = {name: digest for name, digest in runs.items() if name in groups}
        types = _types(compiled.where, compiled) | _types(compiled.sample, compiled)
        self._facts = {
            "format": CACHE_FORMAT,
            "segment_rows": SEGMENT_ROWS,
            "environment": [list(pair) for pair in job.environment],
            "where": job.where,
            "sample": None if job.sample is None else repr(job.sample),
            "types": types,
        }

    def group(self, fragment: Fragment, segment: Segment) -> EntryGroup:
        """The group of a segment of a fragment's only row group."""
        [row_group] = fragment.row_groups
        table = absolute(fragment.table)
        place = {
            "table": table,
            "path": fragment.path,
            "bytes": fragment.bytes,
            "mtime_ns": fragment.mtime_ns,
            "footer": fragment.footer_digest.hex(),
            "row_group": row_group,
            "first": segment.first,
            "partition": repr(fragment.partition),
            "stored_names": repr(fragment.stored_names),
        }
        digest = _digest([self._facts, place])
        return EntryGroup(
            digest=digest,
            table=redact(table),
            path=fragment.path,
            row_group=row_group,
            partition=dict(fragment.partition),
        )


def _feature_digest(features: CompiledFeatures, feature: FeatureSpec, runs: str | None) -> str:
    """Covers the chain with its versions, the types that it reads, artifacts, the rows that a fit has seen, and of a
    feature of a deduplicated group its runs."""
    alone = compile_some(features, {feature.name})
    return _digest([alone.fingerprint, feature.on_nonfinite, sorted(alone.marks), *([] if runs is None else [runs])])


def _compared(part: CompiledPart) -> list[tuple[str, str]]:
    """The columns and marks that decide the runs of a group, with their types."""
    types = dict(zip(part.features.parts, part.features.types, strict=True))
    return sorted((name, str(types.get(name, "mark"))) for name in part.columns)


def _ops(feature: FeatureSpec) -> set[str]:
    """The names of all ops of a feature."""
    calls = [*feature.ops, *(call for source in feature.inputs for call in source.ops)]
    return {call.op for call in (*calls, *(() if feature.op is None else (feature.op,)))}


def _types(bound: BoundExpression | BoundSample | None, compiled: CompiledJob) -> dict[str, str]:
    """The types of the columns that a filter or a sample reads."""
    names = () if bound is None else sorted(bound.columns)
    return {name: str(compiled.schema.field(name).type) for name in names if name in compiled.schema.names}


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
