"""Names and strings in YAML, in expressions and in comments come back as they were."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import NAMES

from feedline.config.features import read_features
from feedline.config.overrides import substitute_variables
from feedline.config.yaml_document import Problems, read_document
from feedline.expressions import bind_expression, bind_where, parse
from feedline.workbench.begin.quoting import (
    column_expr,
    comment,
    distinct,
    feature_name,
    number,
    percent,
    string_literal,
    yaml_key,
    yaml_string,
    yaml_value,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(-1e9, 1e9) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(NAMES, VALUES)
@settings(max_examples=40, deadline=None)
def test_a_value_is_read_as_it_was(name: str, value: object):
    document = read_document(f"top:\n  {yaml_key(name)}: {yaml_value(value)}  # a comment\n", "f")
    substitute_variables(document, {})
    assert document.value == {"top": {name: value}}


@pytest.mark.parametrize("word", ["null", "true", "off", "No", "12", "1.5", "1e3", ".nan", "~", "-", "0x1f", ""])
def test_words_that_yaml_reads_otherwise_are_strings(word: str):
    assert read_document(f"a: {yaml_string(word)}", "f").value == {"a": word}


@given(NAMES)
@settings(max_examples=40, deadline=None)
def test_an_expression_names_any_column(name: str):
    bound = bind_where(f"{column_expr(name)} is not None", pa.schema([(name, pa.int64())]))
    assert bound.columns == {name}


@given(NAMES)
@settings(max_examples=50, deadline=None)
def test_a_literal_is_its_string(text: str):
    bound = bind_expression(parse(f"when(a > 0, {string_literal(text)}, None)"), pa.schema([("a", pa.int64())]))
    assert pl.DataFrame({"a": [1]}).select(bound.polars).item() == text


@given(st.text(max_size=40))
def test_a_comment_is_one_line(text: str):
    assert len(comment(text).splitlines()) <= 1
    assert read_document(f"a: 1  # {comment(text)}\nb: 2", "f").value == {"a": 1, "b": 2}


@given(st.lists(NAMES | st.just(" "), max_size=8, unique=True))
@settings(max_examples=40, deadline=None)
def test_names_of_features_are_accepted_and_differ(columns: list[str]):
    taken: set[str] = set()
    names = [feature_name(each, taken) for each in columns]
    assert len(set(names)) == len(names)
    lines = "".join(
        f"    {yaml_key(name)}: {yaml_value({'column': each})}\n"
        for name, each in zip(names, columns, strict=True)
        if each.strip()
    )
    document = read_document(f"features:\n  dense:\n    x_: []\n{lines}", "f")
    substitute_variables(document, {})
    problems = Problems(document)
    features = read_features(document, problems)
    problems.raise_all()
    assert [each.column for each in features][1:] == [each for each in columns if each.strip()]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (9_999, "9,999"),
        (12_400, "12.4 k"),
        (12_400_000, "12.4 M"),
        (999_999, "1 M"),
        (1e13, "10 T"),
        (0.123456, "0.123"),
        (-2.5, "-2.5"),
    ],
)
def test_numbers(value: float, text: str):
    assert number(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.25, "25 %"),
        (0.004, "0.4 %"),
        (0.9999, "99.99 %"),
        (1e-9, "< 0.01 %"),
        (1 - 1e-9, "> 99.99 %"),
        (None, "?"),
    ],
)
def test_shares(share: float | None, text: str):
    assert percent(share) == text


@given(st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_a_share_is_never_rounded_to_none_or_all(share: float):
    assert percent(share) not in ("0 %", "100 %", "0.0 %", "100.0 %", "0.00 %", "100.00 %")


def test_estimates_say_so():
    assert distinct(12_400_000, exact=False) == "12.4 M distinct (estimate)"
    assert distinct(3, exact=True) == "3 distinct"
