"""The charts of the live page: series of a job over the last minutes.

Runs in: the process of a scheduler, when a page is opened. Lines differ in their dashes, not only in color.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bokeh.models import ColumnDataSource, CustomJSTickFormatter, HoverTool, NumeralTickFormatter, Range1d
from bokeh.models.annotations import Legend, LegendItem
from bokeh.plotting import figure

from feedline.dataclass import dataclass
from feedline.service.page.status_history import POINTS, JobPoint

_HEIGHT = 220
_SHOWN_S, _LEAST_S = 300.0, 60.0  # of the series, and at its beginning
_BLUE, _RED, _GRAY = "#3d6491", "#b3261e", "#555555"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    column: str
    label: str
    color: str
    dash: str = "solid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of one or two lines. share: its values are percentages."""

    name: str
    title: str
    lines: tuple[ChartLine, ...]
    share: bool = False


CHARTS = (
    Chart(name="rows", title="Rows per second", lines=(ChartLine(column="rows", label="all ranks", color=_BLUE),)),
    Chart(
        name="waits",
        title="Who waits, % of the time",
        lines=(
            ChartLine(column="trainer", label="trainer waits", color=_RED),
            ChartLine(column="slots", label="batches wait", color=_BLUE, dash="dashed"),
        ),
        share=True,
    ),
    Chart(
        name="queues",
        title="How full queues are, %",
        lines=(
            ChartLine(column="ring", label="ring (emptiest)", color=_BLUE),
            ChartLine(column="window", label="window of blocks", color=_GRAY, dash="dashed"),
        ),
        share=True,
    ),
    Chart(
        name="workers",
        title="Workers and threads",
        lines=(
            ChartLine(column="workers", label="workers", color=_BLUE),
            ChartLine(column="threads", label="threads", color=_GRAY, dash="dashed"),
        ),
    ),
)
_LEGEND: dict[str, Any] = {
    "label_text_font_size": "12px",
    "border_line_color": None,
    "background_fill_alpha": 0,
    "padding": 0,
    "margin": 2,
    "spacing": 14,
}
# The time of the reader's clock.
_TIME = "return new Date(tick * 1000).toTimeString().slice(0, 8)"


def point_columns(points: Sequence[JobPoint]) -> dict[str, Any]:
    """Points as columns of a source; what is unknown is a gap."""
    return {
        "at": [point.at_s for point in points],
        "rows": [_known(point.rows_per_s) for point in points],
        "trainer": [_known(point.trainer, 100) for point in points],
        "slots": [_known(point.slots, 100) for point in points],
        "ring": [_known(point.ring, 100) for point in points],
        "window": [min(100, 100 * point.blocks / point.window) if point.window else float("nan") for point in points],
        "workers": [point.workers for point in points],
        "threads": [point.threads for point in points],
    }


class Charts:
    def __init__(self) -> None:
        self._source = ColumnDataSource(point_columns(()))
        self._times = Range1d(start=-_LEAST_S, end=0)
        self.figures = [_figure(chart, self._source, self._times) for chart in CHARTS]
        self._last: JobPoint | None = None

    def show(self, points: Sequence[JobPoint]) -> None:
        """Draw the series of another job; nothing without points."""
        self._source.data = point_columns(points)
        for each in self.figures:
            each.visible = bool(points)
        self._fit(points)

    def add(self, points: Sequence[JobPoint]) -> None:
        """Draw what has come since. points: the whole series of the same job."""
        last = self._last
        new = points if last is None else [point for point in points if point.at_s > last.at_s]
        if new:
            self._source.stream(point_columns(new), rollover=POINTS)
            self._fit(points)

    def _fit(self, points: Sequence[JobPoint]) -> None:
        self._last = points[-1] if points else None
        if points:
            end_s = points[-1].at_s
            self._times.update(start=min(end_s - _LEAST_S, max(points[0].at_s, end_s - _SHOWN_S)), end=end_s)
            shown = point_columns([point for point in points if point.at_s >= end_s - _SHOWN_S])
            for chart, each in zip(CHARTS, self.figures, strict=True):
                end = (
                    105.0 if chart.share else axis_end([value for line in chart.lines for value in shown[line.column]])
                )
                if each.y_range.end != end:
                    each.y_range.end = end


def axis_end(values: Sequence[float]) -> float:
    """The end of an axis from 0 that shows all values: 1.2, 2.4 or 6 times a power of ten, at least 1.2."""
    most = max((value for value in values if not math.isnan(value)), default=0.0)
    # 1.3 -> 2.4, 43 -> 60, 300 -> 600, 700 -> 1200
    power = 10.0 ** math.floor(math.log10(max(most, 1.0)))
    return next(end for end in (1.2 * power, 2.4 * power, 6 * power, 12 * power) if most <= end)


def _figure(chart: Chart, source: ColumnDataSource, times: Range1d) -> Any:
    plot: Any = figure(
        name=chart.name,
        title=chart.title,
        height=_HEIGHT,
        sizing_mode="stretch_width",
        tools="",
        toolbar_location=None,
        x_range=times,
        y_range=Range1d(start=0, end=105 if chart.share else 1.2),
        margin=(0, 0, 12, 0),
        styles={"background": "#fff", "border": "1px solid #ddd", "border-radius": "6px"},
        border_fill_color=None,
        background_fill_color=None,
        outline_line_color=None,
    )
    drawn: list[Any] = [
        plot.line("at", line.column, source=source, line_color=line.color, line_dash=line.dash, line_width=2)
        for line in chart.lines
    ]
    items = [LegendItem(label=line.label, renderers=[each]) for line, each in zip(chart.lines, drawn, strict=True)]
    plot.add_layout(Legend(items=items, orientation="horizontal", **_LEGEND), "below")
    plot.add_tools(
        HoverTool(
            mode="vline",
            renderers=drawn[:1],
            tooltips=[(line.label, f"@{line.column}{{0,0}}") for line in chart.lines],
        )
    )
    plot.title.text_font_size = "14px"
    plot.title.text_color = "#222"
    plot.xaxis.formatter = CustomJSTickFormatter(code=_TIME)
    plot.yaxis.formatter = NumeralTickFormatter(format="0[.]0 a" if not chart.share else "0")
    plot.xaxis.ticker.desired_num_ticks = 3
    plot.yaxis.ticker.update(desired_num_ticks=4, min_interval=1)  # rows, workers and percentages are integers
    plot.axis.axis_line_color = "#999"
    plot.axis.major_label_text_font_size = "12px"
    plot.axis.major_label_text_color = "#444"
    plot.axis.minor_tick_line_color = None
    plot.xgrid.grid_line_color = None
    return plot


def _known(value: float | None, factor: int = 1) -> float:
    return float("nan") if value is None else value * factor
