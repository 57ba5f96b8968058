"""Render the quality report as a table: a row per feature, or per noticeable feature.

Runs in: the process of a command. Pure. Measures: see `loader/encoding/quality`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

# With more features than this, only the most noticeable are shown.
_MAX_FEATURES = 24

Measures = Mapping[str, Any]


def quality_table(quality: Mapping[str, Measures], limit: int = _MAX_FEATURES) -> Table:
    """Render the measures of up to `limit` features: all, or those with most non-finite, unknown and null values."""
    rows = max((measures["rows"] for measures in quality.values()), default=0)
    table = Table(title=f"quality of {rows:,} rows", title_justify="left", caption_justify="left", expand=False)
    for name in ("feature", "group", "null", "min", "max", "not finite", "unknown", "length p50", "p99", "longest"):
        table.add_column(name, justify="left" if name in ("feature", "group") else "right", no_wrap=True)
    names = list(quality) if len(quality) <= limit else _noticeable(quality)[:limit]
    for name in names:
        measures = quality[name]
        table.add_row(
            name,
            measures["group"],
            _share(measures["null_rate"]),
            _number(measures.get("min")),
            _number(measures.get("max")),
            _share(measures.get("nonfinite_rate")),
            _share(measures.get("oov_rate")),
            *(_number(measures.get(f"list_length_{part}")) for part in ("p50", "p99", "max")),
        )
    if len(names) < len(quality):
        table.caption = f"{len(names)} of {len(quality):,} features, the most noticeable first: --json has all"
    return table


def _noticeable(quality: Mapping[str, Measures]) -> list[str]:
    """Sort the features by their largest share of non-finite, unknown or null values, descending."""

    def worst_rate(name: str) -> float:
        measures = quality[name]
        return max(measures.get(rate) or 0.0 for rate in ("nonfinite_rate", "oov_rate", "null_rate"))

    return sorted(quality, key=worst_rate, reverse=True)


def _share(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2%}" if value == 0 or value >= 0.0001 else "< 0.01%"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
