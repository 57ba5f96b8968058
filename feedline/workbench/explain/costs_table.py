"""Show what features cost, as a table on the terminal: those that cost most first.

Runs in: the process of `feedline explain`. Pure, from the facts of a `CostAccount`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

_SHOWN = 12


def costs_table(account: Mapping[str, Any], shown: int = _SHOWN) -> Table:
    """A row per feature, up to `shown`, and what all share; times are CPU seconds per million rows."""
    block_s = account["block_s"]["cpu_s"]
    table = Table(title=f"CPU s per M rows: {block_s:.2f}", title_justify="left", caption_justify="left", expand=False)
    table.add_column("feature", overflow="fold")
    for name in ("decoding", "ops", "encoding", "share", "MB/M rows", "CPU s/epoch"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("steps that cost most", overflow="fold")
    features = sorted(account["features"], key=lambda feature: -feature["cpu_s"]["cpu_s"])
    for feature in features[:shown]:
        table.add_row(
            escape(feature["name"]),
            *(f"{max(feature[part]['cpu_s'], 0.0):.3f}" for part in ("decode_s", "ops_s", "encode_s")),
            f"{feature['share']:.1%}",
            f"{feature['nbytes'] / 1e6:,.1f}",
            f"{max(feature['epoch_cpu_s'], 0.0):,.1f}",
            escape(_steps(feature)),
        )
    hidden = len(features) - shown
    difference = account["difference_s"] / max(block_s - account["difference_s"], 1e-12)  # of the sum of the parts
    beyond = f"{abs(difference):.0%} {'more' if difference > 0 else 'less'}"
    more = f"{hidden} more features cost less: --json has all. " if hidden > 0 else ""
    table.caption = (
        f"{more}{account['shared_s']:.3f} are shared by all: files, filter, calls, the order of rows. Measured on "
        f"{account['rows']:,} rows, each column and chain alone; whole blocks take {beyond} than their sum."
    )
    return table


def _steps(feature: Mapping[str, Any]) -> str:
    """`hash_bucket 0.31 (of 3 features)`: the dearest step, and by how many features it is shared."""
    if not feature["steps"]:
        return ""
    step = max(feature["steps"], key=lambda each: each["cpu_s"])
    shared = f" (of {step['sharers']} features)" if step["sharers"] > 1 else ""
    return f"{step['op']} {step['cpu_s']:.3f}{shared}"
