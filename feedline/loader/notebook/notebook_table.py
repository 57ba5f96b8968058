"""Render a table as HTML for notebooks, which show what `_repr_html_` returns.

Runs in: the process of a notebook. Pure; without imports that a trainer would notice. Every text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_MAX_ROWS = 100
_MAX_TEXT = 60  # characters of a cell


def notebook_table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a caption. Numbers are grouped by thousands and at the right; of many rows, the first are shown."""
    shown = list(rows)
    head = "".join(f'<th style="text-align: left">{_escape(each)}</th>' for each in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in shown[:_MAX_ROWS])
    more = f"<p>and {len(shown) - _MAX_ROWS:,} more</p>" if len(shown) > _MAX_ROWS else ""
    return (
        f'<table><caption style="text-align: left">{_escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
    )


def short_text(value: object, most: int = _MAX_TEXT) -> str:
    """A value as a text of limited length."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td style="text-align: right">{value:,}</td>'
    return f'<td style="text-align: left">{_escape("" if value is None else short_text(value))}</td>'


def _escape(text: str) -> str:
    return text.translate(_ESCAPED)
