"""Random conditions over rows of several types, in the language and in SQL."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

KINDS = {"i": pa.int64(), "f": pa.float64(), "s": pa.string(), "j": pa.int64(), "b": pa.bool_()}
NAN = float("nan")
VALUES: dict[str, list[Any]] = {
    "i": [0, 1, 2, 3, 7],
    "f": [0.0, -0.0, NAN, 1.5, float("inf"), -2.0],
    "s": ["", "a", "ab", "é", "x"],
    "j": [0, 1, 2],
    "b": [False, True],
}
ATOMS = [  # in Feedline's language and in SQL; None: DuckDB orders NaN otherwise
    ("i == 3", "i = 3"),
    ("i != 2", "i <> 2"),
    ("i in [0, 3, 9]", "i in (0, 3, 9)"),
    ("1 <= i < 7", "1 <= i and i < 7"),
    ("i is None", "i is null"),
    ("i % 2 == 0", "i % 2 = 0"),
    ('s == "a"', "s = 'a'"),
    ('s > "a"', "s > 'a'"),
    ('s.str.starts_with("a")', "s like 'a%'"),
    ('s.str.contains("b")', "s like '%b%'"),
    ("s.str.len_chars() == 1", "length(s) = 1"),
    ("s is not None", "s is not null"),
    ("b", "b"),
    ("j >= 1", "j >= 1"),
    ("i > j", "i > j"),
    ("coalesce(i, j) == 1", "coalesce(i, j) = 1"),
    ("f > 0", None),
    ("f <= 0", None),
    ("f != 1.5", None),
    ("f.is_nan()", None),
    ("f < i", None),
    ("1 / f < 0", None),
]


@st.composite
def conditions(draw: st.DrawFn, *, sql: bool = False) -> tuple[str, str]:
    """The same condition in Feedline's language and in SQL, as far as there is one."""
    atoms = [(one, other or "") for one, other in ATOMS if other is not None or not sql]
    items = draw(st.lists(st.sampled_from(atoms), min_size=1, max_size=5))

    def join(left: tuple[str, str], right: tuple[str, str]) -> tuple[str, str]:
        word = draw(st.sampled_from(["({}) and ({})", "({}) or ({})", "not (({}) and ({}))", "({}) or not ({})"]))
        return word.format(left[0], right[0]), word.format(left[1], right[1])

    return reduce(join, items)
