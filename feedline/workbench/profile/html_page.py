"""Make a page of HTML that needs nothing else: no network, no script, no other file.

Runs in: the process of the command. Pure. The page follows the reader's light or dark colors and narrow screens; a
policy in it forbids whatever it could load. A `Markup` is HTML that is finished; every other string is escaped, so that
names of columns, files and values are shown as they are. Pictures: `html_pictures`.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
# Eight colors of series that differ in both schemes, also for most who see few colors.
_LIGHT = ("#2f6fde", "#d97706", "#0f9d76", "#b5439a", "#8a6d1f", "#5b6b84", "#c2413b", "#6d4fd1")
_DARK = ("#6ea0ff", "#f2a33c", "#3ecba0", "#e07fc7", "#c9ad5c", "#9aaac2", "#f0807a", "#a58bff")
COLORS = len(_LIGHT)


def _scheme(background: str, text: str, quiet: str, line: str, panel: str, series: Sequence[str]) -> str:
    names = {"bg": background, "fg": text, "quiet": quiet, "line": line, "panel": panel}
    names |= {f"c{index}": color for index, color in enumerate(series)}
    return "".join(f"--{name}:{value};" for name, value in names.items())


_STYLE = f"""
:root{{color-scheme:light dark;{_scheme("#ffffff", "#1b2230", "#5c6675", "#d9dee6", "#f4f6f9", _LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{{_scheme("#12161d", "#e6eaf0", "#9aa5b5", "#2d3542", "#1a2029", _DARK)}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}}
main{{max-width:1080px;margin:0 auto;padding:24px 20px 64px}}
h1{{font-size:1.5rem;line-height:1.25;margin:0 0 .3em;overflow-wrap:anywhere}}
h2{{font-size:1.1rem;margin:2.2em 0 .6em;padding-top:.8em;border-top:1px solid var(--line)}}
h3{{font-size:1rem;margin:1.4em 0 .4em;overflow-wrap:anywhere}}
p{{margin:.4em 0;max-width:78ch;overflow-wrap:anywhere}}
.lead{{font-size:1.12rem}} .quiet{{color:var(--quiet);font-size:.9rem}}
.tiles{{display:flex;flex-wrap:wrap;gap:10px;margin:1em 0}}
.tile{{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:8px 14px;min-width:112px}}
.tile b{{display:block;font-size:1.15rem;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}}
.wide{{overflow-x:auto;margin:.8em 0}}
table{{border-collapse:collapse;font-size:.92rem;min-width:50%}}
th,td{{padding:5px 14px 5px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}}
td{{overflow-wrap:anywhere}} td:first-child{{min-width:11ch}}
th{{color:var(--quiet);font-weight:600;white-space:nowrap}}
.n{{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}}
code,pre{{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}}
pre{{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:10px 14px;overflow-x:auto}}
details{{margin:.6em 0}} summary{{cursor:pointer}}
.legend{{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.88rem;margin:.4em 0;color:var(--quiet)}}
.legend i{{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.45em}}
.bars{{display:grid;grid-template-columns:minmax(6ch,max-content) minmax(60px,1fr) max-content;gap:5px 12px;
grid-auto-flow:dense;align-items:center;font-size:.92rem}}
.bars>span{{grid-column:1;overflow-wrap:anywhere;max-width:34ch}}
.bars>.n{{grid-column:3}} .bars>.track{{grid-column:2}}
.track{{display:flex;height:14px;background:var(--panel);border-radius:3px;overflow:hidden}}
.track i{{display:block;height:100%}}
.node{{min-width:0;display:flex;flex-direction:column}}
.node>b{{font-weight:400;color:#fff;border:1px solid var(--bg);border-radius:3px;padding:1px 5px;height:24px;
white-space:nowrap;overflow:hidden;text-overflow:ellipsis}}
figure{{margin:.8em 0;overflow-x:auto}}
svg{{display:block;width:100%;height:auto}} svg text{{fill:var(--quiet);font-size:11px}}
{"".join(f".s{index}{{background:var(--c{index});fill:var(--c{index});stroke:none}}" for index in range(len(_LIGHT)))}
@media (prefers-color-scheme:dark){{.node>b{{color:#10141a}}}}
@media (max-width:600px){{main{{padding:16px 12px 40px}}
.bars{{grid-auto-flow:row;grid-template-columns:1fr max-content}}
.bars>span{{max-width:none}} .bars>.n{{grid-column:2}} .bars>.track{{grid-column:1/-1}}
svg text{{font-size:20px}} th,td{{padding-right:9px}}
.wide table{{min-width:640px}}}}
@media print{{h2{{break-after:avoid}} tr,figure{{break-inside:avoid}}}}
"""


class Markup(str):
    """A string of finished HTML, which is not escaped again."""

    __slots__ = ()


def as_markup(value: object) -> Markup:
    """A value as HTML: a string, a number or None (an empty cell) is escaped, a Markup stays as it is."""
    if isinstance(value, Markup):
        return value
    return Markup("" if value is None else html.escape(str(value)))


def join_markup(parts: Iterable[object]) -> Markup:
    """Several values as one piece of HTML."""
    return Markup("".join(map(as_markup, parts)))


def html_element(tag: str, *content: object, **attributes: object) -> Markup:
    """An element with content, and attributes (`class_`: class; those that are None are left out)."""
    names = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    written = "".join(f' {name}="{html.escape(str(value))}"' for name, value in names.items())
    return Markup(f"<{tag}{written}>{join_markup(content)}</{tag}>")


def render_page(title: str, sections: Iterable[object], *, lead: object = "", note: object = "") -> str:
    """The whole document. lead: the sentence below the title; note: a line below that, small."""
    body = html_element(
        "main",
        html_element("h1", title),
        html_element("p", lead, class_="lead") if lead else "",
        html_element("p", note, class_="quiet") if note else "",
        *sections,
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{as_markup(title)}</title><style>{_STYLE}</style></head>\n<body>{body}</body></html>\n"
    )


def page_section(title: str, *content: object, note: object = "") -> Markup:
    """A part of the page under a heading. note: how to read it."""
    return html_element(
        "section", html_element("h2", title), html_element("p", note, class_="quiet") if note else "", *content
    )


def number_tiles(numbers: Mapping[str, object]) -> Markup:
    """A few numbers to see first, each above its name."""
    return html_element(
        "div",
        *(html_element("div", html_element("b", value), name, class_="tile") for name, value in numbers.items()),
        class_="tiles",
    )


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Iterable[int] = ()) -> Markup:
    """A table. numbers: the positions of columns that are aligned to the right. Scrolls where the screen is narrow."""
    right = frozenset(numbers)
    classes = ["n" if index in right else None for index in range(len(columns))]
    head = [html_element("th", name, class_=kind) for name, kind in zip(columns, classes, strict=True)]
    body = [
        html_element("tr", *(html_element("td", each, class_=kind) for each, kind in zip(row, classes, strict=True)))
        for row in rows
    ]
    table = html_element("table", html_element("thead", html_element("tr", *head)), html_element("tbody", *body))
    return html_element("div", table, class_="wide")


def folded(summary: str, *content: object) -> Markup:
    """Content that a click shows."""
    return html_element("details", html_element("summary", summary), *content)


# --------------------------------------------------------------------------------------------------------------------
# Draw pictures for a page of HTML: bars and histograms. Bars are boxes of the page, which stay readable at any width;
# histograms are inline SVG. Every picture has its numbers as words, for readers who do not see it.

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
