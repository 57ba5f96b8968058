"""Compare what a block's bytes depend on besides its request: versions, C library, instructions.

Runs in: feeder and workers. The feeder's cluster says what its workers have to be (`environment_at`); each compares
before it computes.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping

import numpy as np
import polars as pl
import pyarrow as pa

from feedline.errors import ClusterError
from feedline.resources import Cpu, instructions_remedy, level_instructions, libc, libm
from feedline.version import VERSION

Environment = tuple[tuple[str, str], ...]

_REMEDIES = {
    "machine": "Name machines of one architecture",
    "libc": "Start every worker from the same image",
    "libm": "exp, pow and sin differ in their last bits: use processors with AVX2 and FMA, and no GLIBC_TUNABLES",
}


def local_environment() -> Environment:
    """This process's: names and values, in an order in which the first difference is the one to mend."""
    return environment_at("native")


def environment_at(cpu: Cpu) -> Environment:
    """The environment of a process like this one that was started at a level (`processor`)."""
    versions = {"feedline": VERSION, "polars": pl.__version__, "pyarrow": pa.__version__, "numpy": np.__version__}
    system = {"machine": platform.machine(), "libc": libc(), "libm": libm()}
    return (*versions.items(), *system.items(), ("cpu", " ".join(level_instructions(cpu))))


def check_environment(expected: Environment) -> None:
    """Raise ClusterError where this process would compute something else than the feeder expects."""
    here = dict(local_environment())
    for name, wanted in expected:
        found = here.get(name, "none")
        if wanted != found:
            versions = "Install the same versions of feedline, polars, pyarrow and numpy on every worker"
            advice = instructions_remedy(wanted) if name == "cpu" else _REMEDIES.get(name, versions)
            raise ClusterError(
                f"a worker on {platform.node()} has another {name}: got {found}, expected {wanted} as in the feeder. "
                f"{advice}"
            )


def environment_text(environment: Environment) -> str:
    """As states carry it."""
    return ", ".join(f"{name} {value}" for name, value in environment)


def environment_differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """What is another here than there: name, here, there. What is not recorded there differs."""
    return [(name, value, there.get(name, "not recorded")) for name, value in here.items() if there.get(name) != value]
