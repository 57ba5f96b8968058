"""Which files of a table cannot be read, before anything depends on them? All of them, not only the first.

Runs where `feedline check` runs; the tasks run in threads, or on a Dask cluster. Two passes: every footer (is it
Parquet? do the schemas fit together?), and, where asked for, every page of some columns, decoded exactly as a run would
decode them and thrown away. Tasks are small, and what they return is smaller: memory does not grow with the table's
bytes, and by few hundred bytes per file.

A *bad* file is corrupt: `on_bad_file: skip` leaves it out. A *problem* is anything else that would stop a run
(encrypted, no permission, a column of another kind): for these `skip` does nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from feedline.errors import CorruptFileError, DataError, StoreError, TableError
from feedline.expressions import BoundExpression
from feedline.warehouse.bad_files import BadFile, reason_of
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.discovery.table_log import united
from feedline.warehouse.parquet.footer import file_facts
from feedline.warehouse.parquet.schemas import SchemaRules
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment
from feedline.warehouse.reading.read import decode_fragment
from feedline.warehouse.selection.missing_columns import files_asked, has
from feedline.warehouse.snapshot.snapshot import partition_beside
from feedline.warehouse.storage.locations import join, locate, shown
from feedline.warehouse.storage.parallel import Map

_FOOTERS_PER_TASK = 32
_TASK_ROWS = 1_000_000  # rows that one decoding task reads, a row group at least
_TASK_FILES = 32


class ProgressCallback(Protocol):
    """Told how much of a pass is done."""

    def __call__(self, what: str, done: int, total: int, /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong with a file that is not corrupt: its full name, and the message."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterTask:
    """Files whose footers one task reads: (path below the root, bytes)."""

    table: str
    files: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """What a footer said: digest, its bytes, rows per row group, and which of the task's schemas; or what is wrong."""

    digest: bytes = b""
    footer_bytes: int = 0
    rows: tuple[int, ...] = ()
    schema: int = -1
    corrupt: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTask:
    """Row groups to decode, and in which columns."""

    fragments: tuple[Fragment, ...]
    columns: tuple[str, ...]
    schema: pa.Schema


