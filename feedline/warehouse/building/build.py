"""Build a table of samples from logs: the steps of `feedline build`.

Runs in the caller's process. Steps:

1. take snapshots of the logs, and bind samples.yaml to their columns (`design`);
2. find the partitions in which impressions lie, and which of these are closed by the watermark (`periods`);
3. look for rows that arrived after a partition was built (`record`): count them, or build it again;
4. build what is closed and not built, one partition after the other (`partition`), each of which lands whole, with its
   record and the marker `_SUCCESS`.

One run at a time: on a local disk others are refused by a lock, which ends with its holder however that dies; in a
store, which has no locks, the run that began last goes on, and the other one fails. A killed run leaves whole
partitions and the hidden folder, which the next one removes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from feedline.config.build_spec import BuildSpec
from feedline.dataclass import dataclass
from feedline.errors import FeedlineError, TableArgumentError, TableError
from feedline.progress import report_progress
from feedline.warehouse.building.design import Design, design
from feedline.warehouse.building.logs import LogTimes, files_digest, log_times, take_logs
from feedline.warehouse.building.partition import Build, build_partition
from feedline.warehouse.building.periods import MARKER, Watermark, watermark
from feedline.warehouse.building.record import RECORD, Record
from feedline.warehouse.discovery.column_log import FOLDER
from feedline.warehouse.optimize.landing import DELETES, HIDDEN, room_for
from feedline.warehouse.optimize.optimize import TaskRunner
from feedline.warehouse.parquet.writer import SUFFIX
from feedline.warehouse.storage.claim import Claim
from feedline.warehouse.storage.content_store import get, has_locks, put
from feedline.warehouse.storage.faults import explain_errors
from feedline.warehouse.storage.locations import absolute, info_of, join, list_tree, locate, redact
from feedline.warehouse.storage.parallel import Map, in_threads
from feedline.warehouse.storage.retry import with_retries

_LOCK = "_build.lock"
_CLAIM = "build"
_THREADS = 16
_NS = 10**9
CLOSED, DUE, OPEN, LATE, GONE = "closed", "due", "open", "late", "logs gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition and what is to be done. record: None where it is not built.

    state: `closed`: built; `due`: to be built; `open`; `late`: to be built again; `logs gone`: built, of files that the
    logs no longer have.
    """

    folder: str
    state: str
    record: Record | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """The partitions of a table, in order, as a run leaves them. built: the folders that it has built.

    watermark: the time up to which all events have arrived, in ISO 8601. ahead: some event is ahead of this machine's
    clock. timeless: rows of each log without a time, which are left out.
    """

    table: str
    watermark: str | None
    ahead: bool
    partitions: tuple[PartitionState, ...]
    timeless: Mapping[str, int]
    built: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Survey:
    """Logs and table, compared. periods: of folders, those in which impressions lie."""

    design: Design
    times: dict[str, LogTimes]
    records: dict[str, Record]
    watermark: Watermark
    periods: dict[str, int] = field(default_factory=dict)


def build(
    spec: BuildSpec,
    *,
    now_ns: int,
    until_ns: int | None = None,
    rebuild: bool = False,
    runner: TaskRunner | None = None,
) -> BuildReport:
    """Build all partitions that are closed and not built, and again those that late rows have reached.

    now_ns: the present moment. until_ns: the watermark, in place of that of the logs. rebuild: build every partition
    again, as samples.yaml is now. Raises TableError for a table of another samples.yaml or writer, and where another
    run has the table; what reading and writing raise.
    """
    runner = runner or TaskRunner()
    uri = absolute(spec.out.table)
    with _alone(uri) as claim:
        survey = _survey(spec, uri, runner, now_ns=now_ns, until_ns=until_ns, rebuild=rebuild)
        states = _states(survey, spec, runner.run, rebuild=rebuild)
        for state in states.values():
            if state.record is not None and state.record != survey.records[state.folder]:
                with room_for(uri):
                    put(claim.location, join(state.folder, RECORD), [state.record.to_json()])
        common = Build(claim=claim, design=survey.design, times=survey.times, spec=spec.digest, runner=runner)
        due = [folder for folder, state in states.items() if state.state in (DUE, LATE)]
        for done, folder in enumerate(due):
            report_progress("building", done, len(due), "partitions")
            record = build_partition(common, survey.periods[folder])
            states[folder] = PartitionState(folder=folder, state=CLOSED, record=record)
        report_progress("building", len(due), len(due), "partitions")
    return replace(_report(uri, survey, states), built=tuple(due))


