"""List a table, take its snapshot, and sample its rows, whatever is wrong with some of its files.

Runs in: the process of `feedline profile` and of `feedline init`. One listing, every footer once. Corrupt files are
left out. Where files do not make one table (a column of two kinds, a name that comes twice), those that fit the most
are taken, and the others left out, too.
"""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import StoreError, TableArgumentError, TableError, TableNotFoundError
from feedline.expressions import BoundExpression, bind_where
from feedline.progress import report_progress
from feedline.warehouse.bad_files import reason_of
from feedline.warehouse.discovery import logs
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.reading.fragment import UNCOUNTED, fragment_at, nearest_hint
from feedline.warehouse.reading.row_filter import RowFilter
from feedline.warehouse.scan import check_footers
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of
from feedline.warehouse.storage.locations import join, redact
from feedline.workbench.profile.sampled_rows import RowSample, SampleRequest, read_sample

# Of an index without a name: as pandas writes it to Parquet, as it reads it from CSV, and as R's tables have it.
_INDEX_NAME = re.compile(r"__index_level_[0-9]+__|Unnamed: [0-9]+|rownames")
_SHOWN_KINDS, _SHOWN_COLUMNS = 4, 5  # in a message
_UNITS = {"sample": "row groups", "columns": "columns", "comparisons": "columns", "sessions": "candidates"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """What to profile. columns: those to read rows of, by name (default: all). where: only rows that this expression
    keeps. label, time, session: chosen columns. values: keep frequent strings in the facts. sample_rows, sample_bytes:
    the most to read, bytes decoded. format, version, snapshot_id, as_of, partitions: as in a pipeline's `source`."""

    columns: tuple[str, ...] | None = None
    where: str | None = None
    label: str | None = None
    time: str | None = None
    session: str | None = None
    values: bool = False
    sample_rows: int = 65_536
    sample_bytes: int = 256 << 20
    format: str = "auto"
    version: int | None = None
    snapshot_id: int | None = None
    as_of: str | None = None
    partitions: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableSample:
    """A table's snapshot, a sample of its rows, and what was wrong with it. format: hive, manifest, delta or iceberg;
    where: bound; skipped: files that were left out, each with the reason; contradiction: the error of files that are
    not corrupt, but do not fit the others; index_columns: of pandas."""

    snapshot: Snapshot
    sample: RowSample
    format: str
    where: BoundExpression | None
    skipped: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    contradiction: TableError | None = None
    index_columns: frozenset[str] = frozenset()

    def rows_where(self, where: str | None) -> pa.Table:
        """The sampled rows that an expression keeps; all, if it needs a column that was not sampled."""
        rows = self.sample.rows
        return rows if where is None else rows.filter(pa.array(self.keeps(where)))

    def select(self, where: str | None) -> TableSample:
        """The sample of the rows that an expression keeps."""
        if where is None:
            return self
        stays, sample = self.keeps(where), self.sample
        rows = sample.rows.filter(pa.array(stays))
        sample = replace(sample, rows=rows, piece=sample.piece[stays], row_group=sample.row_group[stays])
        return replace(self, sample=sample, where=bind_where(where, self.snapshot.schema))

    def keeps(self, where: str) -> npt.NDArray[np.bool_]:
        """bool [rows]: which sampled rows an expression keeps."""
        rows, bound = self.sample.rows, bind_where(where, self.snapshot.schema)
        every = np.ones(rows.num_rows, np.bool_)
        if not rows.num_rows or not bound.columns <= set(rows.column_names):
            return every
        stays = [RowFilter(where=bound).apply(batch, "", 0).stays for batch in rows.combine_chunks().to_batches()]
        return np.concatenate([each for each in stays if each is not None] or [every])


def report_phase(phase: str, done: int, total: int) -> None:
    """Report the progress of a phase to whoever listens (`feedline.progress`)."""
    report_progress(phase, done, total, _UNITS[phase])


def sample_table(table: str | Sequence[str], options: ProfileOptions) -> TableSample:
    """Take a table's snapshot and read a sample of its rows.

    Raises TableNotFoundError where there is nothing, TableError where no file has columns that can be read, SpecError
    for columns that the table lacks, ExpressionError for a `where` that does not fit them, and the errors of stores.
    """
    listing = list_table(
        table,
        format=options.format,
        version=options.version,
        snapshot_id=options.snapshot_id,
        as_of=options.as_of,
        partitions=options.partitions,
    )
    format = _format_of(table, listing, options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        snapshot, skipped, contradiction = _snapshot_of_good_files(listing)
    where = None if options.where is None else bind_where(options.where, snapshot.schema)
    request = SampleRequest(
        snapshot=snapshot,
        columns=_columns_to_read(snapshot, options),
        where=where,
        rows=options.sample_rows,
        bytes=options.sample_bytes,
    )
    sample = read_sample(request, lambda done, total: report_phase("sample", done, total))
    return TableSample(
        snapshot=snapshot,
        sample=sample,
        format=format,
        where=where,
        skipped=(*skipped, *sample.skipped),
        warnings=tuple(dict.fromkeys(str(each.message) for each in caught)),
        contradiction=contradiction,
        index_columns=_index_columns(snapshot),
    )


def unlike_files(snapshot: Snapshot) -> str | None:
    """Words on the files of a folder that holds several tables; None where all may be of one.

    A table's columns grow over time: two schemas belong together if they share more than half of the narrower one's
    columns, and so do those between which such steps lead. A table with a log is one.

        user item clicked | user item clicked price | item price shop   one table, in two steps
        user item clicked | user age country                            two: they share `user` alone
    """
    if snapshot.logged:
        return None
    names = [frozenset(schema.names) for schema in snapshot.file_schemas]
    kinds = _kinds_of(names)
    if len(kinds) < 2:
        return None
    kind_of_schema = np.array([next(i for i, kind in enumerate(kinds) if each in kind) for each in names])
    kind_of_file = kind_of_schema[snapshot.files["schema"].to_numpy()]
    files = [np.flatnonzero(kind_of_file == index) for index in range(len(kinds))]
    shown = "; ".join(_some_files(snapshot, each) for each in files[:_SHOWN_KINDS])
    more = f"; and {len(kinds) - _SHOWN_KINDS:,} more" if len(kinds) > _SHOWN_KINDS else ""
    counts = Counter(name for kind in kinds for name in frozenset[str]().union(*kind))
    shared = sorted(name for name, count in counts.items() if count > 1)
    columns = ", ".join(map(repr, shared[:_SHOWN_COLUMNS])) + (", ..." if len(shared) > _SHOWN_COLUMNS else "")
    return f"{shown}{more}, which share " + (f"only {columns}" if shared else "no column")


def _kinds_of(schemas: Sequence[frozenset[str]]) -> list[set[frozenset[str]]]:
    """The schemas (names of columns) that belong together, in the order of their first."""
    left = list(dict.fromkeys(schemas))
    kinds = []
    while left:
        kind, unseen = set(), [left.pop(0)]
        while unseen:
            one = unseen.pop()
            kind.add(one)
            unseen += [each for each in left if _is_alike(one, each)]
            left = [each for each in left if not _is_alike(one, each)]
        kinds.append(kind)
    return kinds


def _is_alike(a: frozenset[str], b: frozenset[str]) -> bool:
    return 2 * len(a & b) > min(len(a), len(b)) or not (a and b)


def _some_files(snapshot: Snapshot, files: npt.NDArray[np.int64]) -> str:
    paths = " and ".join(repr(snapshot.files["path"][int(file)].as_py()) for file in files[:2])
    return paths + (f" (of {len(files):,} files)" if len(files) > 2 else "")


def _index_columns(snapshot: Snapshot) -> frozenset[str]:
    """The columns that are an index of pandas, by their names and by what the first file says."""
    names = {name for name in snapshot.schema.names if _INDEX_NAME.fullmatch(name)}
    if len(snapshot.row_groups):
        with suppress(TableError, ValueError):
            with fragment_at(snapshot, 0, np.array([0]), np.array([UNCOUNTED])).open() as file:
                described = json.loads((file.metadata.metadata or {}).get(b"pandas", b"{}"))
            if isinstance(described, dict):
                names.update(name for name in described.get("index_columns", ()) if isinstance(name, str))
    return frozenset(names)


def _columns_to_read(snapshot: Snapshot, options: ProfileOptions) -> tuple[str, ...]:
    names = snapshot.schema.names
    chosen = [name for name in (options.label, options.time, options.session) if name is not None]
    for name in (*chosen, *(options.columns or ())):
        if name not in names:
            raise TableArgumentError(f"column {name!r} is not in the table. {nearest_hint(name, names)}")
    wanted = set(names if options.columns is None else (*options.columns, *chosen))
    return tuple(name for name in names if name in wanted)


def _format_of(table: str | Sequence[str], listing: Listing, options: ProfileOptions) -> str:
    if options.format != "auto":
        return options.format
    if listing.schema is None:
        return "hive"
    if options.version is not None:
        return "delta"
    if not isinstance(table, str) or table.endswith(logs.METADATA_NAMES):
        return "iceberg"
    return "delta" if logs.log_of_folder(table) == logs.DELTA else "iceberg"


def _snapshot_of_good_files(listing: Listing) -> tuple[Snapshot, tuple[tuple[str, str], ...], TableError | None]:
    """The snapshot of the files that make one table, the others with the reason, and the error of all as one table."""
    bad: dict[str, str] = {}

    def leave_out(path: str, error: Exception) -> None:
        bad[path] = reason_of(error, join(redact(listing.uri), path))

    try:
        return snapshot_of(listing, on_bad=leave_out), tuple(bad.items()), None
    except (StoreError, TableNotFoundError):
        raise
    except TableError as error:
        contradiction = error
        findings = check_footers(listing, map=None)
        faulty = {bad_file.file: bad_file.reason for bad_file in findings.bad}
        faulty |= {problem.file: problem.reason for problem in findings.problems}
        paths = listing.files["path"].to_pylist()
        skipped = {path: faulty[name] for path in paths if (name := join(redact(listing.uri), path)) in faulty}
        good = np.flatnonzero([path not in skipped for path in paths])
        if not skipped or not len(good):
            raise
    return snapshot_of(listing.take(good)), tuple(skipped.items()), contradiction
