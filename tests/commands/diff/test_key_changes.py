"""What each key is said to decide is what the fingerprints say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipelines import Place, furnished

from feedline import Pipeline
from feedline.commands.diff.key_changes import decides, describe_keys, plan_keys
from feedline.planning.plan import Plan, fingerprint_facts
from feedline.spec import load_spec


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


PLAN_KEYS = {
    "source.where": "dense_2 > 0.5",
    "source.sample": {"fraction": 0.5},
    "source.split_rows": 2048,
    "shuffle": "off",
    "shuffle.seed": 4,
    "shuffle.window_rows": 4096,
    "shuffle.rows": False,
    "shuffle.by": "ts",
    "shuffle.weights": "clicked",
    "batch.size": 128,
    "batch.tail": "pad",
    "batch.balance": "hist_0",
    "lanes": 2,
}
OTHER_KEYS = {
    "source.schema.columns": {"dense_3": "float64"},
    "source.row_key": ["request_id"],
    "source.decoder": "arrow",
    "on_nonfinite": "zero",
    "name": "other",
    "epochs": 3,
    "memory": "32MiB",
    "cluster.threads": 2,
    "feeder": "rank",
    "on_expect": "error",
    "cache": "kept",
    "fit.auto": True,
}


@pytest.mark.parametrize("key", [*PLAN_KEYS, *OTHER_KEYS])
def test_keys_decide_what_the_fingerprints_say(place: Place, key: str):
    path = place.write()
    value = {**PLAN_KEYS, **OTHER_KEYS}[key]
    plans: list[Any] = [Pipeline.from_yaml(path, overrides).plan() for overrides in ({}, {key: value})]
    a, b = plans
    found = describe_keys(a.spec, b.spec)
    assert all(each["key"] == key or each["key"].startswith(f"{key}.") or key.startswith(each["key"]) for each in found)
    (decided,) = {each["decides"] for each in found}
    assert (decided == "snapshot") == (a.snapshot.id != b.snapshot.id)
    assert (decided == "features") == (a.features_fingerprint != b.features_fingerprint)
    is_other_plan = a.fingerprint != b.fingerprint
    assert (decided in ("plan", "snapshot")) == is_other_plan
    assert (key in PLAN_KEYS) == (decided == "plan")
    names = plan_keys(fingerprint_facts(a), fingerprint_facts(b))
    assert bool(names) == is_other_plan
    if decided == "plan":
        assert any(each.startswith(key.split(".")[0]) for each in names)
        assert {name for name in names if name.split(".")[0] not in (key.split(".")[0], "shuffle")} == set()


def test_values_are_shown_without_passwords_and_features_apart(place: Place):
    path = place.write()
    secret = load_spec(path, {"work_dir": "s3://me:secret@host/bucket", "features.dense.dense_0": []})
    [change] = describe_keys(load_spec(path), secret)
    assert (change["key"], change["b"], change["decides"]) == ("work_dir", "s3://host/bucket", "run")


def test_every_section_of_a_pipeline_is_classified(place: Place):
    """`decides` falls back on "run": a new section that decides more must be named."""
    plan = Pipeline.from_yaml(place.write()).plan()
    assert isinstance(plan, Plan)
    run = {"version", "work_dir", "epochs", "cluster", "feeder", "memory", "cache", "allow_code", "on_expect"}
    sections = set(type(plan.spec).model_fields) - {"only_source"} | {"source"}
    assert {name for name in sections if decides(name) == "run"} == run | {"metrics", "traces"}
