"""`feedline plan --against` tells two plans apart: their numbers, features and fingerprints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pipelines import Place
from processes import ended_here


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Place:
    return Place(tmp_path, clicks)


def compared(here: Path, there: Path, *options: Any) -> dict[str, Any]:
    done = ended_here("plan", here, "--against", there, *options, "--json")
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def same(facts: dict[str, Any]) -> dict[str, bool]:
    return {name: each["same"] for name, each in facts["fingerprints"].items()}


def test_a_plan_against_itself_is_the_same(place: Place):
    path = place.write()
    facts = compared(path, path)
    assert same(facts) == {"snapshot": True, "plan": True, "features": True}
    assert all(old == new for old, new in facts["numbers"].values())


def test_another_batch_size_has_other_steps_and_the_same_features(place: Place):
    path = place.write()
    facts = compared(path, path, "--set", "batch.size=512")
    assert same(facts) == {"snapshot": True, "plan": False, "features": True}
    old, new = facts["numbers"]["steps"]
    assert old == pytest.approx(2 * new, abs=1)
    assert facts["numbers"]["rows per rank and step"] == [256, 512]


def test_features_are_named_by_what_became_of_them(place: Place):
    there = place.write("there.yaml", features={"dense": {"dense_0": [], "dense_1": [], "dense_2": []}})
    here = place.write(features={"dense": {"dense_1": [], "dense_0": ["log1p"], "new": {"expr": "dense_3"}}})
    facts = compared(here, there)
    features = {name: facts["features"][name] for name in ("removed", "added", "changed", "same", "reordered")}
    assert features == {"removed": ["dense_2"], "added": ["new"], "changed": ["dense_0"], "same": 1, "reordered": True}
    assert same(facts) == {"snapshot": True, "plan": True, "features": False}
    text = ended_here("plan", here, "--against", there).stdout
    assert "what a row becomes differs" in text


def test_it_excludes_saving(place: Place):
    done = ended_here("plan", place.write(), "--save", "--against", place.write())
    assert done.returncode == 2
    assert "Leave out one" in " ".join(done.stderr.split())