def look(
    spec: BuildSpec,
    *,
    now_ns: int,
    until_ns: int | None = None,
    rebuild: bool = False,
    runner: TaskRunner | None = None,
) -> BuildReport:
    """What `build` would do, without writing anything. Raises as `build`."""
    runner = runner or TaskRunner()
    uri = absolute(spec.out.table)
    survey = _survey(spec, uri, runner, now_ns=now_ns, until_ns=until_ns, rebuild=rebuild)
    return _report(uri, survey, _states(survey, spec, runner.run, rebuild=rebuild))


def read_records(uri: str) -> dict[str, Record]:
    """The records of a table's partitions by folder; one that has not landed whole has none.

    Raises TableArgumentError where the folder holds files that `feedline build` did not write.
    """
    location, name = locate(uri), redact(uri)
    filesystem = location.filesystem
    with explain_errors(name):
        kind = with_retries(lambda: info_of(filesystem, location.path), filesystem, name).type
        if kind == pafs.FileType.File:
            raise _foreign_error(name, "a file")
        infos = [] if kind == pafs.FileType.NotFound else list_tree(location)
    files: dict[str, set[str]] = {}
    for info in infos:
        path = info.path[len(location.path) :].lstrip("/")
        if info.type == pafs.FileType.File and path.split("/")[0] not in (HIDDEN, DELETES, FOLDER, _LOCK):
            folder, _, file = path.rpartition("/")
            files.setdefault(folder, set()).add(file)
    for folder, names in files.items():
        foreign = sorted(each for each in names if each not in (RECORD, MARKER) and not each.endswith(SUFFIX))
        if foreign or RECORD not in names:
            raise _foreign_error(name, join(folder, (foreign or sorted(names))[0]) if folder else min(names))
    built = [folder for folder, names in files.items() if MARKER in names]

    def read(folder: str) -> Record:
        content = get(location, join(folder, RECORD))
        return Record.from_json(bytes(memoryview(content)), join(name, join(folder, RECORD)))

    return dict(zip(built, in_threads(read, built, threads=_THREADS), strict=True))


