"""The ops of numbers, by what their facts say."""

from __future__ import annotations

import pytest
from profiles import column, numbers

from feedline.workbench.begin.column_choice import choose_indicator, choose_number


def test_numbers_are_standardized_and_nulls_become_the_mean():
    chosen = choose_number(column("a", null_rate=0.25))
    assert chosen.ops == ("standardize", {"fill_null": 0})
    assert chosen.reason == "25 % null"
    assert choose_number(column("a")).ops == ("standardize", {"fill_null": 0})  # the first nulls may be yet to come
    assert choose_number(column("a", nullable=False)).ops == ("standardize",)


@pytest.mark.parametrize(
    ("facts", "ops"),
    [
        ({"low": 0, "high": 1e6, "skewness": 9.0}, ("log1p", "standardize")),
        ({"low": 0, "high": 0.5, "skewness": 9.0}, ({"clip": {"min": 0.005, "max": 0.495}}, "standardize")),
        (
            {"low": -1, "high": 1e6, "skewness": 9.0, "negative_rate": 0.001},
            ({"clip": {"min": 0}}, "log1p", "standardize"),
        ),
        (
            {"low": -100, "high": 100, "skewness": -9.0, "negative_rate": 0.5},
            ({"clip": {"min": -98.0, "max": 98.0}}, "standardize"),
        ),
        ({"low": 0, "high": 10, "skewness": 1.0}, ("standardize",)),
        ({"low": -3, "high": 3.2, "negative_rate": 0.48}, ("standardize",)),  # a median near 0 makes no long tail
        ({"low": 3, "high": 3, "skewness": 0.0}, ("standardize",)),
    ],
)
def test_skewed_numbers_are_shaped(facts: dict[str, float], ops: tuple[object, ...]):
    chosen = choose_number(column("a", nullable=False, numbers=numbers(**facts)))
    assert chosen.ops == ops
    assert chosen.reason


def test_numbers_that_are_not_finite_become_the_mean():
    chosen = choose_number(column("a", nullable=False, numbers=numbers(nan_rate=0.02, inf_rate=0.01)))
    assert chosen.ops == ("standardize", {"fill_nonfinite": 0})
    assert "3 % NaN or infinite" in chosen.reason


def test_where_nulls_are_is_a_feature_unless_they_are_rare():
    found = choose_indicator(column("a b", null_rate=0.4))
    assert found is not None
    assert found.expr == 'col("a b") is None'
    assert choose_indicator(column("a", null_rate=0.005)) is None
    assert choose_indicator(column("a", null_rate=0.995)) is None


def test_a_column_close_to_the_label_is_questioned():
    assert choose_number(column("a", correlation=-0.92)).check is not None
    assert choose_number(column("a", correlation=0.3)).check is None
    check = choose_number(column("a", shared_nulls=0.97)).check
    assert check == "is null where the label is: is it known when the prediction is made?"
