"""Check that a worker reads what the feeder reads: the table, and `work_dir` where it writes to it.

Runs in: the feeder, and Dask workers. A missing mount or credential on a worker looks there like a table that is gone;
only the feeder's own look at the file tells the two apart.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

import pyarrow.fs as pafs

from feedline.errors import ClusterError, StoreError, TableError
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.storage.locations import absolute, join, locate, redact

REMEDY = "Mount it at the same path on every worker, with the same access, or give its store's credentials to all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What workers must reach. host: the feeder's. fragment: of one file of the table. work_dir: None where workers do
    not write to it; snapshot: a file in it."""

    host: str
    fragment: Fragment
    work_dir: str | None
    snapshot: str


def unreadable(fragment: Fragment) -> TableError | None:
    """Why this process cannot read the fragment's file; None if it can, or if its store fails for the moment."""
    file = fragment.open()
    try:
        with file:
            return None
    except StoreError:
        return None
    except TableError as error:
        return error


def check_table(reach: Reach) -> None:
    """Raise ClusterError where this worker cannot read the table."""
    error = unreadable(reach.fragment)
    if error is not None:
        raise unreadable_error(f"a worker on {platform.node()}", reach.host, str(error))


def check_work_dir(reach: Reach) -> None:
    """Raise ClusterError where this worker does not see the files that the feeder has in work_dir."""
    if reach.work_dir is None:
        return
    location = locate(absolute(reach.work_dir))
    try:
        info = location.filesystem.get_file_info(join(location.path, reach.snapshot))
        problem = "it is not there" if info.type == pafs.FileType.NotFound else None
    except OSError as error:
        problem = str(error)
    if problem is not None:
        raise ClusterError(
            f"a worker on {platform.node()} cannot read work_dir: {join(redact(reach.work_dir), reach.snapshot)}: "
            f"{problem}, though the feeder on {reach.host} wrote it. The identities of rows that it computes are not "
            f"recorded, so a rebase will refuse them. {REMEDY}"
        )


def unreadable_error(workers: str, feeder: str, message: str) -> ClusterError:
    """The error about workers that cannot read what the feeder reads. message: of the error on the workers."""
    first = message.partition(". ")[0]  # its remedy is that for a table that is gone
    return ClusterError(f"{workers} cannot read the table: {first}; but the feeder on {feeder} reads it. {REMEDY}")
