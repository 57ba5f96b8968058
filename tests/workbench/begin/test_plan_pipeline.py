"""A plan of any table is a pipeline.yaml that loads; and what single tables get."""

from __future__ import annotations

from dataclasses import replace

import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from profiles import any_table, binary, column, distinct, key, planned, session_of, table, time_of

from feedline.config import parse_spec
from feedline.config.yaml_document import read_document
from feedline.errors import FeedlineError, PlanError, SpecError
from feedline.expressions import parse
from feedline.pipeline import Pipeline
from feedline.workbench.begin.init_plan import Choices, HeldOut
from feedline.workbench.begin.pipeline_text import pipeline_text
from feedline.workbench.begin.plan_pipeline import fitting_batches, guess_choices, pipeline_name
from feedline.workbench.profile.table_facts import TableFacts

NO_CHOICES = Choices()
VALIDATOR = Draft202012Validator(Pipeline.json_schema())


@given(any_table(), st.integers(1, 8))
@examples(60, by_day=20)
def test_the_plan_of_any_table_is_a_pipeline_that_loads(facts: TableFacts, most: int):
    facts = replace(facts, columns=(*facts.columns, column("plain")))
    plan = planned(facts, max_features=most)
    text = pipeline_text(plan)
    spec = parse_spec(text)
    assert VALIDATOR.is_valid(read_document(text, "f").value)
    assert spec.source.where == plan.where
    assert [each.name for each in spec.features if each.group == "label"] == ["clicked"]
    assert [each.name for each in spec.features if each.group != "label"] == [
        each.name for group in ("dense", "categorical", "sparse") for each in plan.features if each.group == group
    ]
    assert len(plan.features) <= most
    mentioned = {each.column for each in (*plan.features, *plan.left_out)}
    assert mentioned == {each.name for each in facts.columns} - {"clicked"}
    assert plan.where is None or parse(plan.where)
    assert spec.source.sample is not None


def test_every_answer_of_the_caller_is_taken():
    facts = table(binary(), binary("other"), column("t", "time", "date32[day]"), column("t2", "time", "date32[day]"))
    chosen = Choices(label="other", time="t2", session="", max_features=3)
    assert guess_choices(facts, chosen) == chosen
    assert not guess_choices(facts, NO_CHOICES).session_named
    assert guess_choices(facts, Choices(label="other")).time == ""
    times = (time_of("t", "2026-01-01", "2026-02-01"), time_of("t2", "2026-01-01", "2026-02-01"))
    facts = table(*facts.columns, times=times, sessions=(session_of("s"),))
    assert guess_choices(facts, NO_CHOICES) == Choices(label="clicked", time="t", session="s")
    assert planned(facts, time="t2").time == "t2"
    with pytest.raises(SpecError, match=r"--time names no column of warehouse/t: got 't3'. Did you mean 't'\?"):
        planned(facts, time="t3")


def test_a_session_that_is_apart_is_no_session_but_a_hint():
    facts = table(binary(), column("a"), sessions=(session_of("s", run_rows=1.0),))
    plan = planned(facts)
    assert plan.dedup is None
    assert any("rows of equal s are apart" in note for note in plan.notes)


def test_a_table_without_rows_or_features_is_refused():
    with pytest.raises(PlanError, match="has no rows: got 0 rows in 4 files"):
        planned(table(binary(), rows=0))
    with pytest.raises(PlanError, match="no column of warehouse/t can be a feature beside the label 'clicked'"):
        planned(table(binary()))


@pytest.mark.parametrize(
    ("rows", "size", "tail"),
    [
        (1, 64, "partial"),
        (1_600, 64, "drop"),
        (1_279, 64, "partial"),
        (6_400, 128, "drop"),
        (10**9, 8_192, "drop"),
    ],
)
def test_batches_fit_the_rows(rows: int, size: int, tail: str):
    plan = fitting_batches(planned(table(binary(), column("a"))), rows)
    assert (plan.batch_size, plan.tail) == (size, tail)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("warehouse/clicks", "clicks"),
        ("s3://bucket/My Table/?region=x", "my-table"),
        ("a/data.parquet", "data"),
        ("warehouse/log/ds=*/*.parquet", "log"),
        ("a/day[1-3]/x.parquet", "x"),
        ("/", "table"),
        ("a/日本", "table"),
    ],
)
def test_names(path: str, name: str):
    assert pipeline_name(path) == name


def test_the_key_of_held_out_folders_is_no_feature():
    facts = table(
        binary(),
        column("a"),
        column("month", "category", "int64", partition=True, vocabulary=distinct(12)),
        partitions=(key("month", "int64", 12, "1", "12"),),
    )
    split = HeldOut(by=("month",), train="month < 12", held_out="month >= 12", reason="")
    plan = planned(facts, held_out=split)
    assert plan.where == "month < 12"
    assert plan.held_out_keys == {"source.where": "month >= 12"}
    assert [each.column for each in plan.features] == ["a"]
    assert [each.column for each in planned(facts).features] == ["a", "month"]


def test_a_session_is_a_feature_as_others():
    facts = table(binary(), column("item", "string", "string", vocabulary=distinct(24)), sessions=(session_of("item"),))
    plan = planned(facts)
    assert plan.session == "item"
    assert [each.column for each in plan.features] == ["item"]


def test_errors_are_those_of_wrong_input():
    assert issubclass(PlanError, FeedlineError)
    with pytest.raises(SpecError, match=r"is a label without a doubt.*Name it with --label: one of 'a'"):
        planned(table(column("a")))


LATE = HeldOut(by=("t",), train="t < 5", held_out="t >= 5", reason="")
REST = HeldOut(by=(), sample={"fraction": 0.9}, reason="")


@pytest.mark.parametrize(
    ("label", "split", "where", "held_out"),
    [
        (None, REST, None, {"source.sample.rest": True}),
        ("y is not None", REST, "y is not None", {"source.sample.rest": True}),
        (None, LATE, "t < 5", {"source.where": "t >= 5"}),
        ("y is not None", LATE, "y is not None and t < 5", {"source.where": "y is not None and t >= 5"}),
    ],
)
def test_filters(label: str | None, split: HeldOut, where: str | None, held_out: dict[str, object]):
    plan = planned(table(binary(), column("a")))
    plan = replace(plan, label=replace(plan.label, where=label), held_out=split)
    assert (plan.where, plan.held_out_keys) == (where, held_out)
