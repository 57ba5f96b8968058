"""What a network between a training and its cluster costs: rows per second and the first batch, by packets' delay.

    python network.py --rows 300000 --rounds 3

The scheduler and its workers are on one host, the training with its feeder on the other: namespaces of this machine,
with the kernel's TCP between them (tests/support/lossy_link.py; needs root, iproute2 and /dev/net/tun). Both read the
same table; blocks travel. Delays are those of one way. Rounds alternate between the settings; each training runs an
epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

from lossy_link import Direction, Host, lossy_link, missing_link  # noqa: E402
from processes import running  # noqa: E402

from feedline import FeedlineDataset  # noqa: E402
from feedline.workbench.generate.clicks import ClickRecipe  # noqa: E402
from feedline.workbench.generate.generate import generate_clicks  # noqa: E402

SETTINGS = {
    "0 ms": Direction(),
    "1 ms": Direction(delay_s=0.001),
    "20 ms": Direction(delay_s=0.020),
    "20 ms, 0.1 % lost": Direction(delay_s=0.020, loss=0.001),
}
TRAINING_S = 600.0


def train(pipeline: str) -> dict[str, float]:
    """Read an epoch: seconds to the first batch, and rows per second after it."""
    began_s = time.perf_counter()
    first_s, first_rows, rows, nbytes = 0.0, 0, 0, 0
    for batch in FeedlineDataset(pipeline, rank=0, world_size=1):
        rows += batch.rows
        nbytes += batch.nbytes
        if not first_s:
            first_s, first_rows = time.perf_counter(), rows
    seconds = time.perf_counter() - first_s
    return {"first_s": first_s - began_s, "rows_per_s": (rows - first_rows) / seconds, "bytes_per_row": nbytes / rows}


def pipeline(folder: Path, scheduler: str, batch: int) -> Path:
    """Write a pipeline of ids and lists whose blocks are computed by a cluster."""
    lists = {f"hist_{number}": [{"hash_bucket": 1_000_000}] for number in range(4)}
    path = folder / "pipeline.yaml"
    content: dict[str, Any] = {
        "version": 1,
        "name": "network",
        "work_dir": str(folder / "work"),
        "source": {"table": str(folder / "table")},
        "features": {
            "dense": {"dense_{0..3}": [{"fill_null": 0.0}]},
            "categorical": {"id_{0..3}": [{"hash_bucket": 100_000}]},
            "sparse": lists,
        },
        "batch": {"size": batch},
        "shuffle": "off",  # otherwise the first batch waits for the blocks of most rows
        "cluster": {"scheduler": scheduler, "insecure": True, "dashboard": False},
    }
    path.write_text(json.dumps(content))
    return path


def on(host: Host, *words: object) -> tuple[str, ...]:
    return (*host.within, sys.executable, *map(str, words))


def measure(
    rows: int, batch: int, rounds: int, workers: int, names: Sequence[str]
) -> dict[str, list[dict[str, float]]]:
    """The trainings of each setting."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feedline-network-")))
        generate_clicks(
            str(folder / "table"), ClickRecipe(rows=rows, days=1, seed=0, row_group_rows=max(1, rows // 16))
        )
        link = stack.enter_context(lossy_link())
        here, there = link.hosts
        environment = {**os.environ, "PYTHONWARNINGS": "ignore", "TMPDIR": str(folder)}
        address = f"tcp://{there.address}:8786"
        words = ("-m", "feedline", "scheduler", "--host", there.address, "--insecure")
        stack.enter_context(running(*on(there, *words), env=environment)).line("scheduler at")
        for _ in range(workers):
            words = ("-m", "feedline", "worker", address, "--threads", "1", "--cpu", "native", "--insecure")
            stack.enter_context(running(*on(there, *words), env=environment)).line("serves")
        path = pipeline(folder, address, batch)
        for number in range(rounds + 1):  # the first one has footers read, and libraries imported
            for name in names:
                link.set(SETTINGS[name])
                command = on(here, __file__, "--train", path)
                done = subprocess.run(command, capture_output=True, text=True, timeout=TRAINING_S, check=False)
                if done.returncode:
                    raise SystemExit(done.stderr)
                if number:
                    found[name].append(json.loads(done.stdout))
        link.set()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        print(json.dumps(train(arguments.train)))
        return
    if reason := missing_link():
        raise SystemExit(f"no link between two hosts can be made here: {reason}")
    options = arguments.batch, arguments.rounds, arguments.workers, arguments.settings
    found = measure(arguments.rows, *options)
    if arguments.json:
        print(json.dumps(found))
        return
    base = statistics.median(each["rows_per_s"] for each in found[arguments.settings[0]])
    print(
        "| one way | rows/s, thousand | of the first line | MB/s of batches | first batch, s |\n|---|---|---|---|---|"
    )
    for name, runs in found.items():
        rates = [each["rows_per_s"] for each in runs]
        rate, first_s = statistics.median(rates), statistics.median(each["first_s"] for each in runs)
        cells = (
            f"{rate / 1000:,.0f} ({min(rates) / 1000:,.0f} to {max(rates) / 1000:,.0f})",
            f"{rate / base:.2f}",
            f"{rate * runs[0]['bytes_per_row'] / 1e6:,.0f}",
            f"{first_s:.2f}",
        )
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
