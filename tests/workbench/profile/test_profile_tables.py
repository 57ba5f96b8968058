"""Facts of a table as lines and tables for people."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import pytest
from profiles import column, lengths, numbers, session_of, table
from rich.console import Console

from feedline.workbench.profile.drift import ColumnDrift, TableDrift
from feedline.workbench.profile.profile_tables import (
    bar_of,
    candidate_lines,
    distinct_of,
    drift_cells,
    drift_summary,
    length_of,
    notes_of,
    notice_lines,
    number_of,
    print_drift,
    print_profile,
    share_of,
    size_of,
)
from feedline.workbench.profile.table_facts import (
    ColumnProfile,
    DistinctCount,
    FrequentValue,
    Histogram,
    LabelCandidate,
    RepeatedColumns,
    TableFacts,
)

NUMBERS = numbers(
    0,
    40,
    skewness=3.0,
    quantiles=(0, 0, 1, 2, 3, 4, 5),
    zero_rate=0.6,
    nan_rate=0.01,
    inf_rate=0.01,
    histogram=Histogram(edges=(0, 10, 20, 30, 40), counts=(80, 1, 0, 40)),
)
PRICE = column("price", kind="int64", rows=9, null_rate=0.25, numbers=NUMBERS, vocabulary=None)
LISTS = lengths(9, 12)
ODD = column("a\nb[red]", "nested", "struct<a: int64>", reason="a struct", rows=9, null_rate=1.0)
FACTS = table(PRICE, ODD, rows=9, uri="/t", files=3, bytes=12_345, row_groups=3, row_group_rows=(1, 3, 5))


def test_json_has_no_values_that_json_lacks():
    facts = replace(FACTS, columns=(replace(PRICE, numbers=replace(NUMBERS, skewness=math.nan, max=math.inf)),))
    [found] = json.loads(json.dumps(facts.to_json(), allow_nan=False))["columns"]
    assert (found["numbers"]["skewness"], found["numbers"]["max"]) == (None, None)
    assert found["numbers"]["quantiles"] == [0, 0, 1, 2, 3, 4, 5]


def test_a_table_is_clustered_where_runs_are_as_long_as_sessions():
    assert session_of("s", run_rows=7.0).clustered
    assert not session_of("s", run_rows=1.1).clustered


def printed(facts: TableFacts, width: int) -> str:
    out = io.StringIO()
    print_profile(facts, Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 100, 200])
def test_every_width_has_all_columns(width: int):
    text = printed(FACTS, width)
    assert "price" in text
    assert "25.0%" in text
    assert "\\nb[red]" in "".join(text.split())
    assert max(len(line) for line in text.splitlines() if line.startswith(("┃", "│"))) <= width
    assert ("B/row" in text) == (width == 200)


def test_columns_without_rows_are_not_listed():
    facts = replace(FACTS, columns=(PRICE, replace(ODD, rows=0)))
    assert "struct" not in printed(facts, 200)
    nothing = replace(FACTS, columns=(replace(ODD, rows=0),))
    assert "struct" in printed(nothing, 200)


def test_very_many_columns_are_cut():
    columns = tuple(replace(PRICE, name=f"c{index}") for index in range(300))
    assert "200 of 300 columns" in printed(replace(FACTS, columns=columns), 200)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, ""), (0.0, ""), (1.0, "100.0%"), (0.5, "50.0%"), (0.0001, "< 0.1%"), (0.99999, "> 99.9%")],
)
def test_shares_are_short(rate: float | None, text: str):
    assert share_of(rate) == text


def test_numbers_sizes_and_counts_are_short():
    assert [number_of(value) for value in (None, 1234, 0.123456, 1e20)] == ["", "1,234", "0.1235", "1e+20"]
    assert [size_of(size) for size in (5, 5000, 5_000_000, 5 * 10**9)] == ["5 bytes", "5.0 kB", "5.0 MB", "5.0 GB"]
    count = DistinctCount(sample=10, table=10, error=0, once=0)
    assert [distinct_of(None), distinct_of(count), distinct_of(replace(count, table=12))] == ["", "10", "~12"]


def test_bars_show_histograms_and_frequent_values():
    assert bar_of(PRICE) == "█▁ ▄"
    word = ColumnProfile(
        name="w", type="string", role="string", frequent=(FrequentValue(share=0.5), FrequentValue(share=0.25))
    )
    assert bar_of(word) == "█▄"
    assert bar_of(ODD) == ""


def test_lengths_are_percentiles_or_fixed():
    column = replace(PRICE, lengths=LISTS)
    assert length_of(column) == "3, 9, 12"
    assert length_of(replace(PRICE, lengths=replace(LISTS, fixed=12))) == "12"
    assert length_of(replace(PRICE, string_bytes=(3.2, 1000))) == "3, 1,000 B"


def test_notes_name_what_is_special():
    assert notes_of(PRICE) == ["2.0% not finite", "60.0% zeros"]
    assert notes_of(ODD) == ["a struct", "all null"]
    column = replace(PRICE, numbers=None, disguise="equal", repeated=0.9, time_order=-1, lengths=LISTS, id_like=True)
    assert notes_of(column) == [
        "label in disguise? equal",
        "a value per row",
        "10.0% empty",
        "90% repeat",
        "falls with time",
    ]


def test_candidates_have_reasons_and_groups():
    groups = (RepeatedColumns(columns=("a", "b"), factor=4, saved_share=0.3),)
    session = replace(session_of("s", run_rows=2), reason="named session", groups=groups)
    facts = replace(
        FACTS,
        labels=(LabelCandidate(column="y", score=1, reason="named y"),),
        label="y",
        sessions=(session,),
        skipped=(("p", "broken"),) * 5,
        warnings=("careful",),
    )
    assert candidate_lines(facts) == [
        "label? y (taken): named y",
        "session? s: named session; stored apart, in runs of 2.0",
        "  dedup groups that save 30% of a batch: a+b",
    ]
    assert notice_lines(facts)[0] == "note: careful"
    assert notice_lines(facts)[-1] == "left out: 2 more files: --json names them"


DRIFTED = ColumnDrift(name="price", psi=0.3, ks=0.2, nulls=(0.0, 0.5), mean=(1.0, 2.0), median=(1, 1), new=0.25)
GONE = ColumnDrift(name="gone", psi=None, note="only in the base")
SAME = ColumnDrift(name="[same]", psi=0.01, nulls=(0.0, 0.0))


def test_cells_show_changes():
    assert drift_cells(DRIFTED) == ["price", "0.300", "0 -> 50.0%", "1 -> 2", "0.200", "1", "", "25.0%", ""]
    assert drift_cells(GONE)[:3] == ["gone", "only in the base", ""]
    assert drift_cells(SAME)[:4] == ["[same]", "0.010", "", ""]


def test_changes_are_counted():
    drift = TableDrift(base=FACTS, other=FACTS, columns=(GONE, DRIFTED, SAME))
    assert drift_summary(drift) == [
        "1 columns changed much, 0 somewhat, 1 did not",
        "1 columns cannot be compared",
    ]


def test_the_drift_is_printed_for_every_width():
    for width in (60, 200):
        out = io.StringIO()
        columns = (GONE, DRIFTED, *(ColumnDrift(name=f"c{index}", psi=0.0) for index in range(60)))
        print_drift(TableDrift(base=FACTS, other=FACTS, columns=columns), Console(file=out, width=width))
        assert "0.300" in out.getvalue()
        assert "50 of 62 columns are shown" in out.getvalue()
