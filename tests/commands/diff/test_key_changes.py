"""What each key is said to decide is what the fingerprints say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipelines import Place, furnished

from feedline import Pipeline
from feedline.commands.arguments.completions import override_keys
from feedline.commands.diff.key_changes import decides, describe_keys, plan_keys
from feedline.planning.plan import fingerprint_facts
from feedline.spec import load_spec
from feedline.spec.pipeline_spec import json_schema


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
    "work_dir": "elsewhere",
    "allow_code": True,
    "metrics": "127.0.0.1:0",
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


def test_each_key_that_only_decides_how_a_job_runs_is_known_to():
    """A new key decides what a trainer sees, until somebody writes it down here."""
    keys = [each.key for each in override_keys(json_schema())]
    run = [key for key in keys if decides(key) == "run"]
    assert {key for key in run if key.startswith("source.")} == {
        f"source.{key}" for key in ("decoder", "row_key", "max_bad_files", "max_bad_rows")
    }
    assert {key.split(".")[0] for key in run} - {"source"} == {
        "epochs", "cluster", "feeder", "memory", "cache", "allow_code", "on_expect", "metrics", "traces"
    }  # fmt: skip


def test_values_are_shown_without_passwords_and_features_apart(place: Place):
    path = place.write()
    secret = load_spec(path, {"work_dir": "s3://me:secret@host/bucket", "features.dense.dense_0": []})
    [change] = describe_keys(load_spec(path), secret)
    assert (change["key"], change["b"], change["decides"]) == ("work_dir", "s3://host/bucket", "artifacts")


def test_keys_of_all_sources_and_of_their_mix_are_compared(place: Place):
    """Also where one of them is looked at: what another one is decides which rows come when."""
    one, two = ({"name": name, "table": str(place.table), "weight": 1} for name in "ab")
    a = place.write("a.yaml", source=None, sources=[one, two])
    changed = {**one, "where": "dense_2 > 0.5", "row_key": "request_id"}
    b = place.write("b.yaml", source=None, sources=[{**two, "weight": 3}, changed], mix={"stop": "all"})
    specs = [load_spec(path).for_source("a") for path in (a, b)]
    assert {each["key"]: each["decides"] for each in describe_keys(specs[0], specs[1])} == {
        "sources.a.where": "plan",
        "sources.a.row_key": "run",
        "sources.b.weight": "plan",
        "order of sources": "plan",
        "mix.stop": "plan",
    }
    assert decides("sources.a.table") == "snapshot"
