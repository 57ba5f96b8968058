"""The instructions that numpy uses, which decide the last bits of float results.

numpy selects the loops of log1p, exp and others by the processor when it is imported: `NPY_DISABLE_CPU_FEATURES` must
be set before, with names of the running numpy; others are ignored. See
docs/decisions/0011-one-level-of-instructions.md.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from typing import Literal

from numpy._core._multiarray_umath import (  # type: ignore[import-not-found]  # where np.show_runtime looks as well
    __cpu_baseline__,
    __cpu_dispatch__,
    __cpu_features__,
)

from feedline.errors import ClusterError

Cpu = Literal["native", "x86-64-v3"]
DISABLE, ENABLE = "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES"
# numpy's names, over its versions, for the parts of x86-64-v3.
_V3 = frozenset(
    {
        *("MMX", "SSE", "SSE2", "SSE3", "SSSE3", "SSE41", "POPCNT", "SSE42", "LAHF", "CX16", "X86_V2"),
        *("AVX", "F16C", "FMA3", "AVX2", "MOVBE", "BMI", "BMI2", "LZCNT", "X86_V3"),
    }
)


def active_instructions() -> tuple[str, ...]:
    """The instructions that this process's numpy uses, by numpy's names: the baseline and enabled dispatched ones."""
    return (*__cpu_baseline__, *(name for name in __cpu_dispatch__ if __cpu_features__.get(name)))


def level_instructions(cpu: Cpu) -> tuple[str, ...]:
    """The instructions that a process with this numpy must use at a level."""
    if cpu == "native":
        return active_instructions()
    return tuple(name for name in (*__cpu_baseline__, *__cpu_dispatch__) if name in _V3)


def choose_cpu(cpu: Cpu | None, *, shared: bool) -> Cpu:
    """The level of a cluster: the requested one, else x86-64-v3 where machines that may differ share the work.

    On other architectures, and on a processor below the level, the default is native: the workers' instructions are
    compared in any case. Raises ClusterError where x86-64-v3 is requested there.
    """
    reached = platform.machine() in ("x86_64", "AMD64") and all(map(__cpu_features__.get, ("AVX2", "FMA3")))
    if cpu is None:
        return "x86-64-v3" if shared and reached else "native"
    if cpu == "x86-64-v3" and not reached:
        raise ClusterError(
            f"cluster.cpu requests instructions that this machine lacks: got x86-64-v3 on {platform.machine()} with "
            f"{' '.join(active_instructions())}, expected a processor with AVX2 and FMA. Write `cpu: native`"
        )
    return cpu


def cpu_environment(cpu: Cpu) -> dict[str, str]:
    """The environment to set before a process on this machine imports numpy; empty for native."""
    if cpu == "native":
        return {}
    disabled = os.environ.get(DISABLE, "").replace(",", " ").split()  # inactive in this process
    beyond = [name for name in __cpu_dispatch__ if name not in _V3]
    names = [name for name in beyond if __cpu_features__.get(name) or name in disabled]
    # numpy refuses both variables at once, unless one is empty
    return {DISABLE: " ".join(names)} | ({ENABLE: ""} if ENABLE in os.environ else {})


def instructions_remedy(expected: str) -> str:
    """The remedy for a process that must use the expected instructions."""
    required = expected.split()
    missing = [name for name in required if name not in active_instructions()]
    if missing:
        return (
            f"This machine has no {' '.join(missing)}, or {DISABLE} turns it off: remove the machine or the variable, "
            "or see `cluster.cpu`"
        )
    line = disabling_line(set(active_instructions()).difference(required))
    return f"Start it with {line} in its environment, or see `cluster.cpu`"


def disabling_line(names: Iterable[str]) -> str:
    """The line to add to an image or a launcher, to disable these instructions."""
    disabled = set(names)
    return f'{DISABLE}="{" ".join(name for name in __cpu_dispatch__ if name in disabled)}"'
