"""Rows per second over the cores of a host: Feedline beside other loaders, measured, and predicted beyond that.

    python benchmarks/cores.py                       1, 2, 4, 8, 16 and all cores, as far as the machine has them
    python benchmarks/cores.py --quick               small tables, one round: under five minutes on two cores
    python benchmarks/cores.py --ranks 1,8 --busy 5  also eight trainers, each of which works 5 ms per batch
    python benchmarks/cores.py --json cores.json     for `cores_page.py`, which draws the curves
    python benchmarks/cores.py --tiny                that it works, not a measurement

The shapes, the contenders and what is measured of them are those of `floor.py`; Feedline runs with a process per core
(by default it has threads on two), in the table's order (`feedline-off`) and with the default shuffle. A run has its
cores by affinity, which all of its processes inherit: one hardware thread per physical core first, nodes of memory one
after the other. The other loaders get as many threads or workers as there are cores and, from four cores on, half and a
quarter as many in a first round of their own: what was fastest is what they are measured with. On more cores the table
is read several times, so that runs do not become too short. A trainer reads every value once: on many cores that limits
a single one. Rounds are interleaved; figures are medians. With `--ranks`, the trainers of a host share rows, threads
and workers (`rank_trainers.py`); rates and CPU time are those of all together, while all have batches.

From a run of Feedline on few cores (default: two), the CPU time of its parts per row, the bytes that blocks and batches
have, and what the machine copies per second, `cores_model.py` predicts the rate on every number of cores, also on those
that were measured, beside which it says how far it is from the measurement. The share of a block thread's time for
which it holds the interpreter's lock (`lock_share.py`) says what threads in one process could deliver instead.

Exit code 1 if a contender fails or delivers other rows; the others are measured all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import floor
import numpy as np
from agreement import Agreement
from checksums import differences
from contenders import CONTENDERS
from cores_model import Costs, apart, predict, threads_alone
from floor_tables import PLAIN, BenchmarkError, cached_files, open_tables
from rich.console import Console
from rich.table import Table
from shapes import SHAPES
from workload import row_groups

from feedline.blocks.compute import run_block
from feedline.commands.plan.views import describe_plan
from feedline.pipeline import Pipeline
from feedline.resources.cgroups import affinity, available_cores

HERE = Path(__file__).resolve().parent
CORES = (1, 2, 4, 8, 16)
COUNTED_ON = 2
LOADERS = ("feedline-off", "feedline", "thread-pool", "torchdata-nodes", "grain-processes", "dataloader")
QUICK_ROWS = {"lists": 1_000_000, "short": 1_400_000, "wide": 100_000, "strings": 1_000_000, "flat": 5_000_000}
GROUP_ROWS = {"flat": 82_000}  # of a row group: 20 of a million rows are too few for 16 cores
EPOCHS = {"short": 3}  # a filter leaves few of its rows
CORES_PER_EPOCH = 4  # a table is read once more for each further four cores
COPY_BYTES, COPY_S = 1 << 26, 0.4
RATE, CPU = "after_first_rows_per_s", "later_cpu_s_per_million_rows"


# -- the machine ------------------------------------------------------------------------------------------------------


def cpu_order() -> list[int]:
    """The CPUs that this process may run on: one hardware thread of each core first, node by node."""

    def place(cpu: int) -> tuple[int, int, int]:
        folder = Path(f"/sys/devices/system/cpu/cpu{cpu}")
        node = min((int(path.name[4:]) for path in folder.glob("node[0-9]*")), default=0)
        return _siblings(folder).index(cpu) if cpu in _siblings(folder) else 0, node, cpu

    return sorted(affinity(), key=place)


def _siblings(folder: Path) -> list[int]:
    """The hardware threads of a CPU's core."""
    with contextlib.suppress(OSError, ValueError):
        found: list[int] = []
        for part in (folder / "topology/thread_siblings_list").read_text().strip().split(","):
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
        return found
    return []


