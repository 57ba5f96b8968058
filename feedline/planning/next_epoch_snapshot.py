"""Decide, once, what the next epoch of a followed table reads.

Runs in: the feeder's planner, `Pipeline`. The first process that needs the border of an epoch takes a snapshot of what
has landed, and writes the border and its name (`border`) under a lock of `work_dir`; all others read it. With
`epoch: new` the snapshot has only files that no epoch has read; while they do not make a step there is no border yet,
and after `until` the run ends. A border is written once its epoch was planned: a snapshot that cannot be planned is an
error, and is looked at again as it is at the next attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from feedline.config import PipelineSpec
from feedline.dataclass import dataclass
from feedline.errors import (
    CorruptFileError,
    FeedlineError,
    NoStepError,
    PlanError,
    StoreError,
    TableChangedError,
    TableError,
)
from feedline.planning.agreement import RunStart
from feedline.planning.epoch_snapshot import (
    Border,
    Next,
    files_seen,
    load_border,
    load_seen,
    read_next,
    save_border,
    seen_of,
    work_location,
    write_next,
)
from feedline.planning.skip_bad_files import Take
from feedline.planning.table_snapshot import fresh_snapshot, schema_rules
from feedline.warehouse.bad_files import leave_out, load_findings
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.discovery.table_log import moment_of
from feedline.warehouse.parquet.schemas import widens, without_dictionaries
from feedline.warehouse.snapshot.arrived_files import arrivals
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.file_identity import stamp_at_index
from feedline.warehouse.storage.locations import Location, join, redact

# --------------------------------------------------------------------------------------------------------------------
# Hold the columns of a followed table to the types that they had when its run began. Pure; runs where a border is
# decided. Files with narrower types, or without a column, are read in the run's types. A file that a column's type
# does not hold, and a partition key of another type, are refused.


def types_to_declare(before: Snapshot, after: Snapshot) -> dict[str, pa.DataType]:
    """The types to declare for a later snapshot's columns so that they keep those of an earlier one; empty where they
    have them. Raises TableError, with both types, where a file or a key does not fit."""
    changed = []
    for field in before.schema:
        here = after.schema.field(field.name) if field.name in after.schema.names else None
        if here is not None and here.type == field.type:
            continue
        if field.name in before.partition_columns or field.name in after.partition_columns:
            raise _key_error(after, field, here)
        _refuse_files(after, field.with_type(before.stored_type(field.name)), here)
        changed.append(field.name)
    if not changed:
        return {}
    keys = after.partition_columns  # also of a key that files of an earlier epoch held themselves
    return {name: before.stored_type(name) for name in before.file_columns if name not in keys}


def _key_error(after: Snapshot, field: pa.Field, here: pa.Field | None) -> TableError:
    got = "no such key" if here is None else f"{here.type}{_first_misfit(after, field)}"
    return TableError(
        f"partition key {field.name!r} of the followed table {redact(after.uri)} changed its type: got {got}, expected "
        f"{field.type} as in the epoch before. Rename the folder that does not fit, or start a new run, with the type "
        "declared in source.partitions"
    )


def _first_misfit(after: Snapshot, field: pa.Field) -> str:
    """` in ds=oops/a.parquet`: the first file whose value of a key is none of the key's earlier type."""
    if field.name not in after.partition_columns:
        return ""
    values = pc.struct_field(contiguous(after.files["partition"]), field.name)
    unique = pc.unique(values)
    for value in unique:
        try:
            value.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return f" in {after.files['path'][values.index(value).as_py()].as_py()}"
    return ""


def _refuse_files(after: Snapshot, field: pa.Field, here: pa.Field | None) -> None:
    """Raise TableError where a file, or the log, has a type that the column's does not hold."""
    remedy = "Write files with that type, or start a new run, with the wider type declared in source.schema.columns"
    first = f"column {field.name!r} of the followed table changed its type: got"
    if after.logged and here is not None:
        raise TableError(f"{first} {here.type} in the log of {redact(after.uri)}, expected {field.type}. {remedy}")
    schema_of_file = contiguous(after.files["schema"])
    for index, schema in enumerate(after.file_schemas):
        if field.name not in schema.names:
            continue
        stored = without_dictionaries(schema.field(field.name).type)
        if not widens(stored, field.type):
            file = after.files["path"][schema_of_file.index(pa.scalar(index, schema_of_file.type)).as_py()].as_py()
            name = join(redact(after.uri), file)
            raise TableError(f"{first} {stored} in {name}, expected {field.type} as in the epoch before. {remedy}")


# --------------------------------------------------------------------------------------------------------------------

_SHOWN = 5  # new partitions in a message


