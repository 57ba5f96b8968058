"""Which features belong to the deduplicated groups that pipeline.yaml names by their columns."""

from __future__ import annotations

import json
from typing import Any

import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from minimal_pipeline import completed

from feedline.config import PipelineSpec, parse_spec
from feedline.errors import SpecError
from feedline.planning.table_features import grouped_features

FEATURES = {
    "dense": {
        "age": [{"fill_null": 0}],
        "both": {"expr": "age + price"},
        "shape": {"expr": "user['height'] / user['weight']"},
        "mean": {"column": "city", "ops": [{"target_encoding": {"target": "clicked", "fold_by": "request"}}]},
        "mean_of_fold": {"column": "city", "ops": [{"target_encoding": {"target": "clicked", "folds": 1}}]},
    },
    "categorical": {
        "cross": {"op": {"cross_hash": 100}, "inputs": ["city", {"column": "age", "ops": [{"bucketize": [18]}]}]},
        "mixed": {"op": {"cross_hash": 100}, "inputs": ["city", "item"]},
    },
    "sparse": {"hist_{0..1}": [{"first_x": 3}]},
    "label": {"clicked": {"expr": "age > 3"}},
    "extra": {"passed": {"column": "age"}},
}


def groups_of(spec: PipelineSpec) -> dict[str, str]:
    return {feature.name: feature.dedup for feature in grouped_features(spec) if feature.dedup is not None}


def spec_of(dedup: dict[str, list[str]], **changes: Any) -> PipelineSpec:
    content = {"features": FEATURES, "shuffle": "off", **changes}
    content["dedup"] = {name: {"columns": columns} for name, columns in dedup.items()}
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in content.items())
    return parse_spec(completed(text), file="p.yaml")


def test_features_that_read_no_other_columns_belong_to_a_group():
    assert groups_of(spec_of({"u": ["age", "city", "user"], "lists": ["hist_{0..5}"]})) == {
        "age": "u",
        "shape": "u",
        "mean_of_fold": "u",
        "cross": "u",
        "hist_0": "lists",
        "hist_1": "lists",
    }


def test_an_out_of_fold_encoding_belongs_to_a_group_with_its_fold_columns():
    assert "mean" in groups_of(spec_of({"u": ["city", "request"]}))
    assert "mean" not in groups_of(spec_of({"u": ["city"], "v": ["request", "age"]}))
    assert "mean" in groups_of(spec_of({"u": ["city"]}, fit={"out_of_fold": False}))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["ages"], "no feature reads ages. Did you mean 'age'"),
        (["zzz"], "no feature reads zzz. Remove the group"),
        (["price"], "both reads age as well. Name all columns of a feature in one group"),
        (["item"], "mixed reads city as well"),
        (["clicked_on", "request"], "mean reads city as well"),
    ],
)
def test_a_group_without_features_is_refused(columns: list[str], message: str):
    spec = spec_of({"g": columns})
    with pytest.raises(SpecError) as caught:
        grouped_features(spec)
    text = str(caught.value)
    assert text.startswith("p.yaml:")
    assert ": dedup.g.columns: no feature belongs to the group 'g': " in text
    assert message in text


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"extra": ["age"]}, "age is passed through"),
        ({"label": {"y": {"column": "age"}}}, "y is a label"),
    ],
)
def test_labels_and_extras_fill_no_group(features: dict[str, Any], message: str):
    with pytest.raises(SpecError, match=message):
        grouped_features(spec_of({"g": ["age"]}, features=features))


@examples(60)
@given(st.dictionaries(st.sampled_from(list("abcdef")), st.sampled_from(["g", "h", None])), st.data())
def test_a_feature_is_in_the_group_of_all_its_columns(group_of: dict[str, str | None], data: st.DataObject):
    """A feature of columns of one group is in it, of several or none in none: as a set of columns says it."""
    pool = st.lists(st.sampled_from(list("abcdef")), min_size=1, max_size=3)
    inputs = data.draw(st.lists(pool, min_size=1, max_size=6))
    dedup = {name: [c for c, g in group_of.items() if g == name] for name in set(group_of.values()) - {None}}
    features = {f"f{i}": {"expr": " + ".join(columns)} for i, columns in enumerate(inputs)}
    own = {name: {group_of.get(c) for c in columns} for name, columns in zip(features, inputs, strict=True)}
    wanted = {name: found.copy().pop() for name, found in own.items() if len(found) == 1 and None not in found}
    spec = spec_of({str(k): v for k, v in dedup.items()}, features={"dense": features})
    if set(dedup) - set(wanted.values()):
        with pytest.raises(SpecError, match="no feature belongs to the group"):
            grouped_features(spec)
        return
    assert groups_of(spec) == wanted
    assert PipelineSpec.from_canonical(spec.canonical()) == spec
