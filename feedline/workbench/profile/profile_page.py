"""Make the page of a table's profile, and that of a drift, with histograms.

Runs in: the process of `feedline profile`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from markupsafe import Markup, escape

from feedline.workbench.profile.drift import ColumnDrift, TableDrift
from feedline.workbench.profile.profile_tables import (
    COLUMN_CELLS,
    DRIFT_COLUMNS,
    candidate_lines,
    drift_cells,
    drift_summary,
    key_of,
    layout_lines,
    notice_lines,
    number_of,
    share_of,
    shown_columns,
    size_of,
)
from feedline.workbench.profile.table_facts import QUANTILES, ColumnProfile, TableFacts

# --------------------------------------------------------------------------------------------------------------------
# Make a page of HTML that needs nothing else: no network, no script, no other file. The page follows the reader's
# light or dark colors and narrow screens; a policy in it forbids whatever it could load. A `Markup` is HTML that is
# finished; every other string is escaped, so that names of columns, files and values are shown as they are.

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_LIGHT = "--bg:#ffffff;--fg:#1b2230;--quiet:#5c6675;--line:#d9dee6;--panel:#f4f6f9;--c0:#2f6fde;--c1:#d97706;"
_DARK = "--bg:#12161d;--fg:#e6eaf0;--quiet:#9aa5b5;--line:#2d3542;--panel:#1a2029;--c0:#6ea0ff;--c1:#f2a33c;"
_STYLE = f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}
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
details{{margin:.6em 0}} summary{{cursor:pointer}}
.bars{{display:grid;grid-template-columns:minmax(6ch,max-content) minmax(60px,1fr) max-content;gap:5px 12px;
grid-auto-flow:dense;align-items:center;font-size:.92rem}}
.bars>span{{grid-column:1;overflow-wrap:anywhere;max-width:34ch}}
.bars>.n{{grid-column:3}} .bars>.track{{grid-column:2}}
.track{{display:flex;height:14px;background:var(--panel);border-radius:3px;overflow:hidden}}
.track i{{display:block;height:100%}}
figure{{margin:.8em 0;overflow-x:auto}}
svg{{display:block;width:100%;height:auto}} svg text{{fill:var(--quiet);font-size:11px}}
.s0{{background:var(--c0);fill:var(--c0)}} .s1{{background:var(--c1);fill:var(--c1)}}
@media (max-width:600px){{main{{padding:16px 12px 40px}}
.bars{{grid-auto-flow:row;grid-template-columns:1fr max-content}}
.bars>span{{max-width:none}} .bars>.n{{grid-column:2}} .bars>.track{{grid-column:1/-1}}
svg text{{font-size:20px}} th,td{{padding-right:9px}}
.wide table{{min-width:640px}}}}
@media print{{h2{{break-after:avoid}} tr,figure{{break-inside:avoid}}}}
"""


def html_element(tag: str, *content: object, **attributes: object) -> Markup:
    """An element with content, and attributes (`class_`: class; those that are None are left out)."""
    names = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    written = "".join(f' {name}="{escape(value)}"' for name, value in names.items())
    inner = "".join("" if each is None else escape(each) for each in content)
    return Markup(f"<{tag}{written}>{inner}</{tag}>")


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
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>{body}</body></html>\n"
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


