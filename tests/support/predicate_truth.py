"""Random predicates, and their truth for a row, in plain Python."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from feedline.expressions.predicates import And, Comparison, IsNull, Membership, Not, Opaque, Or, Predicate

Row = dict[str, Any]
OPERATORS = ("==", "!=", "<", "<=", ">", ">=")


def truth(predicate: Predicate, row: Row) -> bool | None:
    """Return one of SQL's three truth values; a NaN compares false, except with `!=`."""
    match predicate:
        case And(items=items):
            values = [truth(item, row) for item in items]
            return False if False in values else None if None in values else True
        case Or(items=items):
            values = [truth(item, row) for item in items]
            return True if True in values else None if None in values else False
        case Not(item=item):
            value = truth(item, row)
            return None if value is None else not value
        case IsNull(column=column):
            return row[column] is None
        case Opaque():
            return row["opaque"]
    value = row[predicate.column]
    if value is None:
        return None
    if isinstance(predicate, Membership):
        return value in predicate.values
    other = predicate.value
    return {
        "==": value == other,
        "!=": value != other,
        "<": value < other,
        "<=": value <= other,
        ">": value > other,
        ">=": value >= other,
    }[predicate.op]


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "number": st.integers(-4, 4),
    "float": st.sampled_from([-1.5, -0.0, 0.0, 0.5, 2.0, math.inf, -math.inf]),
    "text": st.sampled_from(["", "a", "ab", "b", "ba", "é", "\U0001f600"]),
    "key": st.integers(0, 2),
    "ratio": st.sampled_from([-0.0, 0.0, 1.5]),
}


def predicates() -> st.SearchStrategy[Predicate]:
    def leaf(column: str) -> st.SearchStrategy[Predicate]:
        value = VALUES[column]
        return st.one_of(
            st.builds(lambda op, v: Comparison(column=column, op=op, value=v), st.sampled_from(OPERATORS), value),
            st.builds(lambda v: Membership(column=column, values=tuple(v)), st.lists(value, min_size=1, max_size=3)),
            st.just(IsNull(column=column)),
        )

    leaves = st.one_of(*(leaf(column) for column in VALUES), st.just(Opaque(columns=frozenset({"opaque"}))))
    return st.recursive(
        leaves,
        lambda below: st.one_of(
            st.builds(lambda items: And(items=tuple(items)), st.lists(below, min_size=1, max_size=3)),
            st.builds(lambda items: Or(items=tuple(items)), st.lists(below, min_size=1, max_size=3)),
            st.builds(lambda item: Not(item=item), below),
        ),
        max_leaves=6,
    )
