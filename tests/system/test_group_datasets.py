"""Datasets of column groups, in processes of their own on one host, hold aligned steps of one plan."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from pipelines import PATIENCE_S, Place, furnished, image
from processes import ended_here, feedline, free_port, running
from receipts import audit_receipts, receipt_of

from feedline import FeedlineDataset, Pipeline
from feedline.errors import SpecError
from feedline.loader.batch import Batch
from feedline.planning.resolve import plan_column_group

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "column_groups"
TOWER, SERVER = ["dense", "label", "request_id"], ["categorical", "sparse"]
FEATURES = {
    "dense": {"dense_0": [{"fill_null": 0}, "standardize"], "dense_1": [{"fill_null": 0}, "log1p"]},
    "categorical": {"id_0": [{"modulo": 1000}], "str_0": [{"vocabulary": {"min_count": 3}}]},
    "sparse": {"hist_0": [], "hist_1": [{"first_x": 3}]},
    "label": {"clicked": []},
    "extra": {"request_id": []},
}


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    shutil.copytree(clicks, tmp_path / "clicks")
    with furnished(tmp_path, tmp_path / "clicks") as place:
        yield place


def images(batches: Any) -> list[bytes]:
    return [image(batch) for batch in batches]


def test_two_groups_at_once_hold_aligned_steps_and_each_resumes_from_the_others_state(place: Place):
    """They start together: one of them fits, both use what it fitted, on the snapshot that either took."""
    path = place.write(features=FEATURES, fit="auto", batch={"size": 512, "tail": "pad"})
    with FeedlineDataset(path, features=TOWER) as tower, FeedlineDataset(path, features=SERVER) as server:
        with ThreadPoolExecutor(2) as pool:
            facts = list(pool.map(lambda dataset: dataset.facts, (tower, server), timeout=PATIENCE_S))
        names = ("snapshot", "plan", "features", "steps", "rows", "lanes")
        assert [facts[0][name] for name in names] == [facts[1][name] for name in names]
        assert facts[0]["feeder"] != facts[1]["feeder"]
        assert facts[0]["column_group"] != facts[1]["column_group"]
        assert [column.name for column in tower.schema] == ["dense_0", "dense_1", "clicked", "request_id"]
        plan = Pipeline.from_yaml(path).plan_for(tower.state_dict())
        wanted = [images(Pipeline.from_yaml(path).batches(plan=plan, features=names)) for names in (TOWER, SERVER)]
        receipts, state = [], {}
        for step, (left, right) in enumerate(zip(tower, server, strict=True)):
            assert [image(left), image(right)] == [each[step] for each in wanted]
            receipts += [receipt_of(tower, left), receipt_of(server, right)]
            if step == 9:
                state = server.state_dict()
                assert tower.state_dict() == state
                grow(place)  # a new start would see it
        assert list(tower.quality) == ["dense_0", "dense_1", "clicked", "request_id"]
        audit = audit_receipts(Pipeline.from_yaml(path), receipts)
        assert (audit.equal, audit.batches, audit.again) == (True, 2 * len(wanted[0]), [])
        for dataset, group in ((tower, wanted[0]), (server, wanted[1])):
            dataset.load_state_dict(state)
            assert images(dataset) == group[10:]
    with FeedlineDataset(path, features=["hist_1"]) as third:
        third.load_state_dict(state)
        resumed = Pipeline.from_yaml(path).batches(step=10, plan=plan, features=["hist_1"])
        assert images(third) == images(resumed)


def grow(place: Place) -> None:
    files = sorted(place.table.rglob("*.parquet"))
    shutil.copy(files[-1], files[-1].with_name(f"landed-{len(files)}.parquet"))


def test_groups_that_start_one_after_the_other_share_a_snapshot_and_a_host_feeder_serves_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    """Two ranks of each group; the table grows between the starts."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    path = place.write(batch={"size": 512, "tail": "drop"})
    with ExitStack() as stack:
        datasets: dict[tuple[str, int], FeedlineDataset] = {}
        for name in ("dense", "sparse"):
            for rank in range(2):
                dataset = FeedlineDataset(path, features=[name], rank=rank, world_size=2)
                datasets[name, rank] = stack.enter_context(dataset)
                assert dataset.facts["rows"]
            grow(place)
        facts = {key: dataset.facts for key, dataset in datasets.items()}
        assert len({(each["snapshot"], each["plan"]) for each in facts.values()}) == 1
        assert facts["dense", 0]["feeder"] == facts["dense", 1]["feeder"]
        assert facts["sparse", 0]["feeder"] == facts["sparse", 1]["feeder"]
        assert facts["dense", 0]["feeder"] != facts["sparse", 0]["feeder"]
        plan = Pipeline.from_yaml(path).plan_for(datasets["dense", 0].state_dict())
        for (name, rank), dataset in datasets.items():
            batch = next(iter(dataset))
            expected = Pipeline.from_yaml(path).batches(0, rank, 2, plan=plan, features=[name])
            assert image(batch) == image(next(expected))


