"""What the borders between epochs cost: many short epochs beside one long one.

    python benchmarks/epochs.py                1 x 5 M rows, 5 x 1 M (about a second each), 100 x 50,000; 5 rounds
    python benchmarks/epochs.py --busy 5       a trainer that works 5 ms per batch
    python benchmarks/epochs.py --folder DIR   tables are kept there, and found again
    python benchmarks/epochs.py --tiny         20,000 rows instead of 5 M, one round: a test that it works

The three tables hold the same 45 features of clicks, in row groups of 50,000 rows. In each round, each is read by a
dataset of its own, with `shuffle: off` and with the default shuffle, and the clock starts at the first batch. Prints,
for each length of an epoch, rows per second, their share of the long epoch's (median, least and most of the rounds'
ratios), and the median wait of an epoch's first step: from the end of the last step before it, `iter` included.
`--json` prints one object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from feedline import FeedlineDataset
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import clicks_pipeline, generate_clicks

GROUP_ROWS = 50_000
SHUFFLES = {"off": {"shuffle": "off"}, "default": {}}


@dataclass(frozen=True, slots=True)
class Length:
    """A table, read for some epochs."""

    name: str
    rows: int
    epochs: int


@dataclass(slots=True)
class Run:
    """rows_per_s: after the first batch. waits_s: of the first step of each epoch after the first. waited: the share of
    the time in which the trainer waited for a batch."""

    rows_per_s: float
    waits_s: list[float] = field(default_factory=list)
    waited: float = 0.0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=5_000_000, help="of the long epoch, and of the short ones together")
    parser.add_argument("--busy", type=float, default=0.0, help="milliseconds of the trainer's own work per batch")
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--only", choices=SHUFFLES, help="one of the shuffles")
    parser.add_argument("--folder", type=Path, help="of the tables (default: a temporary one)")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rounds, options.rows, options.batch_size = 1, 20_000, 64
    return options


def lengths(rows: int) -> tuple[Length, ...]:
    """One long epoch, and the same rows in short ones."""
    return Length("one epoch", rows, 1), Length("a second", rows // 5, 5), Length("short", rows // 100, 100)


def pipeline_of(length: Length, options: argparse.Namespace, folder: Path) -> Path:
    """The pipeline of a generated table, made unless it is there."""
    place = folder / f"epochs-{length.rows}"
    path = place / "pipeline.yaml"
    if not path.exists():
        days, group = max(1, length.rows // 500_000), min(length.rows, GROUP_ROWS)
        recipe = ClickRecipe(rows=length.rows, days=days, strings=0, row_group_rows=group, part_rows=5 * group)
        generate_clicks(str(place / "table"), recipe)
    text = clicks_pipeline(str(place / "table"), batch_size=options.batch_size, work_dir=str(place / "work"))
    path.write_text(text)
    return path


def read(path: Path, overrides: dict[str, object], length: Length, *, busy_s: float) -> Run:
    """Read the epochs with a new dataset."""
    run, rows = Run(0.0), 0
    with FeedlineDataset(path, set=overrides) as dataset:
        ended = began = 0.0
        for _ in range(length.epochs):
            for step, batch in enumerate(dataset):
                now = time.perf_counter()
                if not began:
                    began, waited = now, dataset.stats().wait_s
                else:
                    rows += batch.rows
                    if not step:
                        run.waits_s.append(now - ended)
                until = now + busy_s
                while time.perf_counter() < until:
                    pass
                ended = time.perf_counter()
        run.rows_per_s = rows / (ended - began)
        run.waited = (dataset.stats().wait_s - waited) / (ended - began)
    return run


def measure(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, list[Run]]]:
    """Run all rounds. By shuffle and name of the length, a run per round."""
    paths = {length: pipeline_of(length, options, folder) for length in lengths(options.rows)}
    shuffles = [options.only] if options.only else list(SHUFFLES)
    runs: dict[str, dict[str, list[Run]]] = {each: {length.name: [] for length in paths} for each in shuffles}
    for _ in range(options.rounds):
        for shuffle in shuffles:
            for length, path in paths.items():
                run = read(path, dict(SHUFFLES[shuffle]), length, busy_s=options.busy / 1000)
                runs[shuffle][length.name].append(run)
    return runs


def figures(runs: dict[str, list[Run]]) -> dict[str, dict[str, float]]:
    """By name of the length: medians of rows/s and of its share of the long epoch's; of first steps, milliseconds."""
    [(_, long), *_] = runs.items()
    found = {}
    for name, rounds in runs.items():
        ratios = [run.rows_per_s / one.rows_per_s for run, one in zip(rounds, long, strict=True)]
        waits = [1000 * wait for run in rounds for wait in run.waits_s]
        found[name] = {
            "rows_per_s": statistics.median(run.rows_per_s for run in rounds),
            "share": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
            "first_step_ms": statistics.median(waits) if waits else 0.0,
            "waited": statistics.median(run.waited for run in rounds),
        }
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the program; return the exit status."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        runs = measure(options, options.folder or Path(scratch))
    found = {shuffle: figures(each) for shuffle, each in runs.items()}
    if options.json:
        print(json.dumps(found))
        return 0
    for shuffle, by_length in found.items():
        for length in lengths(options.rows):
            each = by_length[length.name]
            print(
                f"shuffle {shuffle}, {length.epochs} x {length.rows:,} rows: {each['rows_per_s'] / 1e3:,.0f} K rows/s, "
                f"{each['share']:.2f} ({each['least']:.2f}-{each['most']:.2f}) of the long epoch's; an epoch's first "
                f"step waits {each['first_step_ms']:.1f} ms; waits are {each['waited']:.0%} of the time"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
