"""The border before an epoch of a followed table: the snapshot that the epoch reads, and the border before it.

Runs in: the process that plans. Borders are files below `work_dir/follow`, named by their content: the epoch, its
snapshot, and the border before it or, of a run's first one, a random number, so that no other run continues it. A state
names its border beside the snapshot: `<snapshot>@<border>`. The border after one is decided once: the first process
writes its name to `follow/<border>.next.json`, and every other rank, and every run resumed from an earlier state, reads
it there.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets

import numpy as np
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, StateError, TableError
from feedline.warehouse.snapshot.arrived_files import folder_names, seen_files, value_names
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import Location, absolute, locate, redact

_VERSION = 1
_ID = re.compile(r"[0-9a-f]{32}")
_MARK = "@"


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """The border before `epoch`: the id of its snapshot, and of the border before it ("": the run's first)."""

    id: str
    epoch: int
    snapshot: str
    previous: str

    @property
    def name(self) -> str:
        """The name of the epoch's snapshot in a state."""
        return f"{self.snapshot}{_MARK}{self.id}"

    @property
    def pointer(self) -> str:
        """The file that names the border after this one."""
        return f"follow/{self.id}.next.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """The border after one. border: its id, None if the run ends, as nothing more has landed until `until`."""

    border: str | None
    until: str | None


def split_border(name: str) -> tuple[str, str | None]:
    """Split the name of a snapshot into its id and that of its border, None without one."""
    snapshot, _, border = name.partition(_MARK)
    return snapshot, border or None


def window_border(snapshot: str, epoch: int) -> Border:
    """The border before an epoch that is a window of a snapshot: not decided, and not written."""
    return Border(id=f"{epoch:032x}", epoch=epoch, snapshot=snapshot, previous="")


def save_border(
    work_dir: str, snapshot: str, *, epoch: int, previous: Border | None = None, seen: pa.Table | None = None
) -> Border:
    """Write a border and return it. previous: None for a run's first. seen: the files that its epoch and all before it
    read, where later epochs read only others."""
    origin = previous.id if previous is not None else secrets.token_hex(16)
    content = json.dumps([_VERSION, epoch, snapshot, origin])
    id = hashlib.sha256(content.encode()).hexdigest()[:32]
    border = Border(id=id, epoch=epoch, snapshot=snapshot, previous="" if previous is None else previous.id)
    facts = {"epoch": epoch, "snapshot": snapshot, "previous": border.previous}
    table = seen if seen is not None else pa.table({"path": pa.array([], pa.string())})
    content_store.create(work_dir, _name(id), [table.replace_schema_metadata({"facts": json.dumps(facts)})])
    return border


def load_border(work_dir: str, id: str) -> Border:
    """Load the border of that id. Raises StateError if `work_dir` has none, CorruptFileError if it is damaged."""
    facts = json.loads(_load(work_dir, id).schema.metadata[b"facts"])
    return Border(id=id, **facts)


def load_seen(work_dir: str, border: Border) -> pa.Table:
    """The files that the epochs up to a border's have read (see `seen_files`)."""
    return _load(work_dir, border.id).replace_schema_metadata(None)


def seen_of(snapshot: Snapshot, epoch: int) -> pa.Table:
    """The record of the files of a snapshot, which an epoch reads."""
    if not snapshot.logged:
        names = folder_names(snapshot.files["path"])
    else:
        keys = snapshot.partition_columns
        columns = snapshot.files["partition"].combine_chunks().flatten() if keys else []
        names = value_names(dict(zip(keys, columns, strict=True)), len(snapshot.files))
    return seen_files(snapshot.files, names, epoch)


def read_next(location: Location, border: Border) -> Next | None:
    """The decision on the border after one; None before it."""
    try:
        content = json.loads(bytes(content_store.get(location, border.pointer)))
        return Next(border=content["next"], until=content["until"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(
            f"{redact(location.uri)}/{border.pointer} is damaged: got {error}. Delete it, and every state of a later "
            "epoch of this run"
        ) from None


def write_next(location: Location, border: Border, decision: Next) -> None:
    """Write the decision on the border after one."""
    content = {"next": decision.border, "until": decision.until}
    content_store.put(location, border.pointer, [json.dumps(content).encode()])


def work_location(work_dir: str) -> Location:
    """The place of a work_dir."""
    return locate(absolute(work_dir))


def files_seen(seen: pa.Table, more: pa.Table) -> pa.Table:
    """Both records of files, each path once, as the later one has it."""
    if not len(seen):
        return more
    index = np.flatnonzero(~np.isin(seen["path"].to_numpy(), more["path"].to_numpy()))
    return pa.concat_tables([seen.take(pa.array(index)), more]).combine_chunks()


def _load(work_dir: str, id: str) -> pa.Table:
    try:
        (table,) = content_store.load(work_dir, _name(id), tables=1)
    except FileNotFoundError:
        raise StateError(
            f"the epoch's border {id} is not in {redact(work_dir)}: expected the file {_name(id)}. Name the work_dir "
            "of the run, which all its hosts share"
        ) from None
    return table


def _name(id: str) -> str:
    if not _ID.fullmatch(id):
        raise TableError(f"the id of a border is invalid: got {id[:80]!r}, expected 32 hexadecimal digits")
    return f"follow/{id}.arrow"
