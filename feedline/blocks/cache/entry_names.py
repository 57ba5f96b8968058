"""Name what a cache keeps of a job's blocks by everything that decides its bytes.

Runs in: every process that computes blocks. Pure. The name of a group covers the file (`file_identity`), the rows of it
that are selected (and those of them that are left out, if any) and what computes them; the name of a column the feature
alone, so that jobs share those that they have in common. Not in them, as the bytes do not depend on it: seed, epoch,
lanes, batch size, job and other features. `decoder: arrow` is in them, as nobody chooses it to get what the kernel has
decoded; a machine without the kernel shares the entries of others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from feedline.blocks.block_encoder import RUN_ROWS
from feedline.blocks.jobs import CompiledJob, CompiledPart
from feedline.blocks.request import Draws, Job, RowOrder, Runs
from feedline.dataclass import dataclass
from feedline.expressions import BoundExpression
from feedline.transforms.registry.function_code import FunctionCode
from feedline.transforms.registry.user_code import function_codes
from feedline.transforms.registry.user_functions import load_function
from feedline.warehouse.cache.entry_file import EntryGroup
from feedline.warehouse.discovery.column_log import ColumnFile
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.sample import BoundSample
from feedline.warehouse.reading.seen_rows import Mark
from feedline.warehouse.storage.locations import absolute, redact

# Raise it with any change of what is kept of a feature, or of the values that a decoder or an op without a new version
# gives: entries of other formats are not found any more.
CACHE_FORMAT = 4
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
    # segments of 100 rows, rows [90, 210) of 250: [90, 100) of the first, all of the next, [0, 10) of the last 50
    for first in range(start - start % SEGMENT_ROWS, stop, SEGMENT_ROWS):
        rows = min(SEGMENT_ROWS, kept - first)
        yield Segment(first, rows, max(start - first, 0), min(stop - first, rows))


class EntryNames:
    """The names of a job's entries.

    columns: the digest of each feature that is kept. obstacles: of each that is not, the code of a user's function that
    no name covers. runs: the digest of each deduplicated group's runs, which the names of its features cover, too, as
    they have a row per run. order: that of what orders rows, None where no column does.
    """

    def __init__(self, job: Job, compiled: CompiledJob) -> None:
        self.columns: dict[str, str] = {}
        self.obstacles: dict[str, str] = {}
        self._codes: dict[tuple[str, str], FunctionCode] = {}  # of users' functions
        self.order = None if job.order is None else _order_digest(job.order, compiled)
        by = self.order if job.by is not None else None  # it ends runs
        marks = {mark.name: _types(mark, compiled) for mark in compiled.read.marks}
        of_groups = zip(compiled.layout.schema.dedup, compiled.parts[1:], strict=True)
        versions = dict(job.histories)
        runs = {name: _digest(["runs", RUN_ROWS, by, _compared(part, marks, versions)]) for name, part in of_groups}
        groups = set()
        for index, feature in enumerate(compiled.features.features):
            codes = function_codes(feature) if job.code else {}
            if obstacle := next((code.obstacle for code in codes.values() if code.obstacle), ""):
                self.obstacles[feature.name] = obstacle
                continue
            # covers the chain with its versions and sources, the types that it reads, artifacts, the rows that a fit
            # has seen and the types that decide which these are, the packages that its users' functions import
            fingerprint, seen = compiled.features.alone(index)
            packages = [code.packages for code in codes.values()]
            content = [fingerprint, feature.on_nonfinite, [[name, marks[name]] for name in seen], packages]
            content += [] if feature.history is None else [versions[feature.history.history]]
            self.columns[feature.name] = _digest([*content, runs.get(feature.dedup or "")])
            groups.add(feature.dedup)
            self._codes |= codes
        self.runs = {name: digest for name, digest in runs.items() if name in groups}
        types = _types(compiled.read.where, compiled) | _types(compiled.read.sample, compiled)
        facts = {
            "format": CACHE_FORMAT,
            "segment_rows": SEGMENT_ROWS,
            "environment": [list(pair) for pair in job.environment],
            "where": job.where,
            "sample": None if job.sample is None else repr(job.sample),
            "types": types,
        }
        self._rows = _digest(facts)
        self._read = compiled.read.all_parts
        self._tables: dict[str, tuple[str, str]] = {}  # as fragments name them: in full, and as shown

    def is_current(self) -> bool:
        """Whether users' functions are those that were named: notebooks reload modules, and change their functions in
        place."""
        return all(load_function(*function).code == code for function, code in self._codes.items())

    def group(self, fragment: Fragment, segment: Segment) -> EntryGroup:
        """The group of a segment of a fragment's only row group, of a file whose content has a name."""
        [row_group] = fragment.row_groups
        if fragment.table not in self._tables:
            table = absolute(fragment.table)
            self._tables[fragment.table] = table, redact(table)
        table, shown = self._tables[fragment.table]
        place = [
            *(self._rows, table, fragment.path, fragment.bytes, fragment.stamp.content_name),
            fragment.footer_digest.hex(),
            *(row_group, segment.first, repr(fragment.partition), repr(fragment.stored_names)),
            *(hashlib.sha256(bits).hexdigest() for bits in fragment.excluded if bits is not None),
            *([fragment.decoder] if fragment.decoder != "auto" else []),
            *(file.content_name for file in self._column_files(fragment)),
            *([["explode", *fragment.exploded.names]] if fragment.exploded is not None else []),
        ]
        return EntryGroup(
            digest=_digest(place),
            table=shown,
            path=fragment.path,
            row_group=row_group,
            partition=dict(fragment.partition),
        )

    def _column_files(self, fragment: Fragment) -> tuple[ColumnFile, ...]:
        """Those that the job reads; lists of events may be found by columns of any."""
        return fragment.columns if fragment.histories else fragment.columns_for(self._read)


def _order_digest(order: RowOrder, compiled: CompiledJob) -> str:
    """What is kept of a column that orders rows: its values, or the lengths of its lists."""
    what = "by" if isinstance(order, Runs) else "weights" if isinstance(order, Draws) else "lengths"
    return _digest([what, order.column, str(compiled.read.schema.field(order.column).type)])


def _compared(
    part: CompiledPart, marks: Mapping[str, dict[str, str]], versions: Mapping[str, str]
) -> list[tuple[str, Any]]:
    """The columns and marks that decide the runs of a group, with their types. marks: what decides each. versions: of
    histories, by name."""
    types = {name: str(dtype) for name, dtype in zip(part.features.parts, part.features.types, strict=True)}
    for feature in part.features.features:
        if feature.history is not None:
            types[feature.history.name] += versions[feature.history.history]
    return sorted((name, marks[name] if name in marks else types[name]) for name in part.columns)


def _types(bound: BoundExpression | BoundSample | Mark | None, compiled: CompiledJob) -> dict[str, str]:
    names = () if bound is None else sorted(bound.columns)
    return {name: str(compiled.read.schema.field(name).type) for name in names if name in compiled.read.schema.names}


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
