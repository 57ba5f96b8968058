"""What trainers learn of a mix: its sources, and of a rebase what all tables together have changed."""

from __future__ import annotations

from pathlib import Path

from mixed_tables import NAMES, VIEWS, mixed_pipeline, write_files, write_tables

from feedline import Pipeline
from feedline.loader.plan_descriptions import describe_rebase
from feedline.loader.state import state_of
from feedline.loader.wire.codec import pack, unpack
from feedline.loader.wire.facts import PlanFacts


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