def _survey(
    spec: BuildSpec, uri: str, runner: TaskRunner, *, now_ns: int, until_ns: int | None, rebuild: bool
) -> _Survey:
    records = read_records(uri)
    for folder, record in records.items():
        if record.spec != spec.digest and not rebuild:
            raise TableArgumentError(
                f"{redact(uri)} was built by another samples.yaml: got the digest {record.spec} in {folder}, expected "
                f"{spec.digest}. Name a new folder as out.table, or build every partition again (--rebuild)"
            )
    snapshots = take_logs(spec)
    schemas = {
        name: pa.schema([snapshot.schema.field(column).remove_metadata() for column in snapshot.file_columns])
        for name, snapshot in snapshots.items()
    }
    bound = design(spec, schemas)
    timeline = bound.timeline
    times = {log.name: log_times(log, snapshots[log.name], runner.run) for log in bound.logs}
    events = [bound.impressions.name, *(each.log.name for each in bound.outcomes)]
    newest = [time for name in events if (time := times[name].newest) is not None]
    lateness, per_second = timeline.of_ns(spec.lateness_ns), timeline.per_second
    mark = watermark(newest, lateness=lateness, now=now_ns * per_second // _NS)
    if until_ns is not None:
        mark = replace(mark, time=until_ns * per_second // _NS)
    periods = {timeline.folder(period): period for period in times["impressions"].periods(runner.run).tolist()}
    return _Survey(design=bound, times=times, records=records, watermark=mark, periods=periods)


def _states(survey: _Survey, spec: BuildSpec, map: Map, *, rebuild: bool) -> dict[str, PartitionState]:
    """What is to be done with each partition; their records with new counts of late rows."""
    bound, states = survey.design, {}
    for folder in sorted({*survey.periods, *survey.records}):
        record, period = survey.records.get(folder), survey.periods.get(folder)
        gone = record is not None and (period is None or _is_gone(survey, record))
        if gone and rebuild:
            raise TableArgumentError(
                f"partition {folder} cannot be built again: its logs no longer have all files that it was built from. "
                "Name a new folder as out.table"
            )
        if record is None or period is None:
            closed = period is not None and survey.watermark.closes(bound.timeline.bounds(period)[1], bound.longest)
            state = GONE if gone else DUE if closed else OPEN
            states[folder] = PartitionState(folder=folder, state=state, record=record)
        elif rebuild:
            states[folder] = PartitionState(folder=folder, state=LATE, record=record)
        else:
            states[folder] = _with_late(survey, map, folder, record, may_rebuild=spec.late == "rebuild" and not gone)
    return states


def _with_late(survey: _Survey, map: Map, folder: str, record: Record, *, may_rebuild: bool) -> PartitionState:
    """A partition that is built, with the rows that its logs have gained since in the times that it reads."""
    windows = survey.design.windows(survey.periods[folder])
    state = GONE if _is_gone(survey, record) else CLOSED
    now = files_digest(survey.times, windows)
    files = {name: survey.times[name].files(window) for name, window in windows.items()}
    new = {name: files[name] for name in windows if files[name] != record.inputs[name].files}
    if now == record.seen or not new:
        return PartitionState(folder=folder, state=state, record=record)
    gained = {name: max(0, survey.times[name].count(windows[name], map) - record.inputs[name].rows) for name in new}
    altered = any(
        path in record.inputs[name].files and record.inputs[name].files[path] != stamp
        for name, now_there in new.items()
        for path, stamp in now_there.items()
    )
    if may_rebuild and (altered or any(gained.values())):
        return PartitionState(folder=folder, state=LATE, record=record)
    outcomes = {
        each.name: replace(record.counts.outcomes[each.name], late=gained.get(each.log.name, 0))
        for each in survey.design.outcomes
    }
    of_outcomes = {each.log.name for each in survey.design.outcomes}
    late = sum(count for name, count in gained.items() if name not in of_outcomes)
    counts = replace(record.counts, late=late, outcomes=outcomes)
    return PartitionState(folder=folder, state=state, record=replace(record, counts=counts, seen=now))


def _is_gone(survey: _Survey, record: Record) -> bool:
    """Whether a log no longer has some file that the partition was built from."""
    return any(
        not set(inputs.files).issubset(survey.times[name].snapshot.files["path"].to_pylist())
        for name, inputs in record.inputs.items()
        if name in survey.times
    )


def _report(uri: str, survey: _Survey, states: Mapping[str, PartitionState]) -> BuildReport:
    mark = survey.watermark
    return BuildReport(
        table=redact(uri),
        watermark=None if mark.time is None else survey.design.timeline.text(mark.time),
        ahead=mark.ahead,
        partitions=tuple(states[folder] for folder in sorted(states)),
        timeless={name: times.timeless for name, times in survey.times.items() if times.timeless},
    )


@contextmanager
def _alone(uri: str) -> Iterator[Claim]:
    """Have the table alone; a run that is interrupted leaves its hidden folder, in which tasks may still write."""
    claim = Claim(uri=uri, hidden=HIDDEN, file=_CLAIM, name=redact(uri))
    with room_for(uri), _locked(uri):
        claim.take()
        try:
            yield claim
        except FeedlineError:
            claim.release()
            raise
        claim.release()


@contextmanager
def _locked(uri: str) -> Iterator[None]:
    """Lock a table on a local disk. Raises TableError where another run has it."""
    location = locate(uri)
    if not has_locks(location):
        yield
        return
    path = Path(location.path, _LOCK)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 64).decode(errors="replace").strip() or "unknown"
            raise TableError(
                f"{redact(uri)} is being built by another run: got the lock of process {holder}, expected none. Wait "
                "until it has ended"
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(lock)


def _foreign_error(name: str, what: str) -> TableError:
    return TableArgumentError(
        f"{name} is not empty: it holds {what}, which feedline build did not write. Name an empty or missing folder, "
        "or a table that it has built"
    )
