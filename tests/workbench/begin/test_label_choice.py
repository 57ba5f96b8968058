"""What the label is: the task, the rows that have one, and what cannot be one."""

from __future__ import annotations

import pytest
from profiles import binary, column, distinct, numbers, table

from feedline.errors import SpecError
from feedline.workbench.begin.init_plan import LabelChoice
from feedline.workbench.begin.label_choice import choose_label, guess_label, require_label
from feedline.workbench.profile.table_facts import ColumnProfile, FrequentValue, LabelCandidate


def chosen(facts: ColumnProfile) -> LabelChoice:
    return choose_label(table(facts, column("other")), facts.name)


def values(*texts: str) -> tuple[FrequentValue, ...]:
    return tuple(FrequentValue(share=1 / len(texts), value=each) for each in texts)


def test_zeros_and_ones_are_binary():
    label = chosen(binary(share=0.031))
    assert (label.task, label.share, label.where, label.feature.expr) == ("binary", 0.031, None, None)
    assert "3 % are 1" in label.reason


def test_two_other_numbers_are_binary_above_the_smaller():
    facts = binary(numbers=numbers(-1, 1), frequent=values("-1", "1"))
    label = chosen(facts)
    assert (label.task, label.share, label.feature.expr) == ("binary", 0.5, "clicked > -1")


def test_booleans_are_binary():
    label = chosen(column("late flight", "category", "bool", numbers=numbers(0, 1, mean=0.4), null_rate=0.1))
    assert (label.task, label.where) == ("binary", 'col("late flight") is not None')


def test_numbers_are_a_regression_on_their_scale():
    label = chosen(column("price", numbers=numbers(0, 100, mean=40.0, std=7.5)))
    assert (label.task, label.mean, label.std, label.where) == ("regression", 40.0, 7.5, None)
    assert label.feature.strict
    assert chosen(column("price", numbers=numbers(nan_rate=0.1))).where == "price.is_finite()"
    assert chosen(column("price", numbers=numbers(std=0.0))).std == 1.0


def test_numbered_classes_are_classes_if_named_so():
    facts = {"numbers": numbers(1, 3), "vocabulary": distinct(3), "frequent": values("3", "1", "2")}
    label = chosen(column("category", "category", "int64", **facts))
    assert (label.task, label.classes) == ("classes", 4)
    assert label.feature.ops == ({"map_id": {"keys": [1, 2, 3], "values": [0, 1, 2], "default": 3}},)
    assert chosen(column("stars", "category", "int64", **facts)).task == "regression"


def test_strings_are_classes_and_two_of_them_binary():
    facts = {"vocabulary": distinct(3), "frequent": values("setosa", "versicolor", "virginica")}
    label = chosen(column("species", "string", "string", **facts))
    assert (label.task, label.classes) == ("classes", 4)
    both = chosen(column("churned", "string", "string", vocabulary=distinct(2), frequent=values("yes", "no")))
    assert (both.task, both.share) == ("binary", 0.5)
    assert both.feature.ops == ({"map_id": {"keys": ["no", "yes"], "values": [0, 1]}},)
    with pytest.raises(SpecError, match="the label 'name' has too many classes: got 10 k, expected 2 to 100"):
        chosen(column("name", "string", "string", vocabulary=distinct(10_000), frequent=values(*map(str, range(20)))))


def test_the_best_candidate_is_guessed_only_if_it_is_certain():
    candidates = (
        LabelCandidate(column="a", score=0.6, reason=""),
        LabelCandidate(column="b", score=0.55, reason=""),
    )
    assert guess_label(table(column("a"), column("b"), labels=candidates)) == "a"
    assert guess_label(table(column("a"), labels=(LabelCandidate(column="a", score=0.4, reason=""),))) is None


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (column("l", "list", "list<element: int64>"), "--label must name numbers, Booleans or a few classes"),
        (column("l", null_rate=1.0), "the label 'l' has one value only: got nulls alone"),
        (column("l", constant=True), "got a constant"),
    ],
)
def test_what_cannot_be_a_label_is_refused(facts: ColumnProfile, message: str):
    with pytest.raises(SpecError, match=message):
        require_label(table(facts), "l")
    with pytest.raises(
        SpecError, match=r"--label names no column of warehouse/t: got 'clic'. Did you mean 'clicked'\?"
    ):
        require_label(table(binary()), "clic")
    with pytest.raises(SpecError, match=r"and 3 more$"):
        require_label(table(*(column(f"c{index}") for index in range(15))), None)
