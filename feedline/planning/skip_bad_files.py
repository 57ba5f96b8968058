"""What is a pipeline's table, less its bad files? The snapshot of `source.on_bad_file: skip`.

Runs in: whichever process takes the snapshot. Three ways lead out of the table, all before the epoch is planned: an
earlier run or `feedline check` found the file bad and it has not changed since; its footer is corrupt; the counting
pass met a corrupt page. What is left is a snapshot like any other, named by its content, so that ranks that agree on it
stay even and a resume finds it. What was left out is remembered, kept beside the snapshot, and held against the budget.

Whichever way a file went, it has no say in the table's columns and types: where the counting pass meets one, the
snapshot is taken again, from the footers read before, so that the next run, which knows the file, has the same one.
Where files cannot be told by their times (some stores), and in a saved snapshot, each run has the bad file's columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from feedline.errors import CorruptFileError, TableError
from feedline.planning.table_snapshot import snapshot_of_source
from feedline.spec import PipelineSpec
from feedline.warehouse.bad_files import (
    BadFile,
    BadFilesMetError,
    ForgivingMap,
    known_bad_files,
    known_within,
    reason_of,
    refuse_all,
    refuse_too_many,
    remember,
    save_skipped,
    without_known,
)
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import join, shown
from feedline.warehouse.storage.parallel import Map

Count = Callable[[Snapshot, Map], object]
Take = Callable[..., Snapshot]


def good_snapshot(
    spec: PipelineSpec, *, count: Count, take: Take = snapshot_of_source, map: Map | None = None
) -> Snapshot:
    """The table that `source` names, less its bad files; `count` is the counting pass, `take` takes the snapshot.

    Raises CorruptFileError, listing the files, where more are bad than the budget allows, or all are.
    """
    snapshot, taking = _taken(spec, take, map)
    forgiving = ForgivingMap(map)
    while True:
        try:
            count(snapshot, forgiving)
            break
        except BadFilesMetError as met:
            bad = _found_in(snapshot, met.reasons)
            remember(spec.work_dir, [*taking.found, *bad.values()])
            if taking.listed and all(file.mtime_ns >= 0 for file in bad.values()):
                # without their columns and types, too, as every later run has it
                snapshot, taking = _taken(spec, take, map)
            else:
                snapshot = _without(spec, snapshot, bad, taking)
    found = sorted(taking.found, key=lambda bad: bad.file)
    remember(spec.work_dir, found)
    source = spec.source
    refuse_too_many(shown(snapshot.uri), found, max_files=source.max_bad_files, max_rows=source.max_bad_rows)
    save_skipped(spec.work_dir, snapshot.id, found)
    return snapshot


def _taken(spec: PipelineSpec, take: Take, map: Map | None) -> tuple[Snapshot, _Taking]:
    """The table without the files that are known to be bad and those with a corrupt footer; and which these are."""
    taking = _Taking(known_bad_files(spec.work_dir))
    try:
        snapshot = take(spec, map=map, on_bad=taking.on_bad, sift=taking.sift)
    except TableError:
        if not taking.left:
            remember(spec.work_dir, taking.found)
            raise taking.refusal(spec) from None
        raise
    return _without(spec, snapshot, known_within(snapshot, taking.known), taking), taking


class _Taking:
    """What is left out while a snapshot is taken."""

    def __init__(self, known: dict[str, BadFile]) -> None:
        self.known = known
        self.found: list[BadFile] = []
        self.left = -1  # files that may still be good; unknown before the listing
        self._places: dict[str, int] = {}
        self._listing: Listing | None = None

    @property
    def listed(self) -> bool:
        """Whether there was a listing to leave files out of; a saved snapshot has none."""
        return self._listing is not None

    def sift(self, listing: Listing) -> Listing:
        left, bad = without_known(listing, self.known)
        self.found += bad
        self.left = len(left.files)
        if not self.left:
            raise TableError("every file is known to be bad")
        self._listing = left
        return left

    def on_bad(self, path: str, error: CorruptFileError) -> None:
        assert self._listing is not None
        files = self._listing.files
        if not self._places:
            self._places = {name: index for index, name in enumerate(files["path"].to_pylist())}
        file = join(shown(self._listing.uri), path)
        place = self._places[path]
        self.left -= 1
        self.found.append(
            BadFile(
                file=file,
                bytes=files["bytes"][place].as_py(),
                mtime_ns=files["mtime_ns"][place].as_py(),
                footer_digest=None,
                rows=None,
                reason=reason_of(error, file),
            )
        )

    def refusal(self, spec: PipelineSpec) -> CorruptFileError:
        table = spec.source.table
        return refuse_all(shown(table) if isinstance(table, str) else ", ".join(map(shown, table)), self.found)


def _without(spec: PipelineSpec, snapshot: Snapshot, bad: dict[str, BadFile], taking: _Taking) -> Snapshot:
    if not bad:
        return snapshot
    taking.found += bad.values()
    if len(bad) == len(snapshot.files):
        raise taking.refusal(spec)
    return snapshot.without(bad)


def _found_in(snapshot: Snapshot, reasons: Mapping[str, str]) -> dict[str, BadFile]:
    """The files that the counting pass found bad, by path, with the snapshot's facts of them."""
    names = ("path", "bytes", "mtime_ns", "footer_digest", "rows")
    bad = pc.is_in(snapshot.files["path"], value_set=pa.array(sorted(reasons), pa.string()))
    return {
        facts["path"]: BadFile(
            file=join(shown(snapshot.uri), facts["path"]),
            reason=reasons[facts["path"]],
            **{name: facts[name] for name in names[1:]},
        )
        for facts in snapshot.files.select(names).filter(bad).to_pylist()
    }
