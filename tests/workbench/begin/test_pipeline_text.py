"""How the text reads: an entry and its reason per line, ranges for columns that are alike."""

from __future__ import annotations

from dataclasses import replace

import profiles
from profiles import binary, column, distinct, key, numbers, session_of, table

from feedline.config import parse_spec
from feedline.workbench.begin.init_plan import DedupChoice, HeldOut, InitPlan
from feedline.workbench.begin.pipeline_text import decisions_of, pipeline_text
from feedline.workbench.profile.table_facts import ColumnProfile


def planned(*columns: ColumnProfile, held_out: HeldOut | None = None, **facts: object) -> InitPlan:
    return profiles.planned(table(binary(), *columns, **facts), path="../t", held_out=held_out)


def test_each_line_has_its_reason():
    plan = planned(
        column("price", numbers=numbers(0, 900, skewness=5.0), null_rate=0.12),
        column("shop", "category", "int64", vocabulary=distinct(12_400_000, sample=100_000)),
        column("empty", null_rate=1.0),
    )
    text = pipeline_text(plan, schema=True)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "# yaml-language-server: $schema=pipeline.schema.json"
    assert "price: [log1p, standardize, {fill_null: 0}] # skewed: median 450, maximum 900; 12 % null" in lines
    assert (
        "shop: [{hash_bucket: {buckets: 1048576, null_bucket: true}}] # 12.4 M distinct (estimate): hash_bucket"
        in lines
    )
    assert "# empty: null in every row to learn from" in lines
    assert max(map(len, text.splitlines())) <= 120


def test_columns_that_are_alike_share_an_entry():
    plan = planned(*(column(f"f{index}") for index in range(1, 14)), column("f20"), column("f21"))
    text = pipeline_text(plan)
    assert '"f{1..13}": [standardize, {fill_null: 0}]' in text
    assert "\n    f20: [standardize, {fill_null: 0}]" in text
    assert [each.name for each in parse_spec(text).features][:13] == [f"f{index}" for index in range(1, 14)]


def test_numbered_columns_with_dollars_have_entries_of_their_own():
    plan = planned(*(column(f"${index}") for index in range(3)))
    assert [each.column for each in parse_spec(pipeline_text(plan)).features if each.group == "dense"] == [
        "$0",
        "$1",
        "$2",
    ]


def test_a_column_without_a_visible_name_is_read_by_an_expression():
    """`column` takes no blank name."""
    features = parse_spec(pipeline_text(planned(column(" \u2028"), column("")))).features
    assert [each.name for each in features if each.group == "dense"] == ["unnamed", "unnamed_2"]


def test_of_very_many_columns_left_out_only_the_first_have_lines():
    text = pipeline_text(planned(column("a"), *(column(f"e{index}", null_rate=1.0) for index in range(1_000))))
    assert "# 900 more, from e100 to e999: null in every row to learn from" in text
    assert len(text.splitlines()) < 150


def test_measured_groups_keep_sessions_together():
    plan = planned(column("user"), column("s", "category", "int64"), sessions=(session_of("s"),))
    plan = replace(plan, dedup=DedupChoice(by="s", reason="because", groups=(("u", ("user",)),)))
    spec = parse_spec(pipeline_text(plan))
    assert spec.shuffle.by == "s"
    assert [(each.name, each.columns) for each in spec.dedup] == [("u", ("user",))]


def test_the_summary_names_what_was_decided():
    plan = planned(
        column("a", correlation=0.9),
        column("gone", null_rate=1.0),
        column("ds", "time", "date32[day]", partition=True),
        partitions=(key("ds", "date32[day]", 4, "2026-01-01", "2026-01-04"),),
        held_out=HeldOut(by=("ds",), train='ds < "2026-01-04"', held_out='ds >= "2026-01-04"', reason="because"),
    )
    summary = dict(decisions_of(plan))
    assert summary["label"].startswith("clicked: binary")
    assert summary["held out"].startswith('ds >= "2026-01-04"')
    assert summary["features"] == "1 dense"
    assert "a correlates with the label (+0.90)" in summary["check"]
