"""The environment that a block's bytes depend on besides its request: versions, C library, instructions.

Runs in: feeder and workers. The feeder's cluster determines the environment of its workers (`environment_at`); each
worker checks its own before it computes.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs

from feedline.dataclass import dataclass
from feedline.errors import ClusterError, StoreError, TableError
from feedline.resources.instructions import Cpu, instructions_remedy, level_instructions
from feedline.resources.libm import libc, libm
from feedline.version import VERSION
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.storage.locations import absolute, join, locate, redact

Environment = tuple[tuple[str, str], ...]

_REMEDIES = {
    "machine": "Name machines of one architecture",
    "libc": "Start every worker from the same image",
    "libm": "exp, pow and sin differ in their last bits: use processors with AVX2 and FMA, and no GLIBC_TUNABLES",
}


def local_environment() -> Environment:
    """The environment of this process, ordered so that the first difference is the one to fix."""
    return environment_at("native")


def environment_at(cpu: Cpu) -> Environment:
    """The environment of a process on this host that was started with another `cluster.cpu`."""
    versions = {"feedline": VERSION, "polars": pl.__version__, "pyarrow": pa.__version__, "numpy": np.__version__}
    system = {"machine": platform.machine(), "libc": libc(), "libm": libm()}
    return (*versions.items(), *system.items(), ("cpu", " ".join(level_instructions(cpu))))


def check_environment(expected: Environment) -> None:
    """Raise ClusterError if this process differs from the environment that the feeder expects."""
    local_items = local_environment()
    if local_items == expected:
        return
    local = dict(local_items)
    for name, value in expected:
        actual = local.get(name, "none")
        if value != actual:
            versions = "Install the same versions of feedline, polars, pyarrow and numpy on every worker"
            advice = instructions_remedy(value) if name == "cpu" else _REMEDIES.get(name, versions)
            raise ClusterError(
                f"a worker on {platform.node()} has another {name}: got {actual}, expected {value} as in the feeder. "
                f"{advice}"
            )


def environment_text(environment: Environment) -> str:
    """The environment as one string, as in states."""
    return ", ".join(f"{name} {value}" for name, value in environment)


def environment_differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """The differences (name, here, there); a value not recorded there counts as different."""
    return [(name, value, there.get(name, "not recorded")) for name, value in here.items() if there.get(name) != value]


# --------------------------------------------------------------------------------------------------------------------
# Check that a worker reads what the feeder reads: the table, and `work_dir` where it writes to it. A missing mount or
# credential on a worker looks there like a table that is gone; only the feeder's own look at the file tells the two
# apart.

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
