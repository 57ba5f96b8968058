"""What mixing two tables costs: 4:1 in every step, beside one table of as many rows.

    python benchmarks/mixing.py                5 M rows, one epoch; 5 rounds
    python benchmarks/mixing.py --folder DIR   tables are kept there, and found again
    python benchmarks/mixing.py --tiny         20,000 rows, one round: a test that it works

Three tables hold the same 45 features of clicks: one has all rows, the others four fifths and one fifth of them. Both
pipelines have the same ops, batch, window and threads, and so about the same rows per block, which are printed. In each
round each is read by a dataset of its own, the first in turns; the clock starts at the first batch. Prints rows per
second of each, the mix's share (median, least and most of the rounds' ratios), and the peak memory of their feeders.
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
from dataclasses import dataclass
from pathlib import Path

from feedline import FeedlineDataset, Pipeline
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import clicks_pipeline, generate_clicks

GROUP_ROWS = 50_000
PARTS = {"large": 4, "small": 1}


@dataclass(frozen=True, slots=True)
class Run:
    """rows_per_s: after the first batch. peak_bytes: of the feeder's memory."""

    rows_per_s: float
    peak_bytes: int


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--batch-size", type=int, default=8192)
    parser.add_argument("--window-rows", type=int, default=524_288)
    parser.add_argument("--folder", type=Path, help="of the tables (default: a temporary one)")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rounds, options.rows, options.batch_size, options.window_rows = 1, 20_000, 100, 4_000
    return options


def table_of(rows: int, seed: int, folder: Path) -> Path:
    """A generated table, made unless it is there."""
    place = folder / f"mixing-{rows}-{seed}"
    if not place.exists():
        days, group = max(1, rows // 500_000), min(rows // 10, GROUP_ROWS)
        recipe = ClickRecipe(rows=rows, days=days, strings=0, row_group_rows=group, part_rows=5 * group, seed=seed)
        generate_clicks(str(place), recipe)
    return place


def pipelines(options: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """The pipeline of one table, and that of two."""
    shuffle, work = {"window_rows": options.window_rows}, str(folder / "work")
    whole = str(table_of(options.rows, 0, folder))
    text = clicks_pipeline(whole, batch_size=options.batch_size, work_dir=work, shuffle=shuffle)
    parts = sum(PARTS.values())
    sources = [
        {"name": name, "table": str(table_of(options.rows * part // parts, part, folder)), "weight": part}
        for name, part in PARTS.items()
    ]
    mixed = text.replace(f"source:\n  table: {json.dumps(whole)}\n", f"sources: {json.dumps(sources)}\n")
    paths = {}
    for name, content in (("one table", text), ("two tables", mixed)):
        paths[name] = folder / f"{name.replace(' ', '-')}.yaml"
        paths[name].write_text(content)
    return paths


def read(path: Path) -> Run:
    """Read one epoch with a new dataset."""
    rows, began = 0, 0.0
    with FeedlineDataset(path) as dataset:
        for batch in dataset:
            if began:
                rows += batch.rows
            else:
                began = time.perf_counter()
        seconds = time.perf_counter() - began
        status = Path(f"/proc/{dataset.facts['feeder']}/status").read_text(encoding="ascii")
    [peak] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return Run(rows / seconds, int(peak) * 1024)


def main(arguments: Sequence[str]) -> int:
    """Run the program; return the exit status."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        folder = (options.folder or Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        paths = pipelines(options, folder)
        blocks = {
            name: [each.sizes.block_rows for each in Pipeline.from_yaml(path).plan().sources]
            for name, path in paths.items()
        }
        runs: dict[str, list[Run]] = {name: [] for name in paths}
        for number in range(options.rounds):
            for name in list(paths)[:: 1 if number % 2 == 0 else -1]:
                runs[name].append(read(paths[name]))
    one, two = runs.values()
    shares = [mixed.rows_per_s / alone.rows_per_s for mixed, alone in zip(two, one, strict=True)]
    found = {
        "share": {"median": statistics.median(shares), "least": min(shares), "most": max(shares)},
        **{
            name: {
                "rows_per_s": statistics.median(run.rows_per_s for run in each),
                "peak_bytes": int(statistics.median(run.peak_bytes for run in each)),
                "block_rows": blocks[name],
            }
            for name, each in runs.items()
        },
    }
    if options.json:
        print(json.dumps(found))
        return 0
    for name in runs:
        each, rows = found[name], ", ".join(f"{count:,}" for count in blocks[name])
        print(
            f"{name}: {each['rows_per_s'] / 1e3:,.0f} K rows/s, {each['peak_bytes'] / 1e6:,.0f} MB at most in the "
            f"feeder, blocks of {rows} rows"
        )
    share = found["share"]
    print(f"two tables: {share['median']:.2f} ({share['least']:.2f}-{share['most']:.2f}) of one (aim: 0.95)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
