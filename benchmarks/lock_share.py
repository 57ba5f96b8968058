"""For what share of a block thread's time it holds the interpreter's lock, for each shape of the floor benchmark.

    python benchmarks/lock_share.py                          all shapes, in plan order: a line each
    python benchmarks/lock_share.py --shape flat --sites 20  also where the lock is held: functions, and lines
    python benchmarks/lock_share.py --shuffle                with the default shuffle
    python benchmarks/lock_share.py --tables DIR             keep the tables there, for the next time
    python benchmarks/lock_share.py --tiny                   that it works, not a measurement

A process has one lock, so that it delivers at most as many rows per second as a thread that held the lock all the time
would (`at most`), however many threads compute blocks. The shapes are those of `shapes`, but smaller: `flat` in row
groups of 65,536 rows, and `short` the columns of `lists` in row groups of 2,500 rows, without a filter.

Each shape's blocks are computed in the main thread of a process with a feeder's environment, one after the other and
again and again, after each was computed once. Every 0.2 ms of that thread's CPU time, a signal looks whether the
thread holds the lock (`lock_sampler.c`, compiled when this runs: it takes a C compiler and Linux). Other processes'
load changes what a row costs (caches, the cores' clock), the share little: 10,000 looks are exact to 0.01. CPU time is
the thread's own; of a block that Polars' pool computes in part, that of the pool is missing, and the share is one of
the rest. Releases of the lock, Python's frames and native calls are counted, and repeat exactly. Native calls are those
that `sys.setprofile` sees: of Cython's functions, thus of most of pyarrow, none. The digest is of all blocks' bytes, as
they travel: equal ones are equal blocks.

With --sites, the share and the times are those of a thread that also notes where it is: they are a little larger. A
look that comes while native code runs is noted where that returns.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from shape_tables import write_table
from shapes import SHAPES, Shape

from feedline.blocks.compute import pack_block, run_block
from feedline.blocks.jobs import compile_job
from feedline.blocks.request import BlockRequest, Job
from feedline.pipeline import Pipeline
from feedline.resources.allocators import own_or_users
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import generate_clicks

ROWS = {"lists": 262_144, "strings": 262_144, "flat": 1_048_576, "wide": 40_000, "short": 40_000}
GROUP_ROWS = {"flat": 65_536, "short": 2_500}  # of a row group, where not those of the shape
TINY_ROWS = 4_000
PERIOD_NS = 200_000  # of CPU time
SITES_PERIOD_NS = 1_000_000  # where the thread also notes where it is, which takes some 20 us
CALLERS = 3  # of a line that are shown with it


def sampler_library(folder: Path) -> Path:
    """Compile the sampler."""
    library = folder / "lock_sampler.so"
    compiler = os.environ.get("CC") or shutil.which("cc") or (sysconfig.get_config_var("CC") or "cc").split()[0]
    source = Path(__file__).with_name("lock_sampler.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lrt"], check=True)
    return library


def make_table(shape: Shape, folder: Path, rows: int) -> None:
    """Write a shape's table, unless it is there."""
    if folder.exists():
        return
    group_rows = min(GROUP_ROWS.get(shape.name, shape.group_rows), rows)
    if shape.clicks:
        part_rows = 4 * group_rows
        generate_clicks(
            str(folder), ClickRecipe(rows=rows, days=1, strings=0, row_group_rows=group_rows, part_rows=part_rows)
        )
    else:
        write_table(folder, shape, rows=rows, group_rows=group_rows)


def requests_of(shape: Shape, table: Path, work_dir: str, *, shuffle: bool) -> tuple[Job, list[BlockRequest]]:
    """The job, and all blocks of an epoch."""
    text = replace(shape, filter=None).pipeline(str(table.resolve()), batch_size=8192, work_dir=work_dir)
    path = Path(work_dir, "pipeline.yaml")
    path.write_text(text)
    plan = Pipeline.from_yaml(path, {} if shuffle else {"shuffle": "off"}).plan()
    schedule = plan.source.schedule(0)
    blocks = [block for lane in range(plan.lanes) for block in schedule.blocks(lane)]
    return plan.source.job, [plan.request(block, 0) for block in blocks]


def count_calls(compute: Callable[[], None]) -> Counter[str]:
    """Python's frames, native calls and chunks while something is computed."""
    counts: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        counts[event] += 1
        if event == "call" and frame.f_code.co_qualname == "BlockEncoder.add":
            counts["chunk"] += 1

    sys.setprofile(profile)
    try:
        compute()
    finally:
        sys.setprofile(None)
    return counts