class NothingLandedError(Exception):
    """The next epoch has no rows yet. Internal: whoever asks for its border asks again later. ends_in_s: seconds until
    the run ends if nothing lands (None: it does not)."""

    ends_in_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowRequest:
    """What decides borders.

    take: takes a snapshot with a `Take`, saved in work_dir; the second argument is one whose counts hold for unchanged
    files. plan: plans an epoch of a snapshot; raises NoStepError where its rows make no step, and other errors of
    planning. start: who asks.
    """

    spec: PipelineSpec
    take: Callable[[Take, Snapshot | None], Snapshot]
    plan: Callable[[Snapshot, Snapshot | None], None]
    start: RunStart | None = None
    now_ns: Callable[[], int] = time.time_ns

    @property
    def reads_new(self) -> bool:
        """Whether an epoch reads only what no other has read."""
        follow = self.spec.source.follow
        return follow is not None and follow.epoch == "new"

    @property
    def until(self) -> str | None:
        """The moment after which nothing joins."""
        follow = self.spec.source.follow
        return None if follow is None else follow.until


def first_border(spec: PipelineSpec, snapshot: Snapshot, epoch: int) -> Border:
    """The border before the first epoch of a new run, which reads the whole snapshot."""
    follow = spec.source.follow
    seen = seen_of(snapshot, epoch) if follow is not None and follow.epoch == "new" else None
    return save_border(spec.work_dir, snapshot.id, epoch=epoch, seen=seen)


def rebased_border(spec: PipelineSpec, border: Border, snapshot: Snapshot, epoch: int) -> Border:
    """The border of an epoch that continues on a newer snapshot: later borders follow this one."""
    return save_border(spec.work_dir, snapshot.id, epoch=epoch, previous=border)


def border_of_epoch(request: FollowRequest, border: Border, epoch: int) -> Border:
    """The border of an epoch of the run that a border belongs to; where the run has ended before it, the last one.

    Raises PlanError for an epoch before the run's first one, or that is not the next one, and NothingLandedError while
    the next one has no rows. A border that is not decided yet is decided here.
    """
    work_dir = request.spec.work_dir
    while border.epoch > epoch:
        if not border.previous:
            raise PlanError(
                f"epoch {epoch} is not of this run: got {epoch}, expected {border.epoch} or more, with which the run "
                "on the followed table began. Start a new run for it"
            )
        border = load_border(work_dir, border.previous)
    while border.epoch < epoch:
        after = _next(request, border, decides=border.epoch + 1 == epoch)
        if after is None:
            return border
        border = after
    return border


def _next(request: FollowRequest, border: Border, *, decides: bool) -> Border | None:
    """The border after one, None where the run ends with it. decides: whether it may be decided now."""
    work_dir, location = request.spec.work_dir, work_location(request.spec.work_dir)
    decision = _known(request, location, border)
    if decision is None and not decides:
        raise PlanError(
            f"epochs of a followed table come one after the other: got a later one, expected {border.epoch + 1}. "
            "Iterate over that one first"
        )
    if decision is None:
        _refuse_unshared(request.start, location)
        with content_store.lock_file(location, border.pointer):
            decision = _known(request, location, border)
            if decision is None:
                decision = _decide(request, border)
                write_next(location, border, decision)
    return None if decision.border is None else load_border(work_dir, decision.border)


def _known(request: FollowRequest, location: Location, border: Border) -> Next | None:
    """A decision that was made, unless it was the end at another `until` than now."""
    decision = read_next(location, border)
    return None if decision is not None and decision.border is None and decision.until != request.until else decision


def _refuse_unshared(start: RunStart | None, location: Location) -> None:
    """Without locks only one rank may decide: rank 0, before torch.distributed tells the others."""
    if start is None or start.world_size == 1 or content_store.has_locks(location):
        return
    if start.connected and start.rank == 0:
        return
    if start.connected:
        raise NothingLandedError("rank 0 has not decided the epoch's border yet")
    raise PlanError(
        f"{start.world_size} ranks cannot agree on what an epoch of a followed table reads: work_dir is "
        f"{redact(location.uri)}, a store without locks, and torch.distributed does not connect them. Call "
        "init_process_group before the dataset's first use, or name a work_dir that all hosts mount"
    )


