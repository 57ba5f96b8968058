"""Show the progress of a run: a live table on a terminal, elsewhere a plain line every few seconds.

Runs in: the process of `feedline run`. `RecentRates` turns counters into rates; the rest is pure rendering.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from feedline.commands.progress_line import PhasePace, format_duration, progress_text
from feedline.dataclass import dataclass
from feedline.loader.wire.run_status import FILES_PHASE
from feedline.progress import Progress

_REDRAWS_PER_S = 4  # on a terminal
_LINE_S = 5.0  # between lines elsewhere: the log of a job
# Window of the rates: long enough to smooth uneven blocks, short enough to show a change.
_WINDOW_S = 10.0
_MIN_TABLE_WIDTH = 80  # columns; on a narrower terminal, each rank is one line


class Counters(NamedTuple):
    """A rank's counts since its trainer connected: rows, batches, seconds that the trainer and the feeder waited."""

    rows: int
    batches: int
    trainer_s: float = 0.0
    feeder_s: float = 0.0


class Change(NamedTuple):
    """Recent rates of `Counters`: rows and batches per second, the share of time that each side waited."""

    rows_per_s: float = 0.0
    batches_per_s: float = 0.0
    trainer: float = 0.0
    feeder: float = 0.0


class RecentRates:
    """The rates of one rank over the last seconds; a new trainer starts them afresh."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._history: deque[tuple[float, Counters]] = deque()

    def add(self, counters: Counters) -> Change:
        """Add the current counters; returns the rates over about `_WINDOW_S`, or since the first batch."""
        now = self._now_s()
        if self._history and (not self._history[-1][1].rows or counters.rows < self._history[-1][1].rows):
            self._history.clear()
        self._history.append((now, counters))
        while len(self._history) > 2 and now - self._history[1][0] >= _WINDOW_S:
            self._history.popleft()
        began, first = self._history[0]
        seconds = now - began
        if seconds <= 0:
            return Change()
        return Change(*((new - old) / seconds for new, old in zip(counters, first, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """The displayed state of a rank. epoch: from 0; waits: the side that waits, "trainer", "feeder" or "".
    blocks: those in flight, and their limit ("2/3"). found: the share of features that the cache had (None: no cache).
    planning: the progress of its plan, or of that of the next epoch of a followed table, before it is there. These are
    for lines: a table has no room."""

    rank: int
    state: str
    epoch: int
    epochs: int
    step: int
    steps: int
    rows: int
    rows_per_s: float
    batches_per_s: float
    ring_fill: float | None
    waits: str
    blocks: str = ""
    found: float | None = None
    planning: Progress | None = None

    @property
    def is_fed(self) -> bool:
        """Whether its plan is there, and it does not wait for that of another epoch."""
        return bool(self.steps) and self.planning is None

    @property
    def remaining_s(self) -> float | None:
        """Estimated seconds to the last step of the last epoch, at the recent rate; None if unknown."""
        if not self.is_fed or self.batches_per_s <= 0 or self.state in ("done", "stopped"):
            return None
        epochs_after = max(self.epochs - self.epoch - 1, 0)
        return (self.steps - self.step + epochs_after * self.steps) / self.batches_per_s


class LiveTable:
    """A live display in a `with` block; `show` is cheap to call often. While all ranks plan, it is a line of progress,
    and then a table."""

    def __init__(self, console: Console, *, title: str) -> None:
        self._console = console
        self._title = title
        self._live: Live | None = None
        self._pace = PhasePace()
        self._last_line_s = 0.0
        self._last_lines: list[str] = []

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:  # which shows no table before the end
            self._live = Live(
                console=self._console, refresh_per_second=_REDRAWS_PER_S, transient=False, auto_refresh=False
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, views: Sequence[RankView], *, force: bool = False) -> None:
        """Show the ranks. force: off a terminal, at once, unless the last lines say the same."""
        now = time.monotonic()
        if self._live is not None:
            self._live.update(self._display(views, now), refresh=True)
        elif force or now - self._last_line_s >= _LINE_S:
            lines = [line(view) for view in views]
            if not force or lines != self._last_lines:
                self._last_line_s, self._last_lines = now, lines
                for text in lines:
                    self._console.print(text, highlight=False, soft_wrap=True)

    def _display(self, views: Sequence[RankView], now_s: float) -> RenderableType:
        if any(view.state not in ("planning", FILES_PHASE) for view in views):
            return display(self._console, self._title, views)
        progress = next((view.planning for view in views if view.planning is not None), None)
        if progress is None:
            return Text("planning")
        self._pace.add(progress, now_s)
        text = progress_text(progress, self._pace.rate, self._pace.left_s(now_s), width=self._console.width)
        return Text(text, no_wrap=True)


def display(console: Console, title: str, views: Sequence[RankView]) -> Table | Group:
    """Render a table, or a line per rank if the table does not fit."""
    table = _table(title, views)
    if console.width >= _MIN_TABLE_WIDTH and console.measure(
        table, options=console.options.update(width=1000)
    ).maximum <= (console.width):
        return table
    return Group(*(Text(short_line(view), no_wrap=True, overflow="ellipsis") for view in views))


def _table(title: str, views: Sequence[RankView]) -> Table:
    table = Table(title=title, title_justify="left", expand=False)
    for name in ("rank", "state", "epoch", "step", "%", "rows", "rows/s", "ETA", "ring", "waits"):
        table.add_column(name, justify="left" if name in ("state", "ring", "waits") else "right", no_wrap=True)
    for view in views:
        table.add_row(
            str(view.rank),
            view.state,
            _epoch(view),
            f"{view.step:,}/{view.steps:,}" if view.is_fed else "-",
            _percent(view),
            f"{view.rows:,}",
            f"{view.rows_per_s:,.0f}",
            format_duration(view.remaining_s),
            _bar(view.ring_fill),
            view.waits,
        )
    return table


def line(view: RankView) -> str:
    """Render a rank in one full line, for output other than a terminal."""
    if not view.is_fed:
        if view.planning is None:
            return f"rank {view.rank} {view.state}"
        is_phase = view.state == view.planning.phase
        return f"rank {view.rank} {view.state}: {view.planning.amount() if is_phase else view.planning.text()}"
    eta = "" if view.remaining_s is None else f", ETA {format_duration(view.remaining_s)}"
    fill = "" if view.ring_fill is None else f", ring {view.ring_fill:.0%} full"
    waits = f", {view.waits} waits" if view.waits else ""
    blocks = f", {view.blocks} blocks in flight" if view.blocks else ""
    found = "" if view.found is None else f", {view.found:.0%} found in the cache"
    return (
        f"rank {view.rank} {view.state}: epoch {_epoch(view)}, step {view.step:,}/{view.steps:,} ({_percent(view)}), "
        f"{view.rows:,} rows, {view.rows_per_s:,.0f} rows/s{eta}{blocks}{found}{fill}{waits}"
    )


def short_line(view: RankView) -> str:
    """Render a rank in one line that fits a narrow terminal."""
    if not view.is_fed:
        return f"rank {view.rank} {view.state}"
    eta = "" if view.remaining_s is None else f", ETA {format_duration(view.remaining_s)}"
    waits = f", {view.waits} waits" if view.waits else ""
    return f"rank {view.rank}: epoch {_epoch(view)}, {_percent(view)}, {view.rows_per_s:,.0f} rows/s{eta}{waits}"


def _epoch(view: RankView) -> str:
    """`3 of 12`, counted from 1; a trainer may continue after the last epoch that the run waits for."""
    if not view.steps:
        return "-"
    return f"{view.epoch + 1} of {view.epochs}" if view.epoch < view.epochs else str(view.epoch + 1)


def _percent(view: RankView) -> str:
    return f"{view.step / view.steps:.0%}" if view.is_fed else "-"


def _bar(fill: float | None, width: int = 8) -> str:
    if fill is None:
        return "-"
    full = round(fill * width)
    return "█" * full + "░" * (width - full)