class Sites:
    """Where the lock is held: the looks that find it so, by the lines that run or that called what runs, innermost
    first."""

    def __init__(self, counts: Any) -> None:
        self._counts, self._seen, self._busy = counts, 0, False
        self._held: Counter[tuple[tuple[CodeType, int], ...]] = Counter()

    def __call__(self, _: int, frame: FrameType | None) -> None:
        held, self._seen = self._counts[0] - self._seen, self._counts[0]
        if not held or self._busy:
            return
        self._busy, stack = True, []
        while frame is not None:
            stack.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        self._held[tuple(stack)] += held
        self._busy = False

    def most(self, count: int) -> dict[str, float]:
        """The functions, with all that they call, and then the lines, with callers, that hold it most: the share of
        each."""
        functions, lines, total = Counter[str](), Counter[str](), max(sum(self._held.values()), 1)
        for stack, held in self._held.items():
            names = [f"{Path(code.co_filename).name}:{line} {code.co_qualname}" for code, line in stack[: 1 + CALLERS]]
            lines[" < ".join(names)] += held
            functions.update(
                dict.fromkeys({f"{Path(code.co_filename).name} {code.co_qualname}" for code, _ in stack}, held)
            )
        most = [*functions.most_common(count), *lines.most_common(count)]
        return {name: held / total for name, held in most}


def measure(shape: Shape, table: Path, work_dir: str, options: argparse.Namespace) -> dict[str, Any]:
    """What the blocks of a table take."""
    job, requests = requests_of(shape, table, work_dir, shuffle=options.shuffle)
    rows = sum(request.rows for request in requests)
    layout, digest = compile_job(job).layout, hashlib.sha256()
    for request in requests:
        digest.update(pack_block(layout, run_block(job, request, "block", False).parts or ()))

    def compute() -> None:
        for request in requests:
            run_block(job, request, "block", False)

    compute()
    gc.freeze()  # as a feeder and its workers do: full collections would visit all that was imported
    sampler = ctypes.CDLL(options.sampler)
    counts = (ctypes.c_long * 2).in_dll(sampler, "counts")
    sites = Sites(counts)
    signal.signal(signal.SIGPROF, sites)
    rounds, began_s = 0, time.thread_time()
    if not sampler.start(ctypes.c_long(SITES_PERIOD_NS if options.sites else PERIOD_NS), int(options.sites > 0)):
        raise OSError("neither a perf event nor a timer on a thread's CPU time is to be had")
    while (cpu_s := time.thread_time() - began_s) < options.seconds or not rounds:
        compute()
        rounds += 1
    sampler.stop()
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    releases = ctypes.c_long.in_dll(sampler, "releases").value / rounds
    calls = count_calls(compute)
    held, all_looks = counts
    share = held / max(all_looks, 1)
    row_ns = 1e9 * cpu_s / rounds / rows
    return {
        "shape": shape.name,
        "rows": rows,
        "blocks": len(requests),
        "chunks": calls["chunk"],
        "columns": len(shape.columns),
        "looks": all_looks,
        "share": share,
        "row_ns": row_ns,
        "held_row_ns": share * row_ns,
        "releases": releases / len(requests),
        "frames": calls["call"] / len(requests),
        "native_calls": calls["c_call"] / len(requests),
        "digest": digest.hexdigest()[:16],
        "sites": sites.most(options.sites),
    }


def describe(found: Mapping[str, Any]) -> str:
    """Lines of figures."""
    chunks = found["chunks"] / found["blocks"]
    text = (
        f"{found['shape']}: lock held {found['share']:.3f} of {found['row_ns']:,.0f} ns of CPU per row, "
        f"{found['held_row_ns']:,.1f} ns: at most {1e3 / max(found['held_row_ns'], 1e-9):,.1f} M rows/s; "
        f"{found['rows'] / found['blocks']:,.0f} rows and {chunks:.1f} chunks of {found['columns']} columns a block: "
        f"{found['releases']:,.0f} releases, {found['frames']:,.0f} frames, {found['native_calls']:,.0f} native calls; "
        f"digest {found['digest']}"
    )
    return "\n".join([text, *(f"  {share:6.1%} {site}" for site, share in found["sites"].items())])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(ROWS), action="append", help="(default: all)")
    parser.add_argument("--shuffle", action="store_true", help="with the default shuffle")
    parser.add_argument("--seconds", type=float, default=5.0, help="of CPU time, of each shape (default: %(default)s)")
    parser.add_argument(
        "--sites", type=int, default=0, metavar="N", help="show the N functions and lines that hold it most"
    )
    parser.add_argument("--tables", metavar="DIR", help="keep the tables there")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--tiny", action="store_true", help="few rows: a test")
    parser.add_argument("--sampler", help=argparse.SUPPRESS)  # this process measures
    options = parser.parse_args(arguments)
    if options.tiny:
        options.seconds = 0.0
    names = options.shape or list(ROWS)
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="feedline-bench-"))
        tables = Path(options.tables or scratch)
        if options.sampler is not None:
            found = measure(SHAPES[names[0]], tables / names[0], scratch, options)
            print(json.dumps(found) if options.json else describe(found), flush=True)
            return 0
        library = sampler_library(Path(scratch))
        for name in names:
            make_table(SHAPES[name], tables / name, TINY_ROWS if options.tiny else ROWS[name])
            own = {"POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "LD_PRELOAD": str(library)}
            others = [argument for argument in arguments if argument not in (*ROWS, "--shape")]
            command = [sys.executable, __file__, *others, "--shape", name, "--tables", tables, "--sampler", library]
            subprocess.run(command, env=os.environ | own_or_users(1, os.environ) | own, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
