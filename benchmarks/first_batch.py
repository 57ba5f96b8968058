"""Where the time of a start goes: from `FeedlineDataset(...)` to the first batch, phase by phase.

    python benchmarks/first_batch.py                     a generated table of 1 M rows, 5 rounds: medians and ranges
    python benchmarks/first_batch.py --pipeline p.yaml   a pipeline of your own
    python benchmarks/first_batch.py --known             the table's snapshot is in work_dir after the first round
    python benchmarks/first_batch.py --tiny              20,000 rows, one round: a test that it works

Each round is a trainer in a fresh process, whose own imports are apart. `imports`: the feeder's process from its start
to the end of its imports; `plan`: until it has answered with a plan (listing, footers, snapshot, compilation); `first
block`: until the first batch is there (decode, transform, encode, slot); memory: what the feeder has touched by then.
Without cached bytecode (PYTHONDONTWRITEBYTECODE, a source tree that
was never compiled) each feeder compiles the package again: `python -m compileall feedline` mends that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

PHASES = ("trainer imports", "imports", "plan", "first block", "all but trainer imports")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", type=Path, help="default: the click pipeline on a generated table")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the generated table")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--known", action="store_true", help="keep work_dir from round to round")
    parser.add_argument("--shuffle", action="store_true", help="the default shuffle (default: off)")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trainer", nargs=3, help=argparse.SUPPRESS)  # pipeline, overrides, when it was started
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.rounds = 20_000, 1
    return options


def trainer(pipeline: str, overrides: dict[str, object], *, began: float) -> dict[str, float]:
    """Start a dataset and take its first batch. Runs in a process of its own."""
    from feedline import FeedlineDataset

    start = time.monotonic()
    with FeedlineDataset(pipeline, set=overrides) as dataset:
        facts = dataset.facts
        planned = time.monotonic()
        batch = next(iter(dataset))
        first = time.monotonic()
        if not len(batch.labels):
            raise RuntimeError("the first batch is empty")
        status = Path(f"/proc/{facts['feeder']}/status").read_text()
    memory = next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]
    imports = float(facts["imports_s"])
    return {
        "trainer imports": start - began,
        "imports": imports,
        "plan": planned - start - imports,
        "first block": first - planned,
        "all but trainer imports": first - start,
        "memory": int(memory) * 1024,
    }


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """Run all rounds."""
    path = options.pipeline
    if path is None:
        path = _generated(options.rows, folder)
    rounds = []
    for number in range(options.rounds):
        overrides: dict[str, object] = {} if options.shuffle else {"shuffle": "off"}
        overrides["work_dir"] = str(folder / f"work{0 if options.known else number}")
        command = [sys.executable, __file__, "--trainer", str(path), json.dumps(overrides), repr(time.monotonic())]
        run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rounds.append(json.loads(run.stdout.splitlines()[-1]))
    return rounds


def _generated(rows: int, folder: Path) -> Path:
    from feedline.workbench.generate.clicks import ClickRecipe
    from feedline.workbench.generate.generate import clicks_pipeline, generate_clicks

    generate_clicks(str(folder / "table"), ClickRecipe(rows=rows, days=10, strings=0))
    path = folder / "pipeline.yaml"
    path.write_text(clicks_pipeline(str(folder / "table"), batch_size=min(8192, rows // 10), tail="partial"))
    return path


def show(rounds: Sequence[dict[str, float]], console: Console) -> None:
    """Print medians and ranges."""
    table = Table("", "median s", "least", "most")
    for phase in PHASES:
        values = [each[phase] for each in rounds]
        table.add_row(phase, *(f"{value:.2f}" for value in (statistics.median(values), min(values), max(values))))
    console.print(table)
    console.print(f"the feeder's memory: {statistics.median(each['memory'] for each in rounds) / 1e6:,.0f} MB")


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    if options.trainer:
        pipeline, overrides, began = options.trainer
        print(json.dumps(trainer(pipeline, json.loads(overrides), began=float(began))))
        return
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as folder:
        rounds = measure(options, Path(folder))
    if options.json:
        print(json.dumps(rounds))
    else:
        show(rounds, Console())


if __name__ == "__main__":
    main(sys.argv[1:])
