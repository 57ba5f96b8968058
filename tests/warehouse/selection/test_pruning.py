"""Pruning: every verdict is a proof. Rows are judged one by one, in plain Python, as the oracle."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from predicate_truth import OPERATORS, VALUES, Row, predicates, truth

from feedline.expressions.predicates import And, Comparison, IsNull, Membership, Not, Opaque, Or, Predicate
from feedline.warehouse.selection.pruning import ALL, NONE, SOME, ColumnStatistics, Statistics, prune

NAN = float("nan")


@st.composite
def row_groups(draw: st.DrawFn) -> list[list[Row]]:
    groups = []
    for _ in range(draw(st.integers(1, 5))):
        keys = {"key": draw(st.one_of(st.none(), VALUES["key"]))}
        keys["ratio"] = draw(st.one_of(st.none(), st.just(NAN), VALUES["ratio"]))
        nullable = draw(st.booleans())
        pools = {
            name: draw(st.lists(st.one_of(st.none(), value) if nullable else value, min_size=1, max_size=3))
            for name, value in VALUES.items()
        }
        if draw(st.booleans()):
            pools["float"].append(NAN)
        groups.append(
            [
                {name: draw(st.sampled_from(pool)) for name, pool in pools.items()}
                | keys
                | {"opaque": draw(st.sampled_from([True, False, None]))}
                for _ in range(draw(st.integers(0, 4)))
            ]
        )
    return groups


def column_statistics(draw: st.DrawFn, groups: list[list[Row]], name: str) -> ColumnStatistics:
    """What an honest writer could have said: exact or wider bounds, or nothing."""
    text, floating, key = name == "text", name == "float", name in ("key", "ratio")
    low, high = np.empty(len(groups), object), np.empty(len(groups), object)
    bounded = np.zeros(len(groups), np.bool_)
    exact = np.ones(len(groups), np.bool_)
    nulls = np.zeros(len(groups), np.int64)
    for index, rows in enumerate(groups):
        values = [row[name] for row in rows]
        known = [value for value in values if value is not None and (key or value == value)]
        nulls[index] = sum(value is None for value in values) if key or draw(st.booleans()) else -1
        if known and (key or draw(st.integers(0, 3))):
            bounded[index] = True
            low[index], high[index] = min(known), max(known)
            if text and draw(st.booleans()):
                exact[index] = False
                low[index], high[index] = low[index][:1], high[index][:1] + "\U0010ffff"
        else:
            low[index] = high[index] = "" if text else 0
    if not text:
        kind = float if name in ("float", "ratio") else int
        low, high = low.astype(kind), high.astype(kind)
    return ColumnStatistics(
        low=low,
        high=high,
        bounded=bounded,
        nulls=nulls,
        unit=lambda value: value,
        exact=exact,
        floating=floating,
        partition=key,
    )


@examples(200, by_day=30)
@given(st.data(), row_groups(), predicates())
def test_no_verdict_is_contradicted_by_a_row(
    data: st.DataObject, groups: list[list[Row]], predicate: Predicate
) -> None:
    columns = {name: column_statistics(data.draw, groups, name) for name in VALUES}
    statistics = Statistics(rows=np.array([len(rows) for rows in groups]), columns=columns)
    pruning = prune(predicate, statistics)
    assert pruning.outcome.dtype == np.int8
    for index, rows in enumerate(groups):
        kept = [truth(predicate, row) is True for row in rows]
        if pruning.outcome[index] == NONE:
            assert not any(kept)
        elif pruning.outcome[index] == ALL:
            assert all(kept)
        if pruning.by_partition[index]:
            others = {"number": 4, "float": NAN, "text": None, "opaque": True}
            assert pruning.outcome[index] == NONE
            assert not any(truth(predicate, row | others) is True for row in rows)


def statistics(
    low: Any, high: Any, *, nulls: int = 0, rows: int = 10, exact: bool = True, **options: Any
) -> Statistics:
    kind = object if isinstance(low, str | Decimal | bytes) else None
    column = ColumnStatistics(
        low=np.array([low], kind),
        high=np.array([high], kind),
        bounded=np.array([low is not None]),
        nulls=np.array([nulls]),
        unit=lambda value: value,
        exact=np.array([exact]),
        **options,
    )
    return Statistics(rows=np.array([rows]), columns={"x": column})


def verdict(op: str, value: Any, given: Statistics) -> np.int8:
    leaf = Membership(column="x", values=value) if op == "in" else Comparison(column="x", op=op, value=value)
    return prune(leaf, given).outcome[0]


@pytest.mark.parametrize(
    ("op", "value", "expected"),
    [
        ("==", 4, NONE), ("==", 5, SOME), ("==", 10, NONE), ("!=", 4, ALL), ("!=", 7, SOME),
        ("<", 5, NONE), ("<", 6, SOME), ("<", 10, ALL), ("<=", 4, NONE), ("<=", 9, ALL), ("<=", 8, SOME),
        (">", 9, NONE), (">", 8, SOME), (">", 4, ALL), (">=", 10, NONE), (">=", 5, ALL), (">=", 6, SOME),
        ("in", (1, 20), NONE), ("in", (1, 5), SOME), ("in", (9,), SOME), ("in", (1, 4, 10, 11), NONE),
        ("==", 2**70, NONE), ("<", 2**70, ALL), (">", -(2**70), ALL), ("in", (-(2**70), 2**70), NONE),
    ],
)  # fmt: skip
def test_integers_five_to_nine(op: str, value: Any, expected: np.int8) -> None:
    assert verdict(op, value, statistics(5, 9)) == expected
    with_nulls = verdict(op, value, statistics(5, 9, nulls=1))
    assert with_nulls == (SOME if expected == ALL else expected)
    assert verdict(op, value, statistics(5, 9, nulls=-1)) == with_nulls
    assert verdict(op, value, statistics(5, 9, nulls=10)) == NONE


def test_single_values_are_proven() -> None:
    assert verdict("==", 5, statistics(5, 5)) == ALL
    assert verdict("!=", 5, statistics(5, 5)) == NONE
    assert verdict("in", (4, 5), statistics(5, 5)) == ALL
    assert verdict("==", 5.0, statistics(5.0, 5.0, floating=True)) == SOME
    assert verdict("!=", 5.0, statistics(5.0, 5.0, floating=True)) == SOME
    assert verdict("in", (5.0,), statistics(5.0, 5.0, floating=True)) == SOME
    assert verdict("==", "a", statistics("a", "a", exact=False)) == SOME
    assert verdict("==", "a", statistics("a", "a", partition=True)) == ALL


def test_hidden_nan_never_lets_a_float_be_proven_but_for_unequal() -> None:
    given = statistics(1.0, 2.0, floating=True)
    assert [verdict(op, 5.0, given) for op in OPERATORS] == [NONE, ALL, SOME, SOME, NONE, NONE]
    assert prune(Not(item=Comparison(column="x", op=">", value=5.0)), given).outcome[0] == ALL
    assert prune(Not(item=Comparison(column="x", op="<", value=5.0)), given).outcome[0] == SOME
    assert [verdict(op, NAN, given) for op in OPERATORS] == [SOME] * 6
    assert verdict("in", (NAN,), given) == SOME


def test_a_key_that_is_nan_is_settled_by_every_comparison() -> None:
    """It differs from everything and is nothing else, in any combination; no row has to be read for that."""
    given = statistics(NAN, NAN, partition=True)
    assert [verdict(op, 1.5, given) for op in OPERATORS] == [NONE, ALL, NONE, NONE, NONE, NONE]
    assert verdict("in", (1.5, -0.0), given) == NONE
    column = "x"
    equal, listed = Comparison(column=column, op="==", value=1.5), Membership(column=column, values=(1.5, 2.0))
    low, high = Comparison(column=column, op=">", value=1.0), Comparison(column=column, op="<", value=2.0)
    assert prune(Not(item=equal), given).outcome[0] == ALL
    assert prune(Not(item=listed), given).outcome[0] == ALL
    assert prune(Or(items=(Not(item=low), Not(item=high))), given).outcome[0] == ALL
    assert prune(And(items=(low, high)), given).outcome[0] == NONE
    assert prune(IsNull(column=column), given).outcome[0] == NONE
    assert prune(equal, given).by_partition[0]


def test_nulls_and_the_unknown() -> None:
    null, not_null = IsNull(column="x"), Not(item=IsNull(column="x"))
    for count, expected in ((0, NONE), (3, SOME), (10, ALL), (-1, SOME)):
        assert prune(null, statistics(1, 2, nulls=count)).outcome[0] == expected
        assert prune(not_null, statistics(1, 2, nulls=count)).outcome[0] == {NONE: ALL, ALL: NONE}.get(
            expected, expected
        )
    unbounded = statistics(0, 0)
    unbounded.columns["x"].bounded[0] = False
    assert verdict("==", 5, unbounded) == SOME
    assert prune(Comparison(column="unheard", op="==", value=1), unbounded).outcome[0] == SOME
    assert prune(Opaque(columns=frozenset({"x"})), unbounded).outcome[0] == SOME
    assert verdict("==", 0, statistics(0, 0, rows=0)) == NONE


def test_a_literal_that_the_column_cannot_judge_proves_nothing() -> None:
    column = ColumnStatistics(
        low=np.array([1]),
        high=np.array([2]),
        bounded=np.array([True]),
        exact=np.array([True]),
        nulls=np.array([0]),
        unit=lambda value: None,
    )
    given = Statistics(rows=np.array([5]), columns={"x": column})
    assert [verdict(op, 7, given) for op in OPERATORS] == [SOME] * 6
    assert verdict("in", (7,), given) == SOME
