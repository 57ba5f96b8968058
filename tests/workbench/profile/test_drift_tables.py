"""The drift between two tables for people."""

from __future__ import annotations

import io

from rich.console import Console
from test_profile_tables import FACTS

from feedline.workbench.profile.drift import ColumnDrift, TableDrift
from feedline.workbench.profile.profile_tables import drift_cells, drift_summary, print_drift

PRICE = ColumnDrift(name="price", psi=0.3, ks=0.2, nulls=(0.0, 0.5), mean=(1.0, 2.0), median=(1, 1), new=0.25)
GONE = ColumnDrift(name="gone", psi=None, note="only in the base")
SAME = ColumnDrift(name="[same]", psi=0.01, nulls=(0.0, 0.0))


def test_cells_show_changes():
    assert drift_cells(PRICE) == ["price", "0.300", "0 -> 50.0%", "1 -> 2", "0.200", "1", "", "25.0%", ""]
    assert drift_cells(GONE)[:3] == ["gone", "only in the base", ""]
    assert drift_cells(SAME)[:4] == ["[same]", "0.010", "", ""]


def test_changes_are_counted():
    drift = TableDrift(base=FACTS, other=FACTS, columns=(GONE, PRICE, SAME))
    assert drift_summary(drift) == [
        "1 columns changed much, 0 somewhat, 1 did not",
        "1 columns cannot be compared",
    ]


def test_the_drift_is_printed_for_every_width():
    for width in (60, 200):
        out = io.StringIO()
        columns = (GONE, PRICE, *(ColumnDrift(name=f"c{index}", psi=0.0) for index in range(60)))
        print_drift(TableDrift(base=FACTS, other=FACTS, columns=columns), Console(file=out, width=width))
        assert "0.300" in out.getvalue()
        assert "50 of 62 columns are shown" in out.getvalue()
