"""Drain every rank of this host through its ring, as trainers that compute nothing: `feedline run --sink null`.

Runs in: the process of `feedline run --sink null`, a thread per rank. No torch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from feedline.loader.encoding.layout import ROWS_WORD
from feedline.loader.encoding.quality import Quality
from feedline.loader.facts import FeederStats, Hello
from feedline.loader.ring.client import FeederClient
from feedline.loader.ring.feeder_connection import Answer


@dataclass(slots=True)
class DrainProgress:
    """What one rank received, growing while it is drained."""

    rank: int
    answer: Answer | None = None
    epoch: int = 0
    step: int = 0
    rows: int = 0
    batches: int = 0
    nbytes: int = 0
    wait_s: float = 0.0
    seconds: float = 0.0
    ring_fill: float = 0.0
    feeder: FeederStats | None = None
    quality: Quality | None = None
    warnings: list[str] = field(default_factory=list)  # what was not as expected
    error: BaseException | None = None
    done: bool = False
    thread: threading.Thread | None = None


def drain(feed: FeederClient, hello: Hello, progress: DrainProgress, *, epochs: int, stop: Callable[[], bool]) -> None:
    """Receive `epochs` epochs and throw them away; what happens is written to `progress`, errors too."""
    try:
        answer = feed.open(hello)
        progress.answer = answer
        began = time.perf_counter()
        for epoch in range(epochs):
            feed.begin(answer, epoch, 0, last=epoch == epochs - 1)
            progress.epoch, progress.step = epoch, 0
            while not stop():
                received = feed.next()
                progress.warnings += feed.reports.take_warnings()
                if received is None:
                    break
                ready, lease = received
                progress.rows += int(np.frombuffer(lease.root, dtype=np.int64, count=ROWS_WORD + 1)[ROWS_WORD])
                progress.batches, progress.nbytes = feed.stats.batches, feed.stats.nbytes
                progress.step = ready.step + 1
                progress.wait_s, progress.seconds = feed.stats.wait_s, time.perf_counter() - began
                progress.ring_fill = feed.ring_fill
                del lease, received
        progress.feeder = feed.reports.stats
        progress.quality = feed.reports.quality
    except BaseException as error:  # the thread that drains has nobody above it: the command reads this
        progress.error = error
    finally:
        progress.done = True


def start_draining(
    feed: FeederClient, hello: Hello, *, rank: int, epochs: int, stop: Callable[[], bool]
) -> DrainProgress:
    """Drain in a thread of its own."""
    progress = DrainProgress(rank=rank)
    progress.thread = threading.Thread(
        target=drain,
        args=(feed, hello, progress),
        kwargs={"epochs": epochs, "stop": stop},
        name=f"feedline-drain-{rank}",
        daemon=True,
    )
    progress.thread.start()
    return progress


def stop_draining(feed: FeederClient, progress: DrainProgress) -> None:
    """End a drain wherever it is: afterwards nobody uses the feed."""
    feed.interrupt()
    assert progress.thread is not None
    progress.thread.join()