@dataclass(slots=True)
class Findings:
    """What the checks found; `schema`: the files' columns as one table, of those files that fit together.

    `kinds`: the distinct schemas that fit, each with its files (places in the listing).
    """

    listing: Listing
    bad: list[BadFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    footers: dict[int, Footer] = field(default_factory=dict)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    kinds: list[tuple[pa.Schema, list[int]]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows of the files whose footers are good."""
        return sum(sum(footer.rows) for footer in self.footers.values())

    @property
    def partition(self) -> dict[str, pa.Array]:
        """The partition keys' values, file by file, typed as in a snapshot."""
        return partition_beside(self.listing, self.schema)

    def table_schema(self) -> pa.Schema:
        """The files' columns, then the partition keys, as a snapshot has them."""
        keys = [pa.field(name, column.type) for name, column in self.partition.items()]
        return pa.schema([*(field for field in self.schema if field.name not in self.listing.partition), *keys])

    def sound(self) -> list[str]:
        """The files in which nothing was found."""
        wrong = {bad.file for bad in self.bad} | {problem.file for problem in self.problems}
        return [file for file in map(self.name, self.footers) if file not in wrong]

    def name(self, index: int) -> str:
        """A file's full name."""
        return join(shown(self.listing.uri), self.listing.files["path"][index].as_py())

    def add_bad(self, index: int, reason: str, footer: Footer | None = None) -> None:
        """A corrupt file."""
        files = self.listing.files
        self.bad.append(
            BadFile(
                file=self.name(index),
                bytes=files["bytes"][index].as_py(),
                mtime_ns=files["mtime_ns"][index].as_py(),
                footer_digest=footer.digest if footer else None,
                rows=sum(footer.rows) if footer else None,
                reason=reason,
            )
        )


def check_footers(
    listing: Listing, *, map: Map, rules: SchemaRules | None = None, progress: ProgressCallback | None = None
) -> Findings:
    """Read every footer of a table. What is wrong with a file is a finding; a store that keeps failing is raised."""
    findings = Findings(listing)
    files = list(zip(listing.files["path"].to_pylist(), listing.files["bytes"].to_pylist(), strict=True))
    tasks = [
        FooterTask(table=listing.uri, files=tuple(files[start : start + _FOOTERS_PER_TASK]))
        for start in range(0, len(files), _FOOTERS_PER_TASK)
    ]
    kinds: dict[bytes, tuple[pa.Schema, list[int]]] = {}  # by bytes: equal schemas may number their fields otherwise
    index = 0
    for footers, found in map(read_footers, tasks):
        for footer in footers:
            if footer.corrupt is not None:
                findings.add_bad(index, footer.corrupt)
            elif footer.problem is not None:
                findings.problems.append(Problem(file=findings.name(index), reason=footer.problem))
            else:
                findings.footers[index] = footer
                schema = found[footer.schema]
                kinds.setdefault(schema.serialize().to_pybytes(), (schema, []))[1].append(index)
            index += 1
        if progress is not None:
            progress("footers", index, len(files))
    _fit(findings, list(kinds.values()), rules or SchemaRules())
    return findings


def check_presence(findings: Findings, columns: Collection[str], where: BoundExpression | None) -> None:
    """Add a problem for each file that lacks one of these columns or parts, unless its partition rules it out."""
    table, partition = findings.table_schema(), findings.partition
    rows = np.zeros(len(findings.listing.files), np.int64)
    for index, footer in findings.footers.items():
        rows[index] = sum(footer.rows)
    asked = files_asked(partition, rows, where)
    for schema, indices in findings.kinds:
        lacking = [name for name in columns if name not in partition and not has(schema, name, table)]
        if lacking:
            reason = f"lacks {', '.join(map(repr, lacking))}, which the pipeline reads (source.schema.missing: error)"
            findings.problems += [
                Problem(file=findings.name(index), reason=reason) for index in indices if asked[index]
            ]


def check_pages(
    findings: Findings, columns: Sequence[str], *, map: Map, progress: ProgressCallback | None = None
) -> None:
    """Decode these columns of every file that may still be good, adding to the findings."""
    stored = tuple(name for name in columns if name in findings.schema.names)
    wrong = {problem.file for problem in findings.problems}
    left = [index for index in findings.footers if findings.name(index) not in wrong]
    if not stored or not left:
        return
    schema = pa.schema([findings.schema.field(name) for name in stored])
    tasks = list(_page_tasks(findings, left, stored, schema))
    places = {path: index for index, path in enumerate(findings.listing.files["path"].to_pylist())}
    met: set[int] = set()
    for number, (task, results) in enumerate(zip(tasks, map(decode_pages, tasks), strict=True)):
        for fragment, (corrupt, problem) in zip(task.fragments, results, strict=True):
            index = places[fragment.path]
            if index in met or (corrupt is None and problem is None):
                continue
            met.add(index)
            if corrupt is not None:
                findings.add_bad(index, corrupt, findings.footers[index])
            else:
                findings.problems.append(Problem(file=findings.name(index), reason=problem or ""))
        if progress is not None:
            progress("pages", number + 1, len(tasks))


def read_footers(task: FooterTask) -> tuple[list[Footer], list[pa.Schema]]:
    """Run one task: what each footer says, and the schemas that they refer to."""
    location = locate(task.table)
    footers: list[Footer] = []
    schemas: dict[bytes, tuple[int, pa.Schema]] = {}
    for path, size in task.files:
        name = join(shown(task.table), path)
        try:
            facts = file_facts(location.filesystem, join(location.path, path), size, name)
        except CorruptFileError as error:
            footers.append(Footer(corrupt=reason_of(error, name)))
        except StoreError:
            raise
        except TableError as error:
            footers.append(Footer(problem=_less(str(error), name)))
        else:
            key = facts.schema.serialize().to_pybytes()
            number, _ = schemas.setdefault(key, (len(schemas), facts.schema))
            footers.append(
                Footer(
                    digest=facts.digest,
                    footer_bytes=facts.footer_bytes,
                    rows=tuple(facts.rows),
                    schema=number,
                )
            )
    return footers, [schema for _, schema in schemas.values()]


def decode_pages(task: PageTask) -> list[tuple[str | None, str | None]]:
    """Run one task: for each fragment why it is corrupt, or what else is wrong, or neither."""
    results: list[tuple[str | None, str | None]] = []
    for fragment in task.fragments:
        try:
            decode_fragment(fragment, task.columns, task.schema)
        except CorruptFileError as error:
            results.append((reason_of(error, fragment.uri), None))
        except StoreError:
            raise
        except (TableError, DataError) as error:
            results.append((None, _less(str(error), fragment.uri)))
        else:
            results.append((None, None))
    return results


def _fit(findings: Findings, kinds: list[tuple[pa.Schema, list[int]]], rules: SchemaRules) -> None:
    """Unite the schemas one by one, that of most files first; files whose schema does not fit those are problems."""
    fitting: list[tuple[str, pa.Schema]] = []
    for schema, indices in sorted(kinds, key=lambda kind: -len(kind[1])):
        both = [*fitting, (findings.name(indices[0]), schema)]
        try:
            findings.schema = united(findings.listing, both, rules)
        except TableError as error:
            findings.problems += [Problem(file=findings.name(index), reason=str(error)) for index in indices]
        else:
            fitting = both
            findings.kinds.append((schema, indices))


def _page_tasks(
    findings: Findings, left: Sequence[int], columns: tuple[str, ...], schema: pa.Schema
) -> Iterator[PageTask]:
    gathered: list[Fragment] = []
    rows = 0
    for fragment, fragment_rows in _fragments(findings, left):
        gathered.append(fragment)
        rows += fragment_rows
        if rows >= _TASK_ROWS or len(gathered) >= _TASK_FILES:
            yield PageTask(fragments=tuple(gathered), columns=columns, schema=schema)
            gathered, rows = [], 0
    if gathered:
        yield PageTask(fragments=tuple(gathered), columns=columns, schema=schema)


def _fragments(findings: Findings, left: Sequence[int]) -> Iterator[tuple[Fragment, int]]:
    """Runs of row groups of one file, of about `_TASK_ROWS`, with their rows."""
    files = findings.listing.files
    for index in left:
        footer = findings.footers[index]
        first = 0
        while first < len(footer.rows):
            stop, rows = first, 0
            while stop < len(footer.rows) and (stop == first or rows + footer.rows[stop] <= _TASK_ROWS):
                rows += footer.rows[stop]
                stop += 1
            fragment = Fragment(
                table=findings.listing.uri,
                path=files["path"][index].as_py(),
                bytes=files["bytes"][index].as_py(),
                mtime_ns=files["mtime_ns"][index].as_py(),
                footer_digest=footer.digest,
                footer_bytes=footer.footer_bytes,
                row_groups=tuple(range(first, stop)),
                expected=(UNCOUNTED,) * (stop - first),
            )
            yield fragment, rows
            first = stop


def _less(text: str, name: str) -> str:
    return text.removeprefix(name).lstrip(", ") if text.startswith(name) else text
