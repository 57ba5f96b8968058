"""How does a person see a run? A live table on a terminal, a plain line every few seconds elsewhere.

Runs in: the process of `feedline run`. Pure rendering: values in, text out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

# On a terminal the table is redrawn this often; elsewhere a line is printed this often.
_REDRAWS_PER_S = 4
_LINE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """What one row shows. `waits` says who waits: "trainer", "feeder" or ""."""

    rank: int
    state: str
    epoch: int
    step: int
    steps: int
    rows: int
    rows_per_s: float
    ring_fill: float | None
    waits: str


class Progress:
    """A live display in a `with` block; `show` is cheap to call often."""

    def __init__(self, console: Console, *, title: str) -> None:
        self._console = console
        self._title = title
        self._live: Live | None = None
        self._last_line_s = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                console=self._console, refresh_per_second=_REDRAWS_PER_S, transient=False, auto_refresh=False
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, views: Sequence[RankView], *, force: bool = False) -> None:
        now = time.monotonic()
        if self._live is not None:
            self._live.update(_table(self._title, views), refresh=True)
        elif force or now - self._last_line_s >= _LINE_S:
            self._last_line_s = now
            for view in views:
                self._console.print(_line(view), highlight=False, soft_wrap=True)


def _table(title: str, views: Sequence[RankView]) -> Table:
    table = Table(title=title, title_justify="left", expand=False)
    for name in ("rank", "state", "epoch", "step", "%", "rows", "rows/s", "ring", "waits"):
        table.add_column(name, justify="left" if name in ("state", "ring", "waits") else "right", no_wrap=True)
    for view in views:
        table.add_row(
            str(view.rank),
            view.state,
            str(view.epoch),
            f"{view.step:,}/{view.steps:,}",
            _percent(view),
            f"{view.rows:,}",
            f"{view.rows_per_s:,.0f}",
            _bar(view.ring_fill),
            view.waits,
        )
    return table


def _line(view: RankView) -> str:
    fill = "" if view.ring_fill is None else f", ring {view.ring_fill:.0%} full"
    waits = f", {view.waits} waits" if view.waits else ""
    return (
        f"rank {view.rank} {view.state}: epoch {view.epoch}, step {view.step:,}/{view.steps:,} ({_percent(view)}), "
        f"{view.rows:,} rows, {view.rows_per_s:,.0f} rows/s{fill}{waits}"
    )


def _percent(view: RankView) -> str:
    return f"{view.step / view.steps:.0%}" if view.steps else "-"


def _bar(fill: float | None, width: int = 8) -> str:
    if fill is None:
        return "-"
    full = round(fill * width)
    return "█" * full + "░" * (width - full)
