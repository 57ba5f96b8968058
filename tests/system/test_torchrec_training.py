"""torchrec's pipelines over two ranks learn what an unsharded model learns, over epochs and a resume in mid-epoch."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fences import FENCE
from pipelines import Place, furnished
from processes import ended_here

from feedline import FeedlineDataset, Pipeline, SparseFeatures
from feedline.errors import SpecError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "torchrec"
EPOCHS, LIMIT_S = 3, 200.0
KINDS = {"base": "plain", "sparse": "plain", "deduplicated": "groups"}
STEPS_OF_GROUPS = 14
FEATURES = {
    "dense": {"price": [{"fill_null": 0}]},
    "categorical": {"item": [{"modulo": 40}]},
    "sparse": {"history": [{"modulo": 30}], "tags": [{"modulo": 20}]},
    "label": {"clicked": []},
}
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("torchrec") is None, reason="torchrec is not installed"),
]


@pytest.fixture(scope="module")
def train() -> ModuleType:
    """The example's program."""
    spec = importlib.util.spec_from_file_location("torchrec_train", EXAMPLE / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchrec's own
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Sessions of one to seven rows, whose history is that of their first row; some lists are empty."""
    table, rng = tmp_path_factory.mktemp("table"), np.random.default_rng(4)
    session = np.repeat(np.arange(100), rng.integers(1, 8, 100))
    rows = len(session)
    histories = [rng.integers(0, 1000, rng.integers(0, 5)).tolist() for _ in range(100)]
    (table / "ds=1").mkdir()
    data = {
        "session": session,
        "history": [histories[each] for each in session],
        "tags": [rng.integers(0, 1000, rng.integers(0, 4)).tolist() for _ in range(rows)],
        "item": rng.integers(0, 1000, rows),
        "price": rng.random(rows),
        "clicked": rng.integers(0, 2, rows),
    }
    pq.write_table(pa.table(data), table / "ds=1" / "0.parquet", row_group_size=100)
    with furnished(tmp_path_factory.mktemp("place"), table) as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(place.folder / "i"))  # torch's own, made by torchrec's import
        yield place


@pytest.fixture(scope="module")
def pipelines(place: Place) -> dict[str, Path]:
    common = {"features": FEATURES, "lanes": 2, "batch": {"size": 20}, "shuffle": {"by": "session", "seed": 1}}
    groups = {"dedup": {"user": {"columns": ["history"]}}}
    return {
        name: place.write(f"{name}.yaml", name=name, **common, **more)
        for name, more in (("plain", {}), ("groups", groups))
    }


@pytest.fixture(scope="module")
def folder(place: Place, pipelines: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two ranks have written what each kind of training did."""
    folder = tmp_path_factory.mktemp("outcome")
    trainings = [f"{kind}={pipelines[name]}" for kind, name in KINDS.items()]
    torchrun(folder, ROOT / "tests" / "system" / "torchrec_training.py", folder, *trainings)
    return folder


def torchrun(folder: Path, *words: object) -> None:
    """Run a program on two ranks, with a folder for temporary files in this one: torchrun leaves logs there."""
    (folder / "temporary").mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder / "temporary"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += map(str, words)
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment)
    assert run.returncode == 0, run.stderr[-5000:]


def reference(train: ModuleType, path: Path, initial: Path) -> dict[tuple[int, int], list[float]]:
    """The loss of each rank's batch in each step, of an unsharded model that learns from the batches of both."""
    losses: dict[tuple[int, int], list[float]] = {}
    pipeline, model, optimizer = Pipeline.from_yaml(path), None, None
    for epoch in range(EPOCHS):
        for pair in zip(*(pipeline.batches(epoch, rank, 2) for rank in range(2)), strict=True):
            rows = [batch.expanded() for batch in pair]
            if model is None:
                model = train.Dlrm(pair[0].schema, torch.device("cpu"))
                load(model, initial)
                optimizer = torch.optim.SGD(model.parameters(), lr=train.RATE)
            of_ranks = [model(batch)[0] for batch in rows]
            optimizer.zero_grad()
            (sum(of_ranks) / 2).backward()
            optimizer.step()
            losses[epoch, pair[0].step] = [loss.item() for loss in of_ranks]
    return losses