def _decide(request: FollowRequest, border: Border) -> Next:
    """Take the snapshot of the epoch after a border. Raises NothingLandedError while it has no rows."""
    spec, epoch = request.spec, border.epoch + 1
    before = Snapshot.load(spec.work_dir, border.snapshot)
    if not request.reads_new:
        snapshot = _take(request, before, None)
        _plan(request, snapshot, before, epoch)
        after = save_border(spec.work_dir, snapshot.id, epoch=epoch, previous=border)
        return Next(border=after.id, until=request.until)
    left_s = None if request.until is None else moment_of(request.until).timestamp() - request.now_ns() / 1e9
    unread = _ReadOnce(spec, load_seen(spec.work_dir, border))
    try:
        snapshot = _take_new(request, before, unread, epoch)
    except NothingLandedError as nothing:
        if left_s is not None and left_s < 0:
            return Next(border=None, until=request.until)
        nothing.ends_in_s = left_s
        raise
    seen = files_seen(unread.seen, seen_of(snapshot, epoch))
    after = save_border(spec.work_dir, snapshot.id, epoch=epoch, previous=border, seen=seen)
    return Next(border=after.id, until=request.until)


def _take_new(request: FollowRequest, before: Snapshot, unread: _ReadOnce, epoch: int) -> Snapshot:
    """A snapshot of the files that no epoch has read. Raises NothingLandedError while they do not make a step."""
    try:
        snapshot = _take(request, before, unread)
    except CorruptFileError:
        if request.spec.source.on_bad_file != "skip":
            raise
        snapshot = _take(request, before, unread)  # all of them were bad, which is known now
    try:
        _plan(request, snapshot, None, epoch)
    except NoStepError as error:
        files = f"{len(snapshot.files):,} new file{'s have' if len(snapshot.files) > 1 else ' has'} landed"
        raise NothingLandedError(f"{files}, whose rows make no step: {error}") from None
    return snapshot


def _plan(request: FollowRequest, snapshot: Snapshot, before: Snapshot | None, epoch: int) -> None:
    """Plan an epoch before its border is written. Errors name what is new in its snapshot. before: the snapshot that
    had its other files (None: all are new)."""
    try:
        request.plan(snapshot, before)
    except (NoStepError, CorruptFileError, TableChangedError, StoreError):
        raise  # the latter name their file
    except FeedlineError as error:
        old = pa.array([], pa.string()) if before is None else before.files["path"]
        new = snapshot.files.filter(pc.invert(pc.is_in(snapshot.files["path"], old)))
        folders = sorted({path.rpartition("/")[0] or path for path in new["path"].to_pylist()})
        more = f" and {len(folders) - _SHOWN:,} more" if len(folders) > _SHOWN else ""
        what = f"{', '.join(folders[:_SHOWN])}{more}" if folders else "nothing"
        raise type(error)(
            f"epoch {epoch} of the followed table {redact(snapshot.uri)} cannot be planned; new in it is {what}: "
            f"{error}. Repair what has landed, and continue from any state: the epoch's border is not decided yet"
        ) from error


def _take(request: FollowRequest, before: Snapshot, unread: _ReadOnce | None) -> Snapshot:
    """A snapshot of what has landed, with the types of the epoch before."""
    take, counted = partial(fresh_snapshot, unread=unread), before if unread is None else None
    snapshot = request.take(take, counted)
    types = types_to_declare(before, snapshot)
    if not types:
        return snapshot
    rules = schema_rules(request.spec.source)
    return request.take(partial(take, rules=replace(rules, columns={**types, **rules.columns})), counted)


class _ReadOnce:
    """Leaves out the files that epochs have read."""

    def __init__(self, spec: PipelineSpec, seen: pa.Table) -> None:
        self._spec = spec
        self.seen = seen

    def __call__(self, listing: Listing) -> Listing:
        found = arrivals(listing, self.seen)
        for partition, went, came in found.rewritten:
            raise TableChangedError(
                f"partition {partition or '(the whole table)'} of {redact(listing.uri)} was rewritten after an epoch "
                f"had read it: {went} has gone and {came} has come, which may hold the same rows. With `epoch: new` "
                "rows are read once: restore the partition, or start a new run"
            )
        if len(found.altered):
            raise _rewritten_error(listing, int(found.altered[0]), self.seen, int(found.of[0]))
        new = listing.take(found.new)
        if self._spec.source.on_bad_file == "skip" and len(new.files):
            new_good, _ = leave_out(new, load_findings(self._spec.work_dir))
            new = new if len(new_good.files) else new_good
        if not len(new.files):
            raise NothingLandedError("no new file has landed")
        return new


def _rewritten_error(listing: Listing, index: int, seen: pa.Table, of: int) -> TableChangedError:
    name = join(redact(listing.uri), listing.files["path"][index].as_py())
    was, now = stamp_at_index(seen, of), stamp_at_index(listing.files, index)
    return TableChangedError(
        f"{name} was rewritten after epoch {seen['epoch'][of].as_py()} had read it: got {now}, expected {was}. With "
        "`epoch: new` rows are read once: restore the file, or its time if it was copied or touched alone, write new "
        "rows into files of new names, or start a new run"
    )
