"""A pipeline that is a Python dict means what the same pipeline.yaml does."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipelines import PATIENCE_S, Place, furnished

from feedline import FeedlineDataset, Pipeline
from feedline.errors import SpecError
from feedline.loader.ring.rendezvous import job_fingerprint
from feedline.loader.state import state_of


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    shutil.copytree(clicks, tmp_path / "clicks")
    with furnished(tmp_path, tmp_path / "clicks") as place:
        yield place


def content_of(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_equal_contents_are_equal_pipelines(place: Place, monkeypatch: pytest.MonkeyPatch):
    """Paths in the dict are relative to the current folder, and values may be those of Python."""
    path = place.write(source={"table": "clicks"}, work_dir="work")
    content = content_of(path)
    before = copy.deepcopy(content)
    monkeypatch.chdir(place.folder)
    content["batch"]["size"] = np.int64(content["batch"]["size"])
    content["source"]["table"] = Path("clicks")
    overrides = {"batch.tail": "pad", "shuffle.seed": 7}
    one, other = Pipeline.from_dict(content, overrides), Pipeline.from_yaml(path, overrides)
    assert one.spec.canonical() == other.spec.canonical()
    assert job_fingerprint(one.spec) == job_fingerprint(other.spec)
    plans = one.plan(), other.plan()
    assert plans[0].fingerprint == plans[1].fingerprint
    assert plans[0].features_fingerprint == plans[1].features_fingerprint
    content["batch"]["size"], content["source"]["table"] = before["batch"]["size"], "clicks"
    assert content == before, "the dict is not changed"


def test_a_dataset_of_a_dict_continues_the_state_of_the_file(place: Place, monkeypatch: pytest.MonkeyPatch):
    path = place.write(source={"table": "clicks"}, work_dir="work", batch={"size": 2000})
    content = content_of(path)
    monkeypatch.chdir(place.folder)
    pipeline = Pipeline.from_yaml(path)
    plan = pipeline.complete_plan()
    state = state_of(plan.facts(), 0, 1)
    wanted = [batch.to_dict()["request_id"] for batch in pipeline.batches(step=1, plan=plan)]
    with FeedlineDataset(content, timeout=PATIENCE_S) as dataset:
        content["batch"]["size"] = 1  # what is done to the dict afterwards changes nothing
        monkeypatch.chdir("/")
        dataset.load_state_dict(state)
        found = [batch.to_dict()["request_id"] for batch in dataset]
    assert np.concatenate(found).tolist() == np.concatenate(wanted).tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": {"size": 0}}, "pipeline: batch.size: "),
        ({"features": {"dense": {"price": "log1p"}}}, "pipeline: features.dense.price: must be a list of ops"),
        ({"tail": "pad"}, "pipeline: tail: unknown key"),
        ({"source": {"table": object()}}, "pipeline: not a value of a pipeline: got object"),
        ({"batch": {1: 2}}, "pipeline: key is not a name: got 1"),
    ],
)
def test_errors_name_the_path(place: Place, change: dict[str, Any], message: str):
    content = {**content_of(place.write()), **change}
    with pytest.raises(SpecError, match=re.escape(message)):
        Pipeline.from_dict(content).plan()
    with pytest.raises(SpecError, match=re.escape(message)):
        FeedlineDataset(content)
