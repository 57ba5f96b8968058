"""Print the facts of a table: its layout, a line per column, and what may be its label, time and sessions.

Runs in: the process of `feedline profile`. Pure, but for printing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from feedline.commands.consoles import say
from feedline.workbench.profile.drift import ColumnDrift, Pair, TableDrift
from feedline.workbench.profile.table_facts import ColumnProfile, DistinctCount, PartitionKey, TableFacts

_MAX_COLUMNS = 200  # lines of the table of columns
# Cells that are shown only on a terminal of so many columns, or more.
_FROM_WIDTH = {
    140: frozenset({"type", "B/row", "median"}),
    110: frozenset({"min", "max", "length"}),
    90: frozenset({"role"}),
    70: frozenset({"notes"}),
}
_SHARED = 0.8  # of the correlation of nulls with the label's
_LISTED = 3  # candidates, groups and files that are named
_SECONDS = 19  # characters of a time in ISO 8601, up to its seconds
_BLOCKS = " ▁▂▃▄▅▆▇█"
_BAR = 12  # characters of a histogram
Cell = Callable[[ColumnProfile], str]


def print_profile(facts: TableFacts, console: Console) -> None:
    """Print the facts for people."""
    say(console, "\n".join(layout_lines(facts)))
    if facts.columns:
        console.print(_columns_table(facts, console.width))
    say(console, "\n".join([*candidate_lines(facts), *notice_lines(facts)]))


def layout_lines(facts: TableFacts) -> list[str]:
    """The table's size, its keys, and what was sampled."""
    low, middle, high = facts.row_group_rows
    groups = f"{facts.row_groups:,} row groups"
    if facts.row_groups:
        groups += f" of {low:,} rows" if low == high else f" of {low:,} to {high:,} rows (median {middle:,})"
    sizes = f"{facts.files:,} files, {size_of(facts.bytes)}, {facts.rows:,} rows, {len(facts.columns):,} columns"
    lines = [f"{facts.uri}: {facts.format}, {sizes}, {groups}"]
    lines += [f"partition key {key_of(key)}" for key in facts.partitions]
    if facts.where is not None:
        lines.append(f"where {facts.where}: at most {facts.selected_rows:,} rows")
    part = facts.sampled
    read = f"{size_of(part.bytes)} of {part.columns:,} columns"
    return [*lines, f"sampled {part.rows:,} rows of {part.row_groups:,} row groups ({read})"]


def key_of(key: PartitionKey) -> str:
    """A partition key in words."""
    return f"{key.name} ({key.type}): {key.values:,} values, {key.first} to {key.last}"


def size_of(nbytes: int) -> str:
    """A size in the largest unit below it."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:,.1f} {unit}"
    return f"{nbytes} bytes"


def _columns_table(facts: TableFacts, width: int) -> Table:
    gone = frozenset[str]().union(*(names for least, names in _FROM_WIDTH.items() if width < least))
    cells = {name: cell for name, cell in COLUMN_CELLS.items() if name not in gone}
    table = Table(title="columns", title_justify="left", caption_justify="left")
    left = {"column", "type", "role", "distribution", "notes"}
    for name in cells:
        whole = name in ("distribution", "role")
        table.add_column(name, justify="left" if name in left else "right", overflow="fold", no_wrap=whole)
    shown = shown_columns(facts)
    for column in shown[:_MAX_COLUMNS]:
        table.add_row(*(escape(cell(column)) for cell in cells.values()))
    if len(shown) > _MAX_COLUMNS:
        table.caption = f"{_MAX_COLUMNS} of {len(shown):,} columns: --json and --html have all"
    return table


def shown_columns(facts: TableFacts) -> Sequence[ColumnProfile]:
    """The columns of which rows were read, or all, if none were."""
    return [column for column in facts.columns if column.rows] or facts.columns


def share_of(rate: float | None) -> str:
    """A rate in per cent; empty if it is 0 or unknown."""
    if not rate:
        return ""
    return f"{rate:.1%}" if 0.001 <= rate <= 0.999 or rate == 1 else "< 0.1%" if rate < 0.5 else "> 99.9%"


def number_of(value: float | None) -> str:
    """A number in few digits."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def distinct_of(count: DistinctCount | None) -> str:
    """Distinct values of the table, with `~` where they are estimated."""
    if count is None:
        return ""
    return f"{count.table:,}" if count.table == count.sample else f"~{count.table:,}"


def ends_of(column: ColumnProfile) -> tuple[str, str]:
    """The least and the greatest number or time, as text."""
    if column.numbers is not None:
        return number_of(column.numbers.min), number_of(column.numbers.max)
    first, last = (_short_time(end or "") for end in (column.first, column.last))
    return first, last


def _short_time(text: str) -> str:
    """A time up to its seconds; of a year that needs a sign, its date."""
    return text.partition("T")[0] if text.startswith(("+", "-")) else text[:_SECONDS].replace("T", " ")


def _median(column: ColumnProfile) -> str:
    return "" if column.numbers is None or column.role == "category" else number_of(column.numbers.median)


def length_of(column: ColumnProfile) -> str:
    """Lengths of lists: median, 95th percentile, longest; of strings: mean and longest, in bytes."""
    if column.lengths is not None:
        lengths = column.lengths
        return f"{lengths.p50}, {lengths.p95}, {lengths.max}" if lengths.fixed is None else f"{lengths.fixed}"
    if column.string_bytes is not None:
        return f"{column.string_bytes[0]:.0f}, {column.string_bytes[1]:,} B"
    return ""


