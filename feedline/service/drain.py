"""Drain every rank of this host through its ring, for `feedline run --sink null`.

Runs in: the process of `feedline run --sink null`, a thread per rank, like a trainer that computes nothing. No torch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import field, replace

from feedline.dataclass import dataclass
from feedline.errors import FeederError
from feedline.loader.encoding.quality import Quality
from feedline.loader.ring.client import FeederClient, Slot
from feedline.loader.ring.feeder_connection import Answer
from feedline.loader.ring.reports import FeederReports
from feedline.loader.wire.facts import FeederStats, Hello, PlanFacts
from feedline.progress import Progress


@dataclass(slots=True)
class DrainProgress:
    """What one rank has received so far."""

    rank: int
    answer: Answer | None = None
    epoch: int = 0
    step: int = 0
    rows: int = 0
    batches: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    wait_s: float = 0.0
    ring_fill: float = 0.0
    reports: FeederReports | None = None
    quality: Quality | None = None
    warnings: list[str] = field(default_factory=list)  # about data that breaks expectations
    error: BaseException | None = None
    awaits_plan: bool = True
    done: bool = False
    stopped: bool = False  # before the end
    thread: threading.Thread | None = None
    feed: FeederClient | None = None

    @property
    def feeder(self) -> FeederStats | None:
        return None if self.reports is None else self.reports.stats

    @property
    def planning(self) -> Progress | None:
        """The progress of its plan, or of that of its next epoch; None once it is there, or where nothing is known."""
        return None if self.feed is None or not self.awaits_plan else self.feed.reports.planning


def drain(
    feed: FeederClient,
    hello: Hello,
    progress: DrainProgress,
    *,
    epochs: int,
    stop: Callable[[], bool],
    train: Callable[[PlanFacts, Slot], object] = lambda facts, slot: None,
) -> None:
    """Receive and discard `epochs` epochs; records progress and errors in `progress`. train: called with the plan and
    the slot of each batch, which is held meanwhile."""
    try:
        answer = feed.open(hello, watched=True)
        progress.answer, progress.reports, progress.awaits_plan = answer, feed.reports, False
        start_s = time.perf_counter()
        for epoch in range(epochs):
            if stop():
                break
            if answer.facts.epoch not in (None, epoch):  # of a followed table
                progress.awaits_plan = True
                answer = feed.open(replace(answer.hello, epoch=epoch), watched=True)
                progress.awaits_plan = False
                if answer.facts.epoch != epoch:
                    break  # nothing more lands
                progress.answer = answer
            feed.begin(answer, epoch, 0, last=epoch == epochs - 1)
            progress.epoch, progress.step = epoch, 0
            while not stop():
                item = feed.next()
                progress.warnings += feed.reports.take_warnings()
                if item is None:
                    break
                _, step, rows, _, _ = item
                progress.rows += rows
                progress.batches, progress.nbytes = feed.stats.batches, feed.stats.nbytes
                progress.step = step + 1
                progress.seconds = time.perf_counter() - start_s
                progress.wait_s = feed.stats.wait_s
                feed.refresh()
                progress.ring_fill = feed.ring_fill
                train(answer.facts, item)
                del item, _
        progress.stopped = stop()
        progress.reports = feed.reports
        progress.quality = feed.reports.quality
    except BaseException as error:  # the command raises it: this thread has no caller
        if isinstance(error, FeederError) and stop():
            progress.stopped = True
        else:
            progress.error = error
    finally:
        progress.done = True


def start_draining(
    feed: FeederClient,
    hello: Hello,
    *,
    rank: int,
    epochs: int,
    stop: Callable[[], bool],
    train: Callable[[PlanFacts, Slot], object] = lambda facts, slot: None,
) -> DrainProgress:
    progress = DrainProgress(rank=rank, feed=feed)
    progress.thread = threading.Thread(
        target=drain,
        args=(feed, hello, progress),
        kwargs={"epochs": epochs, "stop": stop, "train": train},
        name=f"feedline-drain-{rank}",
        daemon=True,
    )
    progress.thread.start()
    return progress


def stop_draining(feed: FeederClient, progress: DrainProgress, within_s: float | None = None) -> None:
    """Interrupt a drain and wait for its thread to end; for some seconds only, if what trains may hang."""
    feed.interrupt()
    assert progress.thread is not None
    progress.thread.join(within_s)
