"""Find every file of a table that cannot be read, not only the first.

Runs in `feedline check`; its tasks run in threads, or on a Dask cluster. One pass is over every footer, an optional
second one over every page of some columns, decoded as in a run. A *bad* file is corrupt: `on_bad_file: skip` leaves it
out. A *problem* is anything else that would stop a run (encrypted, no permission, a column of another kind).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial

import numpy as np
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, DataError, StoreError, TableError
from feedline.expressions import BoundExpression
from feedline.progress import report_progress, track
from feedline.warehouse.bad_files import BadFile, reason_of
from feedline.warehouse.discovery.column_log import column_files_of
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.discovery.table_log import unite_schemas
from feedline.warehouse.parquet.schemas import SchemaRules
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, gather
from feedline.warehouse.reading.read import decode_fragment
from feedline.warehouse.selection.null_counts import files_asked, has
from feedline.warehouse.snapshot.column_facts import HeldKey, held_keys
from feedline.warehouse.snapshot.footer_tasks import FOOTERS, read_footers
from feedline.warehouse.snapshot.packed_facts import FactBlock
from feedline.warehouse.snapshot.take import partition_values
from feedline.warehouse.storage.file_identity import Stamp, stamp_at_index
from feedline.warehouse.storage.locations import join, redact
from feedline.warehouse.storage.parallel import Map, in_threads

_TASK_ROWS = 1_000_000  # rows of a decoding task, which has at least one row group
_TASK_FILES = 32
_PAGES = "decoding pages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A file that cannot be read for another reason than damage. `file`: its full name."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """A good footer: the tag of its file, its digest, its size, and the rows of each row group."""

    tag: str
    digest: bytes
    footer_bytes: int
    rows: tuple[int, ...]


@dataclass(slots=True)
class Findings:
    """The results of the checks. `schema`: the columns of the files that fit together, as one table.

    `kinds`: the distinct schemas that fit, each with the indices of its files in the listing.
    """

    listing: Listing
    bad: list[BadFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    footers: dict[int, Footer] = field(default_factory=dict)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    kinds: list[tuple[pa.Schema, list[int]]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(sum(footer.rows) for footer in self.footers.values())

    @property
    def partition(self) -> dict[str, pa.Array]:
        """The partition keys' values, file by file, typed as in a snapshot."""
        held = self.held()
        values = partition_values(self.listing, self.schema)
        return {name: column for name, column in values.items() if name not in held}

    def held(self) -> dict[str, HeldKey]:
        return held_keys(self.listing, [(schema, np.array(files, np.int64)) for schema, files in self.kinds])

    def table_schema(self) -> pa.Schema:
        """The files' columns, then the partition keys, as a snapshot has them."""
        partition = self.partition
        keys = [pa.field(name, column.type) for name, column in partition.items()]
        return pa.schema([*(field for field in self.schema if field.name not in partition), *keys])

    def good_files(self) -> list[str]:
        faulty = {bad.file for bad in self.bad} | {problem.file for problem in self.problems}
        return [file for file in map(self.name, self.footers) if file not in faulty]

    def name(self, index: int) -> str:
        return join(redact(self.listing.uri), self.listing.files["path"][index].as_py())

    def stamp(self, index: int) -> Stamp:
        """The file as its store describes it, with the tag of the opened file where the listing has none."""
        listed = stamp_at_index(self.listing.files, index)
        if index in self.footers and not listed.tag:
            return Stamp(listed.size_bytes, listed.mtime_ns, self.footers[index].tag)
        return listed

    def add_bad(self, index: int, reason: str, footer: Footer | None = None) -> None:
        stamp = self.stamp(index)
        self.bad.append(
            BadFile(
                file=self.name(index),
                bytes=stamp.size_bytes,
                mtime_ns=stamp.mtime_ns,
                etag=stamp.tag or None,
                footer_digest=footer.digest if footer else None,
                rows=sum(footer.rows) if footer else None,
                reason=reason,
            )
        )


def check_footers(listing: Listing, *, map: Map | None, rules: SchemaRules | None = None) -> Findings:
    """Read every footer of a table. A faulty file is a finding; a store that keeps failing is an error.

    `map` runs the tasks (default: threads of this process).
    """
    findings = Findings(listing)
    paths, sizes = listing.files["path"].to_pylist(), listing.files["bytes"].to_pylist()
    files = list(zip(range(len(paths)), paths, sizes, strict=True))
    kinds: dict[bytes, tuple[pa.Schema, list[int]]] = {}  # by bytes: equal schemas may differ in field ids
    done = 0
    report_progress(FOOTERS, done, len(files), "files")
    for result in read_footers(listing.uri, files, map, stored_names=listing.stored_names, collect=True):
        for index, message in result.corrupt:
            findings.add_bad(index, reason_of(message, findings.name(index)))
        for index, message in result.problems:
            name = findings.name(index)
            findings.problems.append(Problem(file=name, reason=reason_of(message, name)))
        for block in result.blocks:
            findings.footers |= _footers(block)
            same = kinds.setdefault(block.schema.serialize().to_pybytes(), (block.schema, []))
            same[1].extend(block.files["file"].to_pylist())
        done += result.files
        report_progress(FOOTERS, done, len(files), "files")
    findings.footers = dict(sorted(findings.footers.items()))
    for _, indices in kinds.values():
        indices.sort()
    _fit(findings, list(kinds.values()), rules or SchemaRules())
    return findings


