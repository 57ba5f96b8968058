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

from feedline.errors import ClusterError
from feedline.resources.instructions import Cpu, instructions_remedy, level_instructions
from feedline.resources.libm import libc, libm
from feedline.version import VERSION

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
    local = dict(local_environment())
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
