"""Records of row identities under `work_dir/rows`, written while blocks are computed.

Written in Dask workers, read where a rebase is planned. A record holds the identities of the rows that one piece of a
block reads, in their order, 8 bytes per row. Its name follows from the identity, the file (path and content), the row
groups and, if it holds only some of their kept rows, which ones. A record that cannot be written or read, or is
damaged, counts as missing.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs

from feedline.dataclass import dataclass
from feedline.errors import TableError
from feedline.hashing import Words
from feedline.warehouse.reading.fragment import Chunk, Fragment, count_excluded, unpack_mask
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.reading.sample import Sample
from feedline.warehouse.rebase.row_identity import Identity
from feedline.warehouse.selection.select import bind_once
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, join, locate, redact
from feedline.warehouse.storage.retry import with_retries

logger = logging.getLogger(__name__)

_FOLDER = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The identity that a job's blocks record, and the `work_dir` for it: a small value sent with each request."""

    identity: Identity
    work_dir: str


@dataclass(slots=True)
class RowIdentities:
    """Recorded identities of a row group's kept rows, hashes of their `shuffle.by`; `present`: which rows have them."""

    rows: Words
    runs: Words
    present: npt.NDArray[np.bool_]

    @classmethod
    def nothing(cls, rows: int) -> RowIdentities:
        return cls(np.zeros(rows, np.uint64), np.zeros(rows, np.uint64), np.zeros(rows, np.bool_))


@dataclass(slots=True)
class Recorder:
    """Gathers the identities of one piece's rows: `rows` of the fragment's remaining rows from `skip` on."""

    recording: Recording
    fragment: Fragment
    skip: int
    rows: int
    name: str
    identities: list[Words] = field(default_factory=list)
    runs: list[Words] = field(default_factory=list)

    def add(self, frame: pl.DataFrame) -> None:
        identity = self.recording.identity
        self.identities.append(identity.rows(frame))
        if identity.by is not None:
            self.runs.append(identity.runs(frame))

    def write(self) -> None:
        """Write the record. A failure is logged once per process, and the run continues."""
        if sum(map(len, self.identities)) != self.rows:
            return  # the block is about to fail: its rows are not those planned
        columns = {"identity": np.concatenate(self.identities)}
        if self.runs:
            columns["runs"] = np.concatenate(self.runs)
        try:
            tables = [pa.table(columns), self._spans()]
            content_store.create(self.recording.work_dir, self.name, tables, compression=None)
        except (OSError, pa.ArrowException) as error:
            _say_once(self.recording.work_dir, str(error))

    def _spans(self) -> pa.Table:
        """Per row group: its kept rows, the excluded ones, and which of the others (start, stop) are recorded."""
        spans = spans_of(self.fragment, self.skip, self.rows)
        excluded = self.fragment.excluded or (None,) * len(spans)
        return pa.table(
            {
                "row_group": pa.array(self.fragment.row_groups, pa.int32()),
                "kept": pa.array(self.fragment.expected, pa.int64()),
                "start": pa.array([start for start, _ in spans], pa.int64()),
                "stop": pa.array([stop for _, stop in spans], pa.int64()),
                "excluded": pa.array(excluded, pa.binary()),
            }
        )


def recorded(chunks: Iterator[Chunk], recorder: Recorder | None) -> Iterator[Chunk]:
    """The chunks of a piece, whose rows' identities are recorded on the way."""
    if recorder is None:
        return chunks

    def add(chunk: Chunk) -> Chunk:
        recorder.add(chunk.frame)
        return chunk

    def written() -> Iterator[Chunk]:
        yield from map(add, chunks)  # which keeps no reference to a chunk
        recorder.write()

    return written()


def recorder_of(recording: Recording | None, fragment: Fragment, skip: int, rows: int) -> Recorder | None:
    """Return the recorder of a piece; None if nothing is to be recorded or the record exists."""
    if recording is None or not rows:
        return None
    whole = _name(recording, fragment, "")
    partial = fragment.excluded or rows != remaining_rows(fragment)
    name = _name(recording, fragment, repr((skip, rows, fragment.excluded))) if partial else whole
    location = locate(absolute(recording.work_dir))
    paths = [f"{location.path}/{each}" for each in ("snapshots", whole, name)]
    try:
        infos = location.filesystem.get_file_info(paths)
    except (OSError, pa.ArrowException) as error:
        _say_once(recording.work_dir, str(error))
        return None
    work_dir_exists, *recorded = (info.type != pafs.FileType.NotFound for info in infos)
    if not work_dir_exists and records_cost_nothing(recording.work_dir):
        _say_once(recording.work_dir, "it does not exist on this host")
        return None
    return None if any(recorded) else Recorder(recording, fragment, skip, rows, name)


def records_cost_nothing(work_dir: str) -> bool:
    """Whether `work_dir` is on a local disk, so that records cost no requests."""
    return str(locate(absolute(work_dir)).filesystem.type_name) == "local"


def remaining_rows(fragment: Fragment) -> int:
    return sum(fragment.expected) - sum(count_excluded(bits) for bits in fragment.excluded)


