"""What values predict of other rows, against effects that are known."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from feedline.workbench.begin.learnt_facts import LabelTargets, ValueGain

ROWS = 8_000
RANDOM = np.random.default_rng(2)
TEACHES = RANDOM.random(ROWS) < 0.8
KIND = RANDOM.integers(0, 60, ROWS)
EFFECT = RANDOM.normal(size=60)  # of each kind, in no order
NOISE = RANDOM.normal(size=ROWS)


def gain(column: object, label: object) -> ValueGain:
    return LabelTargets(pl.Series(label), TEACHES).gain_of(pl.Series(column))


def test_integers_that_name_things_predict_better_one_by_one():
    label = EFFECT[KIND] + NOISE
    found = gain(KIND, label)
    explained = EFFECT[KIND].var() / label.var()
    assert found.values == pytest.approx(explained, abs=0.03)
    assert found.number is not None
    assert found.number < 0.6 * found.values
    assert found.are_ids


@pytest.mark.parametrize(
    "label",
    [
        KIND / 20 + NOISE,
        np.sin(KIND / 20) * 2 + NOISE,
        (KIND > 30) + NOISE,
        NOISE,
        (RANDOM.random(ROWS) < KIND / 60).astype(int),
    ],
)
def test_numbers_whose_order_tells_the_label_stay_numbers(label: object):
    assert not gain(KIND, label).are_ids


def test_values_that_say_nothing_gain_nothing():
    users = RANDOM.integers(0, 4_000, ROWS)  # two rows each: their means are chance, and shrunk
    found = gain([f"u{user}" for user in users], (RANDOM.random(ROWS) < 0.3).astype(int))
    assert found.values == pytest.approx(0, abs=0.01)
    assert found.number is None


def test_unknown_values_are_counted():
    column = np.where(TEACHES, KIND, KIND + 40)
    assert gain(column, NOISE).unknown == pytest.approx(40 / 60, abs=0.03)
    assert gain([None] * ROWS, NOISE).unknown == 0


def test_labels_of_strings_and_with_nulls():
    classes = np.array(["a", "b", "c"])[KIND % 3]
    assert gain(KIND, classes).values == pytest.approx(1, abs=0.02)
    holed = pl.Series(classes).set(pl.Series(RANDOM.random(ROWS) < 0.2), None)
    assert gain([f"k{kind}" for kind in KIND], holed).values == pytest.approx(1, abs=0.02)


def test_a_label_that_does_not_vary_is_of_no_use():
    assert not LabelTargets(pl.Series(np.ones(ROWS)), TEACHES).is_usable
    assert not LabelTargets(pl.Series(NOISE), np.ones(ROWS, bool)).is_usable
    assert not LabelTargets(pl.Series([None] * ROWS, dtype=pl.Int64), TEACHES).is_usable
