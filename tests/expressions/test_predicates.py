"""Predicates join into flat trees."""

from __future__ import annotations

from feedline.expressions.predicates import And, Comparison, IsNull, Not, Or, conjunction, disjunction


def test_conjunction_and_disjunction_flatten():
    a, b, c = IsNull(column="a"), IsNull(column="b"), IsNull(column="c")
    assert conjunction([a]) == a
    assert conjunction([And(items=(a, b)), c]) == And(items=(a, b, c))
    assert disjunction([Or(items=(a, b)), And(items=(b, c))]) == Or(items=(a, b, And(items=(b, c))))


def test_no_items_are_an_empty_tree():
    assert conjunction([]) == And(items=())
    assert disjunction([]) == Or(items=())


def test_predicates_are_values():
    comparison = Comparison(column="a", op="<", value=1)
    assert comparison == Comparison(column="a", op="<", value=1) != Comparison(column="a", op="<=", value=1)
    assert len({Not(item=comparison), Not(item=Comparison(column="a", op="<", value=1))}) == 1
