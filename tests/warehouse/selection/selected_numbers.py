"""How many row groups and rows a selection took, by reason."""

from __future__ import annotations

from feedline.warehouse.selection.select import Selection


def numbers(selection: Selection) -> dict[str, tuple[int, int]]:
    names = ("by_partition", "by_statistics", "whole", "counted", "kept")
    shares = {name: getattr(selection.report, name) for name in names}
    return {name: (share.row_groups, share.rows) for name, share in shares.items()}
