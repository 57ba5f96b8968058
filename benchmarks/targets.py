"""Measure Feedline's speed targets that need no GPU, and print them as the Markdown table of docs/performance.md.

    python benchmarks/targets.py                       everything, about 20 minutes on two cores
    python benchmarks/targets.py --only floor,start    some of: floor, start, waiting, writing, commands, ranks
    python benchmarks/targets.py --rows 20000 --rounds 1 --only floor    that it works, not a measurement

Each part is a benchmark of its own (`floor.py`, `first_batch.py`, `waiting_batch.py`, `slot_writing.py`, `ranks.py`),
which is run as a program and interleaves what it compares; its output goes to stderr. Run it on a quiet machine. Exit
code 1 if a part fails; the rows of the others are printed all the same.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import clicks_pipeline, generate_clicks

HERE = Path(__file__).resolve().parent
CONTENDERS = "thread-pool,grain,torchdata-nodes,feedline-off,feedline"
OFF, THROUGH = "feedline-off / best in-process", "after_first_rows_per_s"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: the measure, its figure, its aim, and the program that measures it."""

    measure: str
    figure: str
    aim: str
    program: str


class PartError(Exception):
    """A part of the measurement failed."""


def program(name: str, *arguments: object) -> str:
    """Run a benchmark and return its standard output. Raises PartError if it fails."""
    line = [sys.executable, str(HERE / name), *(str(argument) for argument in arguments)]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(done.stdout)
    if done.returncode != 0:
        raise PartError(f"{name} ended with exit code {done.returncode}")
    return done.stdout


def floor(options: argparse.Namespace) -> list[Row]:
    """The ratios to the loaders that run in the trainer's process."""
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        path = Path(scratch) / "floor.json"
        size = ("--rows", options.rows, "--rounds", options.rounds, *(["--tiny"] if options.rows <= 20_000 else []))
        program("floor.py", "--optimized", *size, "--contenders", CONTENDERS, "--json", path)
        return floor_rows(json.loads(path.read_text())["ratios"])


def floor_rows(ratios: dict[str, dict[str, dict[str, float]]]) -> list[Row]:
    """The table's lines from the ratios of the floor benchmark."""
    wanted = [
        ("rows/s after the first batch, of the best in-process loader", f"plain: {OFF}", THROUGH, "0.97"),
        ("… both on the optimized table", f"optimized: {OFF}", THROUGH, "1.0"),
        (
            "… Feedline on the optimized table, the best loader on the plain one",
            "feedline-off, optimized / best in-process, plain",
            THROUGH,
            "1.22",
        ),
        (
            "CPU-s per million rows after the first batch, of the best in-process loader",
            f"plain: {OFF}",
            "later_cpu_s_per_million_rows",
            "≤ 1.05",
        ),
        (
            "default shuffle, of `shuffle: off`, after the first batch",
            "plain: feedline / feedline-off",
            THROUGH,
            "0.90",
        ),
        (
            "peak memory of feeder and trainer, of the thread pool's process",
            "plain: feedline-off / thread-pool",
            "peak_pss_bytes",
            "≤ 1.1",
        ),
    ]
    rows = []
    for measure, about, key, aim in wanted:
        found = ratios.get(about, {}).get(key)
        figure = "-" if found is None else f"{found['median']:.2f} ({found['min']:.2f}-{found['max']:.2f})"
        rows.append(Row(measure, figure, aim, "floor.py --optimized"))
    return rows


def start(options: argparse.Namespace) -> list[Row]:
    """The first batch."""
    rounds = json.loads(program("first_batch.py", "--rounds", options.rounds, "--json").splitlines()[-1])
    seconds = statistics.median(each["all but trainer imports"] for each in rounds)
    return [Row("first batch, the trainer's own imports apart", f"{seconds:.2f} s", "≤ 0.6 s", "first_batch.py")]


