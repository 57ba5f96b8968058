"""Name the compiled kernels of this installation, and say what those that are missing cost.

Runs in: every process. As a program, `python -m feedline.native.kernels`, for `make install` and images: see `main`.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from feedline.native import parquet, ring, rows

KERNELS = {"parquet": parquet, "ring": ring, "rows": rows}


def compiled_kernels() -> tuple[str, ...]:
    """The kernels that there are: of `parquet`, `ring` and `rows`. One of another release of Feedline is none."""
    return tuple(name for name, module in KERNELS.items() if module.COMPILED)


def kernels_text() -> str:
    """The kernels that there are, in a line."""
    return ", ".join(compiled_kernels()) or "none"


def missing_kernels() -> str:
    """What is missing, what that costs, and the remedy; empty where all kernels are there."""
    if len(compiled_kernels()) == len(KERNELS):
        return ""
    return (
        f"Feedline's compiled kernels are missing: got {kernels_text()}, expected {', '.join(KERNELS)}. Batches are "
        f"the same, and tables with lists are read 2.4 times as slowly. Install a C compiler and Python's headers (on "
        f"Debian and Ubuntu: apt install gcc python3-dev), then Feedline again (make install)"
    )


@cache
def warn_of_missing_kernels() -> None:
    """Warn once per process, at the caller's caller."""
    if complaint := missing_kernels():
        warnings.warn(complaint, UserWarning, stacklevel=3)


def missing_tools() -> list[str]:
    """What a build of the kernels needs and this machine lacks."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    header = Path(sysconfig.get_path("include"), "Python.h")
    return [f"a C compiler ({compiler})"] * (not shutil.which(compiler)) + [str(header)] * (not header.is_file())


def main(arguments: Sequence[str]) -> int:
    """Print what is missing; 1 where a kernel is. With --buildable: print nothing; 1 where none can be built."""
    complaint, tools = missing_kernels(), missing_tools()
    if "--buildable" in arguments:
        return int(not complaint or bool(tools))
    if complaint:
        print(f"warning: {complaint}." + (f" Not found here: {', '.join(tools)}." if tools else ""), file=sys.stderr)
    return int(bool(complaint))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
