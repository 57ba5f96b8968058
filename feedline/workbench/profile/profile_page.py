"""Make the page of a table's profile, and that of a drift, with histograms.

Runs in: the process of `feedline profile`. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from feedline.workbench.profile.drift import ColumnDrift, TableDrift
from feedline.workbench.profile.html_page import (
    BarRow,
    Markup,
    folded,
    html_bars,
    html_element,
    html_histogram,
    html_table,
    number_tiles,
    page_section,
    render_page,
)
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
    lines = [
        *(f"partition key {key_of(key)}" for key in facts.partitions),
        *candidate_lines(facts),
        *notice_lines(facts),
    ]
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
    return render_page(f"Profile of {facts.uri}", sections, lead=layout_lines(facts)[0], note=layout_lines(facts)[-1])


def drift_page(drift: TableDrift) -> str:
    """The page of a comparison."""
    sections: list[object] = [
        page_section("Sides", *_paragraphs([f"base: {layout_lines(drift.base)[0]}", *layout_lines(drift.base)[1:]])),
        html_element("div", *_paragraphs([f"other: {layout_lines(drift.other)[0]}", *layout_lines(drift.other)[1:]])),
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
    lead = "; ".join(drift_summary(drift))
    return render_page(f"Drift from {_side(drift.base)} to {_side(drift.other)}", sections, lead=lead)


def _side(facts: TableFacts) -> str:
    return facts.uri if facts.where is None else f"{facts.uri} where {facts.where}"


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
        bars = [
            BarRow(name=value.value or f"value {index + 1}", parts=(value.share,), text=share_of(value.share))
            for index, value in enumerate(column.frequent)
        ]
        parts.append(html_bars(bars, most=1.0))
    return html_element("div", *parts)


def _drift_picture(column: ColumnDrift) -> Markup:
    assert column.bins is not None
    shares = [[count / max(sum(side), 1) for count in side] for side in (column.bins.base, column.bins.other)]
    picture = html_histogram(column.bins.labels, shares[0], name=f"drift of {column.name}", others=shares[1])
    return html_element("div", html_element("h3", f"{column.name}: psi {column.psi:.3f}"), picture)