@contextlib.contextmanager
def on_cores(cpus: Sequence[int]) -> Iterator[None]:
    """This process, and all that it starts, on these CPUs only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def copied_bytes_per_s(threads: int) -> float:
    """Bytes that so many threads copy per second, each between buffers of its own beyond the caches."""
    buffers = [(np.ones(COPY_BYTES, np.uint8), np.zeros(COPY_BYTES, np.uint8)) for _ in range(threads)]
    begin, copies = threading.Barrier(threads), [0.0] * threads

    def copy(number: int) -> None:
        source, target = buffers[number]
        np.copyto(target, source)  # its pages are there from now on
        begin.wait()
        began_s, count = time.perf_counter(), 0
        while (passed_s := time.perf_counter() - began_s) < COPY_S:
            np.copyto(target, source)
            count += 1
        copies[number] = count * COPY_BYTES / passed_s

    workers = [threading.Thread(target=copy, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(copies)


# -- what the model needs ---------------------------------------------------------------------------------------------


def block_facts(table: Path, shape: str, options: argparse.Namespace, ranks: int) -> dict[str, float]:
    """Of the table's blocks: rows, bytes per row when handed over, and how many the memory of all ranks holds."""
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        path = Path(scratch) / "pipeline.yaml"
        path.write_text(SHAPES[shape].pipeline(str(table.resolve()), batch_size=options.batch_size, work_dir=scratch))
        plan = Pipeline.from_yaml(path, {"shuffle": "off", "lanes": ranks}).plan(world_size=ranks)
        blocks = list(plan.source.schedule(0).blocks(0))
        request = plan.request(blocks[len(blocks) // 2], 0)
        buffers: list[pickle.PickleBuffer] = []
        pickle.dumps(run_block(plan.source.job, request, "block", False), 5, buffer_callback=buffers.append)
        memory = describe_plan(plan, ranks)["memory"]
        return {
            "block_rows": request.rows,
            "block_bytes_per_row": sum(buffer.raw().nbytes for buffer in buffers) / request.rows,
            "blocks_in_memory": ranks * max(1, memory["budget_bytes"] // ranks // max(1, memory["block_bytes"])),
        }


def lock_share(shape: str, options: argparse.Namespace) -> dict[str, float]:
    """The share of a block thread's time for which it holds the interpreter's lock, and its CPU ns per row."""
    size = ["--tiny"] if options.tiny else ["--seconds", "1" if options.quick else "5"]
    command = [sys.executable, str(HERE / "lock_share.py"), "--shape", shape, *size, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"lock_share.py ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return {"lock_share": found["share"], "thread_row_ns": found["row_ns"]}


def costs_of(counted: Mapping[str, float]) -> Costs:
    """The costs of a row from what was counted."""
    return Costs(
        block_s=counted["blocks_row_s"],
        loop_s=counted["loop_row_s"],
        feeder_s=counted["feeder_row_s"],
        trainer_s=counted["trainer_row_s"],
        copied_bytes=counted["block_bytes_per_row"] + counted["batch_bytes_per_row"],
        blocks_in_memory=int(counted["blocks_in_memory"]),
    )


# -- measuring --------------------------------------------------------------------------------------------------------

Runs = dict[tuple[int, str], list[dict[str, Any]]]  # cores and contender -> results of the rounds


class Measurement:
    """The runs of one shape and number of ranks, interleaved."""

    def __init__(
        self, shape: str, ranks: int, table: Path, options: argparse.Namespace, console: Console, units: int
    ) -> None:
        self._shape, self._ranks, self._table, self._console, self._units = shape, ranks, table, console, units
        self._options, self._files = options, cached_files(table, options.rows)
        self._agreement, self._expected = Agreement(SHAPES[shape]), dict[int, Any]()
        self._threads: dict[tuple[int, str], int] = {}
        self.runs: Runs = defaultdict(list)
        self.failed: list[str] = []

    def measure(self, cores: Sequence[int], names: Sequence[str], rounds: int) -> None:
        """Run the rounds; the first of them chooses the settings."""
        left = {(count, name) for count in cores for name in names if not self._is_left_out(count, name)}
        for number in range(rounds):
            turn = number % len(names)
            for count in cores:
                for name in [*names[turn:], *names[:turn]]:
                    if (count, name) not in left:
                        continue
                    try:
                        self._round(count, name, first=number == 0)
                    except BenchmarkError as error:
                        left.discard((count, name))
                        self.failed.append(f"{self._shape}, {count} cores, {name}: {error}")
                        self._console.print(self.failed[-1], style="red", markup=False, highlight=False)

    def _is_left_out(self, cores: int, name: str) -> bool:
        """A worker process beside the trainer on one core takes seconds to start, and shows nothing."""
        return bool(self._options.quick) and cores == 1 and CONTENDERS[name].role == "processes"

    def _round(self, cores: int, name: str, *, first: bool) -> None:
        choices = settings_of(name, cores) if first else (self._threads[cores, name],)
        results = {threads: self._run(cores, name, threads) for threads in choices}
        best = max(results, key=lambda threads: results[threads][RATE] or 0.0)
        self._threads[cores, name] = best
        self.runs[cores, name].append(results[best])

    def _run(self, cores: int, name: str, threads: int) -> dict[str, Any]:
        epochs = EPOCHS.get(self._shape, 1) * max(1, cores // CORES_PER_EPOCH)
        options = argparse.Namespace(**{**vars(self._options), "threads": threads})
        with on_cores(self._options.cpus[:cores]):
            result = floor.run(
                name,
                self._files,
                self._table,
                options,
                self._units,
                epochs=epochs,
                settings={"cluster.processes": cores, **self._options.settings},
                ranks=self._ranks,
            )
        wrong = self._wrong(name, result, epochs)
        if wrong:
            raise BenchmarkError(f"it {wrong}")
        rate = result[RATE]
        words = "too short" if rate is None else f"{rate / 1e3:,.0f} k rows/s"
        of_threads = "" if CONTENDERS[name].role == "feedline" else f" with {threads}"
        ranks = f", {self._ranks} ranks" if self._ranks > 1 else ""
        self._console.print(f"{self._shape}{ranks}, {cores} cores: {name}{of_threads} {words}", highlight=False)
        return {**result, "threads": threads}

    def _wrong(self, name: str, result: dict[str, Any], epochs: int) -> str | None:
        sample = result.pop("sample")
        if self._ranks == 1 and epochs == EPOCHS.get(self._shape, 1):
            return self._agreement.wrong(name, result, sample, self._files)
        expected = self._expected.setdefault(epochs, result["checksums"])
        found = differences(expected, result["checksums"])
        return f"disagrees with another one in {'; '.join(found)}" if found else None


def settings_of(name: str, cores: int) -> tuple[int, ...]:
    """Threads or workers that are tried on so many cores."""
    # thread-pool: 1 -> (1,), 2 -> (2,), 8 -> (8, 4, 2), 16 -> (16, 8, 4); Feedline chooses for itself
    if CONTENDERS[name].role == "feedline" or cores < 4:
        return (cores,)
    return cores, cores // 2, cores // 4


def summarize(shape: str, ranks: int, runs: Runs) -> list[dict[str, Any]]:
    """Medians of the rounds."""
    found = []
    for (cores, name), results in runs.items():
        rates = [each[RATE] for each in results if each[RATE] is not None]
        cpu = [each[CPU] for each in results if each[CPU] is not None]
        found.append(
            {
                "shape": shape,
                "ranks": ranks,
                "cores": cores,
                "contender": name,
                "threads": None if CONTENDERS[name].role == "feedline" else results[-1]["threads"],
                "rounds": len(results),
                "rows_per_s": statistics.median(rates) if rates else None,
                "rows_per_s_range": [min(rates), max(rates)] if rates else None,
                "cpu_s_per_million_rows": statistics.median(cpu) if cpu else None,
                "first_batch_s": statistics.median(each["first_batch_s"] for each in results),
            }
        )
    return found


def counted_costs(runs: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """CPU seconds per row of the parts of Feedline's runs, and the bytes of a batch per row; medians of the rounds."""
    whole = [each for each in runs if each["parts_cpu_s"] and each["parts_rows"]]
    if not whole:
        return None
    found = {
        f"{part}_row_s": statistics.median(each["parts_cpu_s"][part] / each["parts_rows"] for each in whole)
        for part in ("blocks", "feeder", "loop", "trainer")
    }
    return found | {"batch_bytes_per_row": whole[0]["batch_bytes_per_row"]}


# -- predicting -------------------------------------------------------------------------------------------------------


def predictions(
    counted: Mapping[str, float], copies: Mapping[int, float], measured: Sequence[Mapping[str, Any]], *, ranks: int
) -> list[dict[str, Any]]:
    """The rate on each number of cores, what bounds it, and how far it is from the measured one, if there is one."""
    rates = {each["cores"]: each["rows_per_s"] for each in measured if each["contender"] == "feedline-off"}
    found = []
    for cores in sorted({*CORES, *rates}):
        prediction = predict(costs_of(counted), copies, cores, ranks=ranks)
        rate, share = rates.get(cores), counted.get("lock_share")
        threads = counted["thread_row_ns"] / 1e9 if share is not None else None
        found.append(
            {
                "cores": cores,
                "rows_per_s": prediction.rows_per_s,
                "bound": prediction.bound,
                "bounds": dict(prediction.bounds),
                "threads_alone_rows_per_s": threads_alone(threads, share, cores) if threads and share else None,
                "measured_rows_per_s": rate,
                "apart": None if rate is None else apart(prediction.rows_per_s, rate),
            }
        )
    return found


# -- the report -------------------------------------------------------------------------------------------------------


def show(part: Mapping[str, Any], console: Console) -> None:
    """Print the tables of a shape: what was measured, what was counted, and what that predicts."""
    measured, ranks = part["measured"], part["ranks"]
    cores = sorted({each["cores"] for each in measured})
    title = f"{part['shape']}: {part['rows']:,} rows" + (f", {ranks} ranks" if ranks > 1 else "")
    grid = Table("contender", title=f"{title}; M rows/s, CPU-s per M rows", title_justify="left")
    for count in cores:
        grid.add_column(f"{count} cores", justify="right")
    for name in dict.fromkeys(each["contender"] for each in measured):
        own = {each["cores"]: each for each in measured if each["contender"] == name}
        grid.add_row(name, *(_cell(own.get(count)) for count in cores))
    console.print(grid)
    for count in cores:
        ratio = of_best(measured, count)
        if ratio is not None:
            console.print(f"{count} cores: feedline-off is {ratio:.2f} of the best other loader", highlight=False)
    if part["counted"] is None:
        return
    counted = part["counted"]
    console.print(
        f"counted on {part['counted_on']} cores, CPU ns per row: blocks {1e9 * counted['blocks_row_s']:,.0f}, feeder's "
        f"loop {1e9 * counted['loop_row_s']:,.1f}, its other threads {1e9 * counted['feeder_row_s']:,.1f}, trainers "
        f"{1e9 * counted['trainer_row_s']:,.1f}; bytes per row: {counted['block_bytes_per_row']:,.0f} of a block, "
        f"{counted['batch_bytes_per_row']:,.0f} of a batch; {counted['block_rows']:,.0f} rows per block",
        highlight=False,
    )
    if "lock_share" in counted:
        share = counted["lock_share"]
        console.print(
            f"lock held {share:.2f} of a block thread's time: threads of one process at most {1 / share:.1f} cores",
            highlight=False,
        )
    grid = Table("cores", title=f"{title}; predicted", title_justify="left")
    for heading in ("M rows/s", "bound by", "measured", "apart", "threads alone, at most"):
        grid.add_column(heading, justify="right")
    for each in part["predicted"]:
        grid.add_row(
            str(each["cores"]),
            _millions(each["rows_per_s"]),
            each["bound"],
            _millions(each["measured_rows_per_s"]),
            "-" if each["apart"] is None else f"{each['apart']:+.0%}",
            _millions(each["threads_alone_rows_per_s"]),
        )
    console.print(grid)


def of_best(measured: Sequence[Mapping[str, Any]], cores: int) -> float | None:
    """Feedline's rate in the table's order, of the best other loader's."""
    rates = {each["contender"]: each["rows_per_s"] for each in measured if each["cores"] == cores}
    others = [rate for name, rate in rates.items() if rate and CONTENDERS[name].role != "feedline"]
    ours = rates.get("feedline-off")
    return ours / max(others) if ours and others else None


def _cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "-"
    cpu, threads = found["cpu_s_per_million_rows"], found["threads"]
    return f"{_millions(found['rows_per_s'])}; {'-' if cpu is None else f'{cpu:.2f}'}" + (
        "" if threads in (None, found["cores"]) else f" ({threads})"
    )


def _millions(rate: float | None) -> str:
    return "-" if rate is None else f"{rate / 1e6:,.3g}"


# -- the program ------------------------------------------------------------------------------------------------------


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", default=",".join(map(str, CORES)) + ",all", help="(default: %(default)s)")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="some of: %(default)s")
    parser.add_argument("--rows", type=int, help="of each shape's table (default: as many as `floor.py` has)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contenders", default=",".join(LOADERS), help="some of `floor.py`'s (default: %(default)s)")
    parser.add_argument("--ranks", default="1", help="trainers of the host (default: %(default)s)")
    parser.add_argument("--busy", type=float, default=0, metavar="MS", help="a trainer's own work per batch")
    parser.add_argument("--batch-size", type=int, default=8192)
    parser.add_argument(
        "--bandwidth",
        type=float,
        metavar="GB",
        help="bytes per second that a host of more cores copies (default: extrapolated from what this one copies)",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="override Feedline's pipeline")
    parser.add_argument("--tables", metavar="DIR", help="keep the tables there, for the next time")
    parser.add_argument("--no-lock", action="store_true", help="leave out lock_share.py, which takes a C compiler")
    parser.add_argument("--json", metavar="FILE", help="write everything there, after each shape")
    parser.add_argument("--quick", action="store_true", help="small tables, one round")
    parser.add_argument("--tiny", action="store_true", help="few rows, one round: a test, not a measurement")
    options = parser.parse_args(arguments)
    options.shapes, options.contenders = options.shapes.split(","), options.contenders.split(",")
    for what, names, known in (("shape", options.shapes, SHAPES), ("contender", options.contenders, CONTENDERS)):
        unknown = [name for name in names if name not in known]
        if unknown:
            parser.error(f"no {what} is called {unknown[0]!r}: expected some of {', '.join(known)}")
    try:
        options.ranks = [int(count) for count in options.ranks.split(",")]
        options.cores = sorted({available_cores() if n == "all" else int(n) for n in options.cores.split(",")})
        options.settings = {key: json.loads(value) for key, _, value in (each.partition("=") for each in options.set)}
    except ValueError as error:
        parser.error(f"cores and ranks are integers, settings are JSON: {error}")
    if options.quick or options.tiny:
        options.rounds = 1
    if min(options.rounds, options.batch_size, *options.ranks, *options.cores) < 1 or options.busy < 0:
        parser.error("rounds, batch size, ranks and cores are at least 1, busy is not negative")
    return options


def table_options(shape: str, options: argparse.Namespace) -> argparse.Namespace:
    """The options of `floor.py` for a shape."""
    rows = options.rows or (QUICK_ROWS[shape] if options.quick else None)
    words = ["--shape", shape, "--batch-size", str(options.batch_size), "--busy", str(options.busy)]
    words += [] if rows is None else ["--rows", str(rows)]
    words += ["--group-rows", str(GROUP_ROWS[shape])] if shape in GROUP_ROWS and not options.tiny else []
    words += ["--table", str(Path(options.tables) / f"{shape}-{rows or 'all'}")] if options.tables else []
    found = floor.parse([*words, *(["--tiny"] if options.tiny else [])])
    found.cpus, found.settings, found.quick = options.cpus, options.settings, options.quick
    return found


def run_shape(
    shape: str, names: Sequence[str], copies: Mapping[int, float], options: argparse.Namespace, console: Console
) -> tuple[list[dict[str, Any]], list[str]]:
    """Measure a shape with each number of ranks, and predict; also return what failed."""
    own = table_options(shape, options)
    parts, failed = [], []
    with open_tables(own) as tables:
        files, chosen = cached_files(tables[PLAIN], own.rows), SHAPES[shape].filter
        groups = len(row_groups(files if chosen is None else chosen.files(files)))
        units = floor.calibrate(options.busy, shape)
        for ranks in options.ranks:
            if groups < ranks:
                console.print(f"{shape}, {ranks} ranks: skipped, its table has {groups} row groups")
                continue
            measurement = Measurement(shape, ranks, tables[PLAIN], own, console, units)
            measurement.measure(options.cores, names, options.rounds)
            failed += measurement.failed
            measured = summarize(shape, ranks, measurement.runs)
            counted_on = max((count for count in options.cores if count <= COUNTED_ON), default=min(options.cores))
            counted: dict[str, float] | None = counted_costs(measurement.runs.get((counted_on, "feedline-off"), []))
            if counted is not None:
                counted |= block_facts(tables[PLAIN], shape, own, ranks)
                if not options.no_lock:
                    try:
                        counted |= lock_share(shape, options)
                    except BenchmarkError as error:
                        console.print(f"{shape}: the share of the lock is left out: {error}", markup=False)
            part = {"shape": shape, "ranks": ranks, "rows": own.rows, "measured": measured, "counted": counted}
            part["counted_on"] = counted_on
            part["predicted"] = predictions(counted, copies, measured, ranks=ranks) if counted else []
            show(part, console)
            parts.append(part)
    return parts, failed


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    options.cpus, here = cpu_order(), available_cores()
    skipped = [count for count in options.cores if count > min(here, len(options.cpus))]
    options.cores = [count for count in options.cores if count not in skipped]
    if skipped:
        console.print(f"{', '.join(map(str, skipped))} cores: skipped, this machine has {here}", highlight=False)
    if not options.cores:
        return 2
    try:
        names = floor.available(options.contenders, console)
    except BenchmarkError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    with on_cores(options.cpus[: max(options.cores)]):
        copies = {count: copied_bytes_per_s(count) for count in options.cores}
    console.print(
        "copied: " + ", ".join(f"{rate / 1e9:.1f} GB/s by {count} threads" for count, rate in copies.items()),
        highlight=False,
    )
    if options.bandwidth is not None:
        copies |= {count: options.bandwidth * 1e9 for count in CORES if count > max(copies)}
    found: dict[str, Any] = {
        "machine": floor.machine() | {"cpus": options.cpus[: max(options.cores)]},
        "options": {key: value for key, value in vars(options).items() if key != "cpus"},
        "copied_bytes_per_s": copies,
        "parts": [],
    }
    failed = []
    for shape in options.shapes:
        try:
            parts, wrong = run_shape(shape, names, copies, options, console)
        except BenchmarkError as error:
            parts, wrong = [], [f"{shape}: {error}"]
            console.print(wrong[0], style="red", markup=False, highlight=False)
        found["parts"] += parts
        failed += wrong
        if options.json:
            Path(options.json).write_text(json.dumps(found, indent=1))
    for each in failed:
        first, *others = each.rstrip().splitlines()
        console.print(f"failed: {' … '.join([first, *others[-1:]])}", style="red", markup=False, highlight=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