def test_a_run_serves_the_trainers_of_its_group_and_no_others(place: Place):
    path = place.write(cluster={"threads": 1})
    with feedline("run", path, "--features", "dense", "--features", "label") as run:
        run.line("waiting for a trainer")
        with FeedlineDataset(path, features=["sparse"]) as other:
            assert other.facts["rows"]
            assert not other._feed.attached
        with FeedlineDataset(path, features=["label", "dense"]) as dataset:
            assert dataset.facts["rows"]
            assert dataset._feed.attached
            assert images(dataset) == images(Pipeline.from_yaml(path).batches(features=["dense", "label"]))
        assert run.wait() == 0


def test_a_drained_group_reads_its_columns(place: Place):
    path = place.write(shuffle="off", source={"where": "dense_2 > 0.1"})
    with feedline("run", path, "--sink", "null", "--json", "--features", "dense") as run:
        assert run.wait() == 0, run.text
    summary, whole = json.loads(run.text.splitlines()[-1]), Pipeline.from_yaml(path).plan()
    assert (summary["plan"], summary["steps"]) == (whole.fingerprint, whole.schedule(0).steps)
    assert summary["bytes_read"] == int(plan_column_group(whole, ["dense"]).source.row_group_bytes.sum())
    assert summary["bytes_read"] < 0.5 * int(whole.source.row_group_bytes.sum())
    assert list(summary["quality"]) == ["dense_0", "dense_1"]
    refused = ended_here("run", path, "--features", "dens")
    assert refused.returncode == 2
    assert "unknown feature or group: got 'dens', expected one of" in refused.stderr


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["dense", "hist_9"], r"p\.yaml:\d+:\d+: features: unknown feature or group: got 'hist_9', expected one of .*"),
        ([], r"features must not be empty: got no name"),
        ("dense", r"features must be a list of names: got 'dense'"),
    ],
)
def test_bad_names_are_refused_before_a_feeder_starts(place: Place, names: Any, message: str):
    with pytest.raises(SpecError, match=message):
        FeedlineDataset(place.write(), features=names)


# -- the example --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("column_groups_train", EXAMPLE / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def losses_of_one_process(example: ModuleType, path: Path) -> list[float]:
    """The same training by a process that reads all features."""
    pipeline = Pipeline.from_yaml(path)
    torch.manual_seed(0)
    embeddings = example.Embeddings(pipeline.schema)
    torch.manual_seed(0)  # as each process of the example does
    tower = example.Tower(sum(column.group == "dense" for column in pipeline.schema), embeddings.width)
    optimizer = torch.optim.SGD([*embeddings.parameters(), *tower.parameters()], lr=0.1)

    def loss_of(batch: Batch) -> float:
        loss = tower(batch, embeddings(batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return [loss_of(batch) for batch in pipeline.batches()]


@pytest.mark.nightly
def test_the_example_learns_what_one_process_learns(place: Place, example: ModuleType, monkeypatch: pytest.MonkeyPatch):
    """Ranks of one gloo job that read different groups; a step that is not aligned would give other losses."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(place.folder / "i"))  # torch's own, made by an optimizer's step
    text = (EXAMPLE / "pipeline.yaml").read_text().replace("../../warehouse/split", str(place.table))
    path = place.folder / "example.yaml"
    path.write_text(re.sub(r"hash_bucket: \d+", "hash_bucket: 300", text).replace("size: 4096", "size: 1024"))
    world = {
        "TORCHINDUCTOR_CACHE_DIR": str(place.folder / "i"),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    with ExitStack() as stack:
        start = partial(running, sys.executable, EXAMPLE / "train.py", path)
        ranks = [stack.enter_context(start(env={**os.environ, **world, "RANK": str(rank)})) for rank in range(2)]
        for program in ranks:
            assert program.wait(100) == 0, program.text
        text = ranks[0].text
    steps = dict(re.findall(r"^step (\d+): loss ([\d.]+)$", text, re.MULTILINE))
    rows = sum(pq.read_metadata(file).num_rows for file in place.table.rglob("*.parquet"))
    assert len(steps) == -(-rows // 1024)
    expected = losses_of_one_process(example, path)
    assert [float(steps[str(step)]) for step in range(len(steps))] == pytest.approx(expected, abs=2e-6)
    assert expected[-1] < expected[0]
