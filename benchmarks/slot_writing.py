"""How fast a feeder writes batches into slots when their blocks are ready.

    python benchmarks/slot_writing.py            shuffle off and on, one and two threads: rows per second
    python benchmarks/slot_writing.py --tiny     that it works, not a measurement

One click table (13 dense, 26 ids, 6 histories). Some blocks are computed in this process, as threads of a feeder do;
then threads measure batches of them and write these into slots in turn, as the feeder's loop and its writers do.
Medians of several rounds, each over all batches several times.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from feedline.blocks.compute import run_block, unpack_block
from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.encoding.slot import RowSlice, draft, write
from feedline.pipeline import Pipeline
from feedline.planning.plan import Plan
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import clicks_pipeline, generate_clicks

BLOCKS, SLOTS, BATCH_ROWS = 4, 4, 8192


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tiny", action="store_true", help="few rows, one round")
    options = parser.parse_args()
    rows, batch_rows, rounds, passes = (8192, 512, 1, 1) if options.tiny else (400_000, BATCH_ROWS, options.rounds, 4)
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        table = Path(scratch) / "table"
        generate_clicks(str(table), ClickRecipe(rows=rows, days=1))
        path = Path(scratch) / "pipeline.yaml"
        path.write_text(clicks_pipeline(str(table), batch_size=batch_rows, tail="partial", work_dir=scratch))
        for shuffle in ("off", "on"):
            plan = Pipeline.from_yaml(path, {} if shuffle == "on" else {"shuffle": "off"}).plan()
            batches = batches_of(plan, batch_rows)
            for threads in (1, 2):
                rate = statistics.median(measure(plan.layout, batches, threads, passes) for _ in range(rounds))
                print(f"shuffle: {shuffle}, {threads} threads: {rate / 1e6:.2f} M rows/s", flush=True)
    return 0


def batches_of(plan: Plan, rows: int) -> list[RowSlice]:
    """Batches of some blocks, each of rows of one block."""
    batches = []
    for block in list(plan.source.schedule(0).blocks_of([0], first_step=0))[:BLOCKS]:
        for part in unpack_block(
            plan.layout, run_block(plan.source.job, plan.request(block, 0), "block", packed=False)
        ):
            starts = range(0, part.rows - rows + 1, rows)
            batches += [RowSlice(encoded=part, start=start, stop=start + rows) for start in starts]
    return batches


def measure(layout: SlotLayout, batches: Sequence[RowSlice], threads: int, passes: int) -> float:
    """Rows per second of so many threads."""
    size = max(draft(layout, [batch], epoch=0, step=0).placement.nbytes for batch in batches)
    slots = [np.zeros(size, dtype=np.uint8) for _ in range(SLOTS)]

    def fill(step: int) -> int:
        batch = batches[step % len(batches)]
        write(layout, draft(layout, [batch], epoch=0, step=step), slots[step % SLOTS])
        return batch.stop - batch.start

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill, range(2 * SLOTS)))
        began = time.perf_counter()
        rows = sum(pool.map(fill, range(passes * len(batches))))
        return rows / (time.perf_counter() - began)


if __name__ == "__main__":
    raise SystemExit(main())