def check_presence(findings: Findings, columns: Collection[str], where: BoundExpression | None) -> None:
    """Add a problem for each file that lacks one of these columns or parts, unless its partition rules it out."""
    table, partition = findings.table_schema(), findings.partition
    rows = np.zeros(len(findings.listing.files), np.int64)
    for index, footer in findings.footers.items():
        rows[index] = sum(footer.rows)
    in_use, held = files_asked(partition, rows, where), findings.held()
    for schema, indices in findings.kinds:
        missing = [name for name in columns if name not in partition and not has(schema, name, table)]
        for index in indices if missing else ():
            here = [name for name in missing if name not in held or not held[name].in_path[index]]
            if here and in_use[index]:
                reason = f"lacks {', '.join(map(repr, here))}, which the pipeline reads (source.schema.missing: error)"
                findings.problems.append(Problem(file=findings.name(index), reason=reason))


def check_pages(findings: Findings, columns: Sequence[str], *, map: Map | None, decoder: str = "auto") -> None:
    """Decode these columns of every file without a problem so far, adding to the findings. decoder: of the runs."""
    stored = tuple(name for name in columns if name in findings.schema.names)
    faulty = {problem.file for problem in findings.problems}
    files = [index for index in findings.footers if findings.name(index) not in faulty]
    if not stored or not files:
        return
    schema = pa.schema([findings.schema.field(name) for name in stored])
    parts = list(gather(_fragments(findings, files, decoder), _TASK_ROWS, _TASK_FILES))
    decode = partial(decode_pages, columns=stored, schema=schema)
    indices = {path: index for index, path in enumerate(findings.listing.files["path"].to_pylist())}
    failures: set[int] = set()
    sizes = [_rows_of(findings, indices, part) for part in parts]
    decoded = track((map or in_threads)(decode, parts), _PAGES, sizes, "rows")
    for part, results in zip(parts, decoded, strict=True):
        for fragment, (corrupt, problem) in zip(part, results, strict=True):
            index = indices[fragment.path]
            if index in failures or (corrupt is None and problem is None):
                continue
            failures.add(index)
            if corrupt is not None:
                findings.add_bad(index, corrupt, findings.footers[index])
            else:
                findings.problems.append(Problem(file=findings.name(index), reason=problem or ""))


def _rows_of(findings: Findings, indices: Mapping[str, int], fragments: Sequence[Fragment]) -> int:
    footers = [(findings.footers[indices[fragment.path]], fragment.row_groups) for fragment in fragments]
    return sum(footer.rows[group] for footer, groups in footers for group in groups)


def decode_pages(
    fragments: Sequence[Fragment], *, columns: Sequence[str], schema: pa.Schema
) -> list[tuple[str | None, str | None]]:
    """Decode the columns of row groups: (damage, other problem) per fragment, each None if there is none."""
    results: list[tuple[str | None, str | None]] = []
    for fragment in fragments:
        try:
            decode_fragment(fragment, columns, schema)
        except CorruptFileError as error:
            results.append((reason_of(error, fragment.uri), None))
        except StoreError:
            raise
        except (TableError, DataError) as error:
            results.append((None, reason_of(error, fragment.uri)))
        else:
            results.append((None, None))
    return results


def _footers(block: FactBlock) -> dict[int, Footer]:
    footers, first = {}, 0
    rows = block.row_groups["rows"].to_pylist()
    for file in block.files.select(["file", "etag", "footer_digest", "footer_bytes", "row_groups"]).to_pylist():
        stop = first + file["row_groups"]
        footers[file["file"]] = Footer(
            tag=file["etag"] or "",
            digest=file["footer_digest"],
            footer_bytes=file["footer_bytes"],
            rows=tuple(rows[first:stop]),
        )
        first = stop
    return footers


def _fit(findings: Findings, kinds: list[tuple[pa.Schema, list[int]]], rules: SchemaRules) -> None:
    """Unite the schemas one by one, that of most files first; files with a schema that does not fit are problems."""
    fitting: list[tuple[str, pa.Schema]] = []
    for schema, indices in sorted(kinds, key=lambda kind: (-len(kind[1]), kind[1][0])):
        both = [*fitting, (findings.name(indices[0]), schema)]
        try:
            findings.schema = unite_schemas(findings.listing, both, rules)
        except TableError as error:
            findings.problems += [Problem(file=findings.name(index), reason=str(error)) for index in indices]
        else:
            fitting = both
            findings.kinds.append((schema, indices))


def _fragments(findings: Findings, indices: Sequence[int], decoder: str) -> Iterator[tuple[Fragment, int]]:
    """Runs of row groups of one file, of about `_TASK_ROWS`, with their rows."""
    files = findings.listing.files
    for index in indices:
        footer, stamp = findings.footers[index], findings.stamp(index)
        first = 0
        while first < len(footer.rows):
            stop, rows = first, 0
            while stop < len(footer.rows) and (stop == first or rows + footer.rows[stop] <= _TASK_ROWS):
                rows += footer.rows[stop]
                stop += 1
            fragment = Fragment(
                table=findings.listing.uri,
                path=files["path"][index].as_py(),
                bytes=stamp.size_bytes,
                mtime_ns=stamp.mtime_ns,
                tag=stamp.tag,
                footer_digest=footer.digest,
                footer_bytes=footer.footer_bytes,
                row_groups=tuple(range(first, stop)),
                expected=(UNCOUNTED,) * (stop - first),
                stored_names=findings.listing.stored_names,
                columns=column_files_of(files, index),
                decoder=decoder,
            )
            yield fragment, rows
            first = stop
