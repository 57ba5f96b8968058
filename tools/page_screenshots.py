"""Take the pictures of docs/dashboard.md: the live page of a real run, at two widths, in headless Chromium.

    python tools/page_screenshots.py [--seconds 40] [--out docs/images]

It generates a table of clicks, trains two ranks on it that step together, one of them with a slower step, and has the
page loaded while they do. The pictures are of what the page shows then; nothing is drawn for them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from chromium import BrowserPage, browser  # noqa: E402 -- of tests/support

from feedline import FeedlineDataset  # noqa: E402 -- after the path

RANKS, COLORS = 2, 96
STEP_S = 0.002
PIPELINE = {
    "version": 1,
    "name": "click-ranking",
    "work_dir": "work",
    "source": {"table": "clicks", "where": 'ds != "2026-01-04" and dense_0 > -2'},
    "features": {
        "dense": {
            f"dense_{each}": {"column": f"dense_{each}", "ops": [{"fill_null": 0}], "expect": {"null_rate": "<= 0.001"}}
            for each in range(4)
        }
        | {"dense_4": [{"fill_null": 0}, "log1p"]},
        "categorical": {f"id_{each}": [{"hash_bucket": 10_000}] for each in range(8)},
        "sparse": {f"hist_{each}": [{"hash_bucket": 100_000}] for each in range(6)},
        "label": {"clicked": []},
    },
    "batch": {"size": 1024, "tail": "drop"},
    "shuffle": {"seed": 0},
    "epochs": 8,
}


def train(path: Path, rank: int, together: threading.Barrier) -> None:
    """Train one rank: each step begins when all ranks have their batch, as with DistributedDataParallel."""
    with (
        FeedlineDataset(path, rank=rank, world_size=RANKS) as dataset,
        contextlib.suppress(threading.BrokenBarrierError),
    ):
        while True:
            for _ in dataset:
                together.wait()
                time.sleep(STEP_S)


def save(page: BrowserPage, path: Path) -> None:
    """A picture of the page in few colors: a fifth of the bytes."""
    page.screenshot(path)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)


def _address(line: str, lines: list[str]) -> re.Match[str] | None:
    lines.append(line)
    return re.search(r"live page: (\S+)", line)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0, help="how long the page is open before the pictures")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--rows", type=int, default=1_500_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feedline-page-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "feedline"]
        subprocess.run([*command, "generate", "clicks", folder / "clicks", "--rows", str(arguments.rows)], check=True)
        path = folder / "pipeline.yaml"
        path.write_text(json.dumps(PIPELINE))
        run = subprocess.Popen(
            [*command, "run", str(path), "--world-size", str(RANKS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert run.stdout is not None
        lines: list[str] = []
        address = next((found[1] for line in run.stdout if (found := _address(line, lines))), None)
        if address is None:
            raise SystemExit("".join(lines))
        threading.Thread(target=lambda: [None for _ in run.stdout], daemon=True).start()
        together = threading.Barrier(RANKS)
        trainers = [threading.Thread(target=train, args=(path, rank, together), daemon=True) for rank in range(RANKS)]
        for each in trainers:
            each.start()
        try:
            with browser(folder) as page:
                page.resize(1400, 900)
                page.open(address)
                page.wait_for_text("What the plan reads")
                page.wait_for_text("epoch 1 of")
                page.listen(arguments.seconds)
                arguments.out.mkdir(parents=True, exist_ok=True)
                save(page, arguments.out / "dashboard.png")
                page.resize(420, 900)
                page.listen(2)
                save(page, arguments.out / "dashboard-narrow.png")
                print(page.console, page.failed)
        finally:
            together.abort()
            for each in trainers:
                each.join()
            run.send_signal(signal.SIGINT)
            run.wait()


if __name__ == "__main__":
    main()