def spans_of(fragment: Fragment, skip: int, rows: int) -> list[tuple[int, int]]:
    """Return, per row group of the fragment, which of its remaining rows (start, stop) a piece reads."""
    spans, first = [], 0  # row groups of 4, 4 and 2 rows, skip 3, rows 4 -> [(3, 4), (0, 3), (0, 0)]
    for kept, bits in zip(fragment.expected, fragment.excluded or (None,) * len(fragment.expected), strict=True):
        remaining = kept - count_excluded(bits)
        start, stop = (min(max(row - first, 0), remaining) for row in (skip, skip + rows))
        spans.append((start, stop))
        first += remaining
    return spans


class Records:
    """The records of an identity in `work_dir`: one listing, then a file per piece."""

    def __init__(self, work_dir: str, identity: Identity) -> None:
        self._work_dir = work_dir
        self._folder = f"{_FOLDER}/{identity.id}"

    @functools.cached_property
    def _names(self) -> Mapping[str, Sequence[tuple[int, int, str]]]:
        """Per file: (first row group, last row group, name, time written) of each of its records."""
        location = locate(absolute(self._work_dir))
        files, name = location.filesystem, join(redact(location.uri), self._folder)
        selector = pafs.FileSelector(join(location.path, self._folder), allow_not_found=True)
        records: dict[str, list[tuple[int, int, str]]] = {}
        try:
            infos = with_retries(lambda: files.get_file_info(selector), files, name, verb="listed")
        except (OSError, TableError, pa.ArrowException) as error:
            logger.warning("%s cannot be listed (%s): it is not known which rows were delivered", name, error)
            return records
        for info in infos:
            words = info.base_name.removesuffix(".arrow").split("-")
            if info.base_name.endswith(".arrow") and len(words) == 4:
                record = int(words[1]), int(words[2]), info.base_name
                records.setdefault(words[0], []).append(record)
        return records

    def of(self, fragment: Fragment) -> dict[int, RowIdentities]:
        """Load the records of a fragment's row groups, by their index in the file."""
        rows_of = dict(zip(fragment.row_groups, fragment.expected, strict=True))
        identities = {row_group: RowIdentities.nothing(rows) for row_group, rows in rows_of.items()}
        for first, last, name in self._names.get(_digest(fragment), ()):
            if any(first <= row_group <= last and not identities[row_group].present.all() for row_group in rows_of):
                self._fill(identities, f"{self._folder}/{name}")
        return identities

    def _fill(self, found: Mapping[int, RowIdentities], name: str) -> None:
        try:
            table, spans = content_store.load(self._work_dir, name, tables=2)
        except (OSError, TableError):
            return
        rows = table["identity"].to_numpy()
        runs = table["runs"].to_numpy() if "runs" in table.column_names else np.zeros(len(rows), np.uint64)
        first = 0
        for span in spans.to_pylist():
            count = span["stop"] - span["start"]
            part = slice(first, first + count)
            first += count
            identities = found.get(span["row_group"])
            if identities is not None and len(identities.present) == span["kept"]:
                recorded = np.flatnonzero(~unpack_mask(span["excluded"], span["kept"]))[span["start"] : span["stop"]]
                identities.rows[recorded], identities.runs[recorded], identities.present[recorded] = (
                    rows[part],
                    runs[part],
                    True,
                )


def save_records(recording: Recording, fragment: Fragment, rows: Words, runs: Words | None) -> None:
    """Record hashes computed elsewhere, of all rows of the fragment in their order."""
    recorder = recorder_of(recording, fragment, 0, remaining_rows(fragment))
    if recorder is not None:
        recorder.identities.append(rows)
        if runs is not None:
            recorder.runs.append(runs)
        recorder.write()


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifyTask:
    """A fragment whose rows to hash: a small picklable value, with the filter as a string."""

    fragment: Fragment
    identity: Identity
    where: str | None
    sample: Sample | None
    schema: pa.Schema


def identify_task(task: IdentifyTask) -> tuple[Words, Words | None]:
    """Read a fragment and return the identities of its kept rows and, with `shuffle.by`, the hashes of its values."""
    where, sample = bind_once(task.where, task.sample, task.schema)
    rows, runs = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    for chunk in read_fragment(task.fragment, ReadRequest(task.identity.names, task.schema, where, sample=sample)):
        rows.append(task.identity.rows(chunk.frame))
        if task.identity.by is not None:
            runs.append(task.identity.runs(chunk.frame))
    return np.concatenate(rows), np.concatenate(runs) if task.identity.by is not None else None


def _name(recording: Recording, fragment: Fragment, part: str) -> str:
    first, last = fragment.row_groups[0], fragment.row_groups[-1]
    content = f"{fragment.row_groups} {fragment.expected} {part}".encode()
    file, rows = _digest(fragment), hashlib.sha256(content).hexdigest()[:16]
    return f"{_FOLDER}/{recording.identity.id}/{file}-{first}-{last}-{rows}.arrow"


def _digest(fragment: Fragment) -> str:
    """The name of a file's content, also of one that nobody can tell: the mark of its snapshot is part of it. All its
    column files are, too: filters and keys may read any."""
    content = fragment.stamp.content_name or fragment.tag
    columns = "\0".join(["", *map(str, [file.content_name for file in fragment.columns])]).encode()
    named = f"{fragment.path}\0{content}\0".encode() + fragment.footer_digest + columns
    return hashlib.sha256(named).hexdigest()[:32]


@functools.cache
def _say_once(work_dir: str, why: str) -> None:
    logger.warning(
        "identities of rows are not recorded in %s (%s): `feedline rebase` will not know which rows of a rewritten "
        "file were delivered",
        work_dir,
        why,
    )