def load(model: torch.nn.Module, checkpoint: Path) -> None:
    state: dict[str, Any] = {"model": model.state_dict()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no process group
        torch.distributed.checkpoint.load(state, checkpoint_id=checkpoint)
    model.load_state_dict(state["model"])


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_an_unsharded_model(kind: str, train: ModuleType, pipelines: dict[str, Path], folder: Path):
    """Step by step: so no batch is lost, repeated or overwritten while the pipeline holds three of them."""
    outcomes = [json.loads((folder / f"{kind}-{rank}.json").read_text()) for rank in range(2)]
    wanted = reference(train, pipelines[KINDS[kind]], folder / f"{kind}-initial")
    if kind == "deduplicated":
        wanted = dict(islice(wanted.items(), STEPS_OF_GROUPS))
    for rank, outcome in enumerate(outcomes):
        assert [(epoch, step) for epoch, step, _ in outcome["steps"]] == list(wanted)
        losses = [loss for *_, loss in outcome["steps"]]
        np.testing.assert_allclose(losses, [each[rank] for each in wanted.values()], rtol=1e-5)
        assert np.std(losses) > 1e-3, "nothing was learnt"
        assert outcome["modules"] == ([] if kind == "base" else ["ShardedEmbeddingBagCollection"])
        assert outcome["warnings"] == []


def test_the_program_of_the_docs_trains(place: Place, train: ModuleType, monkeypatch: pytest.MonkeyPatch):
    """Over three epochs, as TrainPipelineBase does only where it is reset; and its choice of features is taken."""
    features = {**FEATURES, "dense": {"price": [{"fill_null": 0}], "half": {"expr": "price / 2"}}}
    place.write("pipeline.yaml", features=features, batch={"size": 40}, shuffle={"by": "session", "seed": 1})
    page = (ROOT / "docs" / "torchrec.md").read_text(encoding="utf-8")
    fences = [match[2] for match in FENCE.finditer(page) if match[1].startswith("python fragment")]
    [program] = [fence for fence in fences if "TrainPipelineBase" in fence]
    [choice] = [fence for fence in fences if "SparseFeatures(" in fence]
    monkeypatch.chdir(place.folder)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(program, "torchrec.md", "exec"), names)
    assert (names["state"]["epoch"], names["state"]["step"]) == (3, 0)
    assert names["batch"].epoch == 2
    exec(compile(choice, "torchrec.md", "exec"), names)
    with names["dataset"] as dataset:
        features = next(iter(dataset)).sparse_features
        assert (features.keys(), features.values().dtype) == (["history", "item"], torch.int32)
    dataset = FeedlineDataset("pipeline.yaml", sparse_features=SparseFeatures(features=["price"]))
    with dataset, pytest.raises(SpecError, match=r"must hold ids: got 'price', expected some of history, tags, item"):
        iter(dataset)


def test_the_example_resumes(tmp_path: Path, train: ModuleType):
    text = (EXAMPLE / "README.md").read_text()
    [generate] = re.findall(r"^    feedline (generate .*)$", text, re.MULTILINE)
    words = [str(tmp_path / word) if word.startswith("warehouse/") else word for word in generate.split()]
    done = ended_here(*[re.sub(r"^\d{5,}$", "1000", word) for word in words])
    assert done.returncode == 0, done.stderr
    options = [f"source.table={tmp_path}/warehouse/clicks", f"work_dir={tmp_path}/work", "batch.size=50"]
    words = [EXAMPLE / "train.py", "--checkpoint", tmp_path / "checkpoint", "--json", tmp_path]
    words += [word for option in options for word in ("--set", option)]
    steps = []
    for more in (["--steps", "14"], []):
        torchrun(tmp_path, *words, *more)
        steps += json.loads((tmp_path / "0.json").read_text())
    assert [(epoch, step) for epoch, step, _ in steps] == [(epoch, step) for epoch in range(3) for step in range(10)]
