"""Draw pictures for a page of HTML: bars and histograms.

Runs in: the process of the command. Pure. Bars are boxes of the page, which stay readable at any width; histograms are
inline SVG. Every picture has its numbers as words, for readers who do not see it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from feedline.workbench.profile.html_page import COLORS, Markup, html_element

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 900, 180, 52, 22  # of a picture in SVG, and its margins for axes


@dataclass(frozen=True, slots=True, kw_only=True)
class BarRow:
    """A bar of parts, in the order of the legend. text: the number at its end; detail: shown when pointed at."""

    name: str
    parts: tuple[float, ...]
    text: str = ""
    detail: str = ""


def plain_number(value: float) -> str:
    """A number in few digits: 1,234, 12.3, 0.0123."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if size >= 10 else f"{value:,.3g}"


def html_bars(rows: Sequence[BarRow], legend: Sequence[str] = ("",), *, most: float | None = None) -> Markup:
    """Horizontal bars, one below the other, to one scale. most: the value of a whole line (default: the longest)."""
    longest = most or max((sum(row.parts) for row in rows), default=0.0) or 1.0
    cells: list[Markup] = []
    for row in rows:
        parts = [
            html_element("i", class_=f"s{index % COLORS}", style=f"width:{_share(part, longest):.3f}%")
            for index, part in enumerate(row.parts)
            if part > 0
        ]
        words = row.detail or ", ".join(
            f"{name} {plain_number(part)}".strip() for name, part in zip(legend, row.parts, strict=False)
        )
        cells.append(html_element("span", row.name))
        cells.append(html_element("span", row.text, class_="n"))
        cells.append(html_element("div", *parts, class_="track", title=words, role="img", aria_label=words))
    picture = html_element("div", *cells, class_="bars")
    return html_element("div", _legend(legend) if len(legend) > 1 else "", picture)


def html_histogram(
    edges: Sequence[float | str],
    counts: Sequence[float],
    *,
    name: str,
    others: Sequence[float] | None = None,
    number: Callable[[float], str] = plain_number,
) -> Markup:
    """Columns of counts. edges: one more than counts, of numbers; or the words of each column. others: counts of a
    second sample, drawn beside the first.
    """
    series = [counts] if others is None else [counts, others]
    tallest = max((max(each, default=0.0) for each in series), default=0.0) or 1.0
    room = (_WIDTH - _LEFT) / max(len(counts), 1)
    bar = room * 0.92 / len(series)
    words = [each if isinstance(each, str) else number(each) for each in edges]
    shapes = [
        html_element(
            "rect",
            html_element("title", f"{_column_words(words, index, len(counts))}: {number(count)}"),
            class_=f"s{which}",
            x=f"{_LEFT + index * room + which * bar:.1f}",
            y=f"{_y(count, tallest):.1f}",
            width=f"{bar:.1f}",
            height=f"{max(_y(0, tallest) - _y(count, tallest), 0):.1f}",
        )
        for which, each in enumerate(series)
        for index, count in enumerate(each)
    ]
    labels = [(words[0], "start", _LEFT), (words[-1], "end", _WIDTH)] if words else []
    if len(words) > 4:
        middle = len(words) // 2
        labels.insert(1, (words[middle], "middle", _LEFT + round(room * (middle + (len(words) == len(counts)) / 2))))
    return _svg(name, [*shapes, *_axes(tallest, number), *(_label(*each) for each in labels)])


def _share(part: float, whole: float) -> float:
    return 100 * min(max(part / whole, 0.0), 1.0)


def _y(value: float, tallest: float) -> float:
    top = 8
    return top + (_HEIGHT - _BOTTOM - top) * (1 - min(value / tallest, 1.0))


def _column_words(words: Sequence[str], index: int, columns: int) -> str:
    return f"{words[index]} to {words[index + 1]}" if len(words) > columns else words[index]


def _axes(tallest: float, number: Callable[[float], str]) -> list[Markup]:
    ground = _y(0, tallest)
    line = html_element("line", x1=_LEFT, x2=_WIDTH, y1=ground, y2=ground, stroke="var(--line)")
    marks = [(number(tallest), _y(tallest, tallest) + 4), (number(0), ground)]
    return [line, *(html_element("text", text, x=_LEFT - 6, y=y, text_anchor="end") for text, y in marks)]


def _label(text: str, anchor: str, x: float) -> Markup:
    return html_element("text", text, x=x, y=_HEIGHT - 6, text_anchor=anchor)


def _svg(name: str, shapes: Sequence[Markup]) -> Markup:
    svg = html_element("svg", *shapes, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=name)
    return html_element("figure", svg)


def _legend(names: Sequence[str]) -> Markup:
    marks = (
        html_element("span", html_element("i", class_=f"s{index % COLORS}"), name) for index, name in enumerate(names)
    )
    return html_element("div", *marks, class_="legend")
