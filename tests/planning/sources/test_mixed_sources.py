"""Several sources as one: the window that they share, orders of their own, and errors that name a source."""

from __future__ import annotations

from pathlib import Path

import pytest
from mixed_tables import mixed_pipeline, mixed_plan_of

from feedline import Pipeline
from feedline.errors import PlanError
from feedline.planning.sources.mixed_plan import require_plain
from feedline.planning.sources.mixed_sources import with_names


def test_two_sources_over_one_table_have_orders_of_their_own(folder: Path):
    table = str(folder / "clicks")
    sources = [{"name": name, "table": table, "weight": 1} for name in ("one", "two")]
    plan = mixed_plan_of(folder, sources=sources)
    one, two = (each.schedule(0).order.tolist() for each in plan.sources)
    assert sorted(one) == sorted(two)
    assert one != two


def test_sources_share_one_window_as_they_share_a_step(folder: Path):
    plan = mixed_plan_of(folder, shuffle={"window_rows": 100_000})
    alone = Pipeline.from_dict(mixed_pipeline(folder, shuffle={"window_rows": 100_000})).of_source("clicks")
    sizes = [each.sizes for each in plan.sources]
    assert plan.window.rows == 100_000
    assert [each.window_rows for each in sizes] == [80_000, 20_000]
    assert [each.block_rows for each in sizes] == [max(100_000 // plan.window.blocks, 1), 6_250]
    assert require_plain(alone.plan(), "a test").sizes.window_rows == 80_000


def test_a_source_without_a_step_is_named(folder: Path):
    sources = mixed_pipeline(folder)["sources"]
    few = [sources[0], {**sources[1], "where": "row < 1000003"}]
    with pytest.raises(PlanError, match="source views: the plan has fewer rows than one global step: got 3 rows"):
        mixed_plan_of(folder, lanes=2, sources=few).facts()


def test_texts_name_their_source():
    assert with_names(["a", "b"], [["x"], ["y", "z"]]) == ["source a: x", "source b: y", "source b: z"]
