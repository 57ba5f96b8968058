"""Print the drift between two tables or two parts of one.

Runs in: the process of `feedline profile`. Pure, but for printing.
"""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from feedline.commands.consoles import say
from feedline.workbench.profile.drift import ColumnDrift, Pair, TableDrift
from feedline.workbench.profile.profile_tables import layout_lines, notice_lines, number_of, share_of

DRIFT_COLUMNS = ("column", "psi", "null", "mean", "ks", "median", "length", "new values", "vanished")
_WIDE, _NARROW = 110, 4  # columns of a terminal from which on all cells fit; cells of a smaller one
_MAX_COLUMNS = 50  # of the table: those that drift most
_STABLE, _MOVED = 0.1, 0.25  # of PSI, by custom
_EXPLAINED = "psi: below 0.1 nothing changed, from 0.25 on much did; ks: largest difference of the distributions"


def print_drift(drift: TableDrift, console: Console) -> None:
    """Print the columns that drift most."""
    for name, side in (("base", drift.base), ("other", drift.other)):
        say(console, f"{name}: " + "\n  ".join(layout_lines(side)))
    table = Table(title="drift", title_justify="left", caption=_EXPLAINED, caption_justify="left")
    shown = DRIFT_COLUMNS if console.width >= _WIDE else DRIFT_COLUMNS[:_NARROW]
    for name in shown:
        table.add_column(name, justify="left" if name == "column" else "right", overflow="fold")
    for column in drift.columns[:_MAX_COLUMNS]:
        table.add_row(*map(escape, drift_cells(column)[: len(shown)]))
    console.print(table)
    lines = drift_summary(drift)
    if len(drift.columns) > _MAX_COLUMNS:
        lines.append(f"{_MAX_COLUMNS} of {len(drift.columns):,} columns are shown: --json and --html have all")
    say(console, "\n".join([*lines, *notice_lines(drift.base), *notice_lines(drift.other)]))


def drift_cells(column: ColumnDrift) -> list[str]:
    """The cells of one column."""
    if column.psi is None:
        return [column.name, column.note or "", *[""] * 7]
    return [
        column.name,
        f"{column.psi:.3f}",
        _change(column.nulls, percent=True),
        _change(column.mean),
        "" if column.ks is None else f"{column.ks:.3f}",
        _change(column.median),
        _change(column.length),
        "" if column.new is None else share_of(column.new),
        "" if column.vanished is None else share_of(column.vanished),
    ]


def _change(pair: Pair, *, percent: bool = False) -> str:
    """`1.2 -> 1.5`; one number if both look the same."""
    texts = [(share_of(value) or ("0" if value == 0 else "")) if percent else number_of(value) for value in pair]
    if texts == ["0", "0"] or texts[0] == texts[1]:
        return "" if percent and texts[0] == "0" else texts[0]
    return f"{texts[0] or '-'} -> {texts[1] or '-'}"


def drift_summary(drift: TableDrift) -> list[str]:
    """How many columns changed."""
    compared = [column for column in drift.columns if column.psi is not None]
    moved = sum(column.psi >= _MOVED for column in compared if column.psi is not None)
    some = sum(_STABLE <= column.psi < _MOVED for column in compared if column.psi is not None)
    lines = [f"{moved:,} columns changed much, {some:,} somewhat, {len(compared) - moved - some:,} did not"]
    if len(compared) < len(drift.columns):
        lines.append(f"{len(drift.columns) - len(compared):,} columns cannot be compared")
    return lines
