"""Arguments that a signature does not accept are errors with the usage and a position."""

from __future__ import annotations

import pytest
from typed_columns import assert_refused

WRONG = {
    "i.cast('int46')": "`int46` is not a type: expected the name of a type as a string: one of int8,",
    "i.cast()": "an argument is missing: expected `x.cast(dtype)`",
    "i.clip(0, 1, 2)": "too many arguments for `x.clip(lower_bound=None, upper_bound=None)`",
    "i.clip(0, uper_bound=1)": "has no argument `uper_bound`. Did you mean `upper_bound`?",
    "i.clip(0, lower_bound=1)": "the argument `lower_bound` is given twice",
    "i > clip()": "`clip` needs the column that it works on: write `x.clip(",
    "i > clip(1, 2)": "`clip` works on a column, not on a literal",
    "i.fill_null(g)": "for another column write `coalesce(x, y)`",
    "i.fill_null([1])": "expects a literal",
    "i.fill_nan(0)": "`fill_nan` works on float: got int8",
    "i.fill_null(strategy='mean')": "a strategy looks at other rows",
    "s.abs()": "`abs` works on decimal or float or integer: got string",
    "s.str.slice('a')": "expects a literal integer here",
    "s.str.slice(True)": "expects a literal integer here",
    "s.str.slice(0, -1)": "`length` must be at least 0: got -1",
    "s.str.head(3000000000)": "the argument is too large",
    "s.str.contains(n)": "expects a literal string here",
    "i.dt.hour()": "`dt.hour` works on time or timestamp: got int8",
    "d.dt.hour()": "`dt.hour` works on time or timestamp: got date",
    "t.dt.epoch('h')": '`time_unit` must be one of "d", "s", "ms", "us", "ns"',
    "coalesce(i)": "`coalesce` takes at least two values: got 1",
    "min_horizontal(a=i)": "`min_horizontal` takes no named arguments",
    "i.list.len()": "`list.len` works on list: got int8",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_arguments_are_refused_with_a_reason(text: str):
    assert_refused(text, WRONG[text])
