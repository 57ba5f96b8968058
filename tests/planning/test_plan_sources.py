"""Sources whose batches would differ are refused by name; one that is empty, too. Values are those of the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mixed_tables import NAMES, OF_VIEWS, VIEWS, mixed_pipeline, mixed_plan_of, write_files, write_tables

from feedline import Pipeline
from feedline.errors import PlanError, SpecError
from feedline.loader.plan_descriptions import describe_rebase
from feedline.loader.state import state_of
from feedline.loader.wire.codec import pack, unpack
from feedline.loader.wire.facts import PlanFacts
from feedline.planning.mixing import MixingWindow


def pipeline_with(folder: Path, own: dict[str, Any], **changes: Any) -> Pipeline:
    """A pipeline whose source `views` has features of its own."""
    pipeline = mixed_pipeline(folder, **changes)
    pipeline["sources"][1] = {**pipeline["sources"][1], "features": {**OF_VIEWS, **own}}
    return Pipeline.from_dict(pipeline)


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {},
        {"extra": {"id": {"column": "cost"}}},
        r"sources\[1\].features.extra.id: .* differ in 'id': got double of source views, expected int64 as of clicks",
    ),
    (
        {},
        {"categorical": {"item": {"column": "product", "ops": [{"modulo": 50}]}}},
        r"categorical.item: .* differ in 'item': got ids below 50 of source views, expected ids below 100 as of clicks",
    ),
    (
        {"features": {"dense": {"price": []}, "categorical": {"item": ["vocabulary"]}, "extra": ["id"]}},
        {"categorical": {"item": {"column": "product", "ops": [{"vocabulary": {"min_count": 2}}]}}},
        "'item' learns from other values in source views than in clicks: got vocabulary, expected vocabulary",
    ),
    (
        {"features": {"dense": {"price": []}, "categorical": {"item": ["vocabulary"]}, "extra": ["id"]}},
        {"categorical": {"item": {"expr": "product", "ops": [{"modulo": 5}, "vocabulary"]}}},
        "'item' learns from other values in source views than in clicks: got modulo → vocabulary, expected vocabulary",
    ),
    (
        {"dedup": {"item": {"columns": ["item"]}}, "shuffle": "off"},
        {"categorical": {"item": {"expr": "product + 0"}}},
        r"dedup.item.columns: source views: unknown column: got 'item', expected a column of the table",
    ),
]


@pytest.mark.parametrize(("changes", "own", "message"), REFUSED)
def test_sources_whose_batches_differ_are_refused_by_name(folder: Path, changes, own, message):
    with pytest.raises(SpecError, match=message):
        pipeline_with(folder, own, **changes).plan()


def test_a_column_that_a_source_lacks_is_an_error_of_that_source(folder: Path):
    pipeline = mixed_pipeline(folder)
    del pipeline["sources"][1]["features"]
    with pytest.raises(SpecError, match=r"features.dense.price: source views: price: unknown column: got 'price'"):
        Pipeline.from_dict(pipeline).plan()


def test_a_source_that_is_empty_after_its_filter_is_an_error_at_that_filter(folder: Path):
    pipeline = mixed_pipeline(folder)
    pipeline["sources"][1]["where"] = "row < 5"
    with pytest.raises(SpecError, match=r"pipeline: sources\[1\].where: the filter keeps no row: got 0 of 450 rows"):
        Pipeline.from_dict(pipeline).plan()


def test_a_shuffled_column_must_be_in_every_table(folder: Path):
    with pytest.raises(SpecError, match=r"shuffle.by: source views: column 'item' is not in the table"):
        Pipeline.from_dict(mixed_pipeline(folder, shuffle={"by": "item"})).plan()


def test_an_expression_tells_the_source_of_each_row(folder: Path):
    features = {**mixed_pipeline(folder)["features"]}
    features["categorical"] = {**features["categorical"], "source": {"expr": "id * 0"}}
    own = {"categorical": {**OF_VIEWS["categorical"], "source": {"expr": "row * 0 + 1"}}}
    [batch, *_] = pipeline_with(folder, own, features=features).batches()
    assert batch.categorical[:, 1].tolist() == [0] * 8 + [1] * 2


def test_deduplicated_groups_have_the_columns_of_each_source(folder: Path):
    changes: dict[str, Any] = {"dedup": {"item": {"columns": ["item"]}}, "shuffle": "off"}
    pipeline = Pipeline.from_dict(mixed_pipeline(folder, **changes))
    plain = Pipeline.from_dict(mixed_pipeline(folder, shuffle="off"))
    for batch, other in zip(pipeline.batches(), plain.batches(), strict=True):
        assert batch.schema.dedup == ("item",)
        assert batch.expanded().categorical.tolist() == other.categorical.tolist()


# --------------------------------------------------------------------------------------------------------------------
# The plan of several sources: what decides it, the window that they share, and what it says of itself.


def test_the_fingerprint_covers_what_decides_the_rows(folder: Path):
    plan = mixed_plan_of(folder)
    others = [
        mixed_plan_of(folder, stop="all"),
        mixed_plan_of(folder, stop=7),
        mixed_plan_of(folder, size=20),
        mixed_plan_of(folder, shuffle={"window_rows": 200, "seed": 6}),
        mixed_plan_of(folder, lanes=2),
    ]
    pipeline = mixed_pipeline(folder)
    for change in ({"weight": 1.5}, {"name": "clicks2"}, {"where": "id != 4"}, {"sample": {"fraction": 0.9}}):
        sources = [{**pipeline["sources"][0], **change}, pipeline["sources"][1]]
        others.append(mixed_plan_of(folder, sources=sources))
    others.append(mixed_plan_of(folder, sources=pipeline["sources"][::-1]))
    fingerprints = [each.fingerprint for each in (plan, *others)]
    assert len(set(fingerprints)) == len(fingerprints)
    assert mixed_plan_of(folder).fingerprint == plan.fingerprint
    memory = mixed_plan_of(folder, memory="32MiB", cluster={"threads": 1})
    assert (memory.fingerprint, memory.features_fingerprint) == (plan.fingerprint, plan.features_fingerprint)


def test_a_state_keeps_the_window_that_its_run_had(folder: Path):
    plan = mixed_plan_of(folder, shuffle=None)
    other = plan.with_window(MixingWindow(rows=plan.window.rows >> 3, blocks=64))
    assert other.fingerprint != plan.fingerprint
    assert [each.window for each in other.sources] == [other.window] * 2
    assert other.with_window(None).fingerprint == plan.fingerprint
    found = Pipeline.from_dict(mixed_pipeline(folder, shuffle=None)).plan_for(state_of(other.facts(), 0, 2))
    assert (found.fingerprint, found.window) == (other.fingerprint, other.window)


def test_facts_count_passes_and_rows(folder: Path):
    facts = mixed_plan_of(folder, world_size=2, lanes=2).facts()
    clicks, views = facts.sources
    assert (clicks.name, clicks.batch_rows, clicks.rows, clicks.pass_steps) == ("clicks", 8, 1_800, 112)
    assert (views.name, views.batch_rows, views.rows, views.pass_steps) == ("views", 2, 450, 112)
    assert facts.steps == 112
    assert (facts.rows, facts.rows_dropped) == (2_250, 2_250 - 112 * 20)
    stated = [{**source, "rows_per_batch": rows} for source, rows in zip(_sources(folder), (5, 5), strict=True)]
    longer = mixed_plan_of(folder, stop="all", sources=stated).facts()
    assert [(each.pass_steps, each.passes) for each in longer.sources] == [(360, 1.0), (90, 4.0)]
    assert [each.passes for each in mixed_plan_of(folder, stop=450).facts().sources] == [2.0, 2.0]


def _sources(folder: Path) -> list[dict[str, Any]]:
    sources: list[dict[str, Any]] = mixed_pipeline(folder)["sources"]
    return [{key: value for key, value in source.items() if key != "weight"} for source in sources]


def test_states_name_the_snapshot_of_each_source(folder: Path):
    plan = mixed_plan_of(folder)
    state = state_of(plan.facts(), 0, 7)
    assert state["snapshot"] == ",".join(each.snapshot.id for each in plan.sources)
    assert (state["epoch"], state["step"], state["batch_size"]) == (0, 7, 10)
    assert state_of(plan.facts(), 0, 225)["epoch"] == 1


def test_what_reads_one_table_is_refused(folder: Path):
    pipeline = Pipeline.from_dict(mixed_pipeline(folder))
    with pytest.raises(PlanError, match=r"to_dask reads one table: got the sources clicks, views. Name one"):
        pipeline.to_dask()
    with pytest.raises(PlanError, match="materialize reads one table: got the sources clicks, views"):
        pipeline.materialize(folder / "out")


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
    assert alone.plan().source.sizes.window_rows == 80_000


def test_a_source_without_a_step_is_named(folder: Path):
    sources = mixed_pipeline(folder)["sources"]
    few = [sources[0], {**sources[1], "where": "row < 1000003"}]
    with pytest.raises(PlanError, match="source views: the plan has fewer rows than one global step: got 3 rows"):
        mixed_plan_of(folder, lanes=2, sources=few).facts()


def test_facts_travel(tmp_path: Path):
    facts = Pipeline.from_dict(mixed_pipeline(write_tables(tmp_path, clicks=60, views=20))).plan().facts()
    assert [source.name for source in facts.sources] == ["clicks", "views"]
    assert unpack(PlanFacts, pack(facts)) == facts


def test_a_rebase_of_two_tables_adds_up_their_changes(tmp_path: Path):
    write_tables(tmp_path, clicks=60, views=20)
    pipeline = Pipeline.from_dict(mixed_pipeline(tmp_path))
    state = state_of(pipeline.plan().facts(), 0, 4)
    write_files(tmp_path / "clicks", NAMES["clicks"], 5_000, files=2, rows=60, group=30)
    write_files(tmp_path / "views", NAMES["views"], VIEWS + 5_000, files=1, rows=20, group=20)
    plan = pipeline.rebase(state)
    rest = plan.facts().rest
    assert rest is not None
    assert (rest.epoch, rest.first_step) == (0, 4)
    assert rest.changes.files == {"unchanged": 6, "rewritten": 0, "gone": 0, "new": 3}
    assert rest.changes.rows["delivered"] == 40
    assert rest.changes.rows["added"] == 140
    assert rest.rows == (rest.steps - 4) * 10
    assert len(list(pipeline.batches(step=4, plan=plan))) == rest.steps - 4
    assert "delivered: 40 rows of epoch 0 before step 4" in describe_rebase(rest)
    assert plan.facts().first_step_of(0) == 4


@pytest.mark.parametrize("changes", [{}, {"shuffle": "off"}, {"batch": {"size": 10, "tail": "partial"}}])
def test_the_epoch_of_an_only_source_is_a_pass_through_it(folder: Path, changes: dict[str, Any]):
    pipeline = mixed_pipeline(folder)
    alone = {key: value for key, value in pipeline.items() if key not in ("sources", "mix")}
    plan = Pipeline.from_dict({**alone, "source": {"table": str(folder / "clicks")}, "lanes": 2, **changes}).plan()
    whole, own, lanes = plan.schedule(1), plan.source.schedule(1), range(2)
    assert (whole.steps, whole.first_step, plan.fingerprint) == (own.steps, 0, plan.source.fingerprint)
    blocks = list(whole.blocks_of(lanes, first_step=3))
    assert blocks == list(own.blocks_of(lanes, first_step=3))
    assert [plan.request(block, 1) for block in blocks] == [plan.source.request(block, 1) for block in blocks]
    for lane in lanes:
        assert [whole.cuts(lane, step) for step in range(own.steps)] == [
            own.cuts(lane, step) for step in range(own.steps)
        ]
        assert whole.drawn(lane, 2, 5).tolist() == own.drawn(lane, 2, 5).tolist()
    assert (whole.open_blocks(lanes), whole.blocks_per_step(lanes)) == (
        own.open_blocks(lanes),
        own.blocks_per_step(lanes),
    )
    assert (plan.facts().sources, plan.facts().rows_dropped) == ((), plan.source.whole_schedule.rows_dropped)
