"""Runs of several sources: through feeders, rings and clusters, with deaths and resumes, and by receipts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from mixed_tables import mixed_pipeline, write_tables
from pipelines import Place, furnished, image, oracle
from receipts import audit_receipts, receipt_of

from feedline import FeedlineDataset, Pipeline


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = write_tables(tmp_path_factory.mktemp("m"))
    with furnished(folder, folder / "clicks") as place:
        yield place


def feedline(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "feedline", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def write(place: Place, name: str, **changes: Any) -> Path:
    path = place.folder / name
    path.write_text(json.dumps(mixed_pipeline(place.folder, lanes=2, **{"cluster": {"threads": 2}, **changes})))
    return path


CLUSTERS = {"threads": {"threads": 2}, "processes": {"workers": 2, "dashboard": False, "cpu": "native"}}


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_feeders_deliver_what_is_planned(place: Place, cluster: dict[str, Any]):
    path = write(place, "p.yaml", stop="all", cluster=cluster)
    with FeedlineDataset(path) as dataset:
        assert [each["name"] for each in dataset.facts["sources"]] == ["clicks", "views"]
        for epoch in range(2):
            seen = [image(batch) for batch in dataset]
            assert len(seen) == len(dataset) == 112
            assert seen == oracle(path, epoch=epoch)
        assert dataset.quality["price"]["rows"] >= 2 * 112 * 20


def test_a_feeder_dies_and_the_stream_goes_on(place: Place):
    path = write(place, "killed.yaml", stop=60)  # the second epoch begins in the middle of passes
    with FeedlineDataset(path) as dataset:
        for epoch in range(2):
            seen = []
            for batch in dataset:
                seen.append(image(batch))
                if batch.step in (17, 53):
                    dataset._feed._connection._feeder._process.kill()
            assert seen == oracle(path, epoch=epoch)
        assert dataset.stats().feeders > 1


def test_states_resume_on_other_world_sizes_in_the_middle_of_a_pass(place: Place):
    path = write(place, "resumed.yaml", stop="all")
    with FeedlineDataset(path) as dataset:
        dataset.set_epoch(1)
        held = list(islice(dataset, 70))
        state = dataset.state_dict(after=held[-1])
        del held
    for rank in range(2):
        with FeedlineDataset(path, rank=rank, world_size=2) as dataset:
            dataset.load_state_dict(state)
            rest = [image(batch) for batch in dataset]
        assert rest == oracle(path, epoch=1, rank=rank, world_size=2, step=70)


def test_receipts_of_a_mix_are_as_planned(place: Place):
    path = write(place, "receipts.yaml", stop="all")
    with FeedlineDataset(path) as dataset:
        receipts = [receipt_of(dataset, batch) for batch in dataset]
    pipeline = Pipeline.from_yaml(path)
    audit = audit_receipts(pipeline, receipts)
    assert (audit.equal, audit.batches, audit.rows) == (True, 112, 112 * 20)
    receipts[3] = {**receipts[3], "digest": receipts[4]["digest"]}
    audit = audit_receipts(pipeline, receipts[:60] + receipts[61:])
    assert (len(audit.differences), len(audit.missing)) == (1, 1)


def test_run_reports_the_passes_of_each_source(place: Place):
    path = write(place, "run.yaml", stop=100)
    ended = feedline("run", path, "--sink", "null", "--json")
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert (summary["steps"], summary["rows"]) == (100, 100 * 20)
    assert [round(each["passes"], 3) for each in summary["sources"]] == [round(100 / 112, 3)] * 2
    assert "source clicks: 8 of 10 rows of a lane's step, 1,800 rows, 0.893 passes per epoch" in ended.stderr