def bar_of(column: ColumnProfile) -> str:
    """A histogram of numbers, or the shares of the most frequent values, in a few characters."""
    histogram = None if column.numbers is None or column.role == "category" else column.numbers.histogram
    if histogram is None:
        return _bars([value.share for value in column.frequent[:_BAR]])
    # 20 bins are shown as 10, two together
    counts, width = histogram.counts, -(-len(histogram.counts) // _BAR)
    merged = [sum(counts[start : start + width]) for start in range(0, len(counts), width)]
    return _bars(merged) + (" log" if histogram.log else "")


def _bars(counts: Sequence[float]) -> str:
    most = max(counts, default=0)
    if not most:
        return ""
    # what is not empty has a bar
    return "".join(_BLOCKS[max(round(8 * count / most), 1) if count else 0] for count in counts)


def notes_of(column: ColumnProfile) -> list[str]:
    """What is special about a column."""
    numbers, repeated = column.numbers, column.repeated or 0.0
    empty = 0.0 if column.lengths is None else column.lengths.empty_rate
    bad = 0.0 if numbers is None else numbers.nan_rate + numbers.inf_rate
    zeros = numbers.zero_rate if numbers is not None and column.role == "numeric" else 0.0
    is_varied = not (column.constant or column.all_null or column.partition)
    shown = ", ".join(f"{value.value!r} {share_of(value.share)}" for value in column.frequent[:_LISTED])
    notes = (
        (column.disguise is not None, f"label in disguise? {column.disguise}"),
        (column.reason is not None and column.role in ("nested", "unsupported"), column.reason or ""),
        (column.all_null, "all null"),
        (column.constant and not column.all_null, "constant"),
        (column.id_like, "a value per row"),
        (empty > 0, f"{share_of(empty)} empty"),
        (bad > 0, f"{share_of(bad)} not finite"),
        (zeros >= 0.5, f"{share_of(zeros)} zeros"),
        (repeated >= 0.5 and is_varied, f"{repeated:.0%} repeat"),
        ((column.shared_nulls or 0.0) >= _SHARED, "null where the label is"),
        (column.time_order and not column.partition, f"{'rises' if column.time_order > 0 else 'falls'} with time"),
        (column.role == "string" and any(value.value for value in column.frequent), shown),
    )
    return [words for holds, words in notes if holds]


def candidate_lines(facts: TableFacts) -> list[str]:
    """What may be the label, the time and the session, with reasons."""
    lines = [
        f"{kind}? {each.column}{' (taken)' if each.column == chosen else ''}: {each.reason}"
        for kind, candidates, chosen in (("label", facts.labels, facts.label), ("time", facts.times, facts.time))
        for each in candidates[:_LISTED]
    ]
    for session in facts.sessions[:_LISTED]:
        order = "stored together" if session.clustered else f"stored apart, in runs of {session.run_rows:.1f}"
        lines.append(f"session? {session.column}: {session.reason}; {order}")
        if session.groups:
            names = ", ".join("+".join(group.columns) for group in session.groups[:_LISTED])
            more = ", ..." if len(session.groups) > _LISTED else ""
            lines.append(f"  dedup groups that save {session.saved_share:.0%} of a batch: {names}{more}")
    return lines


def notice_lines(facts: TableFacts) -> list[str]:
    """Warnings, and the files that were left out."""
    lines = [f"note: {text}" for text in facts.warnings]
    lines += [f"left out: {path}: {reason}" for path, reason in facts.skipped[:_LISTED]]
    if len(facts.skipped) > _LISTED:
        lines.append(f"left out: {len(facts.skipped) - _LISTED:,} more files: --json names them")
    return lines


# The cells of a column by their heads; a page has no room for all.
COLUMN_CELLS: dict[str, Cell] = {
    "column": lambda column: repr(column.name)[1:-1] or "''",
    "type": lambda column: column.type,
    "role": lambda column: column.role,
    "null": lambda column: share_of(column.null_rate),
    "distinct": lambda column: distinct_of(column.vocabulary),
    "min": lambda column: ends_of(column)[0],
    "median": _median,
    "max": lambda column: ends_of(column)[1],
    "distribution": bar_of,
    "length": length_of,
    "B/row": lambda column: "" if column.bytes_per_row is None else f"{column.bytes_per_row:.2f}",
    "notes": lambda column: "; ".join(notes_of(column)),
}


# --------------------------------------------------------------------------------------------------------------------
# Print the drift between two tables or two parts of one. Pure, but for printing.

DRIFT_COLUMNS = ("column", "psi", "null", "mean", "ks", "median", "length", "new values", "vanished")
_WIDE, _NARROW = 110, 4  # columns of a terminal from which on all cells fit; cells of a smaller one
_MOST_DRIFTED = 50  # of the table: those that drift most
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
    for column in drift.columns[:_MOST_DRIFTED]:
        table.add_row(*map(escape, drift_cells(column)[: len(shown)]))
    console.print(table)
    lines = drift_summary(drift)
    if len(drift.columns) > _MOST_DRIFTED:
        lines.append(f"{_MOST_DRIFTED} of {len(drift.columns):,} columns are shown: --json and --html have all")
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
    compared = [column.psi for column in drift.columns if column.psi is not None]
    moved, some = (sum(low <= psi < high for psi in compared) for low, high in ((_MOVED, inf), (_STABLE, _MOVED)))
    lines = [f"{moved:,} columns changed much, {some:,} somewhat, {len(compared) - moved - some:,} did not"]
    if len(compared) < len(drift.columns):
        lines.append(f"{len(drift.columns) - len(compared):,} columns cannot be compared")
    return lines
