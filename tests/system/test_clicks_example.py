"""Does the click example learn the same with groups as without, from a model that computes what it says?"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from example_programs import example_programs
from processes import ended_here

from feedline import Pipeline

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "clicks"
STEPS, BATCH = 5, 80


@pytest.fixture(scope="module")
def train() -> Iterator[ModuleType]:
    """The example's train.py; it imports dlrm.py, which lies beside it."""
    with example_programs(EXAMPLE, threads=1) as programs:  # of tiny steps: threads would wait for each other
        yield programs["train"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with small embedding tables, over a table made by the README's commands."""
    folder = tmp_path_factory.mktemp("clicks")
    for command in commands(folder):
        done = ended_here(*command)
        assert done.returncode == 0, done.stderr
    text = re.sub(r"hash_bucket: \d+", "hash_bucket: 300", (EXAMPLE / "pipeline.yaml").read_text())
    (folder / "pipeline.yaml").write_text(text.replace("../../warehouse/clicks", "warehouse/clicks"))
    return folder


def commands(folder: Path) -> Iterator[list[str]]:
    """The README's `feedline generate` and `feedline optimize`, for few rows in this folder."""
    text = (EXAMPLE / "README.md").read_text().replace("\\\n", " ")
    for line in re.findall(r"^    feedline (.*)$", text, re.MULTILINE):
        words = shlex.split(line.partition("  #")[0])
        if words[0] in ("generate", "optimize"):
            words = [str(folder / word) if word.startswith("warehouse/") else word for word in words]
            yield [re.sub(r"^\d{5,}$", str(3 * STEPS // 2 * BATCH), word) for word in words]


def batches(folder: Path, overrides: dict[str, object]) -> Iterator[torch.Tensor]:
    pipeline = Pipeline.from_yaml(folder / "pipeline.yaml", {"batch.size": BATCH, **overrides})
    return islice(pipeline.batches(), STEPS)


def test_the_losses_are_those_without_deduplication(train: ModuleType, folder: Path):
    """In float64, to 1e-6, over steps that change the model; each unique row stands for several rows."""
    curves, factors = [], {}
    for overrides in ({}, train.PLAIN):
        torch.manual_seed(0)
        counted = train.Factors()
        stream = counted.count(batches(folder, overrides))
        first = next(stream)
        trainer = train.Trainer(train.Dlrm(first.schema, attention=train.ATTENTION).double())
        curves.append([trainer.step(first), *trainer.losses(stream)])
        factors.update(counted.of_groups())
    assert len(curves[0]) == STEPS
    np.testing.assert_allclose(curves[0], curves[1], rtol=0, atol=train.TOLERANCE)
    assert np.std(curves[0]) > 1e-3, "nothing was learnt"
    assert list(factors) == ["user"]
    assert factors["user"] > 3
    stored = [pq.read_schema(path).names for path in (folder / "warehouse" / "clicks").rglob("*.parquet")]
    assert ["__run_user" in names for names in stored] == [True] * len(stored), "the table is not stored once per run"


def test_the_model_computes_what_it_says(train: ModuleType, folder: Path):
    """Row by row in plain torch, from the lists of the row: sums, attention and a mean, products of pairs."""
    batch = next(batches(folder, {}))
    plain = batch.expanded()
    torch.manual_seed(0)
    model = train.Dlrm(batch.schema, attention=train.ATTENTION).double()
    with torch.no_grad():
        found = model(batch)
        for row in range(0, BATCH, 13):
            vectors = [model.bottom(torch.stack([plain[f"dense_{index}"][row] for index in range(13)]).double())]
            vectors += [model.ids[f"id_{index}"].weight[plain[f"id_{index}"][row]] for index in range(26)]
            for index in range(6):
                feature = plain.sparse[f"hist_{index}"]
                ids = feature.values[feature.offsets[row] : feature.offsets[row + 1]]
                name = f"hist_{index}"
                if name in train.ATTENTION:
                    layer = torch.nn.TransformerEncoderLayer(64, 2, 64, 0.0, batch_first=True).double()
                    layer.load_state_dict(model.encoders[name].layers[0].state_dict())
                    vectors.append(layer(model.items[name].weight[ids][None])[0].mean(0))
                else:
                    vectors.append(model.bags[name].weight[ids].sum(0))
            products = [torch.dot(vectors[one], vectors[other]) for one in range(33) for other in range(one)]
            logit = model.top(torch.cat([vectors[0], torch.stack(products)]))
            assert found[row].item() == pytest.approx(logit.item(), abs=1e-9)


def test_two_ranks_train_together_the_same(train: ModuleType, folder: Path):
    """Under torchrun: a rank's batches hold as many unique rows as they do, and the losses of both ways are equal."""
    options = ["--pipeline", folder / "pipeline.yaml", "--set", f"batch.size={BATCH}", "--set", "lanes=2", "--steps", 6]
    results = []
    for way in ([], ["--plain"]):
        target = folder / f"ranks-{len(way)}.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += [EXAMPLE / "train.py", *options, "--dtype", "float64", "--json", target, *way]
        run = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=150, check=False)
        assert run.returncode == 0, run.stderr
        results.append(json.loads(target.read_text()))
    np.testing.assert_allclose(results[0]["losses"], results[1]["losses"], rtol=0, atol=train.TOLERANCE)
    assert results[0]["factors"]["user"] > 3


def test_the_script_compares_both(train: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]):
    options = ["--pipeline", str(folder / "pipeline.yaml"), "--set", f"batch.size={BATCH}", "--steps", "15"]
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        train.main([*options, "--compare", "--json", str(folder / "results.json")])
    finally:
        torch.use_deterministic_algorithms(deterministic)
    assert "15 losses, the largest difference is " in capsys.readouterr().out
