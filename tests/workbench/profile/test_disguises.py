"""Columns that are the label in disguise, and correlations, compared with scipy and numpy."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import scipy.stats

from feedline.workbench.profile.disguises import LabelValues, cramers_v, pearson, roc_area, uncertainty

RANDOM = np.random.default_rng(0)
LABEL = (RANDOM.random(4000) < 0.1).astype(np.int8)
NOISE = RANDOM.normal(size=4000)


def disguise(values: object, label: np.ndarray = LABEL) -> str | None:
    column = pl.Series(values)
    return LabelValues(pl.Series(label)).compare(column, column.n_unique())[0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (LABEL, "equal"),
        (1 - LABEL, "ROC"),
        (LABEL * 100 + NOISE, "ROC"),
        (LABEL.astype(bool), "equal"),
        (np.where(LABEL == 1, "yes", "no"), "entropy"),
        (pl.Series(np.where(LABEL == 1, NOISE, np.nan)).fill_nan(None), "label is 1"),
        (pl.Series(np.where(LABEL == 0, NOISE, np.nan)).fill_nan(None), "label is 0"),
        ([[1] * int(3 * one) for one in LABEL], "length"),
        (LABEL * 3 + RANDOM.integers(0, 3, 4000), "ROC"),
        ((LABEL + 2 * RANDOM.integers(0, 9, 4000)) % 18, "entropy"),  # odd where the label is 1: no order tells that
    ],
)
def test_disguises_are_found(values: object, words: str):
    assert words in (disguise(values) or "")


@pytest.mark.parametrize(
    "values",
    [
        NOISE,
        LABEL + NOISE,  # a good feature, and no more
        np.arange(4000),
        [f"user {index}" for index in range(4000)],  # each value has one row, which tells nothing
        RANDOM.integers(0, 5, 4000),
        [[1] * int(length) for length in RANDOM.integers(0, 5, 4000)],
        [None] * 4000,
        np.ones(4000),
    ],
)
def test_features_are_no_disguises(values: object):
    assert disguise(values) is None


def test_a_real_valued_label_is_found_by_its_correlation():
    label = RANDOM.lognormal(size=4000)
    assert "correlation" in (disguise(label * 2.5 + 1, label) or "")
    assert "equal" in (disguise(label, label) or "")
    assert disguise(label + NOISE, label) is None


def test_a_label_is_found_by_the_ranks_of_its_logarithm():
    label = RANDOM.lognormal(size=4000)
    assert "ranks" in (disguise(np.log(label), label) or "")
    assert "ranks" in (disguise(-(label**3), label) or "")
    assert disguise(np.log(label) + NOISE / 10, label) is None


def test_labels_of_strings_are_compared_as_numbers_are():
    words = np.where(LABEL == 1, "Yes", "No")
    for values in (1 - LABEL, LABEL * 100 + NOISE, pl.Series(np.where(LABEL == 1, NOISE, np.nan)).fill_nan(None)):
        numbers, strings = (LabelValues(pl.Series(label)).compare(pl.Series(values), 2) for label in (LABEL, words))
        assert numbers[0]
        assert strings == numbers
    kinds = pl.Series([f"class {value}" for value in CLASSES])
    assert "entropy" in (LabelValues(kinds).compare(pl.Series(CLASSES * 3), 5)[0] or "")
    _, found = LabelValues(kinds).compare(pl.Series(NOISE + (CLASSES == 8)), 4000)
    means = [(NOISE + (CLASSES == 8))[each == CLASSES].mean() for each in CLASSES]
    assert found == pytest.approx(np.std(means) / np.std(NOISE + (CLASSES == 8)))
    assert not LabelValues(pl.Series([f"u{index}" for index in range(4000)])).is_usable


CLASSES = RANDOM.choice([1, 2, 3, 5, 8], 4000, p=[0.5, 0.2, 0.1, 0.1, 0.1])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([f"class {value}" for value in CLASSES], "entropy"),
        (np.array([4, 2, 9, 0, 1, 7, 7, 7, 3])[CLASSES], "entropy"),  # other codes, in another order
        (CLASSES * 10 + RANDOM.integers(0, 10, 4000) % 2 * 1000, "entropy"),
        (CLASSES * 3, "correlation"),
        (pl.Series(CLASSES).cast(pl.String), "entropy"),
    ],
)
def test_classes_are_found_by_values_that_tell_them(values: object, words: str):
    assert words in (disguise(values, CLASSES) or "")


@pytest.mark.parametrize(
    "values",
    [
        np.where(CLASSES > 2, "many", "few"),  # a part of the classes
        RANDOM.choice(["a", "b", "c"], 4000),
        RANDOM.integers(0, 400, 4000),
        [f"user {index // 8}" for index in range(4000)],
        NOISE,
    ],
)
def test_features_are_no_disguises_of_classes(values: object):
    assert disguise(values, CLASSES) is None


def test_few_rows_of_other_classes_tell_nothing():
    values = np.full(4000, np.nan)
    values[np.flatnonzero(CLASSES == 1)[:100]] = 7
    values[np.flatnonzero(CLASSES == 8)[:4]] = 9
    assert disguise(values, CLASSES) is None
    values[np.flatnonzero(CLASSES == 8)[:5]] = 9
    assert "correlation" in (disguise(values, CLASSES) or "")


def test_labels_of_many_values_have_no_classes():
    label = RANDOM.integers(0, 1000, 4000)
    assert not LabelValues(pl.Series(label)).has_classes
    assert disguise([str(value // 100) for value in label], label) is None


def test_codes_and_classes_have_cramers_correlation():
    words = pl.Series(np.where(RANDOM.random(4000) < 0.5, CLASSES, 0)).cast(pl.String)
    _, found = LabelValues(pl.Series(CLASSES)).compare(words, 6)
    table = np.array(
        [
            [np.count_nonzero((one == CLASSES) & (words == word).to_numpy()) for word in sorted(set(words))]
            for one in np.unique(CLASSES)
        ]
    )
    assert found == pytest.approx(scipy.stats.contingency.association(table, method="cramer"))


def test_labels_that_do_not_vary_are_of_no_use():
    assert not LabelValues(pl.Series(np.zeros(1000))).is_usable
    assert not LabelValues(pl.Series([0] * 999 + [1])).is_usable
    assert not LabelValues(pl.Series([0, 1] * 10)).is_usable
    assert not LabelValues(pl.Series([3] * 996 + [4, 5, 6, 7])).is_usable
    assert LabelValues(pl.Series([3] * 995 + [4, 5, 6, 7, 8])).is_usable
    assert LabelValues(pl.Series(LABEL)).is_usable


def test_rows_without_a_label_are_left_out():
    label = pl.Series([None if index % 2 else int(LABEL[index]) for index in range(4000)])
    column = pl.Series([7 if index % 2 else int(LABEL[index]) for index in range(4000)])
    assert LabelValues(label).compare(column, 3)[0] == "it is equal to the label in every row"


def test_correlations_are_pearsons_and_cramers():
    values = np.where(RANDOM.random(4000) < 0.2, np.nan, LABEL + NOISE)
    _, found = LabelValues(pl.Series(LABEL)).compare(pl.Series(values), 4000)
    some = np.isfinite(values)
    assert found == pytest.approx(scipy.stats.pearsonr(values[some], LABEL[some]).statistic)
    words = pl.Series(RANDOM.choice(["a", "b", "c"], 4000)) + pl.Series(
        np.where(RANDOM.random(4000) < 0.3, LABEL, 0)
    ).cast(pl.String)
    _, found = LabelValues(pl.Series(LABEL)).compare(words, 6)
    distinct = sorted(set(words.to_list()))
    table = [[words.filter(pl.Series(one == LABEL)).to_list().count(word) for word in distinct] for one in (0, 1)]
    assert found == pytest.approx(scipy.stats.contingency.association(np.array(table), method="cramer"))


def test_the_area_is_mann_and_whitneys():
    values = np.round(NOISE + LABEL, 1)
    expected = scipy.stats.mannwhitneyu(values[LABEL == 1], values[LABEL == 0]).statistic
    distinct = np.unique(values)
    zeros, ones = (
        np.array([np.count_nonzero((values == value) & (one == LABEL)) for value in distinct], float) for one in (0, 1)
    )
    assert roc_area(zeros, ones) == pytest.approx(expected / (LABEL.sum() * (4000 - LABEL.sum())))
    assert roc_area(zeros, np.zeros(len(zeros))) is None


def test_uncertainty_is_mutual_information_by_entropy():
    zeros, ones = np.array([10.0, 0.0, 5.0]), np.array([0.0, 8.0, 5.0])
    joint = np.stack([zeros, ones]) / 28
    label, column = joint.sum(axis=1), joint.sum(axis=0)
    mutual = scipy.stats.entropy(label) + scipy.stats.entropy(column) - scipy.stats.entropy(joint.ravel())
    assert uncertainty(np.stack([zeros, ones])) == pytest.approx(mutual / scipy.stats.entropy(label))
    assert uncertainty(np.stack([zeros, np.zeros(3)])) is None


def test_what_does_not_vary_has_no_correlation():
    assert pearson(np.ones(10), np.arange(10.0)) is None
    assert pearson(np.array([1e308, -1e308]), np.array([0.0, 1.0])) is None
    assert cramers_v(np.array([[5.0], [5.0]])) is None
    assert cramers_v(np.array([[5.0, 3.0], [0.0, 0.0]])) is None
