"""Take the snapshot of a table without its bad files, for `source.on_bad_file: skip`.

Runs in: the process that takes the snapshot. A file is skipped before the epoch is planned: because it was found bad
earlier and has not changed, its footer is corrupt, or the counting pass found a corrupt page. Skipped files are saved
beside the snapshot, and counted against the budget.

A skipped file contributes neither columns nor types: where the counting pass finds one, the snapshot is taken again, as
the next run would take it. In stores with neither tags nor times, and in a saved snapshot, its columns stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from feedline.config import PipelineSpec
from feedline.errors import CorruptFileError, TableError
from feedline.planning.table_snapshot import snapshot_of_source
from feedline.warehouse.bad_files import (
    BadFile,
    BadFilesFoundError,
    ForgivingMap,
    all_bad_error,
    findings_in,
    leave_out,
    load_findings,
    reason_of,
    record_findings,
    refuse_too_many,
    save_skipped,
)
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.file_identity import stamp_at_index
from feedline.warehouse.storage.locations import join, redact
from feedline.warehouse.storage.parallel import Map

Count = Callable[[Snapshot, Map], object]
Take = Callable[..., Snapshot]


def good_snapshot(
    spec: PipelineSpec, *, count: Count, take: Take = snapshot_of_source, map: Map | None = None
) -> Snapshot:
    """A snapshot of the table without its bad files; `count` is the counting pass, `take` takes the snapshot. Raises
    CorruptFileError, listing the files, where more are bad than the budget allows, or all are."""
    snapshot, skipped = _take_good(spec, take, map)
    forgiving = ForgivingMap(map)
    while True:
        try:
            count(snapshot, forgiving)
            break
        except BadFilesFoundError as error:
            bad = _bad_files_of(snapshot, error.reasons)
            record_findings(spec.work_dir, [*skipped.files, *bad.values()])
            if skipped.has_listing and all(file.is_recognised for file in bad.values()):
                # without their columns and types, as in every later run
                snapshot, skipped = _take_good(spec, take, map)
            else:
                snapshot = _skip(spec, snapshot, bad, skipped)
    files = sorted(skipped.files, key=lambda bad: bad.file)
    record_findings(spec.work_dir, files)
    source = spec.source
    refuse_too_many(redact(snapshot.uri), files, max_files=source.max_bad_files, max_rows=source.max_bad_rows)
    if files or skipped.has_listing:  # a saved snapshot without bad files keeps the record of those it was made without
        save_skipped(spec.work_dir, snapshot.id, files)
    return snapshot


def _take_good(spec: PipelineSpec, take: Take, map: Map | None) -> tuple[Snapshot, _SkippedFiles]:
    """A snapshot without known bad files and files with a corrupt footer; and these files."""
    skipped = _SkippedFiles(load_findings(spec.work_dir))
    try:
        snapshot = take(spec, map=map, on_bad=skipped.on_bad, filter_listing=skipped.filter_listing)
    except TableError:
        if not skipped.remaining:
            record_findings(spec.work_dir, skipped.files)
            raise skipped.all_bad_error(spec.source.table) from None
        raise
    return _skip(spec, snapshot, findings_in(snapshot, skipped.findings), skipped), skipped


class _SkippedFiles:
    def __init__(self, findings: dict[str, BadFile]) -> None:
        self.findings = findings
        self.files: list[BadFile] = []
        self.remaining = -1  # files that may still be good; unknown before the listing
        self._indices: dict[str, int] = {}
        self._listing: Listing | None = None

    @property
    def has_listing(self) -> bool:
        """Whether files were listed; for a saved snapshot they are not."""
        return self._listing is not None

    def filter_listing(self, listing: Listing) -> Listing:
        remaining, bad = leave_out(listing, self.findings)
        self.files += bad
        self.remaining = len(remaining.files)
        if not self.remaining:
            raise TableError("every file is known to be bad")
        self._listing = remaining
        return remaining

    def on_bad(self, path: str, error: CorruptFileError) -> None:
        assert self._listing is not None
        files = self._listing.files
        if not self._indices:
            self._indices = {name: index for index, name in enumerate(files["path"].to_pylist())}
        file = join(redact(self._listing.uri), path)
        stamp = stamp_at_index(files, self._indices[path])
        self.remaining -= 1
        self.files.append(
            BadFile(
                file=file,
                bytes=stamp.size_bytes,
                mtime_ns=stamp.mtime_ns,
                etag=stamp.tag or None,
                footer_digest=None,
                rows=None,
                reason=reason_of(error, file),
            )
        )

    def all_bad_error(self, table: str | tuple[str, ...]) -> CorruptFileError:
        return all_bad_error(redact(table) if isinstance(table, str) else ", ".join(map(redact, table)), self.files)


def _skip(spec: PipelineSpec, snapshot: Snapshot, bad: dict[str, BadFile], skipped: _SkippedFiles) -> Snapshot:
    if not bad:
        return snapshot
    skipped.files += bad.values()
    if len(bad) == len(snapshot.files):
        raise skipped.all_bad_error(spec.source.table)
    return snapshot.without(bad)


def _bad_files_of(snapshot: Snapshot, reasons: Mapping[str, str]) -> dict[str, BadFile]:
    """The files that the counting pass found bad, by path, with their facts in the snapshot."""
    names: tuple[str, ...] = ("path", "bytes", "mtime_ns", "footer_digest", "rows")
    names += ("etag",) if "etag" in snapshot.files.schema.names else ()
    bad = pc.is_in(snapshot.files["path"], value_set=pa.array(sorted(reasons), pa.string()))
    return {
        facts["path"]: BadFile(
            file=join(redact(snapshot.uri), facts["path"]),
            reason=reasons[facts["path"]],
            **{name: facts[name] for name in names[1:]},
        )
        for facts in snapshot.files.select(names).filter(bad).to_pylist()
    }