def waiting(options: argparse.Namespace) -> list[Row]:
    """A batch that waits in the ring."""
    rows = []
    for features, aims in ((45, ("≤ 70 µs", "≤ 200 µs")), (350, ("", ""))):
        found = json.loads(program("waiting_batch.py", "--features", features, "--json").splitlines()[-1])
        about = f"`next()` of a waiting batch, {features} features, caches cold"
        rows.append(Row(about, f"{found['next_us']:.0f} µs", aims[0], f"waiting_batch.py --features {features}"))
        about = f"… with all its {found['tensors']} tensors"
        rows.append(Row(about, f"{found['next_with_tensors_us']:.0f} µs", aims[1], rows[-1].program))
    return rows


def writing(options: argparse.Namespace) -> list[Row]:
    """Slots whose blocks are ready."""
    return writing_rows(program("slot_writing.py", "--rounds", options.rounds))


def writing_rows(output: str) -> list[Row]:
    """The table's line from the output of slot_writing.py."""
    found = dict(re.findall(r"^shuffle: (\w+), 2 threads: ([0-9.]+)", output, re.MULTILINE))
    figure = f"{found.get('off', '-')} M; {found.get('on', '-')} M rows/s"
    about = "writing slots when blocks are ready, two threads: `shuffle: off`; default"
    return [Row(about, figure, "8 M rows/s", "slot_writing.py")]


def commands(options: argparse.Namespace) -> list[Row]:
    """Commands that a person waits for."""
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        table, pipeline = Path(scratch) / "table", Path(scratch) / "pipeline.yaml"
        generate_clicks(str(table), ClickRecipe(rows=200_000, days=4, strings=0))
        pipeline.write_text(clicks_pipeline(str(table), work_dir=scratch))
        plan = ["plan", str(pipeline)]
        seconds_of(plan, 1)  # from now on the table is known
        times = {about: seconds_of(words, options.rounds) for about, words in (("--help", ["--help"]), ("plan", plan))}
    runs = f"targets.py --only commands --rounds {options.rounds}"
    return [
        Row("`feedline --help`", f"{times['--help']:.2f} s", "≤ 0.4 s", runs),
        Row("`feedline plan` of a known table", f"{times['plan']:.2f} s", "≤ 1.0 s", runs),
    ]


def seconds_of(arguments: Sequence[str], rounds: int) -> float:
    """Median seconds of a command in a fresh process. Raises PartError if it fails."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "feedline", *arguments], stdout=subprocess.DEVNULL, check=False)
        times.append(time.perf_counter() - began)
        if done.returncode != 0:
            raise PartError(f"feedline {arguments[0]} ended with exit code {done.returncode}")
    return statistics.median(times)


def ranks(options: argparse.Namespace) -> list[Row]:
    """Several ranks on one host."""
    return ranks_rows(program("ranks.py", "--rounds", options.rounds))


def ranks_rows(output: str) -> list[Row]:
    """The table's lines from the output of ranks.py."""

    def figure(pattern: str) -> str:
        found = re.search(rf"^{pattern}: ([0-9.]+)", output, re.MULTILINE)
        return found.group(1) if found else "-"

    speed, memory = figure("two ranks, of one"), figure("memory of a feeder with eight ranks, of one")
    return [
        Row("two ranks on one host together, of one alone", speed, "0.95", "ranks.py"),
        Row("the feeder's memory with 8 ranks, of one rank's; 200,000 files", memory, "≤ 1.5", "ranks.py"),
    ]


PARTS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "floor": floor,
    "start": start,
    "waiting": waiting,
    "writing": writing,
    "commands": commands,
    "ranks": ranks,
}


def markdown(rows: Sequence[Row]) -> str:
    """The table."""
    lines = ["| measure | figure | aim | program |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {row.measure} | {row.figure} | {row.aim} | `{row.program}` |" for row in rows)])


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_000_000, help="of the floor benchmark's table")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(PARTS), help="some of: %(default)s")
    options: Any = parser.parse_args(arguments)
    options.only = options.only.split(",")
    unknown = [name for name in options.only if name not in PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]!r}: expected some of {', '.join(PARTS)}")
    parsed: argparse.Namespace = options
    return parsed


def main(arguments: Sequence[str]) -> int:
    """Run the parts; return the exit code."""
    options = parse(arguments)
    rows: list[Row] = []
    failures = []
    for name in options.only:
        try:
            rows += PARTS[name](options)
        except PartError as error:
            failures.append(str(error))
    print(markdown(rows))
    for failure in failures:
        print(f"missing: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