def plain_number(value: float) -> str:
    """A number in few digits: 1,234, 12.3, 0.0123."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if size >= 10 else f"{value:,.3g}"


def html_bars(rows: Iterable[tuple[str, float, str]]) -> Markup:
    """Horizontal bars, one below the other: of each its name, its share of a whole line, and the words at its end."""
    cells: list[Markup] = []
    for name, share, words in rows:
        bar = html_element("i", class_="s0", style=f"width:{100 * min(share, 1.0):.3f}%")
        number = plain_number(share)
        cells.append(html_element("span", name))
        cells.append(html_element("span", words, class_="n"))
        cells.append(html_element("div", bar, class_="track", title=number, role="img", aria_label=number))
    return html_element("div", html_element("div", *cells, class_="bars"))


def html_histogram(
    edges: Sequence[float | str],
    counts: Sequence[float],
    *,
    name: str,
    others: Sequence[float] | None = None,
) -> Markup:
    """Columns of counts. edges: one more than counts, of numbers; or the words of each column. others: counts of a
    second sample, drawn beside the first.
    """
    series = [counts] if others is None else [counts, others]
    tallest = max((max(each, default=0.0) for each in series), default=0.0) or 1.0
    room = (_WIDTH - _LEFT) / max(len(counts), 1)
    bar = room * 0.92 / len(series)
    words = [each if isinstance(each, str) else plain_number(each) for each in edges]
    between = [f"{low} to {high}" for low, high in pairwise(words)] if len(words) > len(counts) else words
    shapes = [
        html_element(
            "rect",
            html_element("title", f"{between[index]}: {plain_number(count)}"),
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
        labels.append((words[middle], "middle", _LEFT + round(room * (middle + (len(words) == len(counts)) / 2))))
    ground = _y(0, tallest)
    axes = [html_element("line", x1=_LEFT, x2=_WIDTH, y1=ground, y2=ground, stroke="var(--line)")]
    for value, y in ((tallest, _y(tallest, tallest) + 4), (0, ground)):
        axes.append(html_element("text", plain_number(value), x=_LEFT - 6, y=y, text_anchor="end"))
    axes += [html_element("text", text, x=x, y=_HEIGHT - 6, text_anchor=anchor) for text, anchor, x in labels]
    svg = html_element("svg", *shapes, *axes, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=name)
    return html_element("figure", svg)


def _y(value: float, tallest: float) -> float:
    top = 8
    return top + (_HEIGHT - _BOTTOM - top) * (1 - min(value / tallest, 1.0))


# --------------------------------------------------------------------------------------------------------------------

_PICTURES = 500  # columns with histograms: the page of more would take minutes to lay out
_SHORT_NAME = 24  # characters of a name that is not broken
_COLUMNS = ("column", "type", "role", "null", "distinct", "min", "max", "length", "B/row", "notes")


def profile_page(facts: TableFacts) -> str:
    """The page of one table."""
    sections: list[object] = [
        number_tiles(
            {
                "rows": f"{facts.rows:,}",
                "columns": f"{len(facts.columns):,}",
                "files": f"{facts.files:,}",
                "row groups": f"{facts.row_groups:,}",
                "on disk": size_of(facts.bytes),
                "sampled rows": f"{facts.sampled.rows:,}",
            }
        )
    ]
    keys = [f"partition key {key_of(key)}" for key in facts.partitions]
    lines = [*keys, *candidate_lines(facts), *notice_lines(facts)]
    if lines:
        sections.append(page_section("What to know", *_paragraphs(lines)))
    rows = [_row(column) for column in shown_columns(facts)]
    sections.append(page_section("Columns", html_table(_COLUMNS, rows, numbers=range(3, 9))))
    pictured = [column for column in facts.columns if _has_picture(column)]
    pictures = [_picture(column) for column in pictured[:_PICTURES]]
    if pictures:
        note = "of the sampled rows; strings are not shown"
        if len(pictured) > _PICTURES:
            note += f"; {_PICTURES} of {len(pictured):,} columns"
        sections.append(page_section("Distributions", *pictures, note=note))
    lead, *_, note = layout_lines(facts)
    return render_page(f"Profile of {facts.uri}", sections, lead=lead, note=note)


def drift_page(drift: TableDrift) -> str:
    """The page of a comparison."""
    base, other = layout_lines(drift.base), layout_lines(drift.other)
    sections: list[object] = [
        page_section("Sides", *_paragraphs([f"base: {base[0]}", *base[1:]])),
        html_element("div", *_paragraphs([f"other: {other[0]}", *other[1:]])),
        page_section(
            "Columns",
            html_table(DRIFT_COLUMNS, [drift_cells(column) for column in drift.columns], numbers=range(1, 9)),
            note="psi: below 0.1 nothing changed, from 0.25 on much did",
        ),
    ]
    pictures = [_drift_picture(column) for column in drift.columns[:_PICTURES] if column.bins is not None]
    if pictures:
        note = "shares of the base (first) and of the other (second), in tenths of the base"
        sections.append(page_section("Distributions", *pictures, note=note))
    sides = [each.uri if each.where is None else f"{each.uri} where {each.where}" for each in (drift.base, drift.other)]
    return render_page(f"Drift from {' to '.join(sides)}", sections, lead="; ".join(drift_summary(drift)))


def _paragraphs(lines: Sequence[str]) -> list[Markup]:
    return [html_element("p", line) for line in lines]


def _row(column: ColumnProfile) -> list[object]:
    cells: dict[str, object] = {name: COLUMN_CELLS[name](column) for name in _COLUMNS}
    cells["column"] = _unbroken(column.name) if len(column.name) <= _SHORT_NAME else column.name
    return list((cells | {"role": _unbroken(column.role)}).values())


def _unbroken(text: str) -> Markup:
    return html_element("span", text, style="white-space:nowrap")


def _has_picture(column: ColumnProfile) -> bool:
    has_values = bool(column.frequent) and (column.role != "time" or column.partition)
    return has_values or (column.numbers is not None and column.numbers.histogram is not None)


def _picture(column: ColumnProfile) -> Markup:
    numbers = column.numbers
    parts: list[object] = [html_element("h3", column.name)]
    if numbers is not None and numbers.histogram is not None and column.role in ("numeric", "list"):
        histogram = numbers.histogram
        parts.append(html_histogram(histogram.edges, histogram.counts, name=f"distribution of {column.name}"))
        names = [f"{share:.0%}" for share in QUANTILES]
        row = [[number_of(value) for value in numbers.quantiles]]
        parts.append(folded("quantiles", html_table(names, row, numbers=range(len(names)))))
    if column.frequent and column.role != "numeric":
        values = enumerate(column.frequent, 1)
        bars = ((each.value or f"value {index}", each.share, share_of(each.share)) for index, each in values)
        parts.append(html_bars(bars))
    return html_element("div", *parts)


def _drift_picture(column: ColumnDrift) -> Markup:
    assert column.bins is not None
    shares = [[count / max(sum(side), 1) for count in side] for side in (column.bins.base, column.bins.other)]
    picture = html_histogram(column.bins.labels, shares[0], name=f"drift of {column.name}", others=shares[1])
    return html_element("div", html_element("h3", f"{column.name}: psi {column.psi:.3f}"), picture)
