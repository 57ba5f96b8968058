"""The features that names choose, in the file's order, and what names that choose none are told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.config import PipelineSpec, load_spec
from feedline.config.chosen_features import choose_features, column_group_name
from feedline.errors import SpecError

FEATURES: dict[str, Any] = {
    "sparse": {"hist_{0..1}": [{"hash_bucket": 10}]},
    "dense": {"price": [], "hour": {"expr": "ts.dt.hour()"}},
    "label": {"label": {"column": "clicked"}, "weight": []},
    "extra": ["row"],
}
ORDER = ("price", "hour", "hist_0", "hist_1", "label", "weight", "row")  # of the tensors


def spec_of(**features: Any) -> PipelineSpec:
    return load_spec({"version": 1, "name": "p", "source": {"table": "t"}, "features": features, "batch": {"size": 2}})


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["hour"], ("hour",)),
        (["dense"], ("price", "hour")),
        (["row", "hist_1", "price"], ("price", "hist_1", "row")),
        (("sparse", "hist_0", "hist_0"), ("hist_0", "hist_1")),
        (["extra", "label"], ("label", "row")),  # a feature of that name is meant, not its group
        (["label", "weight"], ("label", "weight")),
    ],
)
def test_names_choose_features_in_the_files_order(names: list[str], expected: tuple[str, ...]):
    assert choose_features(spec_of(**FEATURES), names) == expected


@given(st.lists(st.sampled_from(ORDER), min_size=1))
def test_any_features_are_chosen_once_and_choosing_is_idempotent(names: list[str]):
    spec = spec_of(**FEATURES)
    chosen = choose_features(spec, names)
    assert chosen == tuple(name for name in ORDER if name in names)
    assert choose_features(spec, chosen) == chosen


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "features must not be empty: got no name, expected features or 'dense', 'sparse', 'label', 'extra'."),
        ("dense", 'features must be a list of names: got \'dense\', expected for example ["dense", "label"]'),
        ([["dense"]], "features must be a list of names: got a list, expected"),
        (
            ["price", "prise"],
            "features: unknown feature or group: got 'prise', expected one of 'price', 'hour', 'hist_0', 'hist_1',",
        ),
        (["categorical"], "unknown feature or group: got 'categorical', expected one of 'price'"),  # it has no feature
    ],
)
def test_other_names_are_refused(names: Any, message: str):
    with pytest.raises(SpecError, match=re.escape(message)):
        choose_features(spec_of(**FEATURES), names)


def test_an_unknown_name_names_the_section_of_the_file(tmp_path: Path):
    path = tmp_path / "p.yaml"
    path.write_text("version: 1\nname: p\nsource: {table: t}\nfeatures:\n  dense: {price: []}\nbatch: {size: 2}\n")
    with pytest.raises(SpecError, match=r"p\.yaml:4:1: features: unknown feature or group: got 'x', expected one of"):
        choose_features(load_spec(path, {}), ["x"])


def test_names_of_groups_differ_with_any_feature_and_are_short():
    assert column_group_name(()) == ""
    many = [f"hist_{index}" for index in range(500)]
    names = [column_group_name(each) for each in (["a"], ["a", "b"], ["a, b"], many, many[:-1], ["x" * 500, "y"])]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) < 60
    assert names[1].startswith("a, b (")
    assert names[3].startswith("hist_0, hist_1 … (")
