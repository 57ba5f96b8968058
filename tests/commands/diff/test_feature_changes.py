"""Each way in which a feature can change is found, and called by its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import Place, furnished

from feedline import Pipeline
from feedline.commands.diff.feature_changes import change_text, describe_features, differing_features
from feedline.planning.plan import Plan

DENSE = {"dense_0": [{"fill_null": 0}, "log1p"], "dense_1": [{"fill_null": 0}]}
REST = {"categorical": {"id_0": [{"modulo": 100}]}, "sparse": {"hist_0": [{"first_x": 3}]}, "label": {"clicked": []}}


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


def planned(place: Place, features: dict[str, Any], **changes: Any) -> Plan:
    plan = Pipeline.from_yaml(place.write(features=features, **changes)).plan()
    assert isinstance(plan, Plan)
    return plan


def of_both(place: Place, before: dict[str, Any], after: dict[str, Any], **changes: Any) -> dict[str, Any]:
    a, b = planned(place, before), planned(place, after, **changes)
    facts = describe_features(a.features, b.features)
    is_same = not differing_features(facts) and not facts["reordered"]
    assert is_same == (a.features_fingerprint == b.features_fingerprint), "the fingerprint is the judge"
    return facts


@pytest.mark.parametrize(
    ("dense_0", "what", "a", "b"),
    [
        ([{"fill_null": 1}, "log1p"], "parameters of fill_null", 0, 1),
        (["log1p", {"fill_null": 0}], "ops", [{"fill_null": 0}, "log1p"], ["log1p", {"fill_null": 0}]),
        ([{"fill_null": 0}], "ops", [{"fill_null": 0}, "log1p"], [{"fill_null": 0}]),
        ({"column": "dense_2", "ops": DENSE["dense_0"]}, "column", "dense_0", "dense_2"),
        ({"expr": "dense_0 + 1", "ops": DENSE["dense_0"]}, "expr", None, "dense_0 + 1"),
        ({"column": "dense_0", "ops": DENSE["dense_0"], "on_nonfinite": "zero"}, "on_nonfinite", "keep", "zero"),
    ],
)
def test_how_a_feature_changed(place: Place, dense_0: Any, what: str, a: Any, b: Any):
    facts = of_both(place, {"dense": DENSE, **REST}, {"dense": {**DENSE, "dense_0": dense_0}, **REST})
    [change] = facts["changed"]
    assert change["name"] == "dense_0"
    assert {"what": what, "a": a, "b": b} in change["how"]
    assert (facts["added"], facts["removed"], facts["same"], facts["reordered"]) == ([], [], 4, False)


def test_added_removed_moved_and_reordered_features(place: Place):
    before = {"dense": DENSE, **REST}
    after = {"dense": {"dense_1": DENSE["dense_1"]}, **REST, "extra": ["ts"]}
    facts = of_both(place, before, after)
    assert (facts["removed"], facts["added"], facts["changed"]) == (["dense_0"], ["ts"], [])
    facts = of_both(place, before, {"dense": dict(reversed(DENSE.items())), **REST})
    assert (facts["changed"], facts["reordered"]) == ([], True)
    moved = {"dense": DENSE, "sparse": REST["sparse"], "label": {"clicked": [], "id_0": [{"modulo": 100}]}}
    [change] = of_both(place, before, moved)["changed"]
    assert change["how"] == [{"what": "group", "a": "categorical", "b": "label"}]


def test_an_expectation_changes_no_value(place: Place):
    after = {"dense": {**DENSE, "dense_1": {"column": "dense_1", "ops": DENSE["dense_1"], "expect": {"min": ">= 0"}}}}
    facts = of_both(place, {"dense": DENSE, **REST}, {**after, **REST})
    assert [how["what"] for how in facts["changed"][0]["how"]] == ["expect"]
    assert differing_features(facts) == []


def test_types_and_artifacts(tmp_path: Path):
    """Of two tables whose column has other types, and of fits on other rows."""
    for name, kind in (("a", pa.float32()), ("b", pa.float64())):
        (tmp_path / name).mkdir()
        table = pa.table({"x": pa.array([1.0, 2.0, 5.0, 7.0], kind), "word": ["u", "v", "w", "u"], "y": [0, 1, 1, 0]})
        pq.write_table(table, tmp_path / name / "part.parquet")
    with furnished(tmp_path, tmp_path / "a") as place:
        vocabulary = {
            "dense": {"x": []},
            "categorical": {"word": [{"vocabulary": {"min_count": 1}}]},
            "label": {"y": []},
        }
        options = {"batch": {"size": 2}, "source": {"table": str(tmp_path / "a")}}
        plain = {**vocabulary, "categorical": {"word": [{"hash_bucket": 5}]}}
        a = planned(place, plain, **options)
        b = planned(place, plain, **{**options, "source": {"table": str(tmp_path / "b")}})
        [change] = describe_features(a.features, b.features)["changed"]
        assert change["how"] == [{"what": "types", "a": {"x": "float"}, "b": {"x": "double"}}]
        found = []
        for where in ("x < 6", "x < 4"):
            pipeline = Pipeline.from_yaml(place.write(features=vocabulary, fit={"where": where}, **options))
            found.append(pipeline.plan())
            pipeline.fit()
            found.append(pipeline.plan())
        [change] = describe_features(found[1].features, found[3].features)["changed"]
        assert [(how["what"], how["a"][:5]) for how in change["how"]] == [("artifacts", "as of")]
        [change] = describe_features(found[0].features, found[1].features)["changed"]
        assert change["how"][0]["a"] == "not fitted"


@settings(max_examples=30)
@given(st.recursive(st.none() | st.integers() | st.text(), st.lists))
def test_every_change_has_a_line(value: Any):
    assert "\n" not in change_text({"what": "ops", "a": 1, "b": 2})
    assert change_text({"what": "ops", "a": value, "b": value}).startswith("ops: ")
